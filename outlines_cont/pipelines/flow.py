"""`Window`: the prompts in flight on the engine (continuous batching), by `num_free` at most `width`; another can start as soon as one
ends. After an error of a whole step, such as lack of memory, half of the prompts are cancelled, to be restarted later, and the width is
halved for good; a prompt that runs alone ends with the error.

`Flow`: runs rows by continuous batching: renders their prompts, adds a record and its samples for each to a `Window`, and joins them to
one outcome, in order of completion; a hash of seed and prompt seeds each. The agreement of a value is the share of samples with an equal
one (a failed sample agrees with none). A record that is cut, invalid or not JSON fails its row alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from fsm import FSMError
from outlines_cont.errors import IncompleteOutput, OutlinesContError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.stream import RunEvents
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.pipelines.calibration import agreement, value_logprobs
from outlines_cont.pipelines.outcome import Failure, Outcome, ShowValue, Usage
from outlines_cont.pipelines.prompt_template import MakePrompt
from outlines_cont.pipelines.record_schema import RecordSchema
from outlines_cont.state.row import FORCED, StateRow
from outlines_cont.state.tokens import Tokens

# Errors of rows, as opposed to bugs.
_OF_ROWS = (OutlinesContError, FSMError, torch.OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """A prompt to be continued by a generator with one sample; `show` takes the value while it is written."""

    key: Any
    generator: PieceMaker
    prompt: Any
    seed: int | None = None
    show: ShowValue | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A prompt whose generated span has ended after `steps` steps; `row` is None if it could not run."""

    key: Any
    row: StateRow | None = None
    error: Exception | None = None
    steps: int = 0


class _Entry:
    """A prompt that runs since step `step`."""

    def __init__(self, entry: WindowEntry, run: Call, step: int) -> None:
        self.entry = entry
        self.run = run
        self._first_step = step
        self._events = None if entry.show is None else RunEvents(run, StreamOptions(True, 0, False, True))

    def ended(self, step: int) -> Ended | None:
        """Show the new part of the value; return the row if it has ended."""
        entry = self.entry
        if entry.show is not None and self._events is not None:
            for event in self._events.pull():
                entry.show(entry.key, event.value, event.finish_reason not in ("", "length", "error"))
        return next((Ended(entry.key, row, steps=step - self._first_step) for row in self.run.take_ended()), None)


