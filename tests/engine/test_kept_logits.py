"""The logits of the last places: against a dict that keeps all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.engine.drawing import kept_logits
from outlines_cont.engine.drawing.kept_logits import KeptLogits, LargestLogits
from outlines_cont.policies.branch import TokenSet

VOCAB_SIZE = 50
MOVES = st.lists(st.tuples(st.sampled_from(["put", "back", "fork"]), st.integers(0, 6)), max_size=30)


def line(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(MOVES, st.integers(0, 5), st.integers(0, 6), st.sets(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9))
def test_what_is_known_of_a_place_is_what_was_put_there(
    moves: list[tuple[str, int]], num_places: int, num_whole: int, allowed: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_logits, "NUM_LARGEST", 10)
        kept = KeptLogits(num_places, num_whole * VOCAB_SIZE * 8)
        wanted: dict[int, torch.Tensor] = {}
        at = 0
        for number, (move, count) in enumerate(moves):
            if move == "put":
                at += 1
                batch = torch.stack([line(number), line(-1 - number)])
                wanted[at] = line(number)
                kept.put(at, batch[0])
                batch[:] = 0  # whose logits they were a part of goes on
            elif move == "back":
                at = max(at - count, 0)
                kept.forget_after(at)
                wanted = {index: logits for index, logits in wanted.items() if index <= at}
            else:
                kept, other = kept.fork(), kept
                other.forget_after(0)
        mask = TokenSet.of(allowed)
        for index in range(at + 3):
            whole, exact = kept.whole(index), kept.for_mask(index, mask)
            if index not in wanted or index < at - num_places:
                assert whole is None or index in wanted
                continue
            if whole is not None:
                assert torch.equal(whole, wanted[index])
            if exact is not None:
                ids = sorted(allowed)
                assert torch.equal(exact[ids], wanted[index][ids])
                assert torch.allclose(exact.logsumexp(0), wanted[index].logsumexp(0))
        assert sum(tensor.nbytes for tensor in kept.tensors) <= num_whole * VOCAB_SIZE * 8


def test_the_newest_are_whole_as_far_as_the_budget_reaches_and_older_ones_are_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_logits, "NUM_LARGEST", 10)
    kept = KeptLogits(9, 3 * VOCAB_SIZE * 8)
    for index in range(1, 8):
        kept.put(index, line(index))
    assert [None if kept.whole(i) is None else i for i in range(9)] == [None] * 7 + [7, None]
    largest = [int(line(i).argmax()) for i in range(9)]
    reduced = [i for i in range(9) if kept.for_mask(i, TokenSet.of([largest[i]])) is not None]
    assert reduced == [2, 3, 4, 5, 6, 7]
    for index in reduced:
        exact = kept.for_mask(index, TokenSet.of([largest[index]]))
        assert exact is not None
        assert torch.allclose(exact.logsumexp(0), line(index).logsumexp(0))
    smallest = int(line(reduced[0]).argmin())
    assert kept.for_mask(reduced[0], TokenSet.of([smallest])) is None
    assert kept.for_mask(reduced[0], TokenSet.all) is None


def test_a_small_vocabulary_is_known_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = line(1)
    reduced = LargestLogits.of(logits)
    found = reduced.for_mask(TokenSet.of(range(VOCAB_SIZE)))
    assert found is not None
    assert torch.equal(found, logits)
