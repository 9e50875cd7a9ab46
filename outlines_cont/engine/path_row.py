"""`PathRow`: a row that is only prefilled, along a path of given tokens, and reads the log-probabilities of some next tokens on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from outlines_cont.engine.prefill_row import PrefillRow
from outlines_cont.engine.row import Row, invalid_logits
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow

_READ = torch.empty(0)  # in place of logits, which are not kept


class PathRow(PrefillRow):
    """A row that is fed for the log-probabilities of some tokens after some of its tokens; its logits are not kept.

    Attributes:
        scores: for each wanted index that was fed the natural logarithms of the probabilities of its wanted tokens, in their order.
    """

    def __init__(
        self, source: StateRow, model: LanguageModel, wanted: Mapping[int, Sequence[int]], *, counts: Meter
    ) -> None:
        """Feed `source` up to the last of the indices of `wanted`: the ids that are wanted after the token at each index."""
        super().__init__(source, model, counts=counts, indices=sorted(wanted))
        self.scores: dict[int, list[float]] = {}
        self._wanted = wanted

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Read the log-probabilities of the wanted tokens after those that were fed."""
        for index, after in logits.items():
            at = self.cached + index
            self.found[at] = _READ
            found = token_logprobs(after, self._wanted[at])
            if found is None:
                self.guarded(lambda: self.fail(invalid_logits(self.excerpt)))
            else:
                self.scores[at] = found
        self.num_fed += count
        Row.fed(self, count, {})

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the source with its new keys and values, without logits."""
        return replace(super().leave(kv), logits=None)


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int]) -> list[float] | None:
    """Return the natural logarithms of the probabilities of some tokens by (V,) logits; None where these are no distribution.

    Cost: one pass over the logits, and one synchronisation.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    norm = exact.logsumexp(0)
    index = torch.tensor(token_ids, device=exact.device)
    *found, total = torch.cat([exact[index] - norm, norm[None]]).tolist()
    return found if abs(total) < float("inf") else None  # NaN compares as False
