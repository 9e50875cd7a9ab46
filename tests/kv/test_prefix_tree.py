"""The tree of prefixes, against a plain list of texts: what it finds is right, and it never takes more than it may."""

from __future__ import annotations

import random
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv.prefix_cache import PrefixCache, PrefixTree, num_common
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.kv.store import KVStore
from tests.examples import examples

PER_TOKEN = 2 * 2 * 2 * 4  # keys and values of 2 layers and 2 numbers of 4 bytes
_IDS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def kv_of(store: KVStore, token_ids: tuple[int, ...]) -> RowKV:
    """Keys and values of a sequence: at every place what only these tokens lead to there."""
    values, seen = [], 7
    for token_id in token_ids:
        seen = (seen * 31 + token_id + 1) % 1_000_003
        values.append(float(seen))
    line = torch.tensor(values)[None, :, None].expand(1, -1, 2)
    kv = RowKV.of_layers(store, [(line, -line), (line + 0.5, -line)])
    kv.parts[0].buffer.epoch = store.epoch  # as if it had been fed
    return kv


def is_right(found: RowKV | None, token_ids: tuple[int, ...]) -> bool:
    if found is None:
        return True
    wanted = kv_of(KVStore(), token_ids)[: len(found)].layers()
    pairs = [(a, b) for one, other in zip(found.layers(), wanted, strict=True) if one and other for a, b in zip(one, other, strict=True)]
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(st.booleans(), _IDS), max_size=30))
def test_a_tree_with_room_finds_the_longest_prefix_of_what_was_added(steps: list[tuple[bool, tuple[int, ...]]]) -> None:
    store = KVStore()
    tree, added = PrefixTree(store, 10**9), []
    for adds, token_ids in steps:
        if adds:
            tree.add(token_ids, kv_of(store, token_ids))
            added.append(token_ids)
        found = tree.find(token_ids)
        wanted = max((num_common(token_ids, other) for other in added), default=0)
        assert (wanted, wanted) == (tree.num_held(token_ids), len(found) if found is not None else 0)
        assert is_right(found, token_ids)
        del found
    distinct = {token_ids[:stop] for token_ids in added for stop in range(1, len(token_ids) + 1)}
    assert len(distinct) == sum(len(node.token_ids) for node in tree.nodes)
    assert store.nbytes == tree.nbytes <= len(distinct) * PER_TOKEN * 4 / 3
    del tree
    assert store.nbytes == 0, "no cycle holds it"


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(st.booleans(), _IDS), max_size=40), st.integers(0, 24))
def test_a_tree_with_little_room_forgets_what_was_used_least_recently(steps: list[tuple[bool, tuple[int, ...]]], room: int) -> None:
    """Of two texts that share no first token, the one that was used later is held, unless there is no room for it."""
    store = KVStore()
    tree = PrefixTree(store, room * PER_TOKEN)
    for adds, token_ids in steps:
        if adds:
            before = [(node.nbytes, id(node)) for node in tree.nodes]
            tree.add(token_ids, kv_of(store, token_ids))
            left = {id(node) for node in tree.nodes}
            gone = [at for at, (_, node) in enumerate(before) if node not in left]
            if len(token_ids) <= room and not tree.num_held(token_ids):
                pytest.fail("what fits is held")
            if gone and not any(node.parent is not tree._root for node in tree.nodes):
                assert all(at <= max(gone) for at in gone)
        assert is_right(tree.find(token_ids), token_ids)
        assert sum(node.nbytes for node in tree.nodes) == tree.nbytes == store.nbytes <= room * PER_TOKEN
        order = {id(node): at for at, node in enumerate(tree.nodes)}
        for node in tree.nodes:
            assert all(order[id(child)] < order[id(node)] for child in node.children.values()), "a leaf goes first"


@settings(max_examples=examples(48), deadline=None)
@given(st.lists(_IDS, max_size=20), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_another_size_drops_what_is_too_much_and_no_more(added: list[tuple[int, ...]], rooms: list[int]) -> None:
    store = KVStore()
    cache = PrefixCache(store, 10**9)
    cache.min_tokens = 1
    for token_ids in added:
        cache.keep(token_ids, kv_of(store, token_ids))
    for room in rooms:
        before = [*cache._tree.nodes]
        sizes = [node.nbytes for node in before]
        cache.max_bytes = room * PER_TOKEN
        left = len(cache._tree.nodes)
        assert [*cache._tree.nodes] == before[len(before) - left :], "what was used last stays"
        assert cache.nbytes == store.nbytes == sum(sizes[len(sizes) - left :]) <= cache.max_bytes
        assert left == len(sizes) or sum(sizes[len(sizes) - left - 1 :]) > cache.max_bytes, "it drops no more than it has to"
        assert all(is_right(cache.find(token_ids), token_ids) for token_ids in added)
        cache.max_bytes = 10**9


@pytest.mark.parametrize("alphabet", [2, 5, 300])
def test_the_cache_is_within_its_bytes_at_every_moment(alphabet: int) -> None:
    """700 random prompts, looked at whenever a buffer is made."""
    store, limit = KVStore(), 100 * PER_TOKEN
    cache, most, made = PrefixCache(store, limit), 0, RowKV.compact
    cache.min_tokens = 3
    numbers = random.Random(alphabet)
    given_bytes = 0

    def compact(kv: RowKV, store: KVStore) -> KVPart:
        nonlocal most
        part = made(kv, store)
        most = max(most, store.nbytes - given_bytes)
        return part

    with mock.patch.object(RowKV, "compact", compact):
        for _ in range(700):
            token_ids = tuple(numbers.choices(range(alphabet), k=numbers.choice([1, 4, 20, 60])))
            kv = kv_of(store, token_ids)
            given_bytes = kv.parts[0].buffer.nbytes
            cache.keep(token_ids, kv)
            most = max(most, store.nbytes - given_bytes)
            assert cache.nbytes + given_bytes == store.nbytes
            del kv
            given_bytes = 0
            assert is_right(cache.find(token_ids), token_ids)
    assert limit / 2 < most <= limit


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["keep", "find", "reserve", "epoch"]), _IDS), max_size=30), st.integers(12, 40))
def test_the_budget_of_the_store_holds_and_what_it_evicts_is_not_found(steps: list[tuple[str, tuple[int, ...]]], room: int) -> None:
    store = KVStore()
    cache, state = PrefixCache(store, 10**9), kv_of(store, (1, 2))
    cache.min_tokens = 1
    unit = state.parts[0].buffer.nbytes
    store.budget_bytes = unit + room * PER_TOKEN
    for name, token_ids in steps:
        if name == "keep":
            store.budget_bytes, budget = None, store.budget_bytes
            kv = kv_of(store, token_ids)
            store.budget_bytes = budget + kv.parts[0].buffer.nbytes
            cache.keep(token_ids, kv)
            del kv
            store.budget_bytes = budget
        elif name == "find":
            assert is_right(cache.find(token_ids), token_ids)
        elif name == "reserve":
            store.reserve(state.parts[0].buffer, len(token_ids) * PER_TOKEN)
        else:
            cache.clear()
            assert (0, unit) == (cache.nbytes, store.nbytes)
        assert state.parts[0].buffer.is_live, "what only the cache needs goes first"
        assert cache.nbytes + unit == store.nbytes <= store.budget_bytes
