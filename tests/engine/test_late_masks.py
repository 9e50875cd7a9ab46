"""Masks that are made while a forward runs: at the same time, the same tokens, and errors that stay with their row."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import fsm
from fsm import BudgetExceeded
from outlines_cont import continuous, engine_of, generate
from outlines_cont.engine.drawing.masking import overlap_mask_computation
from outlines_cont.models import HuggingFaceModel, from_transformers
from outlines_cont.policies.branch import LazyTokenSet, TokenSet
from tests.fakes import FakeTokenizer, random_network

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["name", "age", "tags"],
}  # fmt: skip
PATTERNS = ["[a-z]{3,9}-[0-9]{2,4}", "(ab|cd|[0-9]x){2,6}!", ".{3,12}\\."]


def fresh_model() -> HuggingFaceModel:
    """A model with no masks yet."""
    return from_transformers(random_network("llama"), FakeTokenizer())


def test_a_mask_is_made_while_the_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_model()
    prompt = continuous(generate.text(model))("the name is ", max_tokens=1)  # the model is probed by then
    is_feeding, is_made = threading.Event(), threading.Event()
    seen: list[tuple[bool, bool]] = []
    forward, bitmask = model.forward, fsm.TokenFSM.bitmask

    def slow_forward(*arguments: Any) -> torch.Tensor:
        is_feeding.set()
        was_made = is_made.wait(5)
        is_feeding.clear()
        seen.append((threading.current_thread() is threading.main_thread(), was_made))
        return forward(*arguments)

    def slow_bitmask(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if token_fsm.is_late(state):
            assert is_feeding.wait(5), "the forward waits for the mask"
        words = bitmask(token_fsm, state)
        is_made.set()
        return words

    monkeypatch.setattr(model, "forward", slow_forward)
    monkeypatch.setattr(fsm.TokenFSM, "bitmask", slow_bitmask)
    state = continuous(generate.regex(model, "[a-m]{2}[n-z]{2}"))(prompt, rng=1, max_tokens=1)
    assert seen == [(True, True)]
    assert state.errors == [[None]]


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_those_of_masks_that_are_made_at_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def write(model: HuggingFaceModel) -> list[Any]:
        schema = continuous(generate.json(model, SCHEMA))(["one ", "the two", "and"], rng=seed, max_tokens=40)
        pattern = continuous(generate.regex(model, PATTERNS[seed % 3]))(["x", "yes no"], rng=seed, stop_at="0")
        return [schema.token_ids.tolist(), schema.weights.tolist(), pattern.token_ids.tolist(), pattern.finish_reasons]

    made_late: list[int] = []
    settle = LazyTokenSet.words.fget
    assert settle is not None

    def counted(mask: LazyTokenSet) -> Any:
        made_late.append(id(mask))
        return settle(mask)

    monkeypatch.setattr(LazyTokenSet, "words", property(counted))
    late = write(fresh_model())
    assert made_late
    monkeypatch.setattr(fsm.TokenFSM, "is_late", lambda token_fsm, state: False)
    assert late == write(fresh_model())


def test_an_error_of_a_late_mask_is_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = continuous(generate.regex(fresh_model(), "[a-z]{6}"))("the name ", rng=4)
    model, bitmask = fresh_model(), fsm.TokenFSM.bitmask

    def refusing(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if "0-9" in repr(token_fsm.expression):
            raise BudgetExceeded("no more states", "max_states", 7)
        return bitmask(token_fsm, state)

    monkeypatch.setattr(fsm.TokenFSM, "bitmask", refusing)
    bad = generate.regex(model, "[0-9]{6}")
    good = generate.regex(model, "[a-z]{6}")
    failed = continuous(bad)("the name ", rng=4)
    assert isinstance(failed.errors[0][0], BudgetExceeded)
    assert str(continuous(good)("the name ", rng=4)) == str(alone)


def test_is_late_only_where_something_else_than_the_end_may_follow() -> None:
    vocabulary = fsm.Vocabulary([bytes([b]) for b in range(256)] + [None], [256])
    token_fsm = fsm.TokenFSM(fsm.regex("ab*"), vocabulary)
    start = token_fsm.initial_state
    assert token_fsm.is_late(start)
    token_fsm.bitmask(start)
    assert not token_fsm.is_late(start)
    assert not token_fsm.is_late(token_fsm.next_state(start, ord("a")))  # it may end here
    gappy = fsm.Vocabulary([b"a", b"b", None], [2])
    assert not fsm.TokenFSM(fsm.regex("[ac]b"), gappy).is_late(start)
    with pytest.raises(fsm.UnknownState):
        token_fsm.is_late(99)


def test_a_late_set_is_a_set() -> None:
    words = TokenSet.of([3, 40]).words
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        return words

    late = LazyTokenSet(make)
    assert not late.is_made
    assert not calls
    assert (late & TokenSet.all) is late
    assert not calls
    assert 40 in late
    assert 4 not in late
    assert late == TokenSet.of([3, 40])
    assert late.is_made
    assert calls == [1]
    assert np.array_equal((late & TokenSet.of([40])).bitmask(64), TokenSet.of([40]).bitmask(64))
    assert (~late).count(64) == 62


def test_no_thread_without_need_nor_off_the_cpu() -> None:
    late = LazyTokenSet(lambda: TokenSet.of([1]).words)
    before = threading.active_count()
    with overlap_mask_computation([TokenSet.all, late], torch.device("cuda")):
        assert threading.active_count() == before
    assert not late.is_made
    with overlap_mask_computation([TokenSet.all, late], torch.device("cpu")):
        pass
    assert late.is_made
    with overlap_mask_computation([TokenSet.all, late], torch.device("cpu")):
        assert threading.active_count() == before


def test_masks_behind_a_guess_are_made_beside_the_forward_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the guess is likely right, so that no mask is made for nothing."""
    model = fresh_model()
    wanted = continuous(generate.regex(model, PATTERNS[0]))("x", rng=1)
    made_by: list[bool] = []
    settle = LazyTokenSet.words.fget
    assert settle is not None

    def seen(mask: LazyTokenSet) -> Any:
        if not mask.is_made:
            made_by.append(threading.current_thread() is threading.main_thread())
        return settle(mask)

    class Knows:
        def propose(self, token_ids: list[int]) -> tuple[int, ...]:
            return wanted.rows[0][0].token_ids[len(token_ids) :]

    model = fresh_model()
    engine_of(model)._speculation.clock = lambda: 0.0
    for _ in range(3):  # a plain forward is measured, and guesses are right
        assert generate.regex(model, "ab", force=False)("x", draft="lookup") == "ab"
    monkeypatch.setattr(LazyTokenSet, "words", property(seen))
    with model.meter() as meter:
        assert wanted.value == generate.regex(model, PATTERNS[0])("x", rng=1, draft=Knows())
    assert made_by.count(False) > meter.forwards
