"""Probabilities of options: against plain forwards without a cache, brute force over spellings, and draws of the engine."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Chat, continuous, generate, models, policies, samplers
from outlines_cont.errors import ContextLengthError, DeadEnd, InvalidLogits, OptionError
from outlines_cont.generation.probabilities import Probabilities
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import EOS, FakeTokenizer, random_model, random_network, recurrent_network, scripted_model
from tests.oracle import Logs, plain_logs

PROMPT = "the name is>"
OPTIONS = ["yes", "yes, the red", "no", "not at all", "green"]


@cache
def _tiny() -> HuggingFaceModel:
    return models.tiny(dtype="float64", prefix_cache_bytes=0)


def _spellings(tokens: Sequence[bytes | None], text: bytes) -> Iterator[tuple[int, ...]]:
    if not text:
        yield ()
    for token_id, data in enumerate(tokens):
        if data and text.startswith(data):
            for rest in _spellings(tokens, text[len(data) :]):
                yield (token_id, *rest)


def _product(logs: Logs, before: tuple[int, ...], spelling: Sequence[int], ends: Sequence[int] = ()) -> float:
    total = 0.0
    for token_id in spelling:
        total += float(logs(before)[token_id])
        before = (*before, token_id)
    return math.exp(total + float(logs(before)[list(ends)].logsumexp(0))) if ends else math.exp(total)


def _enumerated(logs: Logs, before: tuple[int, ...], options: Sequence[str], *, is_free: bool = False) -> dict[str, float]:
    """The law of a constrained draw without forced text, by the definition: renormalise over what some option allows.

    If it is free, a token that leaves all options after an option ends there.
    """
    tokens, law = FakeTokenizer().token_bytes, dict.fromkeys(options, 0.0)

    def follow(written: bytes, token_ids: tuple[int, ...], chance: float) -> None:
        rest = [option.encode()[len(written) :] for option in options if option.encode().startswith(written)]
        allowed = [i for i, data in enumerate(tokens) if data and any(text.startswith(data) for text in rest)]
        ends = {EOS: b""} if b"" in rest else {}
        for token_id, data in enumerate(tokens) if is_free else ():
            found = [text for text in rest if data and data.startswith(text)]
            if found and token_id not in allowed:
                ends[token_id] = max(found, key=len)
        probs = logs(token_ids)[[*allowed, *ends]].softmax(0).tolist()
        for token_id, prob in zip([*allowed, *ends], probs, strict=True):
            if token_id in ends:
                law[(written + ends[token_id]).decode()] += chance * prob
            else:
                follow(written + (tokens[token_id] or b""), (*token_ids, token_id), chance * prob)

    follow(b"", before, 1.0)
    return law


def _prompt_ids(model: HuggingFaceModel, prompt: str) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(prompt, add_special_tokens=True))


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("prompt", ["Message: Two lamps, please.\nKind:", "Message: Where is my invoice?\nKind: "])
def test_shares_are_the_products_of_conditional_probabilities(prompt: str, end: bool) -> None:
    model, options = _tiny(), ["order", "invoice", "complaint", "order of lamps"]
    found = generate.choice(model, options).probabilities(prompt, end=end)
    before = _prompt_ids(model, prompt)
    for option in options:
        spelling = model.tokenizer.encode_inside(option, before)
        expected = _product(plain_logs(model), before, spelling, sorted(model.eos_token_ids) if end else ())
        assert expected == pytest.approx(found.shares[option], rel=1e-5, abs=0)
    assert sum(found.values()) == pytest.approx(1)


@settings(max_examples=examples(5), deadline=None, derandomize=True)
@given(
    options=st.lists(st.one_of(st.text("abc", min_size=1, max_size=4), st.sampled_from(OPTIONS[:3])), min_size=1, max_size=4, unique=True),
    end=st.booleans(),
    is_free=st.booleans(),
)
def test_laws_are_those_of_enumeration(options: list[str], end: bool, is_free: bool) -> None:
    model = random_model()
    logs, before = plain_logs(model), _prompt_ids(model, PROMPT)
    choose = generate.choice(model, options, exact=False, force=False, end="free" if is_free else "eos")
    found = choose.probabilities(PROMPT, spellings="all", end=end)
    assert _enumerated(logs, before, options, is_free=is_free) == pytest.approx(dict(found), rel=1e-6)
    tokens = model.tokenizer.token_bytes
    for option in options:
        products = [_product(logs, before, ids, [EOS] if end else ()) for ids in _spellings(tokens, option.encode())]
        assert len(products) >= 1
        assert sum(products) == pytest.approx(found.shares[option], rel=1e-6, abs=0)


def _chi_squared(counts: Counter[str], law: Mapping[str, float]) -> float:
    """Chi-squared of counts, divided by its critical value at one in ten thousand."""
    num_draws = sum(counts.values())
    expected = {option: num_draws * chance for option, chance in law.items()}
    assert min(expected.values()) >= 5
    critical = {2: 18.42, 4: 23.51}[len(law) - 1]
    return sum((counts[option] - mean) ** 2 / mean for option, mean in expected.items()) / critical


@pytest.mark.parametrize("num_draws", [1_000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_draws_have_these_probabilities(num_draws: int) -> None:
    choose = generate.choice(random_model(), OPTIONS, exact=False, end="eos", sampler=samplers.multinomial(num_draws))
    assert _chi_squared(Counter(choose(PROMPT, rng=3)), choose.probabilities(PROMPT)) < 1


@pytest.mark.parametrize("num_draws", [1_000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_draws_after_forced_text_have_these_probabilities(num_draws: int) -> None:
    model, options = random_model(), ["the red", "the green", "the no"]
    laws = [generate.choice(model, options, exact=False, force=force).probabilities("12>") for force in (True, False)]
    draws = generate.choice(model, options, exact=False, sampler=samplers.multinomial(num_draws))("12>", rng=3)
    forced, sampled = (_chi_squared(Counter(draws), law) for law in laws)
    assert forced < 1 < sampled  # that `the ` is forced, not sampled, counts


def test_a_small_store_of_keys_and_values_changes_nothing() -> None:
    network, options = random_network("llama"), [a + b for a in "abcd" for b in "xyz"]
    small = models.from_transformers(network, FakeTokenizer(), prefix_cache_bytes=0, kv_budget_bytes=30_000)
    prompts = [PROMPT * 4, PROMPT * 4 + "a"]
    with small.meter() as counts:
        found = generate.choice(small, options).probabilities(prompts)
    assert counts.recomputed_tokens > 0  # there was no room for both rows
    expected = generate.choice(random_model(), options).probabilities(prompts)
    for one, other in zip(found, expected, strict=True):
        assert dict(other) == pytest.approx(dict(one), rel=1e-9)


def test_nothing_is_fed_twice() -> None:
    model, options = random_model(), ["no", "not", "green"]
    num_prompt = len(_prompt_ids(model, PROMPT))
    with model.meter() as counts:
        one = generate.choice(model, options).probabilities(PROMPT)
    # The prompt; `n`, whose texts are `no` and `not`, and `no`, after which both are possible; nothing after `green`.
    assert num_prompt < counts.fed_tokens <= num_prompt + 4
    assert counts.recomputed_tokens == 0
    assert counts.forwards <= 3
    state = continuous(generate.text(model))(PROMPT, max_tokens=1).tokens[:, :, :num_prompt]
    assert state.cached.tolist() == [[num_prompt]]
    with model.meter() as again:
        assert dict(one) == pytest.approx(dict(generate.choice(model, options).probabilities(state)), abs=1e-12)
    assert again.fed_tokens <= counts.fed_tokens - num_prompt + 1  # the last token, whose logits are not kept


def test_there_are_no_more_forwards_than_tokens_of_an_option() -> None:
    model = random_model()
    choose = generate.choice(model, OPTIONS)
    with model.meter() as counts:
        choose.probabilities([PROMPT, "12>", "a>"])
    assert counts.forwards <= max(len(model.tokenizer.encode(option)) for option in OPTIONS) == 5


def test_more_prefixes_than_one_forward_takes_change_nothing() -> None:
    model = random_model()
    options = [a + b + c for a in "abcdefgh" for b in "xyzw" for c in "12"]
    found = generate.choice(model, options, exact=False, end="eos", force=False).probabilities(PROMPT, spellings="all")
    assert _enumerated(plain_logs(model), _prompt_ids(model, PROMPT), options) == pytest.approx(dict(found), rel=1e-6)


def test_the_shape_is_that_of_the_values() -> None:
    model = random_model()
    choose = generate.choice(model, ["yes", "no"])
    alone = [choose.probabilities(prompt) for prompt in (PROMPT, "red>")]
    together = choose.probabilities([PROMPT, "red>"])
    for one, other in zip(alone, together, strict=True):
        assert dict(one) == pytest.approx(dict(other), abs=1e-12)
    states = continuous(generate.text(model, sampler=samplers.multinomial(2)))([PROMPT, "red>"], max_tokens=2, rng=1)
    grid = choose.probabilities(states)
    assert [len(group) for group in grid] == [2, 2]
    assert dict(choose.probabilities(str(states[1, 1, :]))) == pytest.approx(dict(grid[1][1]), abs=1e-9)


def test_a_chat_has_probabilities_of_its_next_reply() -> None:
    model = models.tiny()
    choose = generate.choice(model, ["order", "question"])
    chat = Chat(model).user("Two lamps, please.")
    by_messages = choose.probabilities(list(chat.messages))
    assert dict(choose.probabilities(chat.state)) == pytest.approx(dict(by_messages), rel=1e-3)


def test_a_recurrent_model_has_them_too() -> None:
    model = models.from_transformers(recurrent_network(), FakeTokenizer())
    options = ["ab", "abc", "ba"]
    found = generate.choice(model, options, exact=False, end="eos", force=False).probabilities(PROMPT)
    assert _enumerated(plain_logs(model), _prompt_ids(model, PROMPT), options) == pytest.approx(dict(found), rel=1e-6)


def test_they_are_a_mapping_that_does_not_change() -> None:
    found = Probabilities(("yes", "no"), (math.log(0.75), math.log(0.25)), (math.log(0.5), -math.inf))
    assert (list(found), len(found), "no" in found, "maybe" in found) == (["yes", "no"], 2, True, False)
    assert (found.best, found["yes"], found.shares) == ("yes", pytest.approx(0.75), {"yes": 0.5, "no": 0.0})
    assert repr(found) == "Probabilities('yes': 0.75 (share 0.5), 'no': 0.25 (share 0))"
    assert found == dict(found) == copy.deepcopy(found) == pickle.loads(pickle.dumps(found))  # noqa: S301
    with pytest.raises(AttributeError):
        found.options = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        found["yes"] = 1.0  # type: ignore[index]


def test_a_single_option_is_certain() -> None:
    model = random_model()
    choose = generate.choice(model, ["not at all"])
    found = choose.probabilities(PROMPT)
    assert found["not at all"] == 1
    assert 0 < found.shares["not at all"] < 1
    begun = continuous(generate.text(model))(PROMPT, max_tokens=1).tokens[..., :-1]
    state = replace(begun, rows=(tuple(model.prefilled(begun.rows[0])),))  # its logits are known
    with model.meter() as counts:
        assert choose.probabilities(state).log_shares == pytest.approx(found.log_shares)
    assert counts.recomputed_tokens == 0
    assert counts.fed_tokens == len(model.tokenizer.encode("not at all")) - 1


def test_what_has_no_probabilities_is_refused() -> None:
    model = random_model()
    with pytest.raises(OptionError, match=r"generator of `generate.choice`.*Write `generate.choice\(model"):
        generate.regex(model, "a|b").probabilities(PROMPT)
    with pytest.raises(OptionError, match="'a' 2 times.*Pass each once"):
        generate.choice(model, ["a", "b", "a"]).probabilities(PROMPT)
    with pytest.raises(OptionError, match="got ''.*'none'"):
        generate.choice(model, ["a", ""]).probabilities(PROMPT)
    with pytest.raises(OptionError, match="without `policies`"):
        generate.choice(model, ["a", "b"], policies=[policies.ban(["a"])]).probabilities(PROMPT)
    choose = generate.choice(model, ["abcabcabc", "green"])
    with pytest.raises(OptionError, match="'canonical' or 'all'"):
        choose.probabilities(PROMPT, spellings="some")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"at most 20 prefixes.*spellings='canonical'.*raise `max_prefixes`"):
        choose.probabilities(PROMPT, spellings="all", max_prefixes=20)
    choose.probabilities(PROMPT, max_prefixes=20)
    with pytest.raises(ContextLengthError, match="prompt and option of fewer than 256"):
        choose.probabilities("a>" * 127)
    with pytest.raises(ContextLengthError, match="batch 1"):
        choose.probabilities([PROMPT, "a>" * 127])


def test_logits_that_define_no_distribution_are_errors() -> None:
    options = ["a", "b"]
    none = dict.fromkeys(FakeTokenizer().encode("ab") + FakeTokenizer().encode("a") + FakeTokenizer().encode("b"), -math.inf)
    with pytest.raises(DeadEnd, match="probability zero for each"):
        generate.choice(scripted_model(lambda ids: none), options).probabilities(PROMPT)
    with pytest.raises(InvalidLogits, match="finite logits"):
        generate.choice(scripted_model(lambda ids: {7: math.nan}), options).probabilities(PROMPT)