class Window:
    """The prompts in flight: `add` some while `num_free` is positive, and call `step`, which returns those that have ended.

    With `scores_end` forced tokens at the end of a row are fed, to compute their log-probabilities.
    """

    def __init__(self, model: LanguageModel, width: int, options: Options, *, scores_end: bool = True) -> None:
        self._model = model
        self._width = width
        self._options = options
        self._scores_end = scores_end
        self._calls: list[_Entry] = []
        # Cancelled for lack of memory, to be restarted.
        self._waiting: deque[WindowEntry] = deque()
        self._ended: list[Ended] = []
        self._steps = 0
        self._opened: AbstractContextManager[Meter] = model.meter()  # type: ignore[attr-defined]
        self.meter = self._opened.__enter__()
        """The work of the model since the window was made."""

    def close(self) -> None:
        """Cancel all rows in flight."""
        calls, self._calls = self._calls, []
        self._waiting.clear()
        for call in calls:
            call.run.cancel()
        self._opened.__exit__(None, None, None)

    @property
    def is_empty(self) -> bool:
        """Whether no prompt is in flight, and `step` has returned all that have ended."""
        return not (self._calls or self._waiting or self._ended)

    @property
    def num_free(self) -> int:
        """How many prompts may be added now."""
        return 0 if self._waiting else self._width - len(self._calls)

    def add(self, entries: Iterable[WindowEntry]) -> None:
        """Start prompts. The next `step` returns those that cannot run."""
        for entry in entries:
            seeds = None if entry.seed is None else [entry.seed]
            try:
                run = Call(entry.generator, [entry.prompt], self._options, rng=seeds, score_last=self._scores_end)
            except _OF_ROWS as error:
                self._ended.append(Ended(entry.key, error=error))
                continue
            # Before `submit`: after an interrupt `close` cancels it.
            self._calls.append(_Entry(entry, run, self._steps))
            run.submit()

    def step(self) -> list[Ended]:
        """Take a step of the engine, for all rows that it runs, and return the prompts that have ended."""
        while self._waiting and len(self._calls) < self._width:
            self.add([self._waiting.popleft()])
        job = next(
            (call.run.job for call in self._calls if call.run.job is not None and not call.run.job.is_over), None
        )
        if job is not None:
            self._steps += 1
            try:
                self._model.engine.advance(job)
            except _OF_ROWS as error:
                self._narrow(error)
        self._take_ended()
        ended, self._ended = self._ended, []
        return ended

    def _take_ended(self) -> None:
        found = [(call, call.ended(self._steps)) for call in self._calls]
        self._calls = [call for call, ended in found if ended is None]
        self._ended += [ended for _, ended in found if ended is not None]

    def _narrow(self, error: Exception) -> None:
        """After an error of a whole step cancel half of the prompts and halve the width; a single prompt ends with the error."""
        self._take_ended()
        kept, out = self._calls[: len(self._calls) // 2], self._calls[len(self._calls) // 2 :]
        for call in out:
            call.run.cancel()
        if len(self._calls) == 1:
            self._ended.append(Ended(out[0].entry.key, error=error))
        else:
            self._width = max(self._width // 2, 1)
            self._waiting.extend(call.entry for call in out)
        self._calls = kept


Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a row becomes a record: `generator` runs after the prompt, `voter` makes the `samples` that are compared with its record.

    At most `width` rows of the engine run at once; with `is_scored` the log-probabilities of values are computed.
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


@dataclass(slots=True)
class _Pending:
    """The results so far of a row in flight: its record, and its samples by number."""

    record: Ended | None = None
    votes: dict[int, Ended] = field(default_factory=dict)


class Flow:
    """The rows in flight: `put` some while there is `room`, and call `step`, which returns outcomes in the order in which rows end."""

    def __init__(self, recipe: Recipe, show: ShowValue | None = None) -> None:
        self._recipe = recipe
        self._show = show
        self._options = Options.of(recipe.options)
        self._window = Window(recipe.generator.model, recipe.width, self._options, scores_end=recipe.is_scored)
        self._pending: dict[Hashable, _Pending] = {}
        self._ready: list[tuple[Any, Outcome]] = []
        self._num_reused = 0
        # Several prompts are started together, so that one forward prefills them.
        self._group = max(recipe.width // 4, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel the rows in flight."""
        self._window.close()

    @property
    def is_empty(self) -> bool:
        """Whether no row is in flight, and `step` has returned all outcomes."""
        return not (self._pending or self._ready)

    @property
    def room(self) -> int:
        """How many rows to put now; 0 while it is better to wait for more room."""
        free = self._window.num_free
        if free < self._group and self._pending:
            return 0
        return max(free // (1 + self._recipe.samples), 0 if self._pending else 1)

    def put(self, rows: Iterable[tuple[Hashable, Fields | Exception]]) -> None:
        """Start rows, each with a key; an exception instead of a row is its outcome."""
        entries: list[WindowEntry] = []
        for key, row in rows:
            try:
                entries += self._entries(key, row)
                self._pending[key] = _Pending()
            except Exception as error:  # the prompt may be made by code of the user
                self._ready.append((key, Outcome(failure=Failure.of(error))))
        self._window.add(entries)

    def step(self) -> list[tuple[Any, Outcome]]:
        """Take a step of the engine, and return the outcomes of the rows that have ended, with their keys."""
        ready, self._ready = self._ready, []
        if self._window.is_empty:
            return ready
        for ended in self._window.step():
            key, sample = ended.key
            row = self._pending[key]
            if sample is None:
                row.record = ended
            else:
                row.votes[sample] = ended
            if row.record is not None and len(row.votes) == self._recipe.samples:
                del self._pending[key]
                ready.append((key, self._outcome(row.record, [*row.votes.values()])))
        num_reused = self._window.meter.reused_tokens
        if ready and num_reused > self._num_reused:
            (key, outcome), *others = ready
            ready = [(key, replace(outcome, reused_tokens=num_reused - self._num_reused)), *others]
            self._num_reused = num_reused
        return ready

    def _entries(self, key: Hashable, row: Fields | Exception) -> list[WindowEntry]:
        if isinstance(row, Exception):
            raise row
        recipe, show = self._recipe, self._show
        prompt = recipe.prompt(row)
        text = prompt.text if isinstance(prompt, Tokens) else str(prompt)
        show_row: ShowValue | None = (
            None if show is None else lambda key, value, is_whole: show(key[0], value, is_whole)
        )
        seed = _seed(recipe.generator, f"{recipe.seed} {text}")
        entries = [WindowEntry((key, None), recipe.generator, prompt, seed, show_row)]
        if recipe.voter is not None:
            for sample in range(recipe.samples):
                seed = _seed(recipe.voter, f"{recipe.seed} {sample} {text}")
                entries.append(WindowEntry((key, sample), recipe.voter, prompt, seed))
        return entries

    def _outcome(self, ended: Ended, votes: Sequence[Ended]) -> Outcome:
        usage = _usage(ended, votes)
        value, error = self._value(ended)
        if error is not None:
            return Outcome(failure=Failure.of(error), usage=usage)
        try:
            record = self._recipe.schema.dump(value)
            json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except Exception as refused:
            # A serializer of the user's class may raise anything, or return a value that is not JSON.
            return Outcome(failure=Failure.of(refused), usage=usage)
        assert ended.row is not None
        row, is_scored = ended.row, self._recipe.is_scored
        return Outcome(
            record,
            value=value,
            weight=row.weight if is_scored else None,
            usage=usage,
            logprobs=value_logprobs(row, self._recipe.generator.model.tokenizer) if is_scored else {},
            agreement=agreement(record, [self._dumped(vote) for vote in votes]) if votes else {},
        )

    def _value(self, ended: Ended) -> tuple[Any, Exception | None]:
        row, error = ended.row, ended.error
        if row is None or row.error is not None:
            return None, error if row is None else row.error
        if row.finish_reason == "length":
            limit = f"max_tokens={self._options.max_tokens}"
            return None, IncompleteOutput(
                f"expected a whole record, but {limit} or the context of the model cut it. "
                "Raise --max-tokens, or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return row.value, None

    def _dumped(self, vote: Ended) -> Any:
        """Return a sample as JSON; if it has failed, an object that is equal to no other."""
        value, error = self._value(vote)
        try:
            return object() if error is not None else self._recipe.schema.dump(value)
        except Exception:
            return object()


def _usage(ended: Ended, votes: Sequence[Ended]) -> Usage:
    sample_tokens = sum(_length(vote.row) for vote in votes if vote.row is not None)
    row = ended.row
    if row is None:
        return Usage(sample_tokens=sample_tokens, steps=ended.steps)
    num_tokens = _length(row)
    num_prompt = len(row.token_ids) - num_tokens
    return Usage(num_prompt, num_tokens, row.kinds[num_prompt:].count(FORCED), sample_tokens, ended.steps)


def _length(row: StateRow) -> int:
    return 0 if row.piece is None else len(row.token_ids) - row.piece.start


def _seed(generator: PieceMaker, text: str) -> int | None:
    """Return a digest of the prompt as seed, so that a record does not depend on the other rows or their order."""
    if not getattr(generator.sampler, "needs_random", False):
        return None
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])
