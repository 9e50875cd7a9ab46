"""`GivenBack`: tokens that a row has given back and that may come again, fed with those before them, so that none is fed twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, slots=True, eq=False)
class GivenBack:
    """Tokens that stood behind the present end of a row. Immutable.

    Attributes:
        token_ids: those that have not come again yet.
        num_fed: how many of the first are fed.
        logits: (V,) before tokens of the row, by their index, as far as they are known.
    """

    token_ids: tuple[int, ...] = ()
    num_fed: int = 0
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)

    @property
    def num_pending(self) -> int:
        """How many of them are not fed."""
        return len(self.token_ids) - self.num_fed

    def fed(self, count: int, logits: Mapping[int, torch.Tensor]) -> GivenBack:
        """Return the same after `count` more were fed, with the logits before and behind them."""
        return replace(self, num_fed=self.num_fed + count, logits={**self.logits, **logits})

    def unfed(self) -> GivenBack:
        """Return the same with none of them fed."""
        return GivenBack(self.token_ids)

    def after(self, token_id: int) -> GivenBack:
        """Return what is left when a token has come: nothing where it is another one than the first."""
        if self.token_ids[:1] != (token_id,):
            return NOTHING_GIVEN_BACK
        return replace(self, token_ids=self.token_ids[1:], num_fed=max(self.num_fed - 1, 0))


NOTHING_GIVEN_BACK = GivenBack()
