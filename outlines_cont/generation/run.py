"""`Run`: one call of a generator: checks it, makes a row for each prompt and sample, submits them to the engine as one job, takes its
steps, and collects the resulting state. Ended rows can be taken out one by one, and between two steps there is a snapshot; the best of n
samples is chosen here, beams are ranked by the engine's `BeamJob`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

from fsm import FSMError
from fsm.caller import stacklevel_of_user
from outlines_cont.drafts.opening import open_draft
from outlines_cont.engine.beam import BeamJob
from outlines_cont.engine.drafting.row_draft import RowDraft
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.errors import (
    LengthWarning,
    MissingEOS,
    NoHypothesis,
    OptionError,
    ResumeError,
    UnsupportedModel,
    shortened,
)
from outlines_cont.generation.lengths import warn_of_lengths
from outlines_cont.generation.negative_prompt import NegativePrompt, open_guidance
from outlines_cont.generation.options import Options, check_ids
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.generation.protocols import PieceMaker
from outlines_cont.interfaces import JobRunner
from outlines_cont.meter import Meter
from outlines_cont.progress import ProgressReporter
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.random_stream import RandomStream, Rng
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState, best_row
from outlines_cont.user_code import shielded


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A row of a run that has ended, without its keys and values.

    Attributes:
        number: which of the rows.
        row: the finished row, with its value or error.
    """

    number: int
    row: StateRow


