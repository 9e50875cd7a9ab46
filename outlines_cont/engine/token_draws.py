"""`TokenDraws`: the sampling of a step: classifier-free guidance, masks, then one vectorised draw for all rows. Draws at positions behind
guessed tokens are made at once with it, where that is cheap. Joint jobs choose among their rows when all are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from outlines_cont.engine.drawing.draw_plan import DrawPlans
from outlines_cont.engine.drawing.drawing import Draw, DrawPlace, foresees
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.guided.shadow import guided
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.engine.running_batch import RunningBatch


class TokenDraws:
    """Draws tokens for the rows of an engine; the last mask and draw plans are cached."""

    def __init__(self) -> None:
        self._masker = Masker()
        self._plans = DrawPlans()

    def take(self, batch: RunningBatch, rows: Sequence[Row], logits: torch.Tensor | None = None) -> None:
        """Draw a token for every row; joint jobs choose among theirs when all of them are ready.

        Args:
            batch: where the rows run.
            rows: those that are ready.
            logits: (R, V) after their tokens; None where each row has its own.
        """
        if logits is None:
            logits = torch.stack([*map(_logits, rows)])
        drawn_from = guided([row.shadow for row in rows], logits)
        single = [i for i, row in enumerate(rows) if not row.job.is_joint]
        if len(single) == len(rows):
            self._draw(rows, logits, drawn_from)
            return
        if single:
            self._draw([rows[i] for i in single], logits[single], drawn_from[single])
        for job in dict.fromkeys(row.job for row in rows if row.job.is_joint):
            if not any(row.awaits_forward for row in job.rows):
                mine = [i for i, row in enumerate(rows) if row.job is job]
                asked = [rows[i] for i in mine]
                masked = self._masker.masked(drawn_from[mine], [row.mask for row in asked])
                _choose(batch, job, asked, logits[mine], masked)

    def take_guessed(self, batch: RunningBatch, rows: Sequence[Row]) -> None:
        """Take what was drawn ahead for rows, and draw for those that draw something else."""
        left = [row for row in rows if not _takes_foreseen(row)]
        if left:
            self.take(batch, left)

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor, drawn_from: torch.Tensor) -> None:
        """Draw a token for every row, and those that come after it if what was guessed comes true."""
        ends = [(row, row.next_place) for row in rows]
        ahead = [(row, place) for row in rows for place in row.places_ahead()] if foresees(logits) else []
        if ahead:
            lines = torch.stack([place.logits for _, place in ahead])
            logits, drawn_from = torch.cat([logits, lines]), torch.cat([drawn_from, lines])
        draws = self._drawn([*ends, *ahead], logits, drawn_from)
        # First those ahead: where a row takes another token than was guessed, it forgets them.
        for (row, place), draw in zip(ahead, draws[len(ends) :], strict=True):
            assert row.draft is not None
            row.draft.foresee(place, draw)
        for row, draw in zip(rows, draws, strict=False):
            _take(row, draw)

    def _drawn(
        self, asked: Sequence[tuple[Row, DrawPlace]], logits: torch.Tensor, drawn_from: torch.Tensor
    ) -> list[Draw]:
        """Return what is drawn at each place of a row; rows whose sampler fails have failed."""
        rows, places = [row for row, _ in asked], [place for _, place in asked]
        masked = self._masker.masked(drawn_from, [place.mask for place in places])
        token_ids, sampling_logprobs = self._token_ids(rows, places, masked)
        normal = logits.log_softmax(dim=-1)
        logprobs = normal.gather(-1, token_ids[:, None])[:, 0]
        # One transfer from the device per step; ids up to 2 ** 24 are exact in float32.
        table = torch.stack([token_ids.to(logits.dtype), logprobs, sampling_logprobs])
        tops = _tops(rows, normal)
        return [
            Draw(int(token_id), logprob, sampling_logprob, top)
            for top, (token_id, logprob, sampling_logprob) in zip(tops, table.T.tolist(), strict=True)
        ]

    def _token_ids(
        self, rows: Sequence[Row], places: list[DrawPlace], masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R,) token ids and (R,) log-probabilities as they were drawn."""
        drawings = [place.drawing for place in places]
        uniforms, counts = None, None
        if any(drawing.needs_random for drawing in drawings):
            uniforms = torch.tensor([place.uniform or 0.0 for place in places], dtype=torch.float64)
        if any(drawing.needs_counts for drawing in drawings):
            counts = [drawing.counts_of(row) for row, drawing in zip(rows, drawings, strict=True)]
        draws = self._plans.of(drawings).draw(masked, uniforms, counts)
        for index, error in draws.errors.items():
            rows[index].fail(error)
        return draws.token_ids, draws.logprobs


def _choose(batch: RunningBatch, job: Job, rows: list[Row], logits: torch.Tensor, masked: torch.Tensor) -> None:
    """Let a joint job choose what its rows go on with, and put that in their place."""
    going = job.choose(rows, logits, masked)
    plan: list[tuple[int, Row]] = []
    for index, row in enumerate(batch.rows):
        if row.job is job:
            plan += [(index, new) for source, new in going if source is row]
        else:
            plan.append((index, row))
    job.rows = [new for _, new in going]
    batch.replace([index for index, _ in plan], [row for _, row in plan])


def _tops(rows: Sequence[Row], normal: torch.Tensor) -> list[tuple[tuple[int, float], ...]]:
    """Return for each row the most probable tokens with their log-probabilities, (R, V) `normal`, as many as it wants."""
    most = min(max(row.tokens.num_top for row in rows), normal.shape[-1])
    if not most:
        return [()] * len(rows)
    logprobs, token_ids = (column.tolist() for column in normal.topk(most, dim=-1))
    pairs = [zip(*pair, strict=True) for pair in zip(token_ids, logprobs, strict=True)]
    return [tuple(islice(pair, row.tokens.num_top)) for row, pair in zip(rows, pairs, strict=True)]


def _takes_foreseen(row: Row) -> bool:
    """Take the draw that was made ahead for a row; return whether there was one."""
    draw = row.foreseen()
    if draw is not None:
        _take(row, draw)
    return draw is not None


def _take(row: Row, draw: Draw) -> None:
    """Let a row have what was drawn for it, or fail with why nothing can be."""
    if not row.fails(draw.logprob, draw.sampling_logprob):
        row.take(draw)


def _logits(row: Row) -> torch.Tensor:
    assert row.logits is not None
    return row.logits
