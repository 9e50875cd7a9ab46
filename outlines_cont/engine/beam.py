"""`BeamJob`: beam search as a job of the engine: at every step the best `beams` hypotheses of a batch entry are kept, among its ended rows
and the one-token continuations of its running rows, which fork with their KV caches; ranked by `LogprobSum`. Ended hypotheses with the
same text are merged, running ones kept if a beam remains; cut texts, or ones that do not satisfy the constraint, rank after whole ones,
failed rows last. No early stopping: an ended hypothesis stays until better ones displace it; the search ends when no row runs.

With as many beams as there are hypotheses the search is exhaustive.

An ended text has the probability of its most probable tokenization: that over all tokenizations is not known, as most of them are in no
beam. Rows with the same tokens are merged, such as equal initial rows, or rows with two ids that end a text. Another tokenization of a text
that has not ended may become more probable later, so it is kept if a beam remains. A row that failed is dropped while its entry has any
other. Only the order of scores is used, so policies may rewind. All tokens with which a piece leaves its language after the same bytes are
one hypothesis, with the sum of their probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.engine.drawing.drawing import Draw
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.engine.steering import has_room, take
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Exit
from outlines_cont.samplers import BeamSearch
from outlines_cont.state.row import StateRow

# The first key of the order: failed rows last, before them constrained texts that were cut.
_FAILED, _CUT, _GOOD = 0, 1, 2
Rank = tuple[int, float]
Text = tuple[bytes, tuple[int, ...]]
"""The bytes of a row, and its special tokens, which have no bytes."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A candidate of one batch entry: an ended row, a running row unchanged, or a running row with one more token."""

    rank: Rank  # the larger, the better
    has_ended: bool  # whether the text is complete
    text: Text  # equal for equal texts
    ended: StateRow | None = None  # an ended row
    row: Row | None = None  # a running row
    draw: Draw | None = None  # the token to append to it; None for a row unchanged

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids, for hypotheses that have not ended."""
        drawn = () if self.draw is None else (self.draw.token_id,)
        return (*self.row.tokens.ids, *drawn) if self.row is not None else ()


class Ends(Protocol):
    """The methods of a generator that a search calls when a row has ended."""

    def finish(self, row: StateRow) -> StateRow:
        """Return the row with its value, or with the error of making it."""

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text satisfies the constraint of the generator, and is not cut."""


