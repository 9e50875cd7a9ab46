"""`Cut`: temperature, `top_k`, `top_p` and `min_p` of rows that have the same ones of them. No vocabulary is sorted.

Each of the last three means a *floor*, the smallest logit that is kept, so tokens of equal probability stay or go together.
The floor is looked for among a few blocks that hold the largest logits of a row. Only where these cannot tell (very flat
distributions, very many equal logits) the whole row is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outlines_cont.sampling.draw import Drawn, inverse_cdf, not_below
from outlines_cont.sampling.law import Law
from outlines_cont.sampling.near import Near
from outlines_cont.sampling.nucleus import floor_of_listed, floor_of_rows

# How many of the largest logits are looked at first; nine tenths of the probability are nearly always in fewer.
_FIRST = 128
# How many logits are looked at in one go where there are many passes.
_CACHED = 2**18


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of r rows, each by its own numbers. None: no row has this step.

    Attributes:
        temperature: (r, 1) float64, on the CPU as are the others.
        top_k: (r, 1) int64.
        top_p: (r, 1) float64, below 1.
        log_min_p: (r, 1) float64, the logarithm of `min_p`.
    """

    temperature: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    log_min_p: torch.Tensor | None

    @classmethod
    def of(cls, laws: Sequence[Law]) -> Cut:
        """Return the cut of rows whose laws have equal `cuts`."""
        has_k, has_p, has_min = laws[0].cuts
        is_tempered = any(law.temperature != 1 for law in laws)
        return cls(
            _column([law.temperature for law in laws], torch.float64) if is_tempered else None,
            _column([law.top_k for law in laws], torch.int64) if has_k else None,
            _column([law.top_p for law in laws], torch.float64) if has_p else None,
            _column([law.min_p for law in laws], torch.float64).log() if has_min else None,
        )

    def __getitem__(self, rows: torch.Tensor) -> Cut:
        """Return the cut of some rows, by their indices."""
        columns = (self.temperature, self.top_k, self.top_p, self.log_min_p)
        return Cut(*(None if column is None else column[rows] for column in columns))

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor) -> Drawn:
        """Draw one token per row.

        Args:
            logits: (r, V) float32 or float64, minus infinity where a token is not allowed.
            uniforms: (r,) float64 in [0, 1).

        Cost: with `top_k`, or `min_p` alone, one pass over the logits; else a softmax as well. Rows whose floor lies deeper
        take about ten passes.
        """
        if self.top_k is None and self.top_p is None and self.log_min_p is None:
            return inverse_cdf(self.tempered(logits), uniforms)
        near = Near.of(logits, self._first).divided(self.temperature)
        floor, is_deeper = self._near_floor(near, logits)
        token_ids, logprobs = near.draw(floor, uniforms)
        for rows in self._parts(is_deeper.nonzero()[:, 0], logits):
            kept = self[rows.cpu()].kept(logits[rows])
            token_ids[rows], logprobs[rows] = inverse_cdf(kept, uniforms[rows.to(uniforms.device)])
        return token_ids, logprobs

    def kept(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left, by looking at whole rows.

        They are minus infinity where a token is not kept, and may be shifted, by one number for each row.
        """
        logits = self.tempered(logits)
        if self.top_k is not None:
            logits = not_below(logits, self._kth(logits.topk(min(self._first, logits.shape[-1]), dim=-1).values))
        if self.top_p is not None:
            logits = not_below(logits, floor_of_rows(logits, self.top_p))
        if self.log_min_p is not None:
            logits = not_below(logits, logits.amax(dim=-1, keepdim=True) + self.log_min_p.to(logits))
        return logits

    def tempered(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits divided by the temperature of their row."""
        return logits if self.temperature is None else logits / self.temperature.to(logits)

    def _parts(self, rows: torch.Tensor, logits: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the indices of rows in parts: on a CPU as many as its caches hold."""
        if not len(rows):
            return ()
        return torch.split(rows, max(_CACHED // logits.shape[-1], 1)) if logits.device.type == "cpu" else (rows,)

    @property
    def _first(self) -> int:
        """How many of the largest logits are looked at first: all that `top_k` keeps, ties aside."""
        return _FIRST if self.top_k is None else int(self.top_k.max())

    def _near_floor(self, near: Near, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (r, 1) floors, and (r,) bool: whether tokens that are not near may be kept, too."""
        # For `min_p` alone the largest is enough.
        num = 1 if self.top_k is None and self.top_p is None else self._first
        listed, at = near.logits.topk(min(num, near.logits.shape[-1]), dim=-1)
        floor = torch.full_like(listed[:, :1], -torch.inf) if self.top_k is None else self._kth(listed)
        is_deeper = torch.zeros_like(floor, dtype=torch.bool)
        if self.top_p is not None:
            if self.top_k is None:
                probs, first = self.tempered(logits).softmax(dim=-1), near.ids_of(at[:, :1])
            else:
                probs, first = not_below(near.logits, floor).softmax(dim=-1), at[:, :1]
            nucleus, needed = floor_of_listed(listed, probs.gather(-1, first), self.top_p)
            # Where all that is listed is needed, more may be; unless all is listed, or the rest goes by `top_k`.
            is_deeper = (needed == listed.shape[-1]) & (listed[:, -1:] > floor)
            floor = torch.maximum(floor, nucleus)
        if self.log_min_p is not None:
            floor = torch.maximum(floor, listed[:, :1] + self.log_min_p.to(listed))
        return floor, (is_deeper | near.leaves_out(floor))[:, 0]

    def _kth(self, listed: torch.Tensor) -> torch.Tensor:
        """Return (r, 1): the logit that is the k-th of its row; the last where fewer are listed."""
        assert self.top_k is not None
        return listed.gather(-1, (self.top_k.to(listed.device) - 1).clamp_max(listed.shape[-1] - 1))


def _column(values: Sequence[float | None], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)[:, None]
