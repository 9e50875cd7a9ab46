"""`Drawing`: how a token of one row is drawn, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.params import SamplingParams
from outlines_cont.sampling.sampler import Sampler

Counts = Sequence[TokenCounts | None]


class _CountedRow(Protocol):
    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return what the row holds; `mirostat`: its next token is drawn with `Mirostat`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a token is drawn, and what that takes; asked once, not for every token.

    Attributes:
        sampler: how tokens are drawn.
        needs_random: whether a draw takes a random number.
        needs_counts: whether a draw depends on the tokens of the row.
        params: what the sampler chooses by; None for one with a `sample` of its own.
    """

    sampler: Sampler
    needs_random: bool
    needs_counts: bool
    params: SamplingParams | None

    def counts_of(self, row: _CountedRow) -> TokenCounts | None:
        """Return what a draw needs to know of the tokens of a row; None where it needs nothing."""
        if not self.needs_counts:
            return None
        return row.counts_for(mirostat=self.has_mirostat)

    @property
    def has_mirostat(self) -> bool:
        """Whether `Mirostat` is among the warpers."""
        return self.params is not None and self.params.has_mirostat

    @property
    def kind(self) -> object:
        """Equal for rows that are drawn together."""
        if self.params is None:
            return id(self.sampler)
        return "standard" if self.params.is_standard else "own warpers"
