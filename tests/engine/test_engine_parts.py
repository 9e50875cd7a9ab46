"""Inner laws of the engine's parts, each beside a plain form: masks on logits, logits that are kept, negative sequences, drafts."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_cont import TokenSet, generate
from outlines_cont.drafts.lookup import _FORGET, _MOST_KEYS, SIZES, CopyHabits, CopyTrail, NgramIndex
from outlines_cont.engine.drawing import kept_logits, masking
from outlines_cont.engine.drawing.kept_logits import KeptLogits, LargestLogits
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.policies.constraint import _most_probable
from tests.fakes import saying, scripted_model

VOCAB_SIZE = 2_000
IDS = st.lists(st.integers(0, VOCAB_SIZE + 40), max_size=12)
MASKS = st.one_of(
    IDS.map(TokenSet.of),
    IDS.map(lambda ids: ~TokenSet.of(ids)),
    IDS.map(lambda ids: TokenSet.of(range(3, VOCAB_SIZE, 2)) & ~TokenSet.of(ids)),
    st.just(TokenSet.all),
    st.just(TokenSet.none),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_small", [True, False])
@given(masks=st.lists(MASKS, min_size=1, max_size=4), is_repeated=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_masked_logits_are_those_of_the_tokens_in_the_mask(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_small: bool, masks: list[TokenSet], is_repeated: bool
) -> None:
    monkeypatch.setattr(masking, "_SMALL", VOCAB_SIZE if is_small else 0)
    masks = [masks[0]] * len(masks) if is_repeated else masks
    logits = torch.randn((len(masks), VOCAB_SIZE), dtype=dtype, generator=torch.Generator().manual_seed(1))
    before, masker = logits.clone(), Masker()
    for _ in range(3):  # the second time something is remembered, which the third uses
        found = masker.masked(logits, masks)
        for row, mask in enumerate(masks):
            kept = torch.tensor([token_id in mask for token_id in range(VOCAB_SIZE)])
            assert torch.equal(found[row][kept], before[row][kept])
            assert bool(torch.isneginf(found[row][~kept]).all())
    assert torch.equal(logits, before)


LOGITS_VOCAB_SIZE = 50
MOVES = st.lists(st.tuples(st.sampled_from(["put", "back", "fork"]), st.integers(0, 6)), max_size=30)


def line(seed: int) -> torch.Tensor:
    return torch.randn(LOGITS_VOCAB_SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(MOVES, st.integers(0, 5), st.integers(0, 6), st.sets(st.integers(0, LOGITS_VOCAB_SIZE - 1), min_size=1, max_size=9))
def test_what_is_known_of_a_place_is_what_was_put_there(
    moves: list[tuple[str, int]], num_places: int, num_whole: int, allowed: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_logits, "NUM_LARGEST", 10)
        kept = KeptLogits(num_places, num_whole * LOGITS_VOCAB_SIZE * 8)
        wanted: dict[int, torch.Tensor] = {}
        at = 0
        for number, (move, count) in enumerate(moves):
            if move == "put":
                at += 1
                batch = torch.stack([line(number), line(-1 - number)])
                wanted[at] = line(number)
                kept.put(at, batch[0])
                batch[:] = 0  # whose logits they were a part of goes on
            elif move == "back":
                at = max(at - count, 0)
                kept.forget_after(at)
                wanted = {index: logits for index, logits in wanted.items() if index <= at}
            else:
                kept, other = kept.fork(), kept
                other.forget_after(0)
        mask = TokenSet.of(allowed)
        for index in range(at + 3):
            whole, exact = kept.whole(index), kept.for_mask(index, mask)
            if index not in wanted or index < at - num_places:
                assert whole is None or index in wanted
                continue
            if whole is not None:
                assert torch.equal(whole, wanted[index])
            if exact is not None:
                ids = sorted(allowed)
                assert torch.equal(exact[ids], wanted[index][ids])
                assert torch.allclose(exact.logsumexp(0), wanted[index].logsumexp(0))
        assert sum(tensor.nbytes for tensor in kept.tensors) <= num_whole * LOGITS_VOCAB_SIZE * 8


def test_the_newest_are_whole_as_far_as_the_budget_reaches_and_older_ones_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logits, "NUM_LARGEST", 10)
    kept = KeptLogits(9, 3 * LOGITS_VOCAB_SIZE * 8)
    for index in range(1, 8):
        kept.put(index, line(index))
    assert [None if kept.whole(i) is None else i for i in range(9)] == [None] * 7 + [7, None]
    largest = [int(line(i).argmax()) for i in range(9)]
    reduced = [i for i in range(9) if kept.for_mask(i, TokenSet.of([largest[i]])) is not None]
    assert reduced == [2, 3, 4, 5, 6, 7]
    for index in reduced:
        exact = kept.for_mask(index, TokenSet.of([largest[index]]))
        assert exact is not None
        assert torch.allclose(exact.logsumexp(0), line(index).logsumexp(0))
    smallest = int(line(reduced[0]).argmin())
    assert kept.for_mask(reduced[0], TokenSet.of([smallest])) is None
    assert kept.for_mask(reduced[0], TokenSet.all) is None


def test_a_small_vocabulary_is_known_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = line(1)
    reduced = LargestLogits.of(logits)
    found = reduced.for_mask(TokenSet.of(range(LOGITS_VOCAB_SIZE)))
    assert found is not None
    assert torch.equal(found, logits)


# Probabilities with which a token was drawn; 1 is that of one without a choice.
DRAWN = st.fractions(Fraction(1, 50), Fraction(1), max_denominator=50)


@given(st.lists(st.tuples(DRAWN, st.integers(1, 3)), min_size=1, max_size=7))
def test_the_place_is_that_of_the_largest_product(drawn: list[tuple[Fraction, int]]) -> None:
    places, index = list[int](), 4
    for _, gap in drawn:
        places.append(index := index + gap)
    known = {place: math.log(probability) for place, (probability, _) in zip(places, drawn, strict=True)}
    row: Any = SimpleNamespace(sampling_logprob=lambda index: known[index])
    products, before = list[Fraction](), Fraction(1)
    for probability, _ in drawn:
        products.append(before * (1 - probability))
        before *= probability
    found = products[places.index(_most_probable(places, row))]
    assert found >= max(products) * (1 - Fraction(1, 10**9))
    if max(products) == 0:
        assert _most_probable(places, row) == places[0]


def test_a_log_probability_that_is_a_little_too_large_is_one() -> None:
    row: Any = SimpleNamespace(sampling_logprob=lambda index: 1e-9)
    assert _most_probable([3, 5], row) == 3


QUOTE, COMMA, A, B = 1, 2, 3, 4
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 9} for name in ("name", "city", "item")},
    "required": ["name", "city", "item"],
    "additionalProperties": False,
}


def test_what_comes_twice_instead_of_a_token_is_expected_and_no_longer_when_the_token_is_copied() -> None:
    habits = CopyHabits()
    habits.note(A, COMMA, QUOTE)
    assert habits.instead(A, COMMA) is None
    habits.note(A, COMMA, QUOTE)
    assert habits.instead(A, COMMA) == QUOTE
    assert habits.instead(B, COMMA) == QUOTE  # after any token
    assert habits.closing() == [QUOTE]
    for _ in range(2):
        habits.note(B, COMMA, COMMA)
    assert habits.instead(B, COMMA) is None  # after that token it is copied
    assert habits.instead(A, COMMA) == QUOTE
    assert habits.instead(COMMA, COMMA) is None  # one case in two is not enough where the token before is new


def test_what_came_long_ago_is_forgotten_and_memory_is_bounded() -> None:
    habits = CopyHabits()
    for _ in range(_FORGET):
        habits.note(A, COMMA, QUOTE)
    for _ in range(_FORGET):
        habits.note(A, COMMA, COMMA)
    assert habits.instead(A, COMMA) is None
    for token_id in range(_MOST_KEYS):
        habits.note(token_id, token_id + 1, 0)
    assert len(habits._ends) == _MOST_KEYS
    assert habits.instead(A, COMMA) is None


def test_a_trail_follows_a_copy_to_its_end() -> None:
    habits, trail = CopyHabits(), CopyTrail()
    prompt = [9, A, B, COMMA, A]
    for _ in range(2):
        trail.begin(5, 1)
        trail.follow([*prompt, A], habits)
        assert (trail.at, trail.source, trail.stopped) == (6, 2, trail.stopped)
        trail.follow([*prompt, A, B, QUOTE, 7, 8], habits)
        assert (trail.at, trail.stopped) == (None, 3)
    assert habits.instead(B, COMMA) == QUOTE
    assert habits.instead(9, A) is None


def test_a_trail_that_is_cut_is_left() -> None:
    trail = CopyTrail()
    trail.begin(5, 1)
    trail.cut(5)
    assert trail.at == 5
    trail.cut(4)
    assert trail.at is None


def test_records_after_the_first_take_fewer_forwards() -> None:
    names = [("Ana", "Porto", "lamps"), ("Bea", "Lyon", "forks"), ("Cyd", "Oslo", "desks"), ("Dov", "Rome", "chairs")]
    texts = {n: f'{{"name":"{n}","city":"{c}","item":"{i}"}}' for n, c, i in names}

    def script(ids: list[int]) -> dict[int, float]:
        written = model.tokenizer.text_bytes(ids).decode(errors="replace")
        return saying(texts.get(written.partition(",")[0], ""))(ids)

    model = scripted_model(script)
    write = generate.json(model, SCHEMA, whitespace="none", draft="lookup")
    forwards = []
    for name, city, item in names * 2:
        with model.meter() as meter:
            assert write(f"{name}, {city}, {item}!>") == {"name": name, "city": city, "item": item}
        forwards.append(meter.forwards)
    assert max(forwards[4:]) < forwards[0]
    assert 2 * min(forwards[4:]) <= forwards[0]


_STEPS = st.lists(st.one_of(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 8)), min_size=1, max_size=8)


@given(_STEPS)
def test_an_index_finds_what_a_search_finds(steps: list[list[int] | int]) -> None:
    """Steps append tokens, or cut some off."""
    row: list[int] = []
    index = NgramIndex()
    for step in steps:
        if isinstance(step, int):
            row = row[: len(row) - step] if step <= len(row) else []
            index.cut(len(row))
        else:
            row = row + step
        index.follow(row)
        for size in SIZES:
            places = [i for i in range(size, len(row)) if row[i - size : i] == row[len(row) - size :] and len(row) >= size]
            assert (places[-1] if places else None) == index.find(row, size)
            if places:
                assert index.is_only(places[-1], size) == (len(places) == 1)
