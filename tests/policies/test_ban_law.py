"""The law of a text with bans: exactly what drawing from the model gives where what is refused is drawn again."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from outlines_cont import policies
from tests.bare_loop import Choices, ToyModel, law_of, outcome_of, run_row, text_of
from tests.examples import examples
from tests.policies.test_ban_scan import folded

TOKENS = [b"a", b"b", b"ab", b"ba", b"A"]
# Tokens that cut a character, so that its bytes may also be followed by others, and are no text then.
SPLIT = [b"a", b"b", b"\xc3", b"\xa9a", b"\xc3a"]
MAX_TOKENS = 3
Law = dict[str, float]


def toy(weights: list[list[float]], tokens: list[bytes] = TOKENS) -> ToyModel:
    """A model whose law depends on the length of the text, and ends it at the latest after three bytes."""

    def law(text: bytes) -> dict[bytes, float]:
        line = weights[len(text) % len(weights)]
        total = sum(line)
        return {token: weight / total for token, weight in zip([b"", *tokens], line, strict=True)}

    return ToyModel(tokens, law)


def plain(model: ToyModel, factors: dict[str, float], temperature: float, choices: Choices) -> str:
    """What a ban does, in its plain form: the whole text is searched after every token, and everything is remembered by hand."""
    tokens: list[bytes] = []
    excluded: list[set[bytes]] = [set()]
    avoided: list[set[bytes]] = [set()]
    decided: dict[tuple[str, bytes, int, int], bool] = {}
    while len(tokens) < MAX_TOKENS:
        law = {t: p for t, p in model.law(b"".join(tokens)).items() if p > 0 and t not in excluded[len(tokens)]}
        law = {t: p for t, p in law.items() if t not in avoided[len(tokens)]} or law
        if not law:
            if not tokens:
                return "BanImpossible"
            last = tokens.pop()
            excluded, avoided = excluded[: len(tokens) + 1], avoided[: len(tokens) + 1]
            excluded[len(tokens)].add(last)
            continue
        weights = [p ** (1 / temperature) for p in law.values()]
        token = [*law][choices.choose([weight / sum(weights) for weight in weights])]
        if token == b"":
            break
        before = len(folded(b"".join(tokens))[0])
        tokens.append(token)
        excluded.append(set())
        avoided.append(set())
        text, starts = folded(b"".join(tokens))
        found = [
            (phrase, start)
            for start in range(len(text))
            for phrase in sorted(factors)
            if text.startswith(phrase, start) and start + len(phrase) > before
        ]
        refused = []
        for phrase, start in found:
            index = next(i for i in range(len(tokens)) if len(b"".join(tokens[: i + 1])) > starts[start])
            place = phrase, b"".join(tokens[:index]), starts[start], start - starts.index(starts[start])
            if place not in decided:
                decided[place] = factors[phrase] < 1 and choices.choose([factors[phrase], 1 - factors[phrase]]) == 1
            if decided[place]:
                refused.append(index)
        if refused:
            last = len(tokens) - 1
            index = next((i for i in range(min(refused), last) if tokens[i] not in avoided[i] | excluded[i]), last)
            (excluded if index == last else avoided)[index].add(tokens[index])
            tokens, excluded, avoided = tokens[:index], excluded[: index + 1], avoided[: index + 1]
    return b"".join(tokens).decode(errors="replace")


def same(first: Law, second: Law) -> bool:
    return all(math.isclose(first.get(text, 0.0), second.get(text, 0.0), abs_tol=1e-9) for text in {*first, *second})


@st.composite
def lines(draw: st.DrawFn) -> list[float]:
    """Weights of the end and of two tokens; more of them take too many orders of refusals to be enumerated."""
    line = [draw(st.sampled_from([0.0, 1.0, 2.0])), *[0.0] * len(TOKENS)]
    for index in draw(st.permutations(range(len(TOKENS))))[:2]:
        line[1 + index] = draw(st.sampled_from([1.0, 2.0, 5.0]))
    return line


PHRASES = st.text("ab", min_size=1, max_size=3)


@settings(max_examples=examples(12))
@given(
    st.lists(lines(), min_size=1, max_size=3),
    st.dictionaries(PHRASES, st.sampled_from([0.0, 0.0, 0.5, 0.1]), min_size=1, max_size=2),
    st.sampled_from([1.0, 0.5, 2.0]),
    st.sampled_from([TOKENS, SPLIT]),
)
@example([[0.0, 1, 0, 0, 1, 0], [0.0, 1, 1, 0, 0, 0], [0.0, 1, 0, 1, 0, 0]], {"a": 0.5}, 1.0, SPLIT)
def test_what_is_written_has_the_law_of_the_plain_loop(
    weights: list[list[float]], factors: dict[str, float], temperature: float, tokens: list[bytes]
) -> None:
    model = toy(weights, tokens)
    ban = policies.ban(factors, max_retries=None, max_retries_per_place=None)
    expected = law_of(lambda choices: plain(model, factors, temperature, choices), limit=250)
    assume(expected)
    asked = {number: rule.factor for number, rule in enumerate(ban.rules)}

    ours = law_of(
        lambda choices: outcome_of(model, [ban], choices, lambda key: asked[key[1]], max_tokens=MAX_TOKENS, temperature=temperature)
    )

    assert same(expected, ours)
    assert math.isclose(sum(ours.values()), 1.0)
    free = law_of(lambda choices: outcome_of(model, [], choices, lambda key: 0.0, max_tokens=MAX_TOKENS))
    if any(not any(phrase in text.casefold() for phrase in factors) for text in free):
        assert "BanImpossible" not in ours  # what can be written is found
    for text in ours:
        assert not any(phrase in text.casefold() for phrase, factor in factors.items() if factor == 0) or text == "BanImpossible"


@pytest.mark.parametrize(("factor", "temperature"), [(0.5, 0.5), (0.1, 2.0)])
def test_a_phrase_keeps_its_factor_of_its_probability(factor: float, temperature: float) -> None:
    def law(text: bytes) -> dict[bytes, float]:
        if not text:
            return {b"a": 0.5, b"ab": 0.2, b"b": 0.3}  # two ways to begin
        return {b"b": 0.6, b"a": 0.4} if text == b"a" else {b"": 1.0}

    model, ban = ToyModel(TOKENS, law), policies.ban({"ab": factor})
    exact = law_of(lambda choices: outcome_of(model, [], choices, lambda key: 0.0, temperature=temperature))
    banned = law_of(lambda choices: outcome_of(model, [ban], choices, lambda key: factor, temperature=temperature))
    assert math.isclose(banned["ab"], factor * exact["ab"])


def test_rows_of_the_engine_draw_the_same_law() -> None:
    def law(text: bytes) -> dict[bytes, float]:
        return {b"a": 0.5, b"ab": 0.2, b"b": 0.3} if not text else {b"b": 0.6, b"": 0.4}

    model = ToyModel(TOKENS, law)
    ban = policies.ban({"ab": 0.5, "bb": 0.0})
    factors = dict(enumerate(rule.factor for rule in ban.rules))
    exact = law_of(lambda choices: outcome_of(model, [ban], choices, lambda key: factors[key[1]], max_tokens=3))

    count = 250
    drawn = Counter(text_of(run_row(model, [ban], seed, max_tokens=3), model) for seed in range(count))

    assert set(drawn) <= set(exact)
    for text, p in exact.items():
        assert abs(drawn[text] - count * p) < 4 * math.sqrt(count * p * (1 - p)) + 1e-9
