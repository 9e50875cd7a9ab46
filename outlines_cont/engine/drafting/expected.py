"""`Expected`: tokens fed, or to be fed, behind the end of a row, with their logits: draft tokens, or those that healing removed. If the row
continues with them, they need not be fed again, except forced ones without known logits; another token drops them all. Before that they are
not tokens of the row. Immutable.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Tokens that may follow the end of a row, of which the first `num_fed` are in the KV cache. Immutable."""

    token_ids: tuple[int, ...] = ()
    num_fed: int = 0
    logits: Mapping[int, torch.Tensor] = field(
        default_factory=dict
    )  # known (V,) logits, by the index of the next token
    kinds: tuple[Hashable, ...] = ()  # of draft tokens how each was drafted, None for a forced one; else empty

    @property
    def is_draft(self) -> bool:
        """Whether these are draft tokens."""
        return bool(self.kinds)

    @property
    def num_pending(self) -> int:
        """How many of them are not fed."""
        return len(self.token_ids) - self.num_fed

    def fed(self, count: int, logits: Mapping[int, torch.Tensor]) -> Expected:
        """Return the same after `count` more were fed, with the logits before and behind them."""
        return replace(self, num_fed=self.num_fed + count, logits={**self.logits, **logits})

    def unfed(self) -> Expected:
        """Return the same with none of them fed."""
        return replace(self, num_fed=0, logits={})

    def after(self, token_id: int) -> Expected:
        """Return what is left after the row was appended to; nothing if the token is not the first of these."""
        if len(self.token_ids) <= 1 or self.token_ids[0] != token_id:
            return NOTHING_EXPECTED
        return replace(self, token_ids=self.token_ids[1:], num_fed=max(self.num_fed - 1, 0), kinds=self.kinds[1:])

    def logits_behind(self, start: int, token_ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the (V,) logits behind each of `token_ids`, the first of which has index `start`, up to the first unknown one."""
        found: list[torch.Tensor] = []
        for offset, (token_id, expected) in enumerate(zip(token_ids, self.token_ids[: self.num_fed], strict=False)):
            logits = self.logits.get(start + offset + 1)
            if token_id != expected or logits is None:
                break
            found.append(logits)
        return found


NOTHING_EXPECTED = Expected()
