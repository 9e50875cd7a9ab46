"""Laws of the engine: what a plain loop without cache would write, at the price of feeding each token once; widths and meters."""

from __future__ import annotations

import random
import warnings
from dataclasses import astuple, fields

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.engine.drafting.chunk_width import FREE_TOKENS, OTHER_FREE_TOKENS, chunk_width
from outlines_cont.meter import MeterBoard
from outlines_cont.models import HuggingFaceModel, Meter
from tests.examples import examples
from tests.fakes import FAMILIES, random_model
from tests.oracle import assert_close, forced_ids, greedy_ids

_FEW = settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SOME = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])

_PROMPTS = st.text("abc the name yes,é🙂\n", min_size=1, max_size=24)
_OPTIONS = st.lists(st.text("abcyesno é🙂🙃", min_size=1, max_size=7), min_size=1, max_size=4, unique=True)
_FAMILY = st.sampled_from(FAMILIES)


def _ids(model: HuggingFaceModel, prompt: str) -> list[int]:
    return model.tokenizer.encode(prompt, add_special_tokens=True)


def _rows(state: SequenceState) -> list[tuple[int, ...]]:
    return [row.token_ids for group in state.rows for row in group]


@_FEW
@given(_FAMILY, st.lists(_PROMPTS, min_size=1, max_size=4), st.integers(1, 12))
def test_free_text_is_that_of_a_plain_loop_and_feeds_each_token_once(family: str, prompts: list[str], max_tokens: int) -> None:
    model = random_model(family)
    with model.meter() as meter:
        state = continuous(generate.text(model))(prompts, max_tokens=max_tokens)
    wanted = [_ids(model, prompt) + greedy_ids(model, _ids(model, prompt), max_tokens) for prompt in prompts]
    assert wanted == [list(ids) for ids in _rows(state)]
    # The last token of a row that was cut is fed later; one that ended was fed to know that it ends.
    pending = sum(reasons == ["length"] for reasons in state.finish_reasons)
    assert sum(map(len, wanted)) - pending == meter.fed_tokens
    assert meter.recomputed_tokens == 0


@_FEW
@given(_FAMILY, _PROMPTS, _OPTIONS)
def test_a_choice_without_forcing_is_greedy_over_the_tokens_that_some_option_allows(family: str, prompt: str, options: list[str]) -> None:
    model = random_model(family)
    accepted = [option.encode() for option in options]
    state = continuous(generate.choice(model, options, exact=False, end="eos", force=False))(prompt)
    wanted = greedy_ids(
        model,
        _ids(model, prompt),
        50,
        can_begin=lambda text: any(option.startswith(text) for option in accepted),
        is_whole=lambda text: text in accepted,
    )
    assert _ids(model, prompt) + wanted == list(_rows(state)[0])
    assert state.value in options


@settings(max_examples=examples(100), deadline=None)
@given(_OPTIONS, st.data())
def test_forced_tokens_follow_their_law(options: list[str], data: st.DataObject) -> None:
    model = random_model()
    constraint = generate.choice(model, options, end="eos").constraint
    assert constraint is not None
    accepted = [option.encode() for option in options]
    ids: list[int] = []
    state = constraint.token_fsm.initial_state
    while True:
        text = model.tokenizer.text_bytes(ids)
        assert forced_ids(model, accepted, text, ids) == constraint.forced_tokens(state, ids)
        allowed = sorted(set(constraint.token_fsm.allowed_token_ids(state).tolist()) - model.eos_token_ids)
        if not allowed:
            break
        ids.append(data.draw(st.sampled_from(allowed)))
        state = constraint.token_fsm.next_state(state, ids[-1])


@_FEW
@given(_FAMILY, _PROMPTS, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_tokens_whole_or_in_parts(family: str, prompt: str, parts: list[int], seed: int) -> None:
    model = random_model(family)
    write = continuous(generate.text(model, sampler=samplers.multinomial(top_k=30, temperature=2.0)))
    with model.meter() as whole_meter:
        whole = write(prompt, max_tokens=sum(parts), rng=seed)
    with model.meter() as meter:
        state = write(prompt, max_tokens=parts[0], rng=seed)
        for part in parts[1:]:
            state = write.resume(state, max_tokens=part)
    assert _rows(whole) == _rows(state)
    assert whole == state
    assert torch.allclose(whole.sampling_logprobs, state.sampling_logprobs, rtol=0, atol=0, equal_nan=True)
    assert (whole_meter.fed_tokens, whole_meter.sampled_tokens) == (meter.fed_tokens, meter.sampled_tokens)


@_FEW
@given(_FAMILY, _PROMPTS, _OPTIONS, st.text("abc é🙂", max_size=6))
def test_a_chain_feeds_nothing_twice_and_older_states_stay_valid(family: str, prompt: str, options: list[str], added: str) -> None:
    model = random_model(family)
    pick, write = continuous(generate.choice(model, options, exact=False, end="eos")), continuous(generate.text(model))
    first = pick(prompt)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in first.kv_cache.layers] if first.kv_cache else []
    with model.meter() as meter:
        second = write(first + added, max_tokens=3)
        third = pick(second)
    cached = int(first.cached.sum())
    assert int(third.cached.sum()) - cached == meter.fed_tokens
    assert meter.recomputed_tokens == 0
    assert _rows(write(first + added, max_tokens=3)) == _rows(second)
    before_it = first.rows[0][0].token_ids
    fresh = greedy_ids(model, [*before_it, *model.tokenizer.encode_inside(added, before_it)], 3)
    assert fresh == list(_rows(second)[0][-len(fresh) :] if fresh else [])
    if first.kv_cache:
        for (keys, values), layer in zip(before, first.kv_cache.layers, strict=True):
            assert keys.equal(layer.keys)
            assert values.equal(layer.values)


