"""`Expected`: tokens fed ahead behind the end of a row, with their logits: a draft, or the tokens that healing removed, which may come
again. Those that come need not be fed again; none is a token of the row until it is drawn or forced. Immutable.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Tokens that may come next behind the end of a row, and how many of them were fed. Immutable."""

    token_ids: tuple[int, ...] = ()  # those that have not come yet
    num_fed: int = 0  # how many of the first are fed
    # (V,) before tokens of the row, by their index, as far as they are known
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)
    # For tokens that were guessed how each was, None for one that the policies leave no choice about; empty for
    # tokens that stood there before
    kinds: tuple[Hashable, ...] = ()

    @property
    def is_guess(self) -> bool:
        """Whether the tokens were guessed."""
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
        """Return what is left when a token has come: nothing where it is another one than the first."""
        if len(self.token_ids) <= 1 or self.token_ids[0] != token_id:
            return NOTHING_EXPECTED
        return replace(self, token_ids=self.token_ids[1:], num_fed=max(self.num_fed - 1, 0), kinds=self.kinds[1:])

    def lines(self, start: int, token_ids: tuple[int, ...] | list[int]) -> list[torch.Tensor]:
        """Return the (V,) logits behind the first of `token_ids`, which come at index `start`, as far as those are fed and known."""
        found: list[torch.Tensor] = []
        for offset, (token_id, expected) in enumerate(zip(token_ids, self.token_ids[: self.num_fed], strict=False)):
            line = self.logits.get(start + offset + 1)
            if token_id != expected or line is None:
                break
            found.append(line)
        return found


NOTHING_EXPECTED = Expected()
