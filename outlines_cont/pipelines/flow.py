"""`outcomes`: runs rows by continuous batching: renders their prompts, gives a record and its samples for each to a `Window`, as calls of
one prompt, and joins them to one outcome, in the order of the rows; another row can start as soon as one ends. A hash of seed and prompt
seeds each call. The agreement of a value is the share of samples with an equal one (a failed sample agrees with none). A record that is
cut, invalid or not JSON fails its row alone. At most 16 batches of calls are in memory, from the first one on that has not ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from fsm import FSMError
from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Task
from outlines_cont.engine.window import Room, Window
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
# Look-ahead in batches: the most calls from the first unfinished one on; others start only after it has ended.
_AHEAD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a row becomes a record: `generator` runs after the prompt, `voter` makes the `samples` that are compared with its record.

    The calls of all threads share the `room`; with `is_scored` the log-probabilities of values are computed, so that forced tokens at the
    end of a record are fed.
    """

    generator: PieceMaker
    voter: PieceMaker | None
    schema: RecordSchema
    prompt: MakePrompt
    options: Options
    seed: int
    samples: int
    room: Room
    is_scored: bool


@dataclass(slots=True, eq=False)
class _Span:
    """What is written after the prompt of a row, its record or sample number `sample`, by a call; and then its result."""

    recipe: Recipe
    number: int
    sample: int
    prompt: Any
    error: Exception | None
    show: ShowValue | None
    steps: int = 0
    row: StateRow | None = None

    @property
    def length(self) -> int:
        """The number of its tokens, thoughts included."""
        if self.row is None or self.row.piece is None:
            return 0
        thoughts = self.row.piece.thoughts
        return len(self.row.token_ids) - (self.row.piece.start if thoughts is None else thoughts.start)

    def task(self) -> Task:
        """Return its call as a task, which shows the record while it is written."""
        self.steps = 0
        if self.error is not None:  # of its prompt
            return
        recipe, events = self.recipe, None
        maker = recipe.voter if self.sample and recipe.voter is not None else recipe.generator
        try:
            call = Call(maker, [self.prompt], recipe.options, rng=self._seeds(maker), score_last=recipe.is_scored)
            if self.show is not None and not self.sample:
                events = RunEvents(call, StreamOptions(True, 0, False, True))
            yield from call.task(lambda: self._note(events))
            (row,) = call.results
        except _OF_ROWS as error:
            self.error = error
        else:
            self.row, self.error = replace(row, kv=None, logits=None), row.error

    def _note(self, events: RunEvents | None) -> Sequence[Any]:
        """Count a step, and show the new parts of the record."""
        self.steps += 1
        if events is not None and self.show is not None:
            for event in events.pull():
                self.show(self.number, event.value, event.finish_reason not in ("", "length", "error"))
        return ()

    def _seeds(self, maker: PieceMaker) -> list[int] | None:
        """Return a digest of the prompt as seed, so that a record does not depend on the other rows or their order."""
        thinking = maker.thinking_of(self.recipe.options)
        used = (maker.sampler, None if thinking is None else thinking.sampler)
        if not any(getattr(sampler, "needs_random", False) for sampler in used):
            return None
        prompt = self.prompt.text if isinstance(self.prompt, Tokens) else str(self.prompt)
        text = f"{self.recipe.seed}{f' {self.sample - 1}' if self.sample else ''} {prompt}"
        return [int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])]

    def value(self) -> Any:
        """Return the value of its call; raise its error, also if it was cut."""
        if self.error is not None:
            raise self.error
        assert self.row is not None
        if self.row.finish_reason == "length":
            raise IncompleteOutput(
                f"expected a whole record, but max_tokens={self.recipe.options.max_tokens} or the context of the model cut it. "
                "Raise --max-tokens, or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return self.row.value

    def dumped(self) -> Any:
        """Return its value as JSON; if it has failed, an object that is equal to no other."""
        try:
            return self.recipe.schema.dump(self.value())
        except Exception:
            return object()


def outcomes(
    recipe: Recipe, rows: Iterable[Mapping[str, Any] | Exception], show: ShowValue | None = None
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each row, in their order; an exception in place of a row is its outcome."""
    model: Any = recipe.generator.model
    window = Window(_spans(recipe, rows, show), recipe.room, _AHEAD * recipe.room.size, _OF_ROWS)
    num_reused = 0
    with model.meter() as meter, closing(engine_of(model).items(window.task())) as ended:
        while spans := [*islice(ended, 1 + recipe.samples)]:
            new = meter.reused_tokens - num_reused
            num_reused += new
            yield replace(_outcome(*spans), reused_tokens=new)


def _spans(recipe: Recipe, rows: Iterable[Mapping[str, Any] | Exception], show: ShowValue | None) -> Iterator[_Span]:
    """Yield the record and the samples of each row."""
    for number, row in enumerate(rows):
        prompt, failure = None, None
        try:
            if isinstance(row, Exception):
                raise row
            prompt = recipe.prompt(row)
        except Exception as error:  # the prompt may be made by code of the user
            failure = error
        for sample in range(1 + recipe.samples):
            yield _Span(recipe, number, sample, prompt, failure, show)


def _outcome(span: _Span, *votes: _Span) -> Outcome:
    usage, schema, is_scored = _usage(span, votes), span.recipe.schema, span.recipe.is_scored
    try:
        value = span.value()
        record = schema.dump(value)
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except Exception as error:  # a serializer of the user may raise anything, or return a value that is not JSON
        return Outcome(failure=Failure.of(error), usage=usage)
    assert span.row is not None
    return Outcome(
        record,
        value=value,
        weight=_weight(span.row) if is_scored else None,
        usage=usage,
        logprobs=value_logprobs(span.row, span.recipe.generator.model.tokenizer) if is_scored else {},
        agreement=agreement(record, [vote.dumped() for vote in votes]) if votes else {},
    )


def _weight(row: StateRow) -> float:
    """Return the log-probability of a record, without that of the thoughts before it."""
    if row.piece is None or row.piece.thoughts is None:
        return row.weight
    start = row.piece.start
    ends = tuple(end for end in row.counted.ends if end[0] >= start)
    return replace(row.counted, skipped=((0, start),), ends=ends).weight(row.logprobs)


def _usage(span: _Span, votes: Sequence[_Span]) -> Usage:
    sample_tokens = sum(vote.length for vote in votes)
    if span.row is None:
        return Usage(sample_tokens=sample_tokens, steps=span.steps)
    num_prompt = len(span.row.token_ids) - span.length
    num_forced = span.row.kinds[num_prompt:].count(FORCED)
    return Usage(num_prompt, span.length, num_forced, sample_tokens, span.steps)
