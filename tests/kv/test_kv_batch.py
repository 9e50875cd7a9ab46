"""The ragged batch against one plain forward per row: any chunks, rewinds and leavings, for models that skip columns or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.batch import KVBatch, _visible, _with_itself
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.share import Sharing
from outlines_cont.kv.store import KVStore
from outlines_cont.models import HuggingFaceModel
from outlines_cont.state.transformers_cache import to_dynamic_cache
from tests.examples import examples
from tests.fakes import FAMILIES, VOCAB_SIZE, fresh_model, random_model
from tests.oracle import assert_close, next_logits

_CHUNKS = st.lists(st.lists(st.integers(3, VOCAB_SIZE - 6), max_size=11), min_size=3, max_size=3).filter(any)
_BACK = st.dictionaries(st.integers(0, 2), st.integers(0, 6), min_size=1)  # which rows, how far


@settings(max_examples=examples(10), deadline=None)
@given(st.sampled_from(FAMILIES), st.lists(st.tuples(_CHUNKS, _BACK), min_size=2, max_size=4))
def test_logits_are_those_of_each_row_alone(family: str, rounds: list[tuple[list[list[int]], dict[int, int]]]) -> None:
    model = random_model(family)
    rows: list[list[int]] = [[3], [4, 5], [6]]
    batch = KVBatch(model, [None] * 3)
    batch.feed(rows, [[0], [], []])
    for chunks, rewound in rounds:
        kept = {row: max(len(rows[row]) - back, 1) for row, back in rewound.items()}
        for row, length in kept.items():
            del rows[row][length:]
        batch.rewind(kept)
        _feed_and_compare(model, batch, rows, chunks)
    assert [len(row) for row in rows] == batch.lengths


_ROUND = st.tuples(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=5),  # which rows, cut where
    st.lists(st.lists(st.integers(3, VOCAB_SIZE - 6), max_size=5), min_size=5, max_size=5).filter(lambda c: bool(c[0])),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),  # which rows go on
    st.lists(st.integers(3, VOCAB_SIZE - 6), min_size=5, max_size=5),
)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.sampled_from(FAMILIES),
    st.sampled_from([Sharing(1, 1), Sharing(4, 4), Sharing(4, 10**6), None]),
    st.booleans(),
    st.lists(_ROUND, min_size=2, max_size=5),
)
def test_rows_cut_forked_stacked_and_continued_have_the_logits_of_a_fresh_run(
    family: str, sharing: Sharing | None, is_ours: bool, rounds: list[tuple[list[tuple[int, int]], list[list[int]], list[int], list[int]]]
) -> None:
    model = random_model(family)
    if not model.can_branch:
        sharing, is_ours = None, False
    known: list[tuple[RowKV | None, list[int]]] = [(None, [])]
    for picks, chunks, kept, more in rounds:
        sources = [known[at % len(known)] for at, _ in picks]
        shares = [kv[:cut] if kv is not None else None for (kv, _), (_, cut) in zip(sources, picks, strict=True)]
        rows = [[*ids[:cut]] for (_, ids), (_, cut) in zip(sources, picks, strict=True)]
        batch = KVBatch(model, shares, sharing=sharing)
        batch._is_ours = is_ours  # as on CUDA
        batch.keep(range(len(rows)))
        assert batch.lengths == [len(row) for row in rows]
        _feed_and_compare(model, batch, rows, chunks[: len(rows)])
        back = kept[0] * 4
        rewound = {row % len(rows) for row in range(back, back + 1 + len(kept) // 2)}
        for row in rewound:
            del rows[row][max(len(rows[row]) - back, 1) :]
        shorter = {row: len(rows[row]) for row in rewound if len(rows[row]) < batch.lengths[row]}
        if shorter:
            # Back into what the row shares with others, too.
            batch.rewind(shorter)
        assert batch.lengths == [len(row) for row in rows]
        kept = [row % len(rows) for row in kept]
        kept = sorted({*kept}) if len(kept) % 2 else kept  # rows that end, or rows that fork and move
        batch.keep(kept)
        rows = [[*rows[row]] for row in kept]
        _feed_and_compare(model, batch, rows, [[token_id] for token_id in more[: len(rows)]])
        known += [(share, row) for share, row in zip(batch.release_all(), rows, strict=True) if row]
    for kv, ids in known[1:]:
        # Whatever was done with newer rows, an older one is what it was.
        assert kv is not None
        assert len(kv) == len(ids)
        again = KVBatch(model, [kv], sharing=sharing).feed([[7]], [[0]]).logits[0, 0]
        assert_close(next_logits(model, [*ids, 7])[-1], again, 1e-8)


@given(arrays(bool, st.tuples(st.integers(1, 3), st.integers(1, 9))), st.integers(1, 9))
def test_a_query_sees_itself_and_the_tokens_before_it(seen: NDArray[np.bool_], width: int) -> None:
    rows, columns = seen.shape
    width = min(width, columns)
    before = seen.copy()
    found = _visible(torch.from_numpy(_with_itself(seen) if width == 1 else seen), width)
    assert (seen == before).all()
    assert found.shape == (rows, 1, width, columns)
    for row in range(rows):
        for query in range(width):
            own = columns - width + query
            wanted = [column == own or (column < own and bool(seen[row, column])) for column in range(columns)]
            assert found[row, 0, query].tolist() == wanted


def _feed_and_compare(model: HuggingFaceModel, batch: KVBatch, rows: list[list[int]], chunks: list[list[int]]) -> None:
    """Feed chunks, append them to `rows`, and compare every logit with that of a fresh run."""
    fed = batch.feed(chunks, [range(len(chunk)) for chunk in chunks])
    for at, chunk in enumerate(chunks):
        rows[at] += chunk
        if chunk:
            wanted = next_logits(model, rows[at])[-len(chunk) :]
            got = torch.stack([fed.logits[at, fed.columns[at][i]] for i in range(len(chunk))])
            assert_close(wanted, got, 1e-8)


def test_what_rows_share_is_held_once_and_a_fork_copies_nothing() -> None:
    model = fresh_model()
    batch = KVBatch(model, [None])
    batch.feed([list(range(3, 203))], [[199]])
    (prefix,) = batch.release_all()
    before = model.kv_store.nbytes
    forks = KVBatch(model, [prefix] * 16)
    assert model.kv_store.nbytes == before
    forks.feed([[row + 3] for row in range(16)], [[0]] * 16)
    assert model.kv_store.nbytes < 3 * before, "16 tails with their spare columns, and one prefix"
    assert prefix is not None
    assert all(share is not None and share.parts[0].buffer is prefix.parts[0].buffer for share in forks.release_all())


def test_a_row_that_goes_on_where_it_ended_is_not_copied() -> None:
    model = random_model("mistral")
    batch = KVBatch(model, [None, None])
    batch.feed([[3, 4, 5], [6, 7, 8]], [[2], [2]])
    shares = batch.release_all()
    again = KVBatch(model, shares)
    again.feed([[9], [10]], [[0], [0]])
    for share, longer in zip(shares, again.release_all(), strict=True):
        assert share is not None
        assert longer is not None
        assert share.parts[0].buffer is longer.parts[0].buffer


def test_a_batch_that_is_over_keeps_nothing_from_being_evicted() -> None:
    batch = KVBatch(random_model("llama"), [None])
    batch.feed([[3, 4, 5]], [[2]])
    (share,) = batch.release_all()
    assert share is not None
    assert [len(part.buffer.users) for part in share.parts] == [0]
    again = KVBatch(random_model("llama"), [share])  # it appends where the row ends
    assert [[*part.buffer.users] for part in share.parts] == [[again]]
    again.release_all()
    assert [len(part.buffer.users) for part in share.parts] == [0]


def test_a_budget_evicts_what_was_used_least_recently_and_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_model()

    def prefilled(start: int) -> RowKV:
        batch = KVBatch(model, [None])
        batch.feed([list(range(start, start + 50))], [[49]])
        (share,) = batch.release_all()
        assert share is not None
        return share

    first = prefilled(3)
    size = model.kv_store.nbytes
    monkeypatch.setattr(model, "kv_store", KVStore(budget_bytes=int(2.5 * size)))
    shares = [prefilled(start) for start in (10, 20, 30)]
    assert [len(share) for share in shares] == [0, 50, 50]
    assert len(first) == 50, "another store's buffers do not count"
    fed = KVBatch(model, [shares[1]]).feed([[9]], [[0]])
    assert_close(next_logits(model, [*range(20, 70), 9])[-1], fed.logits[0, 0], 1e-8)
    with pytest.raises(KVBudgetError, match="budget of"):
        KVBatch(model, [None] * 4).feed([list(range(3, 53))] * 4, [[49]] * 4)
    assert len(shares[0]) == 0
    assert model.kv_store.nbytes <= 2.5 * size


def test_columns_that_no_row_uses_are_packed_away() -> None:
    model = random_model("llama")
    assert model.can_skip
    batch = KVBatch(model, [None, None])
    batch.feed([[3], [4]], [[0], [0]])
    for turn in range(12):
        chunks = [[5] * 10, [6]] if turn % 2 else [[5], [6] * 10]
        batch.feed(chunks, [[0], [0]])
    assert batch.lengths == [67, 67]
    assert batch.mask.shape[1] < 100


def test_a_cache_for_others_is_flush_right() -> None:
    store = KVStore()

    def row(columns: int, value: float) -> RowKV:
        return RowKV.of_layers(store, [(torch.full((2, columns, 3), value), torch.full((2, columns, 3), -value)), None])

    cache = to_dynamic_cache([row(2, 1.0), None, row(4, 2.0)], 4)
    assert cache.get_seq_length() == 4
    assert cache.layers[0].keys[:, 0, :, 0].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [2, 2, 2, 2]]
    assert cache.layers[0].values[2, 1, 0, 2] == -2


def test_what_was_copied_is_not_held_by_the_batch_that_copied_it() -> None:
    model = random_model()
    first = KVBatch(model, [None])
    first.feed([[3, 4, 5, 6]], [[]])
    (kv,) = first.release([0])
    assert kv is not None
    (source,) = kv.buffers
    copied = KVBatch(model, [kv[:2], kv[:3]], sharing=None)
    assert copied not in source.users
    read = KVBatch(model, [kv, kv], sharing=Sharing(1, 1))
    assert read in source.users
    read.release_all()
    assert read not in source.users
