"""`TokenDraws`: the sampling of a step: classifier-free guidance, masks, then one vectorised draw for all rows. On an accelerator, or with
a vocabulary of up to 16,384 tokens, positions behind draft tokens are part of it (not for guided rows, users' samplers, or samplers that
depend on the tokens of the row). Joint jobs (beam search) choose among their rows when all are ready.

`Speculation`: speculative decoding in the engine: before a forward it lets drafters propose the next tokens of rows, which the forward
feeds as well. `TokenDraws` then draws each token as always, from the logits
of the model under the mask, with the random number of the row (not by the rejection step of the literature); draft tokens are accepted up
to the first that is not the drawn one. So drafts do not change the output, up to the rounding of wider forwards.

If a drafter raises, its rows go on without drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.engine.drafting.lengths import DraftLengths
from outlines_cont.engine.drafting.lookahead import Lookahead
from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest
from outlines_cont.engine.drawing.draw_plan import DrawPlan, DrawPlans
from outlines_cont.engine.drawing.drawing import Draw, DrawInput, draws_ahead_pay
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.guidance import guided
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.engine.steering import take
from outlines_cont.engine.track import Top
from outlines_cont.policies.slow_work import bounded
from outlines_cont.sampling.kernels import TokenCounts, most_probable

Column = torch.Tensor | NDArray[Any]
"""(R,) numbers of the rows of a draw; an array on a CPU alone."""


class Speculation:
    """Calls the drafters of the rows of an engine."""

    def __init__(self, device_type: str) -> None:
        self._lengths = DraftLengths(device_type)
        self._drafters: list[Drafter] = []

    def draft(self, rows: Sequence[Row]) -> None:
        """Draft tokens behind the pending tokens of the rows of one forward, which begins when this returns."""
        ready = [(row, row.draft) for row in rows if row.draft is not None and row.can_draft]
        if not ready:
            return
        with bounded():  # a draft ends before what takes long
            drafters = dict.fromkeys(draft.drafter for _, draft in ready)
            requests = [DraftRequest(row, draft, self._lengths.least) for row, draft in ready]
            for drafter in drafters:
                self._draft(drafter, [request for request in requests if request.draft.drafter is drafter])
            for (row, _), request in zip(ready, requests, strict=True):
                if request.found is not None and request.found.token_ids:
                    _begin(row, request.found)

    def _draft(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> None:
        if drafter not in self._drafters:
            self._drafters.append(drafter)
        record = self._lengths.record(drafter)
        for request in requests:
            request.draft.record = record
        try:
            drafter.draft(requests)
        except Exception as error:
            drafter.keep(())
            for request in requests:
                request.draft.fail(error)

    def keep(self, rows: Iterable[Row]) -> None:
        """Release what drafters hold for rows that no longer run."""
        if not self._drafters:
            return
        drafts = [row.draft for row in rows if row.draft is not None]
        for drafter in self._drafters:
            drafter.keep([draft.memory for draft in drafts if draft.drafter is drafter])
        running = {draft.drafter for draft in drafts}
        self._drafters = [drafter for drafter in self._drafters if drafter in running]


def _begin(row: Row, found: Lookahead) -> None:
    """Feed a draft behind the pending tokens of a row, and of its negative prompt."""
    assert row.draft is not None
    row.feed.expected = row.draft.begin(found)
    row.count_draft("proposed_tokens", found.num_drawn)
    row.policies = found.lent_to(row.policies)
    if row.negative is not None:
        row.negative.expect(found.token_ids)


class TokenDraws:
    """Draws tokens for the rows of an engine; caches the last mask, and draw plans."""

    def __init__(self) -> None:
        self._masker = Masker()
        self._plans = DrawPlans()

    def take(self, batch: RunningBatch, rows: Sequence[Row], logits: torch.Tensor | None = None) -> None:
        """Draw a token for every row from (R, V) logits, those of each row for None; joint jobs choose when all their rows are ready."""
        if logits is None:
            logits = torch.stack([row.logits for row in rows if row.logits is not None])
        drawn_from = guided([row.negative for row in rows], logits)
        if not any(row.job.is_joint for row in rows):
            self._draw(batch, rows, logits, drawn_from)
            return
        single = [i for i, row in enumerate(rows) if not row.job.is_joint]
        if single:
            self._draw(batch, [rows[i] for i in single], logits[single], drawn_from[single])
        batch.read_scores()
        for job in dict.fromkeys(row.job for row in rows if row.job.is_joint):
            if not any(row.awaits_forward or row.slow is not None for row in job.rows):
                mine = [i for i, row in enumerate(rows) if row.job is job]
                ready = [rows[i] for i in mine]
                masked = self._masker.masked(drawn_from[mine], [row.sample.mask for row in ready])
                _choose(batch, job, ready, logits[mine], masked)

    def take_drafted(self, batch: RunningBatch, rows: Sequence[Row]) -> None:
        """Take the draws that were made ahead for rows; draw for rows whose input differs."""
        ahead = [(row, None if row.draft is None else row.draft.draw_ahead(row.draw_input)) for row in rows]
        for row, draw in ahead:
            if draw is not None and (row.error is None or not row.fails(*draw[1:3])):
                take(row, *draw)
        left = [row for row, draw in ahead if draw is None]
        if left:
            self.take(batch, left)

    def _draw(self, batch: RunningBatch, rows: Sequence[Row], logits: torch.Tensor, drawn_from: torch.Tensor) -> None:
        """Draw a token for every row, and the tokens behind its draft."""
        draws = _Draws(rows)
        ahead: list[tuple[Row, DrawInput]] = []
        if any(row.draft is not None for row in rows) and draws_ahead_pay(logits):
            ahead = [(row, one) for row in rows for one in _inputs_ahead(row)]
        if ahead:
            draws.add(ahead)
            more = torch.stack([one.logits for _, one in ahead])
            logits, drawn_from = torch.cat([logits, more]), torch.cat([drawn_from, more])
        found = self._drawn(batch, draws, logits, drawn_from)
        # First those ahead: a row that takes another token than its draft drops them.
        for (row, one), draw in zip(ahead, found[len(rows) :], strict=True):
            assert row.draft is not None
            row.draft.keep_draw(one, Draw(*draw))
        for row, draw in zip(rows, found, strict=False):
            if (isfinite(draw[1]) and isfinite(draw[2]) and row.error is None) or not row.fails(*draw[1:3]):
                take(row, *draw)

    def _drawn(
        self, batch: RunningBatch, draws: _Draws, logits: torch.Tensor, drawn_from: torch.Tensor
    ) -> list[tuple[int, float, float, Top]]:
        """Return what each draw is, see `Draw`; a row whose sampler fails has failed.

        One transfer from the device brings the draws, and the scores of the batch.
        """
        masked, normal = self._masker.masked(drawn_from, draws.masks), logits.log_softmax(dim=-1)
        plan = self._plans.of(draws.drawings)
        table = _table(plan, draws, masked, normal, is_free=masked is logits, marks_doubts=must_wait(masked))
        scores = [] if batch.scores is None else [batch.scores]
        values = _values([*table, *scores])
        if scores:
            batch.note_scores(values.pop())
        if inf in values[2]:
            doubtful = [i for i, sampling_logprob in enumerate(values[2]) if sampling_logprob == inf]
            some = draws.some(doubtful)
            again = self._plans.of(some.drawings), some, masked[doubtful], normal[doubtful]
            for line, found in zip(values, _values(_table(*again, is_free=False, marks_doubts=False)), strict=True):
                for i, value in zip(doubtful, found, strict=True):
                    line[i] = value
        token_ids, logprobs, sampling_logprobs = values
        return [*zip(token_ids, logprobs, sampling_logprobs, _tops(draws.rows, normal), strict=True)]


class _Draws:
    """Draws for rows, in parallel lists: the row, the mask, how it is drawn, and the random number of each."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Draw the next token of each row."""
        self.rows = [*rows]
        self.masks = [row.sample.mask for row in rows]
        self.drawings = [row.sample.drawing or row.piece.spec.drawing() for row in rows]
        # A greedy row takes no random number from its stream.
        self.uniforms = [
            row.stream.peek() if drawing.needs_random else 0.0 for row, drawing in zip(rows, self.drawings, strict=True)
        ]

    def add(self, ahead: Sequence[tuple[Row, DrawInput]]) -> None:
        """Add draws behind drafts."""
        self.rows += [row for row, _ in ahead]
        self.masks += [one.mask for _, one in ahead]
        self.drawings += [one.drawing for _, one in ahead]
        self.uniforms += [one.uniform or 0.0 for _, one in ahead]

    def some(self, indices: Sequence[int]) -> _Draws:
        """Return some of the draws."""
        other = _Draws(())
        other.rows, other.masks = [self.rows[i] for i in indices], [self.masks[i] for i in indices]
        other.drawings, other.uniforms = [self.drawings[i] for i in indices], [self.uniforms[i] for i in indices]
        return other


