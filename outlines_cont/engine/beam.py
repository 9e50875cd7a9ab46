"""Beam search: the loop with a joint choice over the rows of one batch entry.

At every step the hypotheses of an entry are its ended rows and every continuation of its running rows by one token; the best
of all of them are kept. An ended hypothesis keeps its place until better ones push it out, and the search is over when no
running row is left. With as many beams as there are hypotheses this is exhaustive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outlines_cont.engine.loop import Loop
from outlines_cont.engine.row import Draw, Row, Want
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.meter import Meter
from outlines_cont.samplers import BeamSearch, greedy
from outlines_cont.state_row import StateRow


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What may be kept of a batch entry: an ended row, a row as it is, or a row with one more token.

    Attributes:
        score: the larger, the better.
        ended: the row as a value, where it has left the loop.
        row: the row, where it has not.
        draw: the token that it goes on with, None for a row as it is.
    """

    score: float
    ended: StateRow | None = None
    row: Row | None = None
    draw: Draw | None = None


class BeamLoop(Loop):
    """Rows that run together, each a hypothesis of one batch entry.

    Attributes:
        ended: for each entry, the hypotheses that have ended, the best first once the loop is over.
    """

    def __init__(
        self,
        model: LanguageModel,
        entries: Sequence[Sequence[Row]],
        ended: Sequence[Sequence[StateRow]],
        search: BeamSearch,
        counts: Meter,
    ) -> None:
        """Begin with the running rows and the ended ones of each entry."""
        # The one draw of the loop that it makes for itself is never asked for here.
        super().__init__(model, [row for rows in entries for row in rows], greedy(), counts)
        self.ended = [list(rows) for rows in ended]
        self._search = search
        self._entry = {id(row): entry for entry, rows in enumerate(entries) for row in rows}

    def step(self) -> None:
        """Do one step; see `Loop.step`."""
        super().step()
        if not self.rows:
            for rows in self.ended:
                rows.sort(key=lambda row: -self._score_of_ended(row))

    def _settle(self, row: Row, state_row: StateRow) -> None:
        self.ended[self._entry[id(row)]].append(state_row)

    def _sample(self, rows: list[Row], logits: torch.Tensor | None) -> None:
        """Keep the best hypotheses of every entry, and let rows fork and go on accordingly."""
        found: list[list[Hypothesis]] = [[] for _ in self.ended]
        for entry, ended in enumerate(self.ended):
            found[entry] += [Hypothesis(self._score_of_ended(row), ended=row) for row in ended]
        for row in self.rows:
            if row.want is not Want.SAMPLE:
                found[self._entry[id(row)]].append(Hypothesis(self._score_of(row, row.weight, 0), row=row))
        if rows:
            self._continue(rows, self._logits_of(rows, logits), found)
        self._keep([sorted(entry, key=lambda h: -h.score)[: self._search.beams] for entry in found])

    def _continue(self, rows: Sequence[Row], logits: torch.Tensor, found: list[list[Hypothesis]]) -> None:
        """Add the continuations of every row that can be among the best."""
        masked = self._masked(logits, [row.mask for row in rows])
        norm, masked_norm = logits.logsumexp(-1), masked.logsumexp(-1)
        token_ids = self._candidates(masked)
        values = masked.gather(-1, token_ids)
        lines = (token_ids, values, values - norm[:, None], values - masked_norm[:, None])
        for row, total, *columns in zip(rows, norm.tolist(), *(line.tolist() for line in lines), strict=True):
            if self._fails(row, total, max(columns[-1])):
                found[self._entry[id(row)]].append(Hypothesis(-math.inf, row=row))
                continue
            draws = {
                token_id: Draw(token_id, logprob, sampling_logprob)
                for token_id, value, logprob, sampling_logprob in zip(*columns, strict=True)
                if math.isfinite(value)
            }
            for draw in draws.values():
                longer = draw.token_id not in self._model.eos_token_ids
                score = self._score_of(row, row.weight + draw.logprob, longer)
                found[self._entry[id(row)]].append(Hypothesis(score, row=row, draw=draw))

    def _candidates(self, masked: torch.Tensor) -> torch.Tensor:
        """Return (R, K) ids: the most probable tokens, as many as could be kept, and all ends, which score otherwise."""
        ends = torch.tensor(sorted(self._model.eos_token_ids), dtype=torch.int64, device=masked.device)
        best = masked.topk(min(self._search.beams + len(ends), masked.shape[-1]), dim=-1).indices
        return torch.cat([best, ends.expand(len(masked), -1)], dim=-1)

    def _keep(self, kept: Sequence[Sequence[Hypothesis]]) -> None:
        self.ended = [[h.ended for h in entry if h.ended is not None] for entry in kept]
        place = {id(row): index for index, row in enumerate(self.rows)}
        going = [
            (h.row, h.draw, entry) for entry, hypotheses in enumerate(kept) for h in hypotheses if h.row is not None
        ]
        going.sort(key=lambda item: place[id(item[0])])
        sources = [place[id(row)] for row, _, _ in going]
        # Forked before any of them goes on: a fork begins where its row stands now.
        rows = [row if i == 0 or sources[i - 1] != sources[i] else row.fork() for i, (row, _, _) in enumerate(going)]
        if self._kv is not None and rows and sources != list(range(len(self.rows))):
            self._kv.keep(sources)
        self.rows = rows
        self._entry = {id(row): entry for row, (_, _, entry) in zip(rows, going, strict=True)}
        for row, (_, draw, _) in zip(rows, going, strict=True):
            if draw is not None:
                row.take(draw)

    def _score_of(self, row: Row, weight: float, more_tokens: int) -> float:
        if row.error is not None:
            return -math.inf
        return self._search.score(weight, len(row.token_ids) - row.source.weight_start + more_tokens)

    def _score_of_ended(self, row: StateRow) -> float:
        if row.error is not None:
            return -math.inf
        return self._search.score(row.weight, len(row.token_ids) - row.weight_start)
