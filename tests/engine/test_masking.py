"""Masks on logits: whatever way is the fastest, the result is that of asking the mask for every token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.policies.branch import TokenSet

VOCAB_SIZE = 2_000
IDS = st.lists(st.integers(0, VOCAB_SIZE + 40), max_size=12)
MASKS = st.one_of(
    IDS.map(TokenSet.of),
    IDS.map(lambda ids: ~TokenSet.of(ids)),
    IDS.map(lambda ids: TokenSet.of(range(3, VOCAB_SIZE, 2)) & ~TokenSet.of(ids)),
    st.just(TokenSet.all),
    st.just(TokenSet.none),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(masks=st.lists(MASKS, min_size=1, max_size=4), is_repeated=st.booleans())
@settings(deadline=None)
def test_masked_logits_are_those_of_the_tokens_in_the_mask(
    dtype: torch.dtype, masks: list[TokenSet], is_repeated: bool
) -> None:
    masks = [masks[0]] * len(masks) if is_repeated else masks
    logits = torch.randn((len(masks), VOCAB_SIZE), dtype=dtype, generator=torch.Generator().manual_seed(1))
    before, masker = logits.clone(), Masker()
    for _ in range(2):  # the second time something is remembered
        found = masker.masked(logits, masks)
        for row, mask in enumerate(masks):
            kept = torch.tensor([token_id in mask for token_id in range(VOCAB_SIZE)])
            assert torch.equal(found[row][kept], before[row][kept])
            assert bool(torch.isneginf(found[row][~kept]).all())
    assert torch.equal(logits, before)


@given(IDS, st.integers(1, VOCAB_SIZE), st.integers(0, 6))
@settings(deadline=None)
def test_few_ids_are_told_one_by_one(ids: list[int], vocab_size: int, most: int) -> None:
    expected = sorted({token_id for token_id in ids if token_id < vocab_size})
    found = TokenSet.of(ids).few_ids(vocab_size, most)
    assert (found is None) == (
        len({token_id // 32 for token_id in ids if token_id // 32 <= (vocab_size - 1) // 32}) > most
    )
    assert found is None or found.tolist() == expected
