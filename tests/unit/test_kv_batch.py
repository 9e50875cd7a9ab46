"""The ragged batch against one plain forward per row: any chunks, rewinds and leavings, for models that skip columns or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv import KVBatch, KVBlock, RowKV, stack
from tests.fakes import FAMILIES, VOCAB_SIZE, random_model
from tests.oracle import next_logits

_CHUNKS = st.lists(st.lists(st.integers(3, VOCAB_SIZE - 6), max_size=11), min_size=3, max_size=3).filter(any)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(FAMILIES),
    st.lists(st.tuples(_CHUNKS, st.integers(0, 2), st.integers(0, 6)), min_size=2, max_size=4),
)
def test_logits_are_those_of_each_row_alone(family: str, rounds: list[tuple[list[list[int]], int, int]]) -> None:
    model = random_model(family)
    rows: list[list[int]] = [[3], [4, 5], [6]]
    batch = KVBatch(model, [None] * 3)
    batch.feed(rows, [[0], [], []])
    for chunks, rewound, back in rounds:
        keep = max(len(rows[rewound]) - back, 1)
        del rows[rewound][keep:]
        batch.rewind(rewound, keep)
        fed = batch.feed(chunks, [range(len(chunk)) for chunk in chunks])
        for at, chunk in enumerate(chunks):
            rows[at] += chunk
            if chunk:
                wanted = next_logits(model, rows[at])[-len(chunk) :]
                got = torch.stack([fed.logits[at, fed.places[at][i]] for i in range(len(chunk))])
                assert wanted.numpy() == pytest.approx(got.numpy(), abs=1e-8)
    assert [len(row) for row in rows] == batch.lengths


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_of_one_batch_are_joined_without_a_copy_and_others_with_one(family: str) -> None:
    model = random_model(family)
    rows = [[3, 4, 5, 6], [7, 8, 9, 10]]
    batch = KVBatch(model, [None, None])
    batch.feed(rows, [[3], [3]])
    shares = batch.release_all()
    again = KVBatch(model, shares)
    first = shares[0]
    assert first is not None
    layer, joined = first.block.layers[0], KVBlock.of_cache(again._cache).layers[0]
    assert layer is not None
    assert joined is not None
    assert layer[0].data_ptr() == joined[0].data_ptr()
    before = [t.clone() for t in layer]
    fed = KVBatch(model, [shares[1], None, shares[0], shares[0][:2] if shares[0] else None]).feed(
        [[11], [12], [13], [14]], [[0]] * 4
    )
    lines = [[*rows[1], 11], [12], [*rows[0], 13], [*rows[0][:2], 14]]
    for at, line in enumerate(lines):
        assert next_logits(model, line)[-1].numpy() == pytest.approx(fed.logits[at, 0].numpy(), abs=1e-8)
    again.feed([[3], [4]], [[0], [0]])
    again.rewind(0, 2)
    assert all(a.equal(b) for a, b in zip(before, layer, strict=True))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_rows_that_leave_and_rows_that_stay_keep_what_is_theirs(family: str) -> None:
    model = random_model(family)
    rows = [[3, 4], [5, 6, 7, 8, 9], [10]]
    batch = KVBatch(model, [None] * 3)
    batch.feed(rows, [[0], [], []])
    gone = batch.release(1)
    batch.keep([2, 0])
    fed = batch.feed([[20], [21, 22]], [[0], [1]])
    assert next_logits(model, [10, 20])[-1].numpy() == pytest.approx(fed.logits[0, fed.places[0][0]].numpy(), abs=1e-8)
    assert next_logits(model, [3, 4, 21, 22])[-1].numpy() == pytest.approx(
        fed.logits[1, fed.places[1][1]].numpy(), abs=1e-8
    )
    back = KVBatch(model, [gone]).feed([[23]], [[0]])
    assert next_logits(model, [5, 6, 7, 8, 9, 23])[-1].numpy() == pytest.approx(back.logits[0, 0].numpy(), abs=1e-8)


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


def test_stacked_blocks_are_flush_right() -> None:
    def block(columns: int, value: float) -> KVBlock:
        return KVBlock(((torch.full((1, 2, columns, 3), value), torch.full((1, 2, columns, 3), -value)), None))

    joined = stack([block(2, 1.0), block(4, 2.0)])
    assert (joined.num_rows, joined.num_columns) == (2, 4)
    assert joined.layers[1] is None
    assert joined.layers[0] is not None
    assert joined.layers[0][0][:, 0, :, 0].tolist() == [[0, 0, 1, 1], [2, 2, 2, 2]]
    assert joined.to_cache().get_seq_length() == 4
    assert 2 * joined.layers[0][0].nbytes == joined.nbytes


def test_a_share_of_fewer_tokens_is_a_view() -> None:
    block = KVBlock(((torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2)),))
    share = RowKV(block, 0, np.arange(5))
    assert len(share[:3]) == 3
    assert share[:3].block is block