class Run:
    """One call of a generator, from its checks to the resulting state.

    Everything is checked here, before anything runs, but what belongs to a single row. Then exhaust `steps`, and take `state`.

    Attributes:
        maker: the generator.
        options: those of the call.
        rows: those that run, or None for one that cannot, or whose end was taken.
        results: the resulting row of each, as far as it is known.
        batch_size, num_samples: B and S.
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
        policies = maker.policies(options)
        where = "as `stop_token_ids`, those of the model"
        check_ids(options.stop_token_ids, maker.model.vocab_size, "ids", where, "stop_token_ids")
        self._eos_token_ids = maker.model.eos_token_ids.union(options.stop_token_ids)
        self.options = options
        is_limited = options.has_max_tokens and options.max_tokens is not None
        if not self._eos_token_ids and not is_limited and not options.stop_at:
            raise MissingEOS(
                "expected a model with an end-of-sequence token, got one that names none, so the text would never end. "
                "Pass `max_tokens` or `stop_at`, or set `eos_token_id` in the generation config."
            )
        if isinstance(maker.sampler, BeamSearch) and not maker.model.can_stack:
            raise UnsupportedModel(
                f"expected a model whose rows can run in one batch, for beam search, got {maker.model!r}. "
                "Use `samplers.best_of(n)`, whose samples run one by one."
            )
        if isinstance(maker.sampler, BeamSearch) and options.is_guided:
            raise OptionError(
                f"expected a sampler that draws token by token beside `guidance`, got {maker.sampler!r}: a search ranks texts by what the "
                "model itself makes of them, which guidance leaves as it is. Use `samplers.greedy()` or `samplers.best_of(n)`.",
                "guidance",
            )
        self.maker = maker
        sampler = maker.sampler
        if isinstance(sampler, BestOf) and not resume:
            prompt = _fork_rows(prompt, sampler.samples)
        num_samples = None if resume else _num_samples(sampler, prompt)
        opened = open_prompt(maker.model, prompt, num_samples, rng, heal=options.heal and not resume)
        if maker.unbounded and not options.has_max_tokens and not resume:
            warn_of_lengths(maker.model, maker.source, maker.unbounded, options.max_tokens)
        self._seed = opened.seed
        self.batch_size = len(opened.rows)
        self.num_samples = max(map(len, opened.rows), default=0)
        self._counts = Meter(reused_tokens=opened.reused)
        # Hypotheses are compared by all of their tokens.
        score_last = score_last or isinstance(sampler, BeamSearch | BestOf)
        negatives = open_guidance(maker.model, options.guidance, (self.batch_size, self.num_samples))
        self.results: list[StateRow] = []
        self.rows: list[Row | None] = []
        negative_of = [negatives[b] for b, group in enumerate(opened.rows) for _ in group]
        given = chain.from_iterable(opened.rows), chain.from_iterable(opened.healing), negative_of
        for source, healing, negative in zip(*given, strict=True):
            begun = _begun(source, sampler, negative, resume)
            self.results.append(begun)
            self.rows.append(None)
            if _can_run(begun, resume):
                self.rows[-1] = Row(
                    begun,
                    policies,
                    maker.model,
                    counts=self._counts,
                    max_tokens=options.max_tokens,
                    resume=resume,
                    score_last=score_last,
                    source_text=maker.source,
                    healing=healing,
                    min_tokens=options.min_tokens,
                    stop_token_ids=options.stop_token_ids,
                    negative=None if negative is None else negative.row,
                    scale=1.0 if negative is None else negative.scale,
                )
        drafter = open_draft(maker.draft_of(options), maker.model)
        if drafter is not None and not isinstance(sampler, BeamSearch):  # a search does without
            for row in filter(None, self.rows):
                row.draft = RowDraft(drafter)
        self._job: Job | None = None
        self._is_collected = False
        self._values: dict[int, StateRow] = {}  # rows that have ended, with their values
        self._running: list[int] | None = None  # the rows that ran, where they are taken out as they end
        self._num_taken = 0
        if resume:
            self._check_resumed()

    def steps(self) -> Generator[None, None, None]:
        """Run to the end, one step of the engine at a time; closing the generator earlier releases the rows.

        After the last one the results are complete, even if other calls took the steps.
        """
        job, report = self._make_job(), self._report
        try:
            self.engine.submit(job)
            for _ in self.engine.steps(job):
                report()
                yield
        finally:  # an interrupt may come between any two instructions, also before the first step
            self.engine.cancel(job)
            report(is_over=True)
        self.collect()

    def submit(self) -> Job:
        """Submit the rows to the engine and return their job, for a caller that takes the steps of several runs; see
        `collect` and `take_ended`.
        """
        job = self._make_job()
        self.engine.submit(job)
        return job

    @property
    def job(self) -> Job:
        """The rows that were submitted."""
        assert self._job is not None
        return self._job

    async def async_steps(self) -> AsyncGenerator[None, None]:
        """The asynchronous form, which does not block the event loop; a cancelled task releases its rows."""
        job, report = self._make_job(), self._report
        try:
            self.engine.submit(job)
            async with aclosing(self.engine.async_steps(job)) as steps:
                async for _ in steps:
                    report()
                    yield
        finally:
            self.engine.cancel(job)
            report(is_over=True)
        self.collect()

    def cancel(self) -> None:
        """Cancel the rows that were submitted and still run."""
        if self._job is not None:
            self.engine.cancel(self._job)

    def take_ended(self) -> list[EndedRow]:
        """Return the rows that ended since the last call, and release them; the first call also returns those that cannot run.

        Such a run has no state at its end, so its memory is that of the rows that still run.
        """
        assert self._job is not None
        found: list[EndedRow] = []
        if self._running is None:
            found = [EndedRow(i, self.results[i]) for i, row in enumerate(self.rows) if row is None]
            self._running = [i for i, row in enumerate(self.rows) if row is not None]
        with self.engine.lock:
            for at, state_row in list(islice(self._job.done.items(), self._num_taken, None)):
                number = self._running[at]
                ended = replace(self.finished(at, state_row), kv=None, logits=None)
                found.append(EndedRow(number, ended))
                self._job.done[at] = ended
                self._values.pop(at, None)
                self.rows[number] = None
                self._num_taken += 1
        return found

    @cached_property
    def _report(self) -> Callable[..., None]:
        report = self.options.on_progress
        return (lambda **_: None) if report is None else ProgressReporter(report, self._progress)

    def _progress(self) -> tuple[int, int, int, int]:
        """Return how many texts there are, have ended and have failed, and how many tokens they have."""
        with self.engine.lock:
            rows = [*filter(None, self.rows)]
            if isinstance(self._job, BeamJob):  # its hypotheses change places
                rows = [] if self._job.is_over else self._job.rows
            ended = [row.error for row in rows if row.is_over]
            tokens = sum(len(row.token_ids) - row.piece_start for row in rows)
            running = len(rows) - len(ended)
            failed = sum(error is not None for error in [*ended, *(row.error for row in self.results)])
            return len(self.results), len(self.results) - running, failed, tokens

    @property
    def engine(self) -> JobRunner:
        """The engine of the model, which all calls share."""
        return self.maker.model.engine

    def _make_job(self) -> Job:
        sampler, model = self.maker.sampler, self.maker.model
        if isinstance(sampler, BeamSearch):
            entries = [[row for i in place if (row := self.rows[i]) is not None] for place in self._places]
            ended = [[self.results[i] for i in place if self.rows[i] is None] for place in self._places]
            ends, token_bytes = self._eos_token_ids, model.tokenizer.token_bytes
            self._job = BeamJob(entries, ended, sampler, ends, self._counts, self, token_bytes)
        else:
            self._job = Job([*filter(None, self.rows)], sampler, self._counts)
        self._job.can_fork = False  # a call returns as many rows as it was given
        return self._job

    @property
    def _places(self) -> list[range]:
        samples = self.num_samples
        return [range(b * samples, (b + 1) * samples) for b in range(self.batch_size)]

    def collect(self) -> SequenceState:
        """Collect the results of the rows, and return the final state; valid once their `job` is over."""
        self._is_collected, job = True, self.job
        if isinstance(job, BeamJob):
            self._collect_found(job.ended)
        else:
            running = [i for i, row in enumerate(self.rows) if row is not None]
            for at, row in job.done.items():
                self.results[running[at]] = self.finished(at, row)
        self._warn_of_cuts()
        return self.state()

    def _collect_found(self, found: list[list[StateRow]]) -> None:
        streams = [[self.results[i].stream for i in place] for place in self._places]
        self.num_samples = max(map(len, found), default=0)
        padded = [rows + [_missing_hypothesis(rows)] * (self.num_samples - len(rows)) if rows else [] for rows in found]
        self.results = [
            replace(row, stream=stream)
            for rows, own in zip(padded, streams, strict=True)
            for row, stream in zip(rows, _random_streams(own, self.num_samples), strict=True)
        ]

    def _warn_of_cuts(self) -> None:
        if self.options.has_max_tokens:
            return
        limit = self.options.max_tokens
        cut = [row for row in self.results if row.finish_reason == "length" and row.piece is not None]
        if any(len(row.token_ids) - row.piece.start >= (limit or 0) for row in cut if row.piece is not None):
            warnings.warn(
                f"{len(cut)} of {len(self.results)} texts were cut after {limit} tokens, as many as a piece has where `max_tokens` is not "
                "given. Pass `max_tokens=...` (None is up to the context), or bound what is written: strings by `maxLength`, arrays by "
                "`maxItems`. `continuous(generator).resume(state)` goes on.",
                LengthWarning,
                stacklevel=stacklevel_of_user(),
            )

    def state(self) -> SequenceState:
        """Return the final state; valid after `steps`."""
        state = self._state_of(self.results)
        if not isinstance(self.maker.sampler, BestOf):
            return state
        count = self.maker.sampler.samples
        starts = range(0, state.num_samples, count)
        return replace(
            state, rows=tuple(tuple(self._best(group[i : i + count]) for i in starts) for group in state.rows)
        )

    def _best(self, rows: Sequence[StateRow]) -> StateRow:
        """Return the best of some samples; one that was cut only where none is whole."""
        return best_row([row for row in rows if row.error is None and self.is_whole(row)] or rows)

    def leave(self) -> SequenceState:
        """End the run where it is, and return its state."""
        with self.engine.lock:
            state = self.state() if self._job is None or self._is_collected else self.snapshot()
            if self._job is not None:
                self.engine.cancel(self._job)
                self._report(is_over=True)
            return state

    def _state_of(self, results: Sequence[StateRow]) -> SequenceState:
        rows = tuple(tuple(results[place.start : place.stop]) for place in self._places)
        return SequenceState(self.maker.model, rows, self._seed)

    def snapshot(self) -> SequenceState:
        """Return the state between two steps; unfinished spans count as cut here, and can be resumed."""
        with self.engine.lock:
            results = [*self.results]
            done = {} if self._job is None else self._job.done
            going = [(i, row) for i, row in enumerate(self.rows) if row is not None]
            for at, (i, _) in enumerate(going):
                if at in done:
                    results[i] = self.finished(at, done[at])
            left = [(i, row) for at, (i, row) in enumerate(going) if at not in done]
            for (i, _), cut in zip(left, self.engine.snapshots([row for _, row in left]), strict=True):
                results[i] = cut
            return self._state_of(results)

    def finish(self, row: StateRow) -> StateRow:
        """Return a row that has ended with its value, or with the error of making it."""
        if row.error is not None:
            return row
        try:
            return shielded(self.maker.finish, row)
        except Exception as error:
            # A parser of the user, such as a pydantic validator, may refuse one row; the others keep their values.
            return replace(row, error=error, finish_reason="error")

    def finished(self, at: int, row: StateRow) -> StateRow:
        """Return `finish` of a row, which is called once: it may be a parser of the user."""
        if at not in self._values:
            self._values[at] = self.finish(row)
        return self._values[at]

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row is complete, not cut."""
        return self.maker.is_whole(row)

    def _check_resumed(self) -> None:
        if self.results and not any(row.piece for row in self.results):
            raise ResumeError(
                "expected a state whose last piece was cut, got one in which nothing was generated, or text was appended since. "
                "Begin a new piece with `continuous(generator)(state)`."
            )
        for result in self.results:
            if result.piece and result.piece.source not in ("", self.maker.source):
                raise ResumeError(
                    f"expected a state that this generator has cut ({shortened(self.maker.source, 120)}), but its last piece is one of "
                    f"{shortened(result.piece.source, 120)}. Resume with the generator that made it."
                )
        for row in filter(None, self.rows):
            if isinstance(row.error, FSMError):
                raise ResumeError(
                    "expected a state that this generator has cut, but its last piece is not a prefix of what the generator "
                    f"writes ({row.error}). Resume with the generator that made it."
                ) from row.error


