"""`Fed`: the logits of what a batch has fed, and which of them belong to which token."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """(R, K, V) logits of what was fed, float32 or float64: those after token j of row r's chunk are `logits[r, places[r][j]]`.

    `places` has only what was asked for; `num_forwards` is how many forwards it took.
    """

    logits: torch.Tensor
    places: list[dict[int, int]]
    num_forwards: int = 1
