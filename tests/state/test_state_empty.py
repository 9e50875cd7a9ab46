"""States with an empty axis: everything gives the empty result, or an error that says what can be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from outlines_cont import SequenceState, continuous, generate, kv_bytes, samplers
from outlines_cont.errors import EmptyPrompt, OptionError, ResumeError, SampleMismatch
from tests.fakes import random_model

_SHAPES = {"no sample": (2, 0, 0), "no batch entry": (0, 0, 0)}


def _state(rng: Any = 1) -> SequenceState:
    return continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))(["a", "b"], max_tokens=2, rng=rng)


def _empty(kind: str, rng: Any = 1) -> SequenceState:
    return _state(rng)[:, 0:0, :] if kind == "no sample" else _state(rng)[0:0, ...]


@pytest.mark.parametrize("kind", _SHAPES)
def test_what_an_empty_state_says_of_itself_is_empty(kind: str) -> None:
    state, shape = _empty(kind), _SHAPES[kind]
    batch, samples, _ = shape
    assert state.shape == shape
    for name in ("token_ids", "attention_mask", "logprobs", "sampling_logprobs"):
        assert tuple(getattr(state, name).shape) == shape
    for name in ("weights", "cached", "retries", "finished"):
        assert tuple(getattr(state, name).shape) == (batch, samples)
    assert tuple(state.logits.shape) == (batch, samples, random_model().vocab_size)
    for name in ("finish_reasons", "values", "value", "errors", "spans"):
        assert getattr(state, name) == [[]] * batch
    assert (len(state), list(state), str(state), bool(state), state.kv_cache) == (0, [], "", False, None)
    assert f"{batch} x {samples} rows" in repr(state)
    assert "<div>" not in state._repr_html_()
    assert state.nbytes == kv_bytes([state]) == 0


@pytest.mark.parametrize("kind", _SHAPES)
def test_operations_on_an_empty_state_give_one(kind: str, tmp_path: Path) -> None:
    state, shape = _empty(kind, rng=[3, 4]), _SHAPES[kind]
    state.save(tmp_path / "s")
    loaded = SequenceState.load(tmp_path / "s", random_model())
    assert (loaded, loaded.seed) == (state, state.seed)
    results = [
        state.fork(3), state.best(), state.best(2), state.sort(), state[...], state[..., 1:3], state.tokens[..., 2:],
        state.crop((..., slice(2))), state + "x", state.append([]), "x" + state, state + state, state.append("x"),
        state.append("x", boundary="heal"), state.detach_cache(), state.to("cpu"), sum([state, state]),
    ]  # fmt: skip
    assert [result.shape for result in results] == [shape] * len(results)
    assert SequenceState.stack([state, state]).shape == (2 * shape[0], 0, 0)
    assert state.take([]).shape == (0, 0, 0)
    assert state != _state()


@pytest.mark.parametrize("kind", _SHAPES)
@pytest.mark.parametrize(
    "sampler",
    [samplers.greedy(), samplers.multinomial(2), samplers.beam_search(2), samplers.best_of(2)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_generator_takes_an_empty_state(kind: str, sampler: Any) -> None:
    state, shape = _empty(kind), _SHAPES[kind]
    makers = [
        generate.text(random_model(), sampler=sampler), generate.choice(random_model(), ["yes", "no"], sampler=sampler)
    ]  # fmt: skip
    for maker in makers:
        for rng in (None, 7, [1] * shape[0]):
            assert continuous(maker)(state, max_tokens=2, rng=rng).shape == shape
        assert maker(state, max_tokens=2) == ([[], []] if shape[0] else [])
        assert continuous(maker).resume(state).shape == shape
        assert continuous(maker)([state, state], max_tokens=2).shape == (2 * shape[0], 0, 0)
        if not isinstance(sampler, samplers.BeamSearch | samplers.BestOf):
            assert list(maker.stream(state, max_tokens=2)) == []


def test_a_state_without_batch_entries_adds_nothing_to_others() -> None:
    state, empty = _state(), _empty("no batch entry")
    assert SequenceState.stack([empty, state, empty]) == state
    write = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))
    assert write([empty, state], max_tokens=2) == write(state, max_tokens=2)


def test_errors_of_empty_states_can_be_followed() -> None:
    state, empty = _state(), _empty("no sample")
    for wrong in (
        lambda: SequenceState.stack([state, empty]),
        lambda: continuous(generate.text(random_model()))([state, empty], max_tokens=1),
    ):
        with pytest.raises(SampleMismatch, match="without samples"):
            wrong()
    with pytest.raises(IndexError, match="expected a slice on the sample axis, which is empty"):
        empty[0, 0, :]
    with pytest.raises(IndexError, match="expected a slice for the row at"):
        state[..., 0:0].tokens[..., 1:].tokens[..., 3]
    with pytest.raises(OptionError, match="1 or more"):
        empty.best(0)


def test_a_row_of_no_characters_is_a_row() -> None:
    model = random_model("gpt2")
    write = generate.text(model)
    state = continuous(write)("the name", max_tokens=2)
    none = state.tokens[0:0]
    assert none.shape == (1, 1, 0)
    assert (none + state, state + none, none + none) == (state, state, none)
    assert torch.isnan(none.logits).all()
    assert isinstance(continuous(write)(none, max_tokens=1).errors[0][0], EmptyPrompt)
    with pytest.raises(EmptyPrompt, match="Add some text to it"):
        write(none, max_tokens=1)
    with pytest.raises(ResumeError):
        continuous(write).resume(none)
    assert continuous(write)(none + "a", max_tokens=1).errors == [[None]]
    assert str(state[0:0]) == ""
