"""What Python's own functions and operators make of a state, one with an empty axis among them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from outlines_cont import SequenceState, continuous, generate, kv_bytes, samplers
from outlines_cont.errors import (
    BatchMismatch,
    ContextLengthError,
    EmptyPrompt,
    ModelMismatch,
    OptionError,
    PromptTypeError,
    ResumeError,
    SampleMismatch,
)
from tests.fakes import random_model


def test_states_are_equal_by_model_and_tokens_and_hash_accordingly() -> None:
    write = continuous(generate.text(random_model()))
    state = write("the name", max_tokens=3)
    same = [
        state[: len(str(state))], state.append(""), state + "", state.detach_cache(), state[...], state.tokens[:],
        state.tokens[:4] + state.tokens[4:], write("the name", max_tokens=3, rng=7),
    ]  # fmt: skip
    assert (state + "").weights.item() != state.weights.item()
    for other in same:
        assert other == state
        assert hash(other) == hash(state)
    assert len({state, *same}) == 1
    different = [
        write("the name", max_tokens=2), write(["the name"] * 2, max_tokens=3), state.fork(2), state[1:],
        continuous(generate.text(random_model("gpt2")))("the name", max_tokens=3), state[0:0, :, :], state[:, 0:0, :],
    ]  # fmt: skip
    for other in different:
        assert other != state
    assert len({state, *different}) == 1 + len(different)
    assert state != str(state)
    assert write(["a", "b"], max_tokens=1) != write(["a", "b"], max_tokens=1).take([(1, 0), (0, 0)])


def test_formats_are_those_of_the_text() -> None:
    state = continuous(generate.text(random_model()))("the", max_tokens=1)
    assert f"{state:>20}" == f"{state!s:>20}"
    assert f"{state}" == str(state)
    assert f"{state:.2}" == "th"
    with pytest.raises(ValueError, match="format code"):
        f"{state:d}"


def test_sums_begin_with_nothing() -> None:
    write = continuous(generate.text(random_model()))
    first, second = write("the", max_tokens=1), write(" name", max_tokens=2)
    assert sum([first, second, second]) == first + second + second
    assert sum([first]) is first
    assert sum([second], first) == first + second
    assert sum([" and ", second], first) == first + " and " + second
    for wrong in (lambda: first + 0, lambda: 1 + first, lambda: False + first, lambda: 0.0 + first):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(BatchMismatch):
        sum([first, _state()])


def test_an_ellipsis_stands_for_the_axes_that_are_not_named() -> None:
    state = _state()
    assert state[...] == state[:, :, :] == state
    assert state[0, ...] == state[0, :, :]
    assert state[..., :1] == state[:, :, :1] == state[..., :, :1]
    assert state[1, ..., :1] == state[1, :, :1]
    assert state[1, 0, ...] == state[1, 0, :, ...] == state[1, 0, :]
    assert state.tokens[...] == state
    assert state.crop(...) == state
    assert state[...].weights.equal(state.weights)
    one = state[0, 0, :]
    assert one[...] == one[0, ...] == one
    for key in ((..., ...), (..., 0, ...), (0, 0, 0, 0, ...), (0, 0, 0, 0)):
        with pytest.raises(IndexError, match="expected `state"):
            state[key]


def test_iteration_length_and_truth_agree_and_in_is_refused() -> None:
    state = _state()
    assert list(reversed(state)) == list(state)[::-1]
    assert len(list(state)) == len(state) == 4
    assert bool(state)
    assert not state[0:0, ...]
    with pytest.raises(TypeError, match=r"`x in str\(state\)`.*`x in list\(state\)`"):
        "a" in state  # noqa: B015
    assert state in [state]


def test_texts_and_states_may_be_mixed_in_a_prompt() -> None:
    model = random_model()
    write = continuous(generate.text(model))
    state = write(["the name", "a"], max_tokens=3)
    mixed = write(["of", state, "it"], max_tokens=3)
    alone = [write("of", max_tokens=3), write(state, max_tokens=3), write("it", max_tokens=3)]
    assert mixed == SequenceState.stack(alone)
    assert mixed.shape[:2] == (4, 1)
    with model.meter() as meter:
        write([state, "of"], max_tokens=1)
    assert meter.fed_tokens == 2 + len(write("of", max_tokens=1).rows[0][0].token_ids) - 1
    assert meter.reused_tokens == int(state.cached.sum())


def test_texts_beside_states_have_their_samples_and_streams_of_their_own() -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(3)))
    state = write("the name", max_tokens=2, rng=5)
    mixed = write([state, "of"], max_tokens=4, rng=[8, 9])
    assert mixed == SequenceState.stack([write(state, max_tokens=4, rng=[8]), write("of", max_tokens=4, rng=[9])])
    assert mixed.seed == (8, 9)
    going_on = write([state, "of"], max_tokens=4)
    assert going_on[0, ...] == write(state, max_tokens=4)
    assert going_on.seeds[0] == 5
    assert len(set(going_on[1, ...])) > 1
    greedy = continuous(generate.text(model))([state, "of"], max_tokens=1)
    assert greedy.shape[:2] == (2, 3)
    best = continuous(generate.text(model, sampler=samplers.best_of(2)))([state, "of"], max_tokens=2, rng=1)
    assert best.shape[:2] == (2, 3)
    beams = continuous(generate.text(model, sampler=samplers.beam_search(3)))([state, "of"], max_tokens=2)
    assert beams.shape[:2] == (2, 3)


def test_errors_of_mixed_prompts() -> None:
    model = random_model()
    write = continuous(generate.text(model))
    state = write("the name", max_tokens=2)
    long = write([state, "x" * 300], max_tokens=1)
    assert [type(error) for (error,) in long.errors] == [type(None), ContextLengthError]
    two = continuous(generate.text(model, sampler=samplers.multinomial(2)))
    assert two(["a", state], max_tokens=1).shape[:2] == (2, 2)
    with pytest.raises(SampleMismatch, match="got one with 3"):
        two(["a", state.fork(3)], max_tokens=1)
    with pytest.raises(ModelMismatch):
        continuous(generate.text(random_model("gpt2")))(["a", state], max_tokens=1)
    wrong: Any = ["a", state, 3]
    with pytest.raises(PromptTypeError, match="a list of SequenceState, int, str"):
        write(wrong)


def test_operations_on_rows_that_failed_keep_their_errors() -> None:
    state = continuous(generate.text(random_model()))(["the name", "x" * 300], max_tokens=2)
    for changed in (state[...], state[..., 1:], state[..., :2], state.tokens[..., 1:], state.tokens[..., ::-1], state + "a",
                    "a" + state, state + state, sum([state, state]), state.fork(2), copy.copy(state)):  # fmt: skip
        errors = [error for _, *group in [(0, *changed.errors[1])] for error in group]
        assert all(isinstance(error, ContextLengthError) for error in errors)
        assert set(changed.finish_reasons[1]) == {"error"}
        assert not any(changed.errors[0])
    assert state.weights[1].item() == 0
    mixed = continuous(generate.text(random_model()))(["of", state], max_tokens=1)
    assert [error is None for (error,) in mixed.errors] == [True, True, False]


def test_a_state_leaves_comparison_with_other_types_to_them() -> None:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

    state = continuous(generate.text(random_model()))("a", max_tokens=2)
    assert state == Anything()
    assert (state == 3) is False
    assert (state != 3) is True


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
    assert "<iframe" in state._repr_html_()
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