def _table(
    plan: DrawPlan, draws: _Draws, masked: torch.Tensor, normal: torch.Tensor, *, is_free: bool, marks_doubts: bool
) -> list[Column]:
    """Return (R,) token ids, log-probabilities by (R, V) `normal`, and those masked and warped (`BatchDraw`). `is_free`: without masks."""
    if plan.takes_largest:
        return _largest(masked, normal, normal if is_free else masked.log_softmax(dim=-1))
    uniforms = torch.tensor(draws.uniforms, dtype=torch.float64, device="cpu") if plan.needs_random else None
    counts: list[TokenCounts | None] | None = None
    if plan.needs_counts:
        counts = [drawing.counts_of(row) for row, drawing in zip(draws.rows, draws.drawings, strict=True)]
    found = plan.draw(masked, uniforms, counts, marks_doubts=marks_doubts)
    for index, error in found.errors.items():
        draws.rows[index].fail(error)
    return [found.token_ids, normal.gather(-1, found.token_ids[:, None]).squeeze(-1), found.logprobs]


def _largest(masked: torch.Tensor, normal: torch.Tensor, masked_normal: torch.Tensor) -> list[Column]:
    """Return the same of the largest of each row; on a CPU by numpy, which takes two thirds of the time of PyTorch."""
    if must_wait(masked):
        token_ids, logprobs = most_probable(masked, masked_normal)
        return [token_ids, normal.gather(-1, token_ids[:, None]).squeeze(-1), logprobs]
    largest = masked.numpy().argmax(axis=-1)
    rows = np.arange(len(largest))
    return [largest, normal.numpy()[rows, largest], masked_normal.numpy()[rows, largest]]