def _num_samples(sampler: Sampler | BeamSearch, prompt: Any) -> int | None:
    """Return S for `open_prompt`; the forks of a state for `best_of` are as many as they are."""
    items = prompt if isinstance(prompt, list | tuple) else [prompt]
    has_rows = any(isinstance(item, SequenceState) and item.batch_size for item in items)
    return None if isinstance(sampler, BestOf) and has_rows else sampler.num_samples


def _fork_rows(prompt: Any, count: int) -> Any:
    if isinstance(prompt, list | tuple):
        return [item.fork(count) if isinstance(item, SequenceState) else item for item in prompt]
    return prompt.fork(count) if isinstance(prompt, SequenceState) else prompt


def _random_streams(streams: Sequence[RandomStream], count: int) -> list[RandomStream]:
    """Return random streams for `count` samples: those that they had, and forks of the first for new ones.

    A search draws nothing, so streams belong to the index of a sample: two rows of a state never have the same.
    """
    return [streams[i] if i < len(streams) else streams[0].fork(i) for i in range(count)]


def _missing_hypothesis(rows: Sequence[StateRow]) -> StateRow:
    """Return an empty row for a hypothesis that an entry lacks, while other entries have more."""
    if rows[-1].error is not None:
        return rows[-1]
    error = NoHypothesis(
        f"expected as many hypotheses as the other batch entries have, but there are only {len(rows)}: no other text is possible"
    )
    return replace(rows[-1], error=error, finish_reason="error", value=None, kv=None, logits=None)


def _begun(row: StateRow, sampler: Sampler | BeamSearch, negative: NegativePrompt | None, resume: bool) -> StateRow:
    """Return a row as the start of a search, or of sampling; with the error of its negative prompt, where that has one."""
    if isinstance(sampler, BeamSearch | BestOf):
        row = row.searched(sampler.length_penalty) if isinstance(sampler, BeamSearch) else row.searched()
    error = negative.row.error if negative is not None and _can_run(row, resume) else None
    return row if error is None else replace(row, error=error, finish_reason="error")


def _can_run(row: StateRow, resume: bool) -> bool:
    if row.error is not None:
        return False
    return not resume or (row.finish_reason == "length" and row.piece is not None)