@_FEW
@given(_FAMILY, st.lists(_PROMPTS, min_size=1, max_size=3), st.integers(1, 6))
def test_the_cache_of_a_state_goes_on_in_plain_transformers(family: str, prompts: list[str], max_tokens: int) -> None:
    model = random_model(family)
    state = continuous(generate.text(model))(prompts, max_tokens=max_tokens)
    cache = state.kv_cache
    ids, mask = state.token_ids.flatten(0, 1), state.attention_mask.flatten(0, 1).long()
    missing = [int((~state.attention_mask[b, 0]).sum()) for b in range(len(prompts))]
    if cache is None:
        assert state.shape[2] == 1
        return
    length = cache.get_seq_length()
    uncached = (state.attention_mask.sum(-1) - state.cached).max().item()
    assert state.shape[2] - max(1, uncached) == length
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        logits = model.hugging_face(
            input_ids=ids[:, length:], attention_mask=mask, position_ids=positions[:, length:], **{model.cache_argument: cache}
        ).logits
    for row, prompt_ids in enumerate(ids.tolist()):
        with torch.no_grad():
            wanted = model.hugging_face(input_ids=torch.tensor([prompt_ids[missing[row] :]], device=model.device)).logits[0, -1]
        assert_close(wanted, logits[row, -1], 1e-8)


@_SOME
@given(_FAMILY, _PROMPTS, st.lists(st.text("aben t", min_size=1, max_size=4), min_size=1, max_size=3), st.integers(0, 2**32))
def test_stop_texts_cut_exactly_before_the_first_of_them(family: str, prompt: str, stops: list[str], seed: int) -> None:
    model = random_model(family)
    expression = fsm.regex("[abent ]{30}")
    generator = generate.fsm(model, expression, sampler=samplers.multinomial(temperature=3.0))
    uncut = continuous(generator)(prompt, rng=seed)
    with model.meter() as meter:
        cut = continuous(generator)(prompt, rng=seed, stop_at=stops)
    text = uncut.value
    ends = {text.index(stop) + len(stop) for stop in stops if stop in text}
    start = min((min(text.index(s) for s in stops if text.find(s) + len(s) == min(ends) and s in text)) for _ in [0]) if ends else 30
    assert prompt + text[:start] == str(cut)
    again = continuous(generate.text(model))(cut, max_tokens=2)
    ids = list(_rows(cut)[0])
    assert greedy_ids(model, ids, 2) == list(_rows(again)[0][len(ids) :])
    assert int(cut.cached.sum()) <= meter.fed_tokens


def test_no_global_random_state_or_warnings_filter_is_touched() -> None:
    model = random_model()
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    filters = list(warnings.filters)
    state = continuous(generate.text(model, sampler=samplers.multinomial(2)))(["a", "bc"], max_tokens=4)
    generate.choice(model, ["yes", "no"])(state.append("?") if state.num_samples == 1 else "?")
    assert torch_state.equal(torch.get_rng_state())
    assert str(numpy_state) == str(np.random.get_state())
    assert python_state == random.getstate()
    assert filters == warnings.filters


pendings = st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any)


@given(pendings, st.integers(1, 400), st.sampled_from(["cpu", "cuda"]))
def test_no_width_feeds_more_for_its_cost(pending: list[int], max_tokens: int, device: str) -> None:
    width = chunk_width(pending, max_tokens, device)
    assert 1 <= width <= max(max_tokens // len(pending), 1)
    free = FREE_TOKENS.get(device, OTHER_FREE_TOKENS)

    def rate(width: int) -> float:
        return sum(min(count, width) for count in pending) / (free + width * len(pending))

    assert rate(width) >= max(rate(other) for other in range(1, max(max_tokens // len(pending), 1) + 1)) - 1e-12


def test_a_few_tokens_do_not_pad_many_rows() -> None:
    assert chunk_width([1] * 63 + [40], 4096, "cpu") == 1
    assert chunk_width([1] * 63 + [40], 4096, "cuda") == 1
    assert chunk_width([1] * 3 + [40], 4096, "cpu") == 40
    assert chunk_width([1] * 15 + [8], 4096, "cuda") == 8
    assert chunk_width([12] * 16, 4096, "cpu") == 12


_NAMES = [field.name for field in fields(Meter)]


def test_a_new_meter_has_counted_nothing() -> None:
    with random_model().meter() as meter:
        pass
    assert {0} == set(astuple(meter)) == set(astuple(Meter()))


@pytest.mark.parametrize("name", _NAMES)
def test_counts_are_added_and_subtracted_each_for_itself(name: str) -> None:
    board, one = MeterBoard(), Meter(**{name: 3})
    with board.open() as outer:
        board.add(one)
        with board.open() as inner:
            board.add(one)
        board.add(one)
    board.add(one)
    for meter, number in ((outer, 9), (inner, 3), (outer - inner, 6), (one, 3)):
        assert [number if other == name else 0 for other in _NAMES] == list(astuple(meter))
    outer.move(inner)
    assert Meter() == outer
    assert Meter(**{name: 12}) == inner
    with pytest.raises(TypeError):
        outer - 1  # type: ignore[operator]
