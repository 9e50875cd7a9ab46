"""Tables on a device: the same tokens as the lazy token FSM, and nothing asked of the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import fsm
from outlines_cont import DeviceTables, continuous, generate
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import Constraint
from tests.examples import examples
from tests.fakes import random_model

PATTERNS = ["[a-c]{2,5}(the|of)?", "(ab|abc|a)*!", "[0-9]{1,3}(,[0-9]{3})*", "(é|日|🙂)+x"]


def tables_of(model: HuggingFaceModel, pattern: str, device: str = "cpu") -> tuple[fsm.TokenFSM, DeviceTables]:
    token_fsm = Constraint.of_model(model, fsm.regex(pattern)).token_fsm
    assert isinstance(token_fsm, fsm.TokenFSM)
    return token_fsm, DeviceTables(token_fsm.to_tensors(), model.vocab_size, device)


class NothingForTheHost(TorchDispatchMode):
    """Refuses whatever hands a number to Python, or a tensor to another device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        assert not (func is torch.ops.aten._to_copy.default and "device" in (kwargs or {}))
        return func(*args, **(kwargs or {}))


def decode(model: HuggingFaceModel, tables: DeviceTables, ids: torch.Tensor, steps: int) -> torch.Tensor:
    """Greedy ids of one row, followed on the device; the network is no part of what is watched."""
    states = tables.initial(1)
    for _ in range(steps):
        with torch.inference_mode():
            logits = model.hugging_face(input_ids=ids).logits[:, -1]
        with NothingForTheHost():
            token_ids = tables.masked(logits, states).argmax(-1)
            states = tables.advance(states, token_ids)
            ids = torch.cat([ids, token_ids[:, None]], dim=1)
    return ids


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_loop_on_the_device_writes_what_the_engine_writes(pattern: str) -> None:
    model = random_model("llama")
    _, tables = tables_of(model, pattern)
    state = continuous(generate.regex(model, pattern, force=False))("the name ", max_tokens=12)
    ids = state.token_ids[0, 0]
    start = len(model.tokenizer.encode("the name ", add_special_tokens=True))
    written = decode(model, tables, ids[None, :start], len(ids) - start)[0]
    assert torch.equal(ids, written)


@given(pattern=st.sampled_from(PATTERNS), seed=st.integers(0, 999), rows=st.integers(1, 4))
@settings(max_examples=examples(40), deadline=None)
def test_states_and_masks_are_those_of_the_lazy_form(pattern: str, seed: int, rows: int) -> None:
    model = random_model("llama")
    token_fsm, tables = tables_of(model, pattern)
    draw = torch.Generator().manual_seed(seed)
    states, lazy = tables.initial(rows), [token_fsm.initial_state] * rows
    for _ in range(6):
        allowed = tables.allowed(states)
        for row, state in enumerate(lazy):
            expected = torch.zeros(model.vocab_size, dtype=torch.bool)
            expected[torch.from_numpy(token_fsm.allowed_token_ids(state).copy()).long()] = True
            assert torch.equal(allowed[row], expected)
            assert bool(tables.is_accepting(states)[row]) == token_fsm.is_accepting(state)
        lines = [line.nonzero()[:, 0] for line in allowed]
        lines = [line[line != 1] for line in lines]  # 1 is the end of a text
        if not all(len(line) for line in lines):
            break
        token_ids = torch.stack([line[int(torch.randint(len(line), (), generator=draw))] for line in lines])
        states = tables.advance(states, token_ids)
        lazy = [token_fsm.next_state(state, int(i)) for state, i in zip(lazy, token_ids, strict=True)]


def test_after_the_end_and_after_what_was_not_allowed_nothing_is() -> None:
    model = random_model("llama")
    _, tables = tables_of(model, "ab")
    states = tables.advance(tables.initial(2), torch.tensor([1, 300]))
    assert not tables.allowed(states).any()
    assert not tables.allowed(tables.advance(states, torch.tensor([5, 6]))).any()
    assert repr(tables).startswith("<DeviceTables of ")


def test_logits_narrower_than_the_tables_are_refused() -> None:
    model = random_model("llama")
    token_fsm, _ = tables_of(model, "ab")
    with pytest.raises(ValueError, match="at least"):
        DeviceTables(token_fsm.to_tensors(), 100)
    wide = DeviceTables(token_fsm.to_tensors(), 1000)
    assert wide.masked(torch.zeros(1, 1000), wide.initial(1)).isneginf().sum() == 1000 - wide.allowed(wide.initial(1)).sum()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loop_on_a_gpu_never_waits_for_the_host() -> None:
    model = random_model("llama")
    _, tables = tables_of(model, PATTERNS[0], "cuda")
    logits = torch.rand((4, model.vocab_size), device="cuda")
    states = tables.initial(4)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            states = tables.advance(states, tables.masked(logits, states).argmax(-1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
