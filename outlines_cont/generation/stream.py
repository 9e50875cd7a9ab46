"""`Detokenizer`: incremental detokenization of a running row, for streams: text and tokens when no policy may rewind them any more, or all
text immediately, and retractions after rewinds; whole characters only, invalid UTF-8 as U+FFFD, and tokens once their log-probabilities
are known. `RowDelta`: the changes.

`RunEvents`: the items of a stream: after each step the new part of each row, as events or text, or its partial value of JSON so far.
Text is reported when it is certain, or immediately with later retractions.

`StateStream`: iterates once over the events of a `continuous` call, in a `for` or `async for` loop; at any time `state` is a snapshot
that any generator can continue. Leaving the loop cancels the rows and keeps the state.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from outlines_cont.engine.engine import Engine
from outlines_cont.engine.job import Step, Task
from outlines_cont.engine.row import Row
from outlines_cont.errors import OptionError, shortened
from outlines_cont.events.event import Closing, StreamEvent, StreamOptions, check_streamed
from outlines_cont.events.partial_type import MISSING
from outlines_cont.events.partial_value import PartialValue
from outlines_cont.generation.call import Call
from outlines_cont.generation.piece_maker import squeezed
from outlines_cont.meter import Meter
from outlines_cont.policies.healing import TextPosition
from outlines_cont.state.row import StateRow, shown_logprobs
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.streams.stream_state import TextDecoder


@dataclass(frozen=True, slots=True)
class RowDelta:
    """The changes of a row: characters and tokens to remove, then new text, and the indices of new tokens, from `start` to `stop`."""

    text: str = ""
    start: int = 0
    stop: int = 0
    retract: int = 0
    retract_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.text or self.stop > self.start or self.retract or self.retract_tokens)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Text that was decoded at once, up to a position, and the decoder after it."""

    end: TextPosition
    decoder: TextDecoder
    text: str = ""


class Detokenizer:
    """Decodes the span that a row is writing, in whole characters; joined, its texts without what was retracted are the text of the span.

    To be created before generation begins. Without `retract` text is returned when no policy may rewind it any more, which the row records
    from then on, see `Row.hold`; with it immediately, and what is rewound later is retracted.
    """

    def __init__(self, row: Row, *, retract: bool = False) -> None:
        self._retract = retract
        if retract:
            row.mark_length(row.piece_start)
        else:
            row.hold()
        self._chunks = [_Chunk(row.piece.text.begin, TextDecoder())]
        self.start = self._token = row.piece_start
        self._is_over = False
        self.is_thought = row.piece.is_thinking

    def changes(self, row: Row) -> RowDelta:
        """Return what is new since the last call. Cost: the tokens that are new, were rewound, or are not final."""
        if self._is_over:
            return RowDelta()
        removed, start = self._take_back(row) if self._retract else ("", self._token)
        last = self._chunks[-1]
        end = TextPosition(len(row.token_ids)) if self._retract else row.final_until
        decoder, text = last.decoder.push(row.piece.text.between(row.token_ids, last.end, end))
        if row.has_ended:
            decoder, text = TextDecoder(), text + decoder.flush()
        if not self._retract:
            self._chunks.clear()
        self._chunks.append(_Chunk(end, decoder, text))
        num_same = _num_same(removed, text) if removed else 0
        num_removed, self._token = self._token - start, max(min(end.token, row.num_scored), start)
        self._is_over = row.is_over
        return RowDelta(text[num_same:], start, self._token, len(removed) - num_same, num_removed)

    def last_thoughts(self, row: Row) -> RowDelta:
        """Return what is new since the last call in thoughts that have ended, as the row writes its answer; their mark is not shown."""
        tokenizer, thoughts = row.model.tokenizer, row.piece.thoughts
        assert thoughts is not None
        data = thoughts.data(row.token_ids, tokenizer)
        if self._retract:
            removed, start = self._take_back(row)
            shown, text = "".join(chunk.text for chunk in self._chunks) + removed, data.decode(errors="replace")
            num_same = _num_same(shown, text)
            retract, text = len(shown) - num_same, text[num_same:]
        else:
            last, start, retract = self._chunks[-1], self._token, 0
            num_shown = len(tokenizer.text_bytes(row.token_ids[thoughts.start : last.end.token])) + last.end.offset
            decoder, text = last.decoder.push(data[num_shown:])
            text += decoder.flush()
        return RowDelta(text, start, row.piece_start, retract, self._token - start)

    def _take_back(self, row: Row) -> tuple[str, int]:
        """Drop the chunks with tokens that were rewound; return their text, and the index of the first token to report again."""
        low, removed = max(row.tokens.low_water, self.start), ""
        row.mark_length(row.length)
        while self._chunks[-1].end.token > low:
            removed = self._chunks.pop().text + removed
        return removed, min(self._token, low)


