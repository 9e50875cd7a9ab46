"""`KeptLogits`: the logits before the last tokens of a row, for as many positions as its policies ask for (`num_places`), so that a rewind
to one of these needs no forward. Beyond 32 MiB the oldest are reduced to their 2048 largest and the log-sum-exp of all (`LargestLogits`),
then dropped; reduced ones are used only under masks whose tokens are all among these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from outlines_cont.policies.branch import TokenSet

NUM_LARGEST = 2048
"""How many logits of a position remain when they are reduced."""

MAX_KEPT_BYTES = 32 * 2**20
"""The most bytes of logits that a row keeps: those of 64 positions for a vocabulary of 131,072 tokens in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class LargestLogits:
    """The largest of the logits at one position, and the logsumexp of all."""

    values: torch.Tensor  # (K,) the logits, on the device of the model
    token_ids: torch.Tensor  # (K,) int64, theirs
    norm: torch.Tensor  # () logsumexp of all logits of the position
    vocab_size: int  # V

    @classmethod
    def of(cls, logits: torch.Tensor) -> LargestLogits:
        """Reduce (V,) logits. Cost: one pass over them."""
        found = logits.topk(min(NUM_LARGEST, len(logits)))
        return cls(found.values, found.indices, logits.logsumexp(0), len(logits))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.values.nbytes + self.token_ids.nbytes

    def for_mask(self, mask: TokenSet) -> torch.Tensor | None:
        """Return (V,) logits that are exact for the tokens of `mask`; None if one of those is not known.

        The remaining probability is divided equally among the tokens that are not known, so that the logsumexp is exact, too.
        """
        allowed = mask.few_ids(self.vocab_size, NUM_LARGEST)
        if allowed is None or not np.isin(allowed, self.token_ids.cpu().numpy()).all():
            return None
        num_others = self.vocab_size - len(self.values)
        if not num_others:
            return torch.empty_like(self.values).scatter_(0, self.token_ids, self.values)
        share = torch.exp(self.values.logsumexp(0) - self.norm).clamp(max=1.0)
        other = self.norm + torch.log1p(-share) - float(np.log(num_others))
        return other.expand(self.vocab_size).clone().scatter_(0, self.token_ids, self.values)


class KeptLogits:
    """The logits at the present position and the `num_places` before it, by the index of the next token; `max_bytes` at most."""

    __slots__ = ("_at", "_nbytes", "max_bytes", "num_places")

    def __init__(self, num_places: int, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.num_places = num_places
        self.max_bytes = max_bytes
        self._at: dict[int, torch.Tensor | LargestLogits] = {}
        self._nbytes = 0

    def fork(self) -> KeptLogits:
        """Return the same for a fork of the row; it shares the tensors, which never change."""
        other = KeptLogits(self.num_places, self.max_bytes)
        other._at, other._nbytes = {**self._at}, self._nbytes
        return other

    def emptied(self) -> KeptLogits:
        """Return an empty store of the same size."""
        return KeptLogits(self.num_places, self.max_bytes)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors in the store."""
        return [kept if isinstance(kept, torch.Tensor) else kept.values for kept in self._at.values()]

    def put(self, index: int, logits: torch.Tensor) -> None:
        """Add (V,) logits before token `index`. Cost: a copy if they are a slice of a larger tensor."""
        if not self.num_places:
            return
        self._drop(index)
        whole = logits if logits.untyped_storage().nbytes() == logits.nbytes else logits.clone()
        self._at[index] = whole
        self._nbytes += whole.nbytes
        if len(self._at) > self.num_places:
            for old in [old for old in self._at if old < index - self.num_places]:
                self._drop(old)
        self._shrink()

    def whole(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before token `index`; None if they were reduced or dropped."""
        kept = self._at.get(index)
        return kept if isinstance(kept, torch.Tensor) else None

    def for_mask(self, index: int, mask: TokenSet) -> torch.Tensor | None:
        """Return (V,) logits before token `index` that are exact for the tokens of `mask`; None if they are not known."""
        kept = self._at.get(index)
        return kept.for_mask(mask) if isinstance(kept, LargestLogits) else kept

    def forget_after(self, index: int) -> None:
        """Drop the logits behind token `index`, as the tokens there have changed."""
        for later in [later for later in self._at if later > index]:
            self._drop(later)

    def _drop(self, index: int) -> None:
        kept = self._at.pop(index, None)
        self._nbytes -= kept.nbytes if kept is not None else 0

    def _shrink(self) -> None:
        """Reduce or drop the oldest until the budget suffices; once it is exceeded, whole logits take half of it at most."""
        while self._nbytes > self.max_bytes and self._at:
            whole = sorted(index for index, kept in self._at.items() if isinstance(kept, torch.Tensor))
            whole_bytes = sum(self._at[index].nbytes for index in whole)
            index = whole[0] if len(whole) > 1 and whole_bytes > self.max_bytes / 2 else min(self._at)
            kept = self._at[index]
            self._drop(index)
            if isinstance(kept, torch.Tensor) and len(kept) > NUM_LARGEST and len(whole) > 1:
                self._at[index] = LargestLogits.of(kept)
                self._nbytes += self._at[index].nbytes
