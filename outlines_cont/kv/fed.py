"""`Fed`: the result of feeding a batch: the logits, and for each row which of them follow which token of its chunk. Only the requested
positions can be looked up; `num_forwards` is more than 1 where rows were fed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """(R, K, V) logits of the tokens that were fed, float32 or float64: those after token j of row r's chunk are `logits[r, places[r][j]]`.

    `places` has only the positions that were requested; `num_forwards` is the number of forwards.
    """

    logits: torch.Tensor
    places: list[dict[int, int]]
    num_forwards: int = 1
