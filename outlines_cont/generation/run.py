"""`Run`: one call of a generator: it submits rows to the engine, takes steps, and collects the resulting state."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any, Protocol

from fsm import FSMError
from fsm.caller import stacklevel_of_user
from outlines_cont.checks import shortened
from outlines_cont.drafts.opening import open_draft
from outlines_cont.engine.beam import BeamJob
from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.guessing.row_draft import RowDraft
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.errors import LengthWarning, MissingEOS, NoHypothesis, OptionError, ResumeError, UnsupportedModel
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.feed import CertainFeed, EarlyFeed, Feed, News
from outlines_cont.events.partial_type import MISSING, PartialType
from outlines_cont.events.partial_value import PartialValue
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.lengths import warn_of_lengths
from outlines_cont.generation.negative_prompt import NegativePrompt, open_guidance
from outlines_cont.generation.options import Options, check_ids
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.policy import Policy
from outlines_cont.progress import ProgressReporter
from outlines_cont.samplers import BeamSearch, BestOf, Sampler
from outlines_cont.sampling.random_stream import RandomStream, Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState, best_row
from outlines_cont.user_code import shielded


class PieceMaker(Protocol):
    """The methods of a generator that a run uses."""

    @property
    def model(self) -> LanguageModel:
        """The model that runs."""

    @property
    def sampler(self) -> Sampler | BeamSearch:
        """How tokens are drawn, or hypotheses kept."""

    @property
    def source(self) -> str:
        """The constraint of a piece as JSON."""

    @property
    def partial_type(self) -> PartialType | None:
        """The type of the value, for values of which only the beginning was written; None where the value has no type."""

    @property
    def unbounded(self) -> tuple[tuple[str, str], ...]:
        """The values of its schema that may be of any length: JSON pointers, and keywords that would bound them."""

    def draft_of(self, options: Options) -> Any:
        """Return the draft of a call, or None."""

    def policies(self, options: Options) -> list[Policy[Any]]:
        """Return the policies of each row."""

    def finish(self, row: StateRow) -> StateRow:
        """Return a finished row with its value."""

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row is complete, not cut."""


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
    """One call of a generator.

    Everything is checked here, before anything runs, but what belongs to a single row. Then exhaust `steps`, and take `state`.
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
        check_ids(options.stop_token_ids, maker.model.vocab_size)
        self._eos_token_ids = maker.model.eos_token_ids.union(options.stop_token_ids)
        self._options = options
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
        self._maker = maker
        sampler = maker.sampler
        if isinstance(sampler, BestOf) and not resume:
            prompt = _fork_rows(prompt, sampler.samples)
        num_samples = None if resume else _num_samples(sampler, prompt)
        opened = open_prompt(maker.model, prompt, num_samples, rng, heal=options.heal and not resume)
        if maker.unbounded and not options.has_max_tokens and not resume:
            warn_of_lengths(maker.model, maker.source, maker.unbounded, options.max_tokens)
        self._seed = opened.seed
        self._batch_size = len(opened.rows)
        self._num_samples = max(map(len, opened.rows), default=0)
        self._results = [_as_search_start(row, sampler) for group in opened.rows for row in group]
        self._counts = Meter(reused_tokens=opened.reused)
        # Hypotheses are compared by all of their tokens.
        score_last = score_last or isinstance(sampler, BeamSearch | BestOf)
        negatives = open_guidance(maker.model, options.guidance, (self._batch_size, self._num_samples))
        negative_of = [negatives[b] for b, place in enumerate(self._places) for _ in place]
        self._results = [
            _failed_with(row, negative) if _can_run(row, resume) else row
            for row, negative in zip(self._results, negative_of, strict=True)
        ]
        self.rows: list[Row | None] = [
            Row(
                row,
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
            if _can_run(row, resume)
            else None
            for row, healing, negative in zip(
                self._results, chain.from_iterable(opened.healing), negative_of, strict=True
            )
        ]
        self._set_draft(maker.draft_of(options), maker.model)
        self._job: Job | None = None
        self._is_collected = False
        self._reported_drafts: dict[int, Meter] = {}  # the counts of drafts that events have reported
        self._reported_ends: set[int] = set()  # rows whose end an event has reported
        self._values: dict[int, StateRow] = {}  # rows that have ended, with their values
        self._partial: dict[int, PartialValue] = {}  # by row, where the values so far are shown
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
        self._collect(job)

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

    def collect(self) -> SequenceState:
        """Return the final state; valid once its `job` is over."""
        self._collect(self.job)
        return self.state()

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
        self._collect(job)

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
            found = [EndedRow(i, self._results[i]) for i, row in enumerate(self.rows) if row is None]
            self._running = [i for i, row in enumerate(self.rows) if row is not None]
        with self.engine.lock:
            for at, state_row in list(islice(self._job.done.items(), self._num_taken, None)):
                number = self._running[at]
                ended = replace(self._finished(at, state_row), kv=None, logits=None)
                found.append(EndedRow(number, ended))
                self._job.done[at] = ended
                self._values.pop(at, None)
                self.rows[number] = None
                self._num_taken += 1
        return found

    @cached_property
    def _report(self) -> Callable[..., None]:
        """The function that reports progress; it does nothing without `on_progress`."""
        return (
            _report_nothing
            if self._options.on_progress is None
            else ProgressReporter(self._options.on_progress, self._progress)
        )

    def _progress(self) -> tuple[int, int, int, int]:
        """Return how many texts there are, have ended and have failed, and how many tokens they have."""
        with self.engine.lock:
            rows = [row for row in self.rows if row is not None]
            if isinstance(self._job, BeamJob):  # its hypotheses change places
                rows = [] if self._job.is_over else self._job.rows
            ended = [row.error for row in rows if row.is_over]
            tokens = sum(len(row.token_ids) - row.piece_start for row in rows)
            running = len(rows) - len(ended)
            failed = sum(error is not None for error in [*ended, *(row.error for row in self._results)])
            return len(self._results), len(self._results) - running, failed, tokens

    def _set_draft(self, draft: Any, model: LanguageModel) -> None:
        """Set up speculative decoding for the rows; a search does without."""
        drafter = open_draft(draft, model)
        if drafter is None or isinstance(self._maker.sampler, BeamSearch):
            return
        for row in self.rows:
            if row is not None:
                row.draft = RowDraft(drafter)

    @property
    def engine(self) -> Engine:
        """The engine of the model, which all calls share."""
        return engine_of(self._maker.model)

    def _make_job(self) -> Job:
        """Return the job of the rows that can run."""
        sampler = self._maker.sampler
        job = self._search(sampler) if isinstance(sampler, BeamSearch) else self._independent_job(sampler)
        job.can_fork = False  # a call returns as many rows as it was given
        self._job = job
        return job

    def _independent_job(self, sampler: Sampler) -> Job:
        return Job([row for row in self.rows if row is not None], sampler, self._counts)

    def _search(self, search: BeamSearch) -> BeamJob:
        entries = [[row for i in place if (row := self.rows[i]) is not None] for place in self._places]
        ended = [[self._results[i] for i in place if self.rows[i] is None] for place in self._places]
        model = self._maker.model
        return BeamJob(entries, ended, search, self._eos_token_ids, self._counts, self, model.tokenizer.token_bytes)

    @property
    def _places(self) -> list[range]:
        """For each batch entry the indices of its samples."""
        samples = self._num_samples
        return [range(b * samples, (b + 1) * samples) for b in range(self._batch_size)]

    def _collect(self, job: Job) -> None:
        """Collect the results of the rows."""
        self._is_collected = True
        if isinstance(job, BeamJob):
            self._collect_found(job.ended)
        else:
            running = [i for i, row in enumerate(self.rows) if row is not None]
            for at, row in job.done.items():
                self._results[running[at]] = self._finished(at, row)
        self._warn_of_cuts()

    def _collect_found(self, found: list[list[StateRow]]) -> None:
        streams = [[self._results[i].stream for i in place] for place in self._places]
        self._num_samples = max(map(len, found), default=0)
        padded = [
            rows + [_missing_hypothesis(rows)] * (self._num_samples - len(rows)) if rows else [] for rows in found
        ]
        self._results = [
            replace(row, stream=stream)
            for rows, own in zip(padded, streams, strict=True)
            for row, stream in zip(rows, _random_streams(own, self._num_samples), strict=True)
        ]

    def _warn_of_cuts(self) -> None:
        """Warn where the default of `max_tokens` has cut a text."""
        if self._options.has_max_tokens:
            return
        limit = self._options.max_tokens
        cut = [row for row in self._results if row.finish_reason == "length" and row.piece is not None]
        if any(len(row.token_ids) - row.piece.start >= (limit or 0) for row in cut if row.piece is not None):
            warnings.warn(
                f"{len(cut)} of {len(self._results)} texts were cut after {limit} tokens, as many as a piece has where `max_tokens` is not "
                "given. Pass `max_tokens=...` (None is up to the context), or bound what is written: strings by `maxLength`, arrays by "
                "`maxItems`. `continuous(generator).resume(state)` goes on.",
                LengthWarning,
                stacklevel=stacklevel_of_user(),
            )

    def state(self) -> SequenceState:
        """Return the final state; valid after `steps`."""
        state = self._state_of(self._results)
        if not isinstance(self._maker.sampler, BestOf):
            return state
        return _best_of_each(state, self._maker.sampler.samples, self.is_whole)

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
        return SequenceState(self._maker.model, rows, self._seed)

    def snapshot(self) -> SequenceState:
        """Return the state between two steps; unfinished pieces count as cut here, and can be resumed."""
        with self.engine.lock:
            results = [*self._results]
            done = {} if self._job is None else self._job.done
            going = [(i, row) for i, row in enumerate(self.rows) if row is not None]
            for at, (i, _) in enumerate(going):
                if at in done:
                    results[i] = self._finished(at, done[at])
            left = [(i, row) for at, (i, row) in enumerate(going) if at not in done]
            for (i, _), cut in zip(left, self.engine.snapshots([row for _, row in left]), strict=True):
                results[i] = cut
            return self._state_of(results)

    def feeds(self, options: StreamOptions) -> list[Feed | None]:
        """Return a feed for each row, which gives its changes between two steps; to be called before the first.

        Raises:
            OptionError: partial values are asked for, and the generator does not write JSON.
        """
        if options.partial:
            kind = self._maker.partial_type
            if kind is None:
                raise OptionError(
                    "expected a generator of JSON beside `partial=True`, such as `generate.json(model, Order)`, got one of "
                    f"{shortened(self._maker.source, 120)}. Leave `partial` out; the text comes as it is written.",
                    "partial",
                )
            self._partial = {i: PartialValue(kind) for i, row in enumerate(self.rows) if row is not None}
        for row in self.rows:
            if row is not None and options.top:
                row.tokens.note_tops(options.top)
        return [None if row is None else EarlyFeed(row) if options.retract else CertainFeed(row) for row in self.rows]

    def pull(self, feeds: Sequence[Feed | None]) -> list[StreamEvent]:
        """Return the events of the rows that have changed."""
        with self.engine.lock:
            events = (self._event(index, feed) for index, feed in enumerate(feeds))
            return [event for event in events if event is not None]

    def _event(self, index: int, feed: Feed | None) -> StreamEvent | None:
        batch, sample = divmod(index, self._num_samples)
        row = self.rows[index]
        if index in self._reported_ends:
            return None
        if row is None or feed is None:
            self._reported_ends.add(index)
            error = self._results[index].error
            return (
                StreamEvent(batch=batch, sample=sample, finish_reason="error", error=error)
                if error is not None
                else None
            )
        news, end = feed.pull(row), self._end_of(index, row)
        is_end = end is not None
        if not news and not is_end:
            return None
        if is_end:
            self._reported_ends.add(index)
        tokens = range(news.start, news.stop)
        return StreamEvent(
            batch=batch,
            sample=sample,
            text=news.text,
            token_ids=tuple(row.token_ids[news.start : news.stop]),
            logprobs=tuple(row.tokens.logprobs[i] for i in tokens),
            top=tuple(row.tokens.tops[i] for i in tokens) if row.tokens.num_top else ((),) * len(tokens),
            retract=news.retract,
            retract_tokens=news.retract_tokens,
            finish_reason=row.finish_reason if is_end else "",
            stop=row.stop if is_end else None,
            error=end.error if end is not None else None,
            value=self._value(index, news, end) if self._partial else None,
            **self._draft_counts(index, row),
        )

    def _draft_counts(self, index: int, row: Row) -> dict[str, Any]:
        """Return what the draft of a row has proposed since the last event, as fields of an event."""
        if row.draft is None:
            return {}
        before, now = self._reported_drafts.get(index, Meter()), replace(row.draft.counts)
        self._reported_drafts[index] = now
        return {name: getattr(now - before, name) for name in ("proposed_tokens", "accepted_tokens", "saved_forwards")}

    def _end_of(self, index: int, row: Row) -> Row | StateRow | None:
        """Return a finished row, or None; with its value where values are shown, which is a step later."""
        if not self._partial:
            return row if row.is_over else None
        assert self._job is not None
        done = self._job.done.get(row.index)
        return None if done is None else self._finished(row.index, done)

    def _value(self, index: int, news: News, end: Row | StateRow | None) -> Any:
        """Return the value so far of a row; at its end the final one, where the text is whole."""
        partial = self._partial[index]
        partial.take_back(news.retract)
        partial.push(news.text)
        if isinstance(end, StateRow) and end.error is None and self.is_whole(end):
            return partial.close(end.value)
        return None if partial.value is MISSING else partial.value

    def grid(self, items: Mapping[tuple[int, int], Any], missing: Any) -> list[list[Any]]:
        """Return items by `(batch, sample)` as `[batch][sample]` lists, with `missing` in the gaps."""
        return [[items.get((b, s), missing) for s in range(self._num_samples)] for b in range(self._batch_size)]

    def finish(self, row: StateRow) -> StateRow:
        """Return a row that has ended with its value, or with the error of making it."""
        if row.error is not None:
            return row
        try:
            return shielded(self._maker.finish, row)
        except Exception as error:
            # A parser of the user, such as a pydantic validator, may refuse one row; the others keep their values.
            return replace(row, error=error, finish_reason="error")

    def _finished(self, at: int, row: StateRow) -> StateRow:
        """Return `finish` of a row, which is called once: it may be a parser of the user."""
        if at not in self._values:
            self._values[at] = self.finish(row)
        return self._values[at]

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row is complete, not cut."""
        return self._maker.is_whole(row)

    def _check_resumed(self) -> None:
        if self._results and not any(row.piece for row in self._results):
            raise ResumeError(
                "expected a state whose last piece was cut, got one in which nothing was generated, or text was appended since. "
                "Begin a new piece with `continuous(generator)(state)`."
            )
        for result in self._results:
            if result.piece and result.piece.source not in ("", self._maker.source):
                raise ResumeError(
                    f"expected a state that this generator has cut ({shortened(self._maker.source, 120)}), but its last piece is one of "
                    f"{shortened(result.piece.source, 120)}. Resume with the generator that made it."
                )
        for row in self.rows:
            if row is not None and isinstance(row.error, FSMError):
                raise ResumeError(
                    "expected a state that this generator has cut, but its last piece is not a prefix of what the generator "
                    f"writes ({row.error}). Resume with the generator that made it."
                ) from row.error


