"""Rows in slots of a pool against one plain forward per row, and against rows in buffers: any chunks, cuts, forks, joins and evictions; no
two rows write to one slot, and slots that nobody has are free."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.paged.batch import PagedBatch
from outlines_cont.kv.paged.lease import Lease
from outlines_cont.kv.paged.paging import begin_paging
from outlines_cont.kv.paged.pool import Pool
from outlines_cont.kv.row import RowKV
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.capability import compare
from tests.examples import examples
from tests.fakes import FAMILIES, VOCAB_SIZE, FakeTokenizer, fresh_model, random_model, random_network
from tests.oracle import assert_close, next_logits

_IDS = st.integers(3, VOCAB_SIZE - 6)
_ROUND = st.tuples(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=4),  # which rows, cut where
    st.lists(st.lists(_IDS, max_size=5), min_size=4, max_size=4).filter(lambda chunks: bool(chunks[0])),
    st.integers(0, 6),  # how far a row goes back
    st.lists(st.integers(0, 3), min_size=1, max_size=4),  # which rows go on
    st.lists(_IDS, min_size=4, max_size=4),
)


def _paged(family: str = "llama", num_slots: int = 8) -> tuple[HuggingFaceModel, Pool]:
    model = fresh_model(family)
    return model, begin_paging(model, num_slots=num_slots)


def _is_empty(model: HuggingFaceModel, pool: Pool) -> bool:
    """Whether every slot is free, but for that of padding, once nothing refers to any."""
    gc.collect()
    return (pool.num_free, model.kv_store.nbytes) == (pool.num_slots - 1, 0)


def _feed_and_compare(model: HuggingFaceModel, batch: PagedBatch, rows: list[list[int]], chunks: Sequence[list[int]]) -> None:
    fed = batch.feed(chunks, [range(len(chunk)) for chunk in chunks])
    for at, chunk in enumerate(chunks):
        rows[at] += chunk
        for index in range(len(chunk)):
            wanted = next_logits(model, rows[at])[index - len(chunk)]
            assert_close(wanted, fed.logits[at, fed.columns[at][index]], 1e-8)


@settings(max_examples=examples(8), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.sampled_from(FAMILIES), st.lists(_ROUND, min_size=2, max_size=5))
def test_rows_cut_forked_rewound_and_stacked_have_the_logits_of_a_fresh_run(family: str, rounds: list[tuple]) -> None:  # type: ignore[type-arg]
    model, pool = _paged(family)
    known: list[tuple[RowKV | None, list[int]]] = [(None, [])]
    for picks, chunks, back, kept, more in rounds:
        sources = [known[at % len(known)] for at, _ in picks]
        shares = [kv[:cut] if kv is not None else None for (kv, _), (_, cut) in zip(sources, picks, strict=True)]
        rows = [[*ids[:cut]] for (_, ids), (_, cut) in zip(sources, picks, strict=True)]
        batch = PagedBatch(model, shares, pool)
        _feed_and_compare(model, batch, rows, chunks[: len(rows)])
        row = back % len(rows)
        if len(rows[row]) > back > 0:
            del rows[row][-back:]
            batch.rewind({row: len(rows[row])})
        kept = [row % len(rows) for row in kept]
        batch.keep(kept)
        rows = [[*rows[row]] for row in kept]
        assert batch.lengths == [*map(len, rows)]
        _feed_and_compare(model, batch, rows, [[token_id] for token_id in more[: len(rows)]])
        known += zip(batch.release_all(), rows, strict=True)
        _assert_that_rows_agree(known)
    for kv, ids in known[1:]:
        # Whatever was done with newer rows, an older one is what it was.
        assert kv is not None
        assert len(kv) == len(ids)
        _feed_and_compare(model, PagedBatch(model, [kv], pool), [[*ids]], [[7]])
    del batch, shares, sources, known, kv
    assert _is_empty(model, pool)


def _assert_that_rows_agree(known: Sequence[tuple[RowKV | None, list[int]]]) -> None:
    """A slot has one token, with all that are before it."""
    held: dict[int, tuple[int, ...]] = {}
    for kv, ids in known:
        slots = np.concatenate([part.columns for part in kv.parts]) if kv is not None else []
        for index, slot in enumerate(slots):
            assert slot > 0
            assert held.setdefault(int(slot), tuple(ids[: index + 1])) == tuple(ids[: index + 1])


@pytest.mark.parametrize(("family", "seed", "is_evicted"), [("llama", 1, True), ("gemma3", 2, True), ("llama", 3, False)])
def test_texts_are_those_of_rows_in_buffers_whatever_is_evicted(family: str, seed: int, is_evicted: bool) -> None:
    (model, pool), other = _paged(family, 16), random_model(family)
    found, wanted = (_chain(one, seed, evict=is_evicted and one is model) for one in (model, other))
    assert [row.token_ids for row in wanted._flat] == [row.token_ids for row in found._flat]
    for one, row in zip(wanted._flat, found._flat, strict=True):
        np.testing.assert_allclose(row.logprobs, one.logprobs, rtol=0, atol=1e-8)
    del found, row
    assert _is_empty(model, pool)


def _chain(model: HuggingFaceModel, seed: int, *, evict: bool) -> SequenceState:
    """Rows of different lengths that grow by pieces, are cut, forked, joined and saved."""
    write = continuous(generate.text(model, sampler=samplers.multinomial(temperature=0.9)))
    draw = np.random.default_rng(seed)
    state = write(["the name", "a", "red green blue"], max_tokens=int(draw.integers(2, 9)), rng=seed)
    for turn in range(3):
        forks = write((state[:, : int(draw.integers(1, 12))] + " of ").fork(2), max_tokens=int(draw.integers(1, 5)), rng=turn)
        if evict:
            for buffer in list(model.kv_store._last_use)[::2]:
                buffer.evict()
        state = SequenceState.stack([forks[0, 0, :], state[1, :] + ", ", forks[2, 1, :]])
        state = write(state, max_tokens=int(draw.integers(1, 40)), rng=turn + 5)
    return state


def test_a_saved_state_goes_on_in_a_pool_and_out_of_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (model, _), plain = _paged(), fresh_model()
    state = continuous(generate.text(model))(["the name", "a"], max_tokens=4)
    state.save(tmp_path / "state")
    for one in (model, plain):
        loaded = SequenceState.load(tmp_path / "state", one)
        assert [row.cached for row in loaded._flat] == [row.cached for row in state._flat]
        again = continuous(generate.text(one))(loaded, max_tokens=5)
        whole = continuous(generate.text(plain))(["the name", "a"], max_tokens=9)
        assert [row.token_ids for row in again._flat] == [row.token_ids for row in whole._flat]
    again.save(tmp_path / "again")


def test_forks_and_slices_copy_nothing_and_a_row_that_goes_on_takes_no_other_lease() -> None:
    model, pool = _paged(num_slots=600)
    batch = PagedBatch(model, [None], pool)
    batch.feed([list(range(3, 203))], [[199]])
    (kv,) = batch.release_all()
    assert kv is not None
    before = pool.num_free
    assert before == 600 - 1 - 200, "spare slots are given back"
    forks = PagedBatch(model, [kv, kv[:77], kv[:150]], pool)
    assert pool.num_free == before
    forks.feed([[5], [6], [7]], [[0]] * 3)
    ended = forks.release_all()
    assert pool.num_free == before - 3
    assert [share.parts[0].buffer is kv.parts[0].buffer and len(share.parts) for share in ended if share] == [1, 2, 2]
    assert len({buffer for share in ended if share for buffer in share.buffers}) == 3, "the first goes on in the lease of the text"


def test_a_budget_counts_slots_and_evicts_rows_one_by_one() -> None:
    model, pool = _paged()
    model.kv_store.budget_bytes = 120 * pool.token_bytes
    first, second = (PagedBatch(model, [None], pool) for _ in range(2))
    kept = []
    for batch in (first, second):
        batch.feed([list(range(3, 43))], [[39]])
        kept += batch.release_all()
    assert [len(kv) for kv in kept if kv is not None] == [40, 40]
    third = PagedBatch(model, [None], pool)
    third.feed([list(range(3, 53))], [[49]])
    assert [len(kv) for kv in kept if kv is not None] == [0, 40], "the one that was used least recently"
    third.feed([[5] * 20], [[19]])
    with pytest.raises(KVBudgetError, match="budget of"):
        third.feed([[5] * 60], [[59]])
    assert model.kv_store.nbytes <= model.kv_store.budget_bytes


def test_a_lease_that_was_given_back_does_not_return_slots_twice() -> None:
    model, pool = _paged()
    lease = Lease(pool, model.kv_store, 0)
    lease.extend(20)
    assert (lease.owned > 0).all()
    lease.used = 7
    lease.shrink()
    lease.evict()
    assert pool.num_free == pool.num_slots - 1
    del lease
    assert _is_empty(model, pool)


def test_prompts_share_what_the_prefix_cache_has_in_the_pool() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=2**20)
    pool = begin_paging(model, num_slots=16)
    write = continuous(generate.text(model))
    write("x" * 60 + "a", max_tokens=2)
    free = pool.num_free
    hits = model.prefix_cache.hits
    state = write(["x" * 60 + "b", "x" * 60 + "c"], max_tokens=1)
    assert model.prefix_cache.hits == hits + 2
    one, two = (row.kv.parts[0] for row in state._flat if row.kv)
    assert one.buffer is two.buffer
    assert isinstance(one.buffer, Lease)
    assert free - pool.num_free < 40, "60 tokens that both begin with are held once"


@pytest.mark.parametrize("family", FAMILIES)
def test_our_own_forward_over_slots_has_the_logits_of_transformers(family: str) -> None:
    model = random_model(family, dtype=torch.float32)
    assert model.capabilities.fused
    assert model._fused is not None
    pool = Pool(*model._fused.kv_layout, num_slots=4)
    config = model.hugging_face.config
    assert compare(config, model, model._fused_forward, model._plain_forward, pool=pool)
    shifted = Pool(*model._fused.kv_layout, num_slots=4)
    shifted.take = lambda count, take=shifted.take: take(count) * 0 + 1  # type: ignore[method-assign]
    assert not compare(config, model, model._fused_forward, model._plain_forward, pool=shifted), "rows that write to one slot"