def _num_same(before: str, after: str) -> int:
    """Return the number of characters with which both texts begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


class RunEvents:
    """Reports the changes in the rows of a call, which has taken no step yet, between two steps.

    Raises:
        OptionError: partial values are requested, and the generator does not write JSON.
    """

    def __init__(self, call: Call, options: StreamOptions) -> None:
        self._call, self._options = call, options
        self._partial: dict[int, PartialValue] = {}
        if options.partial:
            kind = call.maker.partial_type
            if kind is None:
                raise OptionError(
                    "expected a generator of JSON for `partial=True`, such as `generate.json(model, Order)`, got one of "
                    f"{shortened(call.maker.source, 120)}. Omit `partial`, and read the text of the events.",
                    "partial",
                )
            self._partial = {
                i: PartialValue(kind) for i, row in enumerate(call.rows) if row is not None or call.resumes
            }
        if call.resumes:
            call.score_ended()
        for row in filter(None, call.rows):
            if options.top:
                row.tokens = row.tokens.with_tops(options.top)
        self._detokenizers = [None if row is None else Detokenizer(row, retract=options.retract) for row in call.rows]
        self._drafts: dict[int, Meter] = {}  # the counts of drafts that events have reported
        self._ended: set[int] = set()  # rows whose end an event has reported
        self._values: dict[tuple[int, int], Any] = {}

    def pull(self) -> list[StreamEvent]:
        """Return the events of the rows that have changed."""
        with self._call.engine.lock:
            found = (event for index in range(len(self._detokenizers)) for event in self._new_events(index))
            return [event for event in found if event is not None]

    def items(self, events: Sequence[StreamEvent]) -> Iterator[Any]:
        """Yield the events; or their texts as one grid, if there are any; or all partial values, if one has changed."""
        if self._options.events:
            yield from events
        elif self._options.partial:
            before = dict(self._values)
            told = (event for event in events if not event.is_thought)
            self._values.update({(event.batch, event.sample): event.value for event in told})
            if any(value is not before.get(index) for index, value in self._values.items()):
                yield self._grid(self._values, None)
        else:
            texts = {(event.batch, event.sample): event.text for event in events if not event.is_thought}
            if any(texts.values()):
                yield self._grid(texts, "")

    def _grid(self, items: Mapping[tuple[int, int], Any], missing: Any) -> Any:
        samples = range(self._call.num_samples)
        return squeezed([[items.get((b, s), missing) for s in samples] for b in range(self._call.batch_size)])

    def _new_events(self, index: int) -> Iterator[StreamEvent | None]:
        """Yield the event of a row that has changed; before it that of thoughts that have ended since."""
        row, detokenizer = self._call.rows[index], self._detokenizers[index]
        if row is not None and detokenizer is not None and detokenizer.is_thought and not row.piece.is_thinking:
            delta = detokenizer.last_thoughts(row)
            if delta:
                yield StreamEvent(**self._shown(index, row, delta), is_thought=True)
            self._detokenizers[index] = detokenizer = Detokenizer(row, retract=self._options.retract)
        elif (
            row is not None and detokenizer is not None and detokenizer.start < row.piece_start
        ):  # behind the head of an answer
            self._detokenizers[index] = detokenizer = Detokenizer(row, retract=self._options.retract)
        yield self._event(index, detokenizer)

    def _event(self, index: int, detokenizer: Detokenizer | None) -> StreamEvent | None:
        row = self._call.rows[index]
        batch, sample = divmod(index, self._call.num_samples)
        if index in self._ended:
            return None
        if row is None or detokenizer is None:
            self._ended.add(index)
            ended = self._call.results[index]
            if self._call.resumes:
                return self._whole_event(index, ended)
            error = ended.error
            return StreamEvent(batch=batch, sample=sample, finish_reason="error", error=error) if error else None
        delta = detokenizer.changes(row)
        # With its value if values are shown, which is a step later.
        end: Row | StateRow | None = self._call.ended_row(index) if self._partial else row if row.is_over else None
        is_end = end is not None
        if not delta and not is_end:
            return None
        if is_end:
            self._ended.add(index)
        return StreamEvent(
            **self._shown(index, row, delta),
            finish_reason=row.piece.finish_reason if is_end else "",
            stop=row.piece.stop if is_end else None,
            error=end.error if end is not None else None,
            value=self._value(index, delta, end) if self._partial and not detokenizer.is_thought else None,
            is_thought=detokenizer.is_thought,
            **self._draft_counts(index, row),
        )

    def _whole_event(self, index: int, row: StateRow) -> StreamEvent:
        """Return the only event of a row that a stream resumes, and that had ended before: its whole span."""
        batch, sample = divmod(index, self._call.num_samples)
        start = len(row.token_ids) if row.piece is None or row.piece.is_thinking else row.piece.start
        text = self._call.maker.piece_text(row)
        value = None
        if self._partial:
            value = row.value if row.value is not None else self._value(index, RowDelta(text), None)
        return StreamEvent(
            batch=batch,
            sample=sample,
            text=text,
            token_ids=row.token_ids[start:],
            logprobs=tuple(shown_logprobs(row.logprobs[start:], row.kinds[start:])),
            top=((),) * (len(row.token_ids) - start),
            finish_reason=row.finish_reason,
            stop=None if row.piece is None else row.piece.stop,
            error=row.error,
            value=value,
        )

    def _shown(self, index: int, row: Row, delta: RowDelta) -> dict[str, Any]:
        """Return the text and the tokens of a change, as fields of an event."""
        batch, sample = divmod(index, self._call.num_samples)
        tokens = range(delta.start, delta.stop)
        logprobs, kinds = row.tokens.logprobs[delta.start : delta.stop], row.tokens.kinds[delta.start : delta.stop]
        return {
            "batch": batch,
            "sample": sample,
            "text": delta.text,
            "token_ids": tuple(row.token_ids[delta.start : delta.stop]),
            "logprobs": tuple(shown_logprobs(logprobs, kinds)),
            "top": tuple(row.tokens.tops[i] for i in tokens) if row.tokens.num_top else ((),) * len(tokens),
            "retract": delta.retract,
            "retract_tokens": delta.retract_tokens,
        }

    def _draft_counts(self, index: int, row: Row) -> dict[str, Any]:
        """Return the counts of the draft of a row since the last event, as fields of an event."""
        if row.draft is None:
            return {}
        before, now = self._drafts.get(index, Meter()), replace(row.draft.counts)
        self._drafts[index] = now
        return {name: getattr(now - before, name) for name in ("proposed_tokens", "accepted_tokens", "saved_forwards")}

    def _value(self, index: int, delta: RowDelta, end: Row | StateRow | None) -> Any:
        """Return the partial value of a row; at its end the final one, if the text is complete."""
        partial = self._partial[index]
        partial.take_back(delta.retract)
        partial.push(delta.text)
        if isinstance(end, StateRow) and end.error is None and self._call.is_whole(end):
            return partial.close(end.value)
        return None if partial.value is MISSING else partial.value


class TaskStream(Closing):
    """The items of a task of an engine, to be iterated once, in a `for` or an `async for` loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_begun = False

    @abstractmethod
    def _task(self) -> Task:
        """Return the task."""

    def __iter__(self) -> Iterator[Any]:
        """Run, and yield what is new after each step. A stream can be iterated once.

        Raises:
            BaseException: the error that interrupts the run. A single row that fails has its error in its last event, and the others
                continue.
        """
        return self._engine.items(self.task())

    def __aiter__(self) -> AsyncIterator[Any]:
        """The asynchronous form, which does not block the event loop."""
        return self._engine.async_items(self.task())

    def close(self) -> None:
        """End the run; iterating begins no other."""
        self._is_begun = True

    def task(self) -> Task:
        """Return the stream as a task, whose items are those of the stream; it runs once."""
        if not self._is_begun:
            self._is_begun = True
            yield from self._task()


