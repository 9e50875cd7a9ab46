"""`Run`: one call of a generator: it submits the `CallRows` of the call to the engine as one job, iterates over its steps (with
`on_progress`), and collects the resulting state; a cut without a `max_tokens` warns. Ended rows can be taken out one by one; the best of n
samples is chosen here, beams are ranked by the engine's `BeamJob`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from fsm.caller import stacklevel_of_user
from outlines_cont.engine.beam import BeamJob
from outlines_cont.engine.job import Job
from outlines_cont.errors import LengthWarning, NoHypothesis
from outlines_cont.generation.call_rows import CallRows
from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.progress import ProgressReporter
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState, best_row


class Run:
    """One call of a generator, from its checks to the resulting state.

    Everything but the prompt of a single row is checked here, before anything runs. Then exhaust `steps`, and take `state`; or call
    `finished_state` for both. The attribute `call` has the rows and their results.
    """

    def __init__(
        self,
        maker: PieceMaker,
        prompt: Any,
        options: Options,
        *,
        rng: Rng = None,
        resume: bool = False,
        score_last: bool = True,
    ) -> None:
        self.call = CallRows(maker, prompt, options, rng, resume=resume, score_last=score_last)
        self._sampler, self._engine = maker.sampler, maker.model.engine
        self._is_collected = False
        self._running: list[int] | None = None  # the rows that ran, if they are taken out as they end
        self._num_taken = 0

    def finished_state(self) -> SequenceState:
        """Run to the end, and return the final state."""
        for _ in self.steps():
            pass
        return self.state()

    async def async_finished_state(self) -> SequenceState:
        """The asynchronous form, which does not block the event loop; a cancelled task releases its rows."""
        async for _ in self.async_steps():
            pass
        return self.state()

    def steps(self) -> Generator[None, None, None]:
        """Run to the end, one step of the engine at a time; closing the generator earlier releases the rows.

        After the last one the results are complete, even if other calls took the steps.
        """
        job, report = self._make_job(), self._report
        try:
            self._engine.submit(job)
            for _ in self._engine.steps(job):
                report()
                yield
        finally:  # an interrupt may come between any two instructions, also before the first step
            self._engine.cancel(job)
            report(is_over=True)
        self.collect()

    async def async_steps(self) -> AsyncGenerator[None, None]:
        """The asynchronous form, which does not block the event loop; a cancelled task releases its rows."""
        job, report = self._make_job(), self._report
        try:
            self._engine.submit(job)
            async with aclosing(self._engine.async_steps(job)) as steps:
                async for _ in steps:
                    report()
                    yield
        finally:
            self._engine.cancel(job)
            report(is_over=True)
        self.collect()

    def submit(self) -> None:
        """Submit the rows to the engine, for a caller that takes the steps of several runs; see `collect` and `take_ended`."""
        self._engine.submit(self._make_job())

    @property
    def job(self) -> Job:
        """The submitted rows."""
        assert self.call.job is not None
        return self.call.job

    def cancel(self) -> None:
        """Cancel the submitted rows that still run."""
        if self.call.job is not None:
            self._engine.cancel(self.call.job)

    def take_ended(self) -> list[StateRow]:
        """Return the rows that ended since the last call, without keys and values; the first call also returns those that cannot run.

        They are released: such a run has no state at its end, so its memory is that of the rows that still run.
        """
        call, job = self.call, self.job
        found: list[StateRow] = []
        if self._running is None:
            found = [call.results[i] for i, row in enumerate(call.rows) if row is None]
            self._running = [i for i, row in enumerate(call.rows) if row is not None]
        with self._engine.lock:
            for at, state_row in list(islice(job.done.items(), self._num_taken, None)):
                job.done[at] = replace(call.finished(at, state_row), kv=None, logits=None)
                found.append(job.done[at])
                call.release(self._running[at], at)
                self._num_taken += 1
        return found

    def collect(self) -> SequenceState:
        """Collect the results of the rows, and return the final state; valid once their `job` is over."""
        self._is_collected, call, job = True, self.call, self.job
        if isinstance(job, BeamJob):
            self._collect_hypotheses(job.ended)
        else:
            running = [i for i, row in enumerate(call.rows) if row is not None]
            for at, row in job.done.items():
                call.results[running[at]] = call.finished(at, row)
        self._warn_of_cuts()
        return self.state()

    def state(self) -> SequenceState:
        """Return the final state; valid after `steps`."""
        state = self.call.state()
        if not isinstance(self._sampler, BestOf):
            return state
        count = self._sampler.samples
        starts = range(0, state.num_samples, count)

        def best(rows: Sequence[StateRow]) -> StateRow:  # a cut one only if all are cut
            return best_row([row for row in rows if row.error is None and self.call.is_whole(row)] or rows)

        return replace(state, rows=tuple(tuple(best(group[i : i + count]) for i in starts) for group in state.rows))

    def leave(self) -> SequenceState:
        """Cancel the rows, and return the present state."""
        job = self.call.job
        with self._engine.lock:
            state = self.state() if job is None or self._is_collected else self.call.snapshot()
            if job is not None:
                self._engine.cancel(job)
                self._report(is_over=True)
            return state

    def _make_job(self) -> Job:
        call = self.call
        if isinstance(self._sampler, BeamSearch):
            entries = [[row for i in entry if (row := call.rows[i]) is not None] for entry in call.entries]
            ended = [[call.results[i] for i in entry if call.rows[i] is None] for entry in call.entries]
            token_bytes = call.maker.model.tokenizer.token_bytes
            call.job = BeamJob(entries, ended, self._sampler, call.eos_token_ids, call.counts, call, token_bytes)
        else:
            call.job = Job([*filter(None, call.rows)], call.counts)
        call.job.can_fork = False  # a call returns as many rows as it was given
        return call.job

    def _collect_hypotheses(self, found: list[list[StateRow]]) -> None:
        call = self.call
        streams = [[call.results[i].stream for i in entry] for entry in call.entries]
        count = call.num_samples = max(map(len, found), default=0)
        padded = [rows + [_missing_hypothesis(rows)] * (count - len(rows)) if rows else [] for rows in found]
        # A search draws nothing, so streams belong to the index of a sample: two rows of a state never have the same.
        call.results = [
            replace(row, stream=own[i] if i < len(own) else own[0].fork(i))
            for rows, own in zip(padded, streams, strict=True)
            for i, row in enumerate(rows)
        ]

    def _warn_of_cuts(self) -> None:
        options, results = self.call.options, self.call.results
        if options.has_max_tokens:
            return
        limit = options.max_tokens
        cut = [row for row in results if row.finish_reason == "length" and row.piece is not None]
        if any(len(row.token_ids) - row.piece.start >= (limit or 0) for row in cut if row.piece is not None):
            warnings.warn(
                f"{len(cut)} of {len(results)} texts were cut after {limit} tokens, the most tokens of a piece if `max_tokens` is not "
                "given. Pass `max_tokens=...` (None is up to the context), or bound the text: strings by `maxLength`, arrays by "
                "`maxItems`. `continuous(generator).resume(state)` continues it.",
                LengthWarning,
                stacklevel=stacklevel_of_user(),
            )

    @cached_property
    def _report(self) -> Callable[..., None]:
        report = self.call.options.on_progress
        return (lambda **_: None) if report is None else ProgressReporter(report, self._progress)

    def _progress(self) -> tuple[int, int, int, int]:
        """Return the numbers of texts, of those that have ended and that have failed, and of their tokens."""
        call = self.call
        with self._engine.lock:
            rows = [*filter(None, call.rows)]
            if isinstance(call.job, BeamJob):  # hypotheses move between rows
                rows = [] if call.job.is_over else call.job.rows
            ended = [row.error for row in rows if row.is_over]
            tokens = sum(len(row.token_ids) - row.piece_start for row in rows)
            running = len(rows) - len(ended)
            failed = sum(error is not None for error in [*ended, *(row.error for row in call.results)])
            return len(call.results), len(call.results) - running, failed, tokens


def _missing_hypothesis(rows: Sequence[StateRow]) -> StateRow:
    """Return an empty row for a batch entry with fewer hypotheses than others."""
    if rows[-1].error is not None:
        return rows[-1]
    error = NoHypothesis(
        f"expected as many hypotheses as the other batch entries have, but there are only {len(rows)}: no other text is possible"
    )
    return replace(rows[-1], error=error, finish_reason="error", value=None, kv=None, logits=None)
