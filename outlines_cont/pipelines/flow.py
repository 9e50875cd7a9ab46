"""`Flow`: runs rows by continuous batching: renders their prompts, submits a record and its samples for each to the engine as calls of one
prompt, and joins them to one outcome, in the order of the rows; another row can start as soon as one ends. A hash of seed and prompt seeds
each call. The agreement of a value is the share of samples with an equal one (a failed sample agrees with none). A record that is cut,
invalid or not JSON fails its row alone. At most 16 batches of rows are in memory, from the first one on that has not ended.

After an error of a whole step, such as lack of memory, half of the calls are cancelled, to be restarted later, and the width is halved
for good; a call that runs alone ends with the error.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from fsm import FSMError
from outlines_cont.errors import IncompleteOutput, OutlinesContError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.stream import RunEvents
from outlines_cont.pipelines.calibration import agreement, value_logprobs
from outlines_cont.pipelines.outcome import Failure, Outcome, ShowValue, Usage
from outlines_cont.pipelines.prompt_template import MakePrompt
from outlines_cont.pipelines.record_schema import RecordSchema
from outlines_cont.state.row import FORCED, StateRow
from outlines_cont.state.tokens import Tokens

# Errors of rows, as opposed to bugs.
_OF_ROWS = (OutlinesContError, FSMError, torch.OutOfMemoryError)
# Look-ahead in batches: the most rows from the first unfinished one on; others start only after it has ended.
_AHEAD = 16


@dataclass(slots=True, eq=False)
class _Span:
    """What is written after the prompt of a row, its record or a sample: a call, None while it waits for room, and then its result."""

    number: int
    maker: PieceMaker
    prompt: Any
    seed: int | None
    call: Call | None = None
    events: RunEvents | None = None
    start: int = 0
    steps: int = 0
    row: StateRow | None = None
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has a result."""
        return self.row is not None or self.error is not None

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return 0 if self.row is None or self.row.piece is None else len(self.row.token_ids) - self.row.piece.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a row becomes a record: `generator` runs after the prompt, `voter` makes the `samples` that are compared with its record.

    At most `width` calls run at once, those of all threads together (`running`); with `is_scored` the log-probabilities of values are
    computed, so that forced tokens at the end of a record are fed.
    """

    generator: PieceMaker
    voter: PieceMaker | None
    schema: RecordSchema
    prompt: MakePrompt
    options: Options
    seed: int
    samples: int
    width: int
    is_scored: bool
    running: set[_Span] = field(default_factory=set)


class Flow:
    """Rows in flight; a flow is used once."""

    def __init__(self, recipe: Recipe, show: ShowValue | None = None) -> None:
        self._recipe = recipe
        self._show = show
        self._model: Any = recipe.generator.model
        self._width = recipe.width
        self._rows: deque[list[_Span] | Outcome] = (
            deque()
        )  # of each row its record, then its samples; or why it has none
        self._open: list[_Span] = []
        self._num_steps = 0

    def outcomes(self, rows: Iterable[Mapping[str, Any] | Exception]) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order; an exception in place of a row is its outcome."""
        source, is_over, num_reused = enumerate(rows), False, 0
        with self._model.meter() as meter:
            try:
                while self._rows or not is_over:
                    room = 0 if is_over else self._room
                    found = list(islice(source, room))
                    is_over = is_over or len(found) < room
                    for number, row in found:
                        self._put(number, row)
                    self._step()
                    while self._rows and (outcome := self._ended(self._rows[0])) is not None:
                        self._rows.popleft()
                        new = meter.reused_tokens - num_reused
                        num_reused += new
                        yield replace(outcome, reused_tokens=new)
            finally:
                for span in self._open:
                    self._cancel(span)

    @property
    def _room(self) -> int:
        """How many rows to take now; 0 while it is better to wait for more room, so that one forward prefills several prompts."""
        recipe = self._recipe
        free = self._width - len(recipe.running) - sum(span.call is None for span in self._open)
        if self._open and free < max(recipe.width // 4, 1):
            return 0
        return min(max(free // (1 + recipe.samples), not self._open), _AHEAD * recipe.width - len(self._rows))

    def _put(self, number: int, row: Mapping[str, Any] | Exception) -> None:
        recipe = self._recipe
        try:
            if isinstance(row, Exception):
                raise row
            prompt = recipe.prompt(row)
        except Exception as error:  # the prompt may be made by code of the user
            self._rows.append(Outcome(failure=Failure.of(error)))
            return
        text = prompt.text if isinstance(prompt, Tokens) else str(prompt)
        makers = [(recipe.generator, ""), *((recipe.voter, f" {sample}") for sample in range(recipe.samples))]
        spans = [
            _Span(number, maker, prompt, _seed(maker, f"{recipe.seed}{sample} {text}"))
            for maker, sample in makers
            if maker is not None
        ]
        self._rows.append(spans)
        self._open += spans

    def _step(self) -> None:
        """Begin what there is room for, take a step of the engine, and take out what has ended."""
        with self._model.engine.lock:  # other threads run rows, too
            waiting = [span for span in self._open if span.call is None]
            free = self._width - len(self._recipe.running)
            for span in waiting[: max(free, len(waiting) == len(self._open))]:
                self._begin(span)
        jobs = (span.call.job for span in self._open if span.call is not None)
        job = next((job for job in jobs if job is not None and not job.is_over), None)
        if job is not None:
            self._num_steps += 1
            try:
                self._model.engine.advance(job)
            except _OF_ROWS as error:
                self._narrow(error)
        self._take_ended()

    def _begin(self, span: _Span) -> None:
        seeds = None if span.seed is None else [span.seed]
        span.start = self._num_steps
        try:
            call = Call(span.maker, [span.prompt], self._recipe.options, rng=seeds, score_last=self._recipe.is_scored)
        except _OF_ROWS as error:
            self._end(span, error)
            return
        if self._show is not None and span.maker is self._recipe.generator:
            span.events = RunEvents(call, StreamOptions(True, 0, False, True))
        # Before `submit`: it is cancelled after an interrupt.
        span.call = call
        self._recipe.running.add(span)
        call.submit()

    def _take_ended(self) -> None:
        """Show the new parts of records, and take out the calls that have ended."""
        for span in [span for span in self._open if span.call is not None]:
            assert span.call is not None
            assert span.call.job is not None
            is_over = span.call.job.is_over
            if span.events is not None and self._show is not None:
                for event in span.events.pull():
                    self._show(span.number, event.value, event.finish_reason not in ("", "length", "error"))
            if is_over:
                (span.row,) = span.call.take_ended()
                self._end(span, span.row.error)

    def _end(self, span: _Span, error: Exception | None) -> None:
        span.error, span.steps = error, self._num_steps - span.start
        self._open.remove(span)
        self._cancel(span)

    def _cancel(self, span: _Span) -> None:
        """Cancel the call of a span if it runs; it can begin again."""
        if span.call is not None:
            span.call.cancel()
        span.call = span.events = None
        self._recipe.running.discard(span)

    def _narrow(self, error: Exception) -> None:
        """After an error of a whole step cancel half of the calls and halve the width; a single call ends with the error."""
        self._take_ended()
        running = [span for span in self._open if span.call is not None]
        half = len(running) // 2
        for span in running[half:]:
            self._cancel(span)
        if running and not half:
            self._end(running[0], error)
        else:
            self._width = max(self._width // 2, 1)

    def _ended(self, row: list[_Span] | Outcome) -> Outcome | None:
        """Return the outcome of a row, or None while a call of it runs."""
        if isinstance(row, Outcome):
            return row
        return self._outcome(*row) if all(span.is_over for span in row) else None

    def _outcome(self, span: _Span, *votes: _Span) -> Outcome:
        usage, schema, is_scored = _usage(span, votes), self._recipe.schema, self._recipe.is_scored
        try:
            value = self._value(span)
            record = schema.dump(value)
            json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except Exception as error:  # a serializer of the user may raise anything, or return a value that is not JSON
            return Outcome(failure=Failure.of(error), usage=usage)
        assert span.row is not None
        return Outcome(
            record,
            value=value,
            weight=span.row.weight if is_scored else None,
            usage=usage,
            logprobs=value_logprobs(span.row, self._model.tokenizer) if is_scored else {},
            agreement=agreement(record, [self._dumped(vote) for vote in votes]) if votes else {},
        )

    def _value(self, span: _Span) -> Any:
        """Return the value of a call; raise its error, also if it was cut."""
        if span.error is not None:
            raise span.error
        assert span.row is not None
        if span.row.finish_reason == "length":
            raise IncompleteOutput(
                f"expected a whole record, but max_tokens={self._recipe.options.max_tokens} or the context of the model cut it. "
                "Raise --max-tokens, or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return span.row.value

    def _dumped(self, vote: _Span) -> Any:
        """Return a sample as JSON; if it has failed, an object that is equal to no other."""
        try:
            return self._recipe.schema.dump(self._value(vote))
        except Exception:
            return object()


def _usage(span: _Span, votes: Sequence[_Span]) -> Usage:
    sample_tokens = sum(vote.length for vote in votes)
    if span.row is None:
        return Usage(sample_tokens=sample_tokens, steps=span.steps)
    num_prompt = len(span.row.token_ids) - span.length
    num_forced = span.row.kinds[num_prompt:].count(FORCED)
    return Usage(num_prompt, span.length, num_forced, sample_tokens, span.steps)


def _seed(maker: PieceMaker, text: str) -> int | None:
    """Return a digest of the prompt as seed, so that a record does not depend on the other rows or their order."""
    if not getattr(maker.sampler, "needs_random", False):
        return None
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])