def must_wait(tensor: torch.Tensor) -> bool:
    """Return whether the host waits for what it reads of a tensor; if not, rows in doubt are processed whole at once."""
    return tensor.device.type != "cpu"


def _values(columns: Sequence[Column]) -> list[list[Any]]:
    """Return the numbers of 1-D tensors of one device, by one transfer; those of the first are ids, below 2 ** 24, exact in float32."""
    remote = [column for column in columns if isinstance(column, torch.Tensor) and column.device.type != "cpu"]
    if not remote:
        return [column.tolist() for column in columns]
    numbers = iter(torch.cat([column.to(remote[-1].dtype) for column in remote]).tolist())
    token_ids, *others = ([*islice(numbers, len(column))] for column in remote)
    return [[*map(int, token_ids)], *others]


def _choose(batch: RunningBatch, job: Job, rows: list[Row], logits: torch.Tensor, masked: torch.Tensor) -> None:
    """Let a joint job choose its next rows, and replace its rows by them."""
    going = job.choose(rows, logits, masked)
    plan: list[tuple[int, Row]] = []
    for index, row in enumerate(batch.rows):
        if row.job is job:
            plan += [(index, new) for source, new in going if source is row]
        else:
            plan.append((index, row))
    job.rows = [new for _, new in going]
    batch.replace([index for index, _ in plan], [row for _, row in plan])


def _tops(rows: Sequence[Row], normal: torch.Tensor) -> list[Top]:
    """Return for each row its `num_top` most probable tokens with their log-probabilities, by (R, V) `normal`."""
    most = min(max([row.tokens.num_top for row in rows]), normal.shape[-1])
    if not most:
        return [()] * len(rows)
    logprobs, token_ids = (column.tolist() for column in normal.topk(most, dim=-1))
    pairs = [zip(*pair, strict=True) for pair in zip(token_ids, logprobs, strict=True)]
    return [tuple(islice(pair, row.tokens.num_top)) for row, pair in zip(rows, pairs, strict=True)]


def _inputs_ahead(row: Row) -> list[DrawInput]:
    """Return the inputs of the draws behind the draft of a row; none for guided rows, which need logits of both sequences."""
    if row.negative is not None or row.draft is None:
        return []
    return row.draft.inputs(row.length, row.feed.expected, row.piece.spec.drawing, row.stream)
