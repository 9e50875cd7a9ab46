"""`Flow`: runs rows by continuous batching: renders their prompts, runs a record and its samples for each as calls of one prompt, and joins
them to one outcome, in order of completion; another row can start as soon as one ends. A hash of seed and prompt seeds each call. The
agreement of a value is the share of samples with an equal one (a failed sample agrees with none). A record that is cut, invalid or not
JSON fails its row alone.

After an error of a whole step, such as lack of memory, half of the prompts are cancelled, to be restarted later, and the width is halved
for good; a prompt that runs alone ends with the error.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from fsm import FSMError
from outlines_cont.errors import IncompleteOutput, OutlinesContError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
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

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a row becomes a record: `generator` runs after the prompt, `voter` makes the `samples` that are compared with its record.

    At most `width` rows of the engine run at once; with `is_scored` the log-probabilities of values are computed, so that forced tokens at
    the end of a record are fed.
    """

    generator: PieceMaker
    voter: PieceMaker | None
    schema: RecordSchema
    prompt: MakePrompt
    options: PieceOptions
    seed: int
    samples: int
    width: int
    is_scored: bool


@dataclass(slots=True, eq=False)
class _Span:
    """What is written after the prompt of a row, its record or a sample: the call that runs since the step `start`, and then its result."""

    key: Any
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

    def cancel(self) -> None:
        """End its call; it can begin again."""
        assert self.call is not None
        self.call.cancel()
        self.call = self.events = None


class Flow:
    """The rows in flight: `put` some while there is `room`, and call `step`, which returns outcomes in the order in which rows end."""

    def __init__(self, recipe: Recipe, show: ShowValue | None = None) -> None:
        self._recipe = recipe
        self._show = show
        self._options = Options.of(recipe.options)
        self._model = recipe.generator.model
        self._width = recipe.width
        # Several prompts are started together, so that one forward prefills them.
        self._least = max(recipe.width // 4, 1)
        self._rows: dict[Hashable, list[_Span]] = {}  # of each row its record, then its samples
        self._running: list[_Span] = []
        self._waiting: deque[_Span] = deque()  # cancelled for lack of memory, to be restarted
        self._ready: list[tuple[Any, Outcome]] = []
        self._steps = self._num_reused = 0
        self._metering = self._model.meter()  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        self._meter = self._metering.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel the rows in flight."""
        self._waiting.clear()
        while self._running:
            self._running.pop().cancel()
        self._metering.__exit__(None, None, None)

    @property
    def is_empty(self) -> bool:
        """Whether no row is in flight, and `step` has returned all outcomes."""
        return not (self._running or self._waiting or self._ready)

    @property
    def room(self) -> int:
        """How many rows to put now; 0 while it is better to wait for more room."""
        free = self._width - len(self._running)
        if self._waiting or (self._running and free < self._least):
            return 0
        return max(free // (1 + self._recipe.samples), 0 if self._running else 1)

    def put(self, rows: Iterable[tuple[Hashable, Fields | Exception]]) -> None:
        """Start rows, each with a key; an exception instead of a row is its outcome."""
        for key, row in rows:
            try:
                spans = self._rows[key] = self._spans(key, row)
            except Exception as error:  # the prompt may be made by code of the user
                self._ready.append((key, Outcome(failure=Failure.of(error))))
                continue
            for span in spans:
                self._begin(span)

    def step(self) -> list[tuple[Any, Outcome]]:
        """Take a step of the engine, and return the outcomes of the rows that have ended, with their keys."""
        while self._waiting and len(self._running) < self._width:
            self._begin(self._waiting.popleft())
        jobs = (span.call.job for span in self._running if span.call is not None)
        job = next((job for job in jobs if job is not None and not job.is_over), None)
        if job is not None:
            self._steps += 1
            try:
                self._model.engine.advance(job)
            except _OF_ROWS as error:
                self._narrow(error)
        self._take_ended()
        ready, self._ready = self._ready, []
        num_reused = self._meter.reused_tokens - self._num_reused
        if ready and num_reused:
            key, outcome = ready[0]
            ready[0] = (key, replace(outcome, reused_tokens=num_reused))
            self._num_reused += num_reused
        return ready

    def _spans(self, key: Hashable, row: Fields | Exception) -> list[_Span]:
        if isinstance(row, Exception):
            raise row
        recipe = self._recipe
        prompt = recipe.prompt(row)
        text = prompt.text if isinstance(prompt, Tokens) else str(prompt)
        makers = [(recipe.generator, ""), *((recipe.voter, f" {sample}") for sample in range(recipe.samples))]
        return [
            _Span(key, maker, prompt, _seed(maker, f"{recipe.seed}{sample} {text}"))
            for maker, sample in makers
            if maker is not None
        ]

    def _begin(self, span: _Span) -> None:
        seeds = None if span.seed is None else [span.seed]
        span.start = self._steps
        try:
            call = Call(span.maker, [span.prompt], self._options, rng=seeds, score_last=self._recipe.is_scored)
        except _OF_ROWS as error:
            self._end(span, error=error)
            return
        span.call = call
        if self._show is not None and span is self._rows[span.key][0]:
            span.events = RunEvents(call, StreamOptions(True, 0, False, True))
        # Before `submit`: after an interrupt `__exit__` cancels it.
        self._running.append(span)
        call.submit()

    def _take_ended(self) -> None:
        """Show the new parts of records, and take out the calls that have ended."""
        for span in list(self._running):
            assert span.call is not None
            if span.events is not None and self._show is not None:
                for event in span.events.pull():
                    self._show(span.key, event.value, event.finish_reason not in ("", "length", "error"))
            for row in span.call.take_ended():
                self._running.remove(span)
                self._end(span, row=row)

    def _end(self, span: _Span, row: StateRow | None = None, error: Exception | None = None) -> None:
        """Note the result of a call; the last of a row makes its outcome."""
        span.row, span.error = row, error if row is None else row.error
        span.steps = self._steps - span.start
        span.call = span.events = None
        if all(other.is_over for other in self._rows[span.key]):
            self._ready.append((span.key, self._outcome(*self._rows.pop(span.key))))

    def _narrow(self, error: Exception) -> None:
        """After an error of a whole step cancel half of the prompts and halve the width; a single prompt ends with the error."""
        self._take_ended()
        half = len(self._running) // 2
        self._running, out = self._running[:half], self._running[half:]
        for span in out:
            span.cancel()
        if out and not half:
            self._end(out[0], error=error)
        else:
            self._width = max(self._width // 2, 1)
            self._waiting.extend(out)

    def _outcome(self, span: _Span, *votes: _Span) -> Outcome:
        usage = _usage(span, votes)
        try:
            value = self._value(span)
            record = self._recipe.schema.dump(value)
            json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except (
            Exception
        ) as error:  # a serializer of the user's class may raise anything, or return a value that is not JSON
            return Outcome(failure=Failure.of(error), usage=usage)
        assert span.row is not None
        is_scored = self._recipe.is_scored
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
        row = span.row
        assert row is not None
        if row.finish_reason == "length":
            raise IncompleteOutput(
                f"expected a whole record, but max_tokens={self._options.max_tokens} or the context of the model cut it. "
                "Raise --max-tokens, or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return row.value

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


def _seed(generator: PieceMaker, text: str) -> int | None:
    """Return a digest of the prompt as seed, so that a record does not depend on the other rows or their order."""
    if not getattr(generator.sampler, "needs_random", False):
        return None
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])
