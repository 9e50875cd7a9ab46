"""`warp` of every standard warper, as a user's own warper may call it, against the form that many rows are warped by."""

from __future__ import annotations

import math

import pytest
import torch

from outlines_cont.samplers import DRY, MinP, Mirostat, Temperature, TopA, TopK, TopP, TypicalP, Warper

LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3
LOGITS[1, 5:] = -torch.inf  # few are left
LOGITS[2] = 1.0  # all are equal
LOGITS[3, 0] = 30.0  # one has it all


def _cut(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    return logits.where(logits >= floor, -torch.inf)


@pytest.mark.parametrize(
    "warper",
    [
        *(TopK(1), TopK(7), TopK(40), TopK(90), TopP(0.1), TopP(0.9), TopP(0.999), MinP(0.05), MinP(0.5), MinP(1)),
        *(
            TopA(0.1),
            TopA(0.9),
            TypicalP(0.2),
            TypicalP(0.9),
            Mirostat(2.0),
            Mirostat(5.0),
            Temperature(0.5),
            Temperature(3),
        ),
    ],
    ids=repr,
)
def test_one_row_or_many_are_warped_alike(warper: Warper) -> None:
    alone = warper.warp(LOGITS.clone())
    together = warper.for_rows([warper] * len(LOGITS))
    assert together is not None
    if isinstance(warper, Mirostat):  # its bound moves with what was drawn; at first it is twice `tau`
        surprise = -LOGITS.log_softmax(-1) / math.log(2)
        kept = (surprise <= 2 * warper.tau) | (LOGITS.amax(-1, keepdim=True) == LOGITS)
        assert torch.equal(kept & LOGITS.isfinite(), alone.isfinite())
    else:
        assert torch.equal(alone.isfinite(), together.whole(LOGITS.clone(), _cut).isfinite())
        assert torch.allclose(alone, together.whole(LOGITS.clone(), _cut))
    assert alone.amax(-1).isfinite().all()
    assert (alone[1, 5:] == -torch.inf).all()


@pytest.mark.parametrize("warper", [TopP(1.0), MinP(0.0), TopA(0.0), TypicalP(1.0), DRY(0.0)], ids=repr)
def test_what_changes_nothing_returns_what_it_is_given(warper: Warper) -> None:
    assert warper.is_neutral
    assert warper.warp(LOGITS) is LOGITS
