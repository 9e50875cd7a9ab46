"""Beam search: a job with a joint choice over the rows of one batch entry.

At every step the hypotheses of an entry are its ended rows and every continuation of its running rows by one token; the best
of all of them are kept. An ended hypothesis keeps its place until better ones push it out, and the search is over when no
running row is left. With as many beams as there are hypotheses this is exhaustive.

Hypotheses with the same tokens are one, whatever became of them: equal rows to begin with, two ids that end a text, a stop
text that several tokens spell. A constrained text that a limit has cut ranks behind all others, and a row that failed is
dropped while its entry has any other. Nothing is assumed of scores but their order, so policies may give tokens back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outlines_cont.engine.failure import fails
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Draw, Row
from outlines_cont.models.meter import Meter
from outlines_cont.samplers import BeamSearch, greedy
from outlines_cont.state_row import StateRow

# What is ranked first: rows that failed come last, constrained texts that were cut before them.
_FAILED, _CUT, _GOOD = 0, 1, 2
Rank = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What may be kept of a batch entry: an ended row, a row as it is, or a row with one more token.

    Attributes:
        rank: the larger, the better.
        ended: the row as a value, where it has left the loop.
        row: the row, where it has not.
        draw: the token that it goes on with, None for a row as it is.
    """

    rank: Rank
    ended: StateRow | None = None
    row: Row | None = None
    draw: Draw | None = None

    def key(self, eos_token_ids: frozenset[int]) -> tuple[bool, tuple[int, ...]]:
        """Return whether the hypothesis has ended, and its tokens: what makes it the same as another."""
        if self.row is None:
            return True, self.ended.token_ids if self.ended is not None else ()
        if self.draw is None:
            return self.row.has_ended, tuple(self.row.token_ids)
        if self.draw.token_id in eos_token_ids:
            return True, tuple(self.row.token_ids)
        return False, (*self.row.token_ids, self.draw.token_id)


class Ends(Protocol):
    """What the loop asks of a generator when a row has ended."""

    def finish(self, row: StateRow) -> StateRow:
        """Return the row with its value, or with the error of making it."""

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text is one that the generator was asked for, and no part of one."""


class BeamJob(Job):
    """Rows each of which is a hypothesis of one batch entry."""

    is_joint = True

    def __init__(
        self,
        entries: Sequence[Sequence[Row]],
        ended: Sequence[Sequence[StateRow]],
        search: BeamSearch,
        eos_token_ids: frozenset[int],
        counts: Meter,
        ends: Ends,
    ) -> None:
        """Begin with the running rows and the ended ones of each entry."""
        # The one draw of the engine that a job may make for itself is never asked for here.
        super().__init__([row for rows in entries for row in rows], greedy(), counts)
        self._search = search
        self._eos_token_ids = eos_token_ids
        self._ends = ends
        self._ended = [[self._hypothesis(row) for row in rows] for rows in ended]
        self._entry = {id(row): entry for entry, rows in enumerate(entries) for row in rows}

    @property
    def ended(self) -> list[list[StateRow]]:
        """For each entry the best of its rows that have ended, the best first; failed ones only where there is no other."""
        return [self._best(found) for found in self._ended]

    def _best(self, found: Sequence[Hypothesis]) -> list[StateRow]:
        kept = self._distinct(found)
        good = [h for h in kept if h.rank[0] != _FAILED] or kept[:1]
        return [h.ended for h in good if h.ended is not None]

    def settle(self, row: Row, state_row: StateRow) -> None:
        """Take in a hypothesis that has ended."""
        self._ended[self._entry[id(row)]].append(self._hypothesis(self._ends.finish(state_row)))
        self.rows = [other for other in self.rows if other is not row]

    def _hypothesis(self, row: StateRow) -> Hypothesis:
        if row.error is not None:
            return Hypothesis((_FAILED, 0.0), ended=row)
        tier = _GOOD if self._ends.is_whole(row) else _CUT
        return Hypothesis((tier, self._search.score(row.weight, len(row.token_ids) - row.weight_start)), ended=row)

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Keep the best hypotheses of every entry, and let rows fork and go on accordingly."""
        found = [list(ended) for ended in self._ended]
        for row in self.rows:
            if not any(row is other for other in rows):
                found[self._entry[id(row)]].append(Hypothesis(self._rank_of(row, row.weight, 0), row=row))
        self._continue(rows, logits, masked, found)
        return self._keep([self._distinct(entry) for entry in found])

    def _distinct(self, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
        """Return the best `beams` hypotheses, the best first; of those with the same tokens only the first."""
        kept: dict[tuple[bool, tuple[int, ...]], Hypothesis] = {}
        for hypothesis in sorted(hypotheses, key=lambda h: h.rank, reverse=True):
            kept.setdefault(hypothesis.key(self._eos_token_ids), hypothesis)
            if len(kept) == self._search.beams:
                break
        return list(kept.values())

    def _continue(
        self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor, found: list[list[Hypothesis]]
    ) -> None:
        """Add the continuations of every row that can be among the best."""
        norm = logits.logsumexp(-1)
        token_ids = self._candidates(masked)
        values = masked.gather(-1, token_ids)
        sampling_logprobs = masked.log_softmax(-1).gather(-1, token_ids)
        lines = (token_ids, values, values - norm[:, None], sampling_logprobs)
        for row, total, *columns in zip(rows, norm.tolist(), *(line.tolist() for line in lines), strict=True):
            if fails(row, total, max(columns[-1])):
                found[self._entry[id(row)]].append(Hypothesis((_FAILED, 0.0), row=row))
                continue
            weight = row.weight
            draws = {
                token_id: Draw(token_id, logprob, sampling_logprob)
                for token_id, value, logprob, sampling_logprob in zip(*columns, strict=True)
                if math.isfinite(value)
            }
            for draw in draws.values():
                longer = draw.token_id not in self._eos_token_ids
                rank = self._rank_of(row, weight + draw.logprob, longer)
                found[self._entry[id(row)]].append(Hypothesis(rank, row=row, draw=draw))

    def _candidates(self, masked: torch.Tensor) -> torch.Tensor:
        """Return (R, K) ids: the most probable tokens, as many as could be kept, and all ends, which score otherwise."""
        ends = torch.tensor(sorted(self._eos_token_ids), dtype=torch.int64, device=masked.device)
        best = masked.topk(min(self._search.beams + len(ends), masked.shape[-1]), dim=-1).indices
        return torch.cat([best, ends.expand(len(masked), -1)], dim=-1)

    def _keep(self, kept: Sequence[Sequence[Hypothesis]]) -> list[tuple[Row, Row]]:
        self._ended = [[h for h in entry if h.row is None] for entry in kept]
        going = [
            (h.row, h.draw, entry) for entry, hypotheses in enumerate(kept) for h in hypotheses if h.row is not None
        ]
        # Forked before any of them goes on: a fork begins where its row stands now.
        met = set[int]()
        rows = []
        for row, _, _ in going:
            rows.append(row.fork() if id(row) in met else row)
            met.add(id(row))
        self._entry = {id(row): entry for row, (_, _, entry) in zip(rows, going, strict=True)}
        for row, (_, draw, _) in zip(rows, going, strict=True):
            if draw is not None:
                row.take(draw)
        return [(source, row) for row, (source, _, _) in zip(rows, going, strict=True)]

    def _rank_of(self, row: Row, weight: float, more_tokens: int) -> Rank:
        if row.error is not None:
            return _FAILED, 0.0
        return _GOOD, self._search.score(weight, len(row.token_ids) - row.source.weight_start + more_tokens)
