"""Steps as graphs, without a GPU: what a graph would run again is the same operators at the same addresses, whatever rows do between two
steps (a recorder in place of CUDA's), and the logits are those of the operators."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from outlines_cont import models
from outlines_cont.kv.paged.batch import PagedBatch
from outlines_cont.kv.paged.paging import begin_paging
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.step_graphs import StepGraphs
from tests.examples import examples
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_network
from tests.oracle import assert_close

_IDS = st.integers(3, VOCAB_SIZE - 6)


class _Operators(TorchDispatchMode):
    """Notes each operator, its numbers and shapes, and where its tensors are: an address, or the number of the operator that made one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, ...]] = []
        self._made: dict[int, tuple[torch.Tensor, int]] = {}  # kept alive, so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._given: set[int] = set()
        noted = self._noted((args, sorted((kwargs or {}).items())))
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, torch.Tensor) and (address := tensor.untyped_storage().data_ptr()) not in self._given:
                self._made.setdefault(address, (tensor, len(self.notes)))
        self.notes.append((str(func), noted))
        return found

    def _noted(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(self._noted, value))
        if not isinstance(value, torch.Tensor):
            return repr(value)
        address = value.untyped_storage().data_ptr()
        self._given.add(address)
        where = ("made by", self._made[address][1]) if address in self._made else ("at", address)
        return where, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype


class Recorder:
    """In place of a CUDA graph: runs the operators again, and asserts that they are those that were captured."""

    all: list[Recorder] = []  # noqa: RUF012

    def __init__(self, step: Callable[[], torch.Tensor], other: object) -> None:
        self._step, self.replays = step, -1
        self._notes: list[tuple[Any, ...]] = []
        self.all.append(self)
        self.replay()

    def replay(self) -> torch.Tensor:
        with torch.inference_mode(), _Operators() as operators:
            logits = self._step()
        self._notes = self._notes or operators.notes
        differing = [pair for pair in zip_longest(self._notes, operators.notes) if pair[0] != pair[1]]
        if differing:
            raise AssertionError("{}\nnow {}".format(*differing[0]))  # pytest would compare all of them
        self.replays += 1
        return logits


def _model(family: str = "llama", num_slots: int = 4000) -> HuggingFaceModel:
    model = models.from_transformers(random_network(family, dtype=torch.float32), FakeTokenizer(), prefix_cache_bytes=0)
    assert model.capabilities.fused
    begin_paging(model, num_slots=num_slots)
    return model


def _with_graphs(model: HuggingFaceModel, **options: Any) -> StepGraphs:
    assert model._fused is not None
    model._graphs = StepGraphs(model._fused, **{"capture": Recorder, "rows": (1, 2, 4), "columns": (24, 64), "after": 0, **options})
    Recorder.all.clear()
    return model._graphs


_KINDS = ["step", "step", "step", "leave", "fork", "join", "rewind", "chunk", "cut"]
_STEP = st.tuples(st.sampled_from(_KINDS), st.integers(0, 9), st.lists(_IDS, min_size=6, max_size=6))


@settings(max_examples=examples(6), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.sampled_from(["llama", "gemma3"]), st.lists(_STEP, min_size=4, max_size=24))
def test_nothing_differs_between_replays_and_logits_are_those_of_the_operators(
    family: str, steps: list[tuple[str, int, list[int]]]
) -> None:
    model = _model(family)
    graphs, operators, pool = _with_graphs(model), model._fused, model.kv_store.paging.pool
    batch = PagedBatch(model, [None, None], pool)
    batch.feed([[3, 4, 5], [6]], [[2], [0]])
    for kind, number, ids in steps:
        row = number % batch.num_rows
        if kind == "leave" and batch.num_rows > 1:
            batch.keep([at for at in range(batch.num_rows) if at != row])
        elif kind == "fork" and batch.num_rows < 6:
            batch.keep([*range(batch.num_rows), row])
        elif kind == "join" and batch.num_rows < 6:
            shares = batch.release_all()
            batch = PagedBatch(model, [*shares, None], pool)
            batch.feed([*[[]] * len(shares), ids[:2]], [*[[]] * len(shares), [1]])
        elif kind in ("rewind", "cut"):
            batch.rewind({row: max(batch.lengths[row] - (number if kind == "cut" else 1), 1)})
        elif kind == "chunk":
            batch.feed([ids[: 1 + (at + number) % 3] for at in range(batch.num_rows)], [[0]] * batch.num_rows)
        shares = batch.release_all()
        fed = ids[: len(shares)]
        found = (batch := PagedBatch(model, shares, pool)).feed_next(fed)
        model._graphs = None
        assert_close(PagedBatch(model, shares, pool).feed_next(fed), found, 2e-4)
        model._graphs = graphs
    assert operators is model._fused
    assert all(size.is_refused is False for size in graphs._sizes.values())