class StateStream(TaskStream):
    """Events of a continuation, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Leaving the loop cancels the rows, and `state` keeps their last state. Resume that state
    to continue the same piece, or pass it to another generator; no token is fed twice.

    After leaving an `async for` loop close the stream (`async with`, or `await stream.aclose()`), since Python finalises such a loop later.
    `Generator.stream` returns a plain generator without a state.
    """

    def __init__(
        self, call: Call, shown: StreamOptions, at_end: Callable[[SequenceState, int | None], object] | None = None
    ) -> None:
        """Show a call that has not begun; `at_end` is called with its final state and its `max_tokens`."""
        check_streamed(call.maker.sampler)
        super().__init__(call.engine)
        self._call, self._events, self._at_end = call, RunEvents(call, shown), at_end
        self._left: SequenceState | None = None

    @property
    def state(self) -> SequenceState:
        """The present state, also in the middle of a generated span: the text so far, with keys and values.

        A span that has not ended counts as cut (`length`): `continuous(generator).resume` continues it. The state may contain
        characters that the stream still holds back. Cost: shares keys and values; some microseconds per row.
        """
        return self._left if self._left is not None else self._call.snapshot()

    @property
    def reused_tokens(self) -> int:
        """How many tokens of the prompts were not fed, as a state, running rows or the prefix cache had their keys and values."""
        return sum(row.num_reused for row in self._call.rows if row is not None)

    def _task(self) -> Task:
        # A variable, so that the rows are cancelled only after `close` has taken the state.
        task = self._call.task(self._events.pull)
        try:
            for item in task:
                yield from [item] if isinstance(item, Step) else self._items(item)
        finally:
            self.close()
            task.close()
        if self._at_end is not None:
            self._at_end(self.state, self._call.options.max_tokens)

    def close(self) -> None:
        """Cancel the rows; `state` keeps its present value."""
        super().close()
        if self._left is None and not sys.is_finalizing():  # then nobody reads it, and what it takes is half gone
            self._left = self._call.leave()

    def _items(self, events: Sequence[StreamEvent]) -> Iterator[Any]:
        """Yield what the stream shows of some events."""
        return self._events.items(events)
