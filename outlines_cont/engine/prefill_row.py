"""`PrefillRow`: a row whose tokens are fed without sampling, for their keys and values and the logits after them; the engine runs it
together with those that are generated. `PathRow`: one that reads the log-probabilities of some next tokens along it, and keeps no logits.
`run_rows` runs some to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import Piece, RowLimits, RowStatus
from outlines_cont.engine.row import Row, RowProgram, invalid_logits
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.samplers import greedy
from outlines_cont.state.image_span import ceiling
from outlines_cont.state.row import StateRow

_READ = torch.empty(0, device="cpu")  # in place of logits, which are not kept


class PrefillRow(Row):
    """A row whose tokens are fed for their logits, and that samples nothing.

    Attributes:
        found: (V,) logits after the token at an index, for every wanted index that was fed.
        num_fed: the number of tokens that were fed for it.
    """

    def __init__(self, source: StateRow, model: LanguageModel, *, counts: Meter, indices: Sequence[int]) -> None:
        """Feed `source` up to the last of the tokens after which logits are wanted, those at `indices`: ascending, at least one."""
        kept = min(source.cached, indices[0])
        source.check_pinned(kept, f"token {kept} would be fed again, for logits")
        held = replace(source, kv=source.kv[:kept] if source.kv is not None and kept else None)
        super().__init__(held, model, Piece(sampler=greedy(), limits=RowLimits.of(model, ())), counts=counts)
        self.tokens = self.tokens.cut(ceiling(source.images, indices[-1] + 1))
        counts.recomputed_tokens += min(source.cached, len(self.token_ids)) - kept
        self.found: dict[int, torch.Tensor] = {}
        self.num_fed = 0
        self._indices = indices
        self.program = _Prefill()

    draws_next = False

    @property
    def is_ready(self) -> bool:
        """False, as nothing is sampled."""
        return False

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens other rows may have fed."""
        return self._indices[0]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted."""
        return [index - self.cached for index in self._indices if 0 <= index - self.cached < chunk_size]

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Keep copies of the wanted logits, to release those of the other rows."""
        self.found.update({self.cached + index: after.clone() for index, after in logits.items()})
        self.num_fed += count
        super().fed(count, {})

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the source with its new keys, values, logits and scores, or with the error."""
        if self.error is not None:
            return replace(self.source, error=self.error)
        logprobs, logits = tuple(self.tokens.logprobs), self.found.get(len(self.source.token_ids) - 1)
        return replace(self.source, kv=self.pinned_kv(kv), logits=logits, logprobs=logprobs, unscored=())

    def plan(self) -> None:
        """Leave when all wanted logits are known; else feed from the first unknown one."""
        lacking = [index for index in self._indices if index not in self.found]
        if self.has_ended or not lacking:
            self.status = RowStatus.LEAVING
        else:
            self.lose(lacking[0])
            self.status = RowStatus.SAMPLING


class _Prefill(RowProgram):
    """The program of a `PrefillRow`."""

    def plan(self, row: Row) -> None:
        """Plan the row."""
        assert isinstance(row, PrefillRow)
        row.plan()


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
    """Return the natural logarithms of the probabilities of some tokens by (V,) logits; None if these are no distribution.

    Cost: one pass over the logits, and one synchronisation.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    norm = exact.logsumexp(0)
    index = torch.tensor(token_ids, device=exact.device)
    *found, total = torch.cat([exact[index] - norm, norm[None]]).tolist()
    return found if abs(total) < float("inf") else None  # NaN compares as False


def run_rows(model: LanguageModel, rows: Sequence[PrefillRow], counts: Meter) -> list[StateRow]:
    """Run rows to their end, and return their results; raise the error of the first that failed."""
    if not rows:
        return []
    job = Job(rows, counts)
    model.engine.run(job)
    done = [row for _, row in sorted(job.done.items())]
    for row in done:
        if row.error is not None:
            raise row.error
    return done