def test_a_batch_steps_by_one_graph_from_which_nothing_differs_until_the_pool_grows() -> None:
    model = _model(num_slots=80)
    graphs, pool = _with_graphs(model), model.kv_store.paging.pool
    batch = PagedBatch(model, [None] * 3, pool)
    batch.feed([[3], [4, 5], [6]], [[0], [1], [0]])
    for _ in range(8):
        batch.feed_next([7, 8, 9])
    assert [one.replays for one in Recorder.all] == [9], "one of them was compared with the operators"
    version = pool.version
    batch.feed([[5] * 30] * 3, [[29]] * 3)
    assert pool.version > version
    for _ in range(3):
        batch.feed_next([7, 8, 9])
    assert [one.replays for one in Recorder.all] == [9, 4]
    assert [*graphs._sizes] == [(4, 64)]


def test_what_does_not_fit_runs_by_the_operators() -> None:
    model = _model()
    graphs, pool = _with_graphs(model, after=2), model.kv_store.paging.pool
    batch = PagedBatch(model, [None] * 5, pool)
    batch.feed([[3]] * 5, [[0]] * 5)
    batch.feed_next([4] * 5)
    batch.keep([0])
    batch.feed([[3] * 64], [[63]])
    batch.feed_next([4])
    assert graphs._sizes == {}, "more rows than the largest graph has, and more tokens"
    batch.rewind({0: 3})
    for _ in range(2):
        batch.feed_next([4])
    assert Recorder.all == [], "too few steps"
    batch.feed_next([4])
    assert len(Recorder.all) == 1


@pytest.mark.parametrize("failure", ["error", "other logits"])
def test_a_graph_that_fails_or_is_wrong_is_not_used(failure: str) -> None:
    class Wrong(Recorder):
        def replay(self) -> torch.Tensor:
            if failure == "error":
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().replay() + 1.0

    model = _model()
    graphs, pool = _with_graphs(model, capture=Wrong), model.kv_store.paging.pool
    batch, plain = PagedBatch(model, [None], pool), PagedBatch(model, [None], pool)
    found = []
    for one, used in ((batch, graphs), (plain, None)):
        model._graphs = used
        one.feed([[3, 4]], [[1]])
        found.append(torch.stack([one.feed_next([5]), one.feed_next([6])]))
    assert torch.equal(*found)
    assert [size.is_refused for size in graphs._sizes.values()] == [True]


def test_padding_writes_to_no_slot_of_a_row() -> None:
    model = _model()
    _with_graphs(model)
    pool = model.kv_store.paging.pool
    batch = PagedBatch(model, [None] * 3, pool)
    batch.feed([[3], [4], [5]], [[0]] * 3)
    batch.feed_next([7, 8, 9])
    kept = batch.release_all()
    before = [pair.clone() for pair in pool.pairs]
    alone = PagedBatch(model, kept[:1], pool)
    alone.feed_next([6])
    three = PagedBatch(model, [*kept[1:], None], pool)
    three.feed([[], [], [3]], [[], [], [0]])
    three.feed_next([1, 2, 3])
    held = [int(slot) for share in kept if share for part in share.parts for slot in part.columns]
    assert all(torch.equal(new[:, :, held], old[:, :, held]) for new, old in zip(pool.pairs, before, strict=True))
    del kept, alone, three, batch
    gc.collect()
    assert pool.num_free == pool.num_slots - 1