class BeamJob(Job):
    """Beam search over the rows of a call, each of which is a hypothesis of one batch entry."""

    is_joint = True
    _values = (*Job._values, "_ended", "_entry")

    def __init__(
        self,
        entries: Sequence[Sequence[Row]],
        ended: Sequence[Sequence[StateRow]],
        search: BeamSearch,
        eos_token_ids: frozenset[int],
        counts: Meter,
        ends: Ends,
        token_bytes: Sequence[bytes | None],
    ) -> None:
        """Begin with the running rows and the ended ones of each entry; all of them are `StateRow.searched`."""
        super().__init__([row for rows in entries for row in rows], counts)
        self._search = search
        self._eos_token_ids = eos_token_ids
        self._ends = ends
        self._token_bytes = token_bytes
        self._before: dict[int, Text] = {}  # the texts of the sources of rows, by identity; rows keep them alive
        self._ended = [[self._hypothesis(row) for row in rows] for rows in ended]
        # By identity, as rows refer to their job.
        self._entry = {id(row): entry for entry, rows in enumerate(entries) for row in rows}

    @property
    def ended(self) -> list[list[StateRow]]:
        """For each entry its best ended rows, the best first; failed ones only if there is no other."""
        return [self._best(found)[: self._search.keep] for found in self._ended]

    def _best(self, found: Sequence[Hypothesis]) -> list[StateRow]:
        kept = self._distinct(found)
        good = [h for h in kept if h.rank[0] != _FAILED] or kept[:1]
        return [h.ended for h in good if h.ended is not None]

    def note_end(self, row: Row, state_row: StateRow) -> None:
        """Add a row that has ended to the hypotheses of its entry."""
        found = self._hypothesis(self._ends.finish(state_row))
        entry = self._entry[id(row)]
        self._ended = [[*ended, found] if i == entry else ended for i, ended in enumerate(self._ended)]
        self.rows = [other for other in self.rows if other is not row]

    def _hypothesis(self, row: StateRow) -> Hypothesis:
        text = self._text_of(row.token_ids)
        if row.error is not None:
            return Hypothesis((_FAILED, 0.0), True, text, ended=row)
        return Hypothesis((_GOOD if self._ends.is_whole(row) else _CUT, row.score), True, text, ended=row)

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Keep the best hypotheses of every entry, and fork and continue rows accordingly."""
        found = [list(ended) for ended in self._ended]
        for row in self.rows:
            if row not in rows:
                rank = (_FAILED, 0.0) if row.error is not None else (_GOOD, row.search_score())
                found[self._entry[id(row)]].append(Hypothesis(rank, row.has_ended, self._text(row), row=row))
        self._continue(rows, logits, masked, found)
        return self._keep([self._distinct(entry) for entry in found])

    def _distinct(self, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
        """Return the best `beams` hypotheses, the best first; see the top of this module for other tokenizations of a text."""
        best: dict[tuple[bool, Text], Hypothesis] = {}
        others: dict[tuple[int, ...], Hypothesis] = {}
        ranked = sorted(hypotheses, key=lambda h: h.rank, reverse=True)
        for hypothesis in ranked:
            first = best.setdefault((hypothesis.has_ended, hypothesis.text), hypothesis)
            if not hypothesis.has_ended and hypothesis.token_ids != first.token_ids:
                others.setdefault(hypothesis.token_ids, hypothesis)
        kept = [*best.values(), *others.values()][: self._search.beams]
        return sorted(kept, key=lambda h: h.rank, reverse=True)

    def _text(self, row: Row) -> Text:
        """Return the text of a running row. That before its piece never changes, and is cached."""
        before = self._before.get(id(row.source))
        if before is None:
            before = self._before[id(row.source)] = self._text_of(row.tokens.ids[: row.piece_start])
        data, special = self._text_of(row.piece_ids)
        return before[0] + data, before[1] + special

    def _text_of(self, token_ids: Sequence[int]) -> Text:
        tokens = [self._token_bytes[token_id] for token_id in token_ids]
        special = tuple(i for i, data in zip(token_ids, tokens, strict=True) if data is None)
        return b"".join(data for data in tokens if data is not None), special

    def _continue(
        self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor, found: list[list[Hypothesis]]
    ) -> None:
        """Add for every row the continuations that can be among the best."""
        norm = logits.logsumexp(-1)
        left = [self._exits(row, *parts) for row, *parts in zip(rows, logits, norm, masked, strict=True)]
        masked = _without(masked, [ids for _, ids in left])
        token_ids = self._candidates(masked)
        values = masked.gather(-1, token_ids)
        sampling_logprobs = masked.log_softmax(-1).gather(-1, token_ids)
        table = (token_ids, values, values - norm[:, None], sampling_logprobs)
        for row, (ways, _), *columns in zip(rows, left, *(part.tolist() for part in table), strict=True):
            text = self._text(row)
            for way, draw in ways:
                rank = _GOOD, row.search_score(draw)
                ended = Hypothesis(rank, True, (text[0] + way.text, text[1]), row=row, draw=draw)
                found[self._entry[id(row)]].append(ended)
            if not ways and row.fails(columns[2][0], max(columns[-1])):
                found[self._entry[id(row)]].append(Hypothesis((_FAILED, 0.0), True, text, row=row))
                continue
            draws = {
                token_id: Draw(token_id, logprob, sampling_logprob)
                for token_id, value, logprob, sampling_logprob in zip(*columns, strict=True)
                if math.isfinite(value)
            }
            for draw in draws.values():
                ends = draw.token_id in self._eos_token_ids
                data, special = self._text_of([] if ends else [draw.token_id])
                rank = _GOOD, row.search_score(draw)
                longer = text[0] + data, text[1] + special
                found[self._entry[id(row)]].append(Hypothesis(rank, ends, longer, row=row, draw=draw))

    def _exits(
        self, row: Row, logits: torch.Tensor, norm: torch.Tensor, masked: torch.Tensor
    ) -> tuple[list[tuple[Exit, Draw]], NDArray[np.int64]]:
        """Return the most probable ways in which a token may leave the language of a row, and all tokens that may.

        `logits` and `masked` are (V,), by the model and under the mask; `norm` is the logsumexp of the former.
        """
        exits = row.sample.exits
        ways = [] if exits is None else exits.all()
        if not ways:
            return [], np.zeros(0, np.int64)
        token_ids = np.concatenate([way.token_ids for way in ways]).astype(np.int64)
        of_way = torch.from_numpy(np.repeat(np.arange(len(ways)), [len(way.token_ids) for way in ways]))
        at = upload(token_ids, masked.device)
        chances = (logits[at] - norm).double().exp().cpu()
        logs = torch.zeros(len(ways), dtype=torch.float64, device="cpu").index_add_(0, of_way, chances).log()
        is_open = (masked[at] > -torch.inf).cpu()
        is_allowed = torch.zeros(len(ways), dtype=torch.bool, device="cpu")
        is_allowed[of_way[is_open]] = True
        logs[~is_allowed] = -torch.inf
        logs[[not has_room(row, way) for way in ways]] = -torch.inf
        best = logs.topk(min(self._search.beams, len(ways)))
        found = [
            (ways[index], Draw(int(token_ids[((of_way == index) & is_open).numpy()][0]), log, log))
            for index, log in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            if math.isfinite(log)
        ]
        return found, token_ids

    def _candidates(self, masked: torch.Tensor) -> torch.Tensor:
        """Return (R, K) ids: the most probable tokens, as many as could be kept, and all ends, whose scores differ."""
        ends = torch.tensor(sorted(self._eos_token_ids), dtype=torch.int64, device=masked.device)
        best = masked.topk(min(self._search.beams + len(ends), masked.shape[-1]), dim=-1).indices
        return torch.cat([best, ends.expand(len(masked), -1)], dim=-1)

    def _keep(self, kept: Sequence[Sequence[Hypothesis]]) -> list[tuple[Row, Row]]:
        self._ended = [[h for h in entry if h.row is None] for entry in kept]
        continued = [
            (h.row, h.draw, entry) for entry, hypotheses in enumerate(kept) for h in hypotheses if h.row is not None
        ]
        # Rows are forked before any of them is appended to.
        rows: list[Row] = []
        for row, _, _ in continued:
            rows.append(row.fork() if row in rows else row)
        self._entry = {id(row): entry for row, (_, _, entry) in zip(rows, continued, strict=True)}
        for row, (_, draw, _) in zip(rows, continued, strict=True):
            if draw is not None:
                take(row, *draw)
        return [(source, row) for row, (source, _, _) in zip(rows, continued, strict=True)]


def _without(masked: torch.Tensor, token_ids: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    """Return (R, V) logits with minus infinity for some tokens of each row."""
    if not any(map(len, token_ids)):
        return masked
    masked = masked.clone()
    for row, ids in zip(masked, token_ids, strict=True):
        row[upload(ids, masked.device)] = -torch.inf
    return masked