def _report_nothing(*, is_over: bool = False) -> None:
    """Report no progress."""


def _num_samples(sampler: Sampler | BeamSearch, prompt: Any) -> int | None:
    """Return S for `open_prompt`; the forks of a state for `best_of` are as many as they are."""
    items = prompt if isinstance(prompt, list | tuple) else [prompt]
    has_rows = any(isinstance(item, SequenceState) and item.batch_size for item in items)
    return None if isinstance(sampler, BestOf) and has_rows else sampler.num_samples


def _fork_rows(prompt: Any, count: int) -> Any:
    """Return a prompt with `count` forks of every row of its states; texts as they are."""
    if isinstance(prompt, list | tuple):
        return [item.fork(count) if isinstance(item, SequenceState) else item for item in prompt]
    return prompt.fork(count) if isinstance(prompt, SequenceState) else prompt


def _best_of_each(state: SequenceState, count: int, is_whole: Callable[[StateRow], bool]) -> SequenceState:
    """Return the best of every `count` neighbouring samples; one that was cut only where none is whole."""
    starts = range(0, state.num_samples, count)
    rows = tuple(tuple(_best(group[i : i + count], is_whole) for i in starts) for group in state.rows)
    return replace(state, rows=rows)


def _best(rows: Sequence[StateRow], is_whole: Callable[[StateRow], bool]) -> StateRow:
    return best_row([row for row in rows if row.error is None and is_whole(row)] or rows)


def _random_streams(streams: Sequence[RandomStream], count: int) -> list[RandomStream]:
    """Return random streams for `count` places: those that the places had, and forks of the first for new ones.

    A search draws nothing, so its streams belong to places: two rows of a state never have the same.
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


def _as_search_start(row: StateRow, sampler: Sampler | BeamSearch) -> StateRow:
    """Return a row as the start of a search, or of sampling."""
    if isinstance(sampler, BeamSearch):
        return row.searched(sampler.length_penalty)
    return row.searched() if isinstance(sampler, BestOf) else row


def _failed_with(row: StateRow, negative: NegativePrompt | None) -> StateRow:
    """Return a row with the error of its negative prompt, where that has one."""
    error = negative.row.error if negative is not None else None
    return row if error is None else replace(row, error=error, finish_reason="error")


def _can_run(row: StateRow, resume: bool) -> bool:
    if row.error is not None:
        return False
    return not resume or (row.finish_reason == "length" and row.piece is not None)
