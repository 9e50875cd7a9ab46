"""`RunEvents`: the items of a stream: after each step the new part of each row, as events or text, or its partial value of JSON so far.
Text is reported when it is certain, or immediately with later retractions (by a `FinalDetokenizer` or `RetractingDetokenizer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlines_cont.engine.row import Row
from outlines_cont.errors import OptionError, shortened
from outlines_cont.events.detokenizer import Detokenizer, FinalDetokenizer, RetractingDetokenizer, RowDelta
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.partial_type import MISSING
from outlines_cont.events.partial_value import PartialValue
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.piece_maker import squeezed
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow


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
            self._partial = {i: PartialValue(kind) for i, row in enumerate(call.rows) if row is not None}
        for row in filter(None, call.rows):
            if options.top:
                row.tokens.note_tops(options.top)
        opened = RetractingDetokenizer if options.retract else FinalDetokenizer
        self._detokenizers: list[Detokenizer | None] = [None if row is None else opened(row) for row in call.rows]
        self._drafts: dict[int, Meter] = {}  # the counts of drafts that events have reported
        self._ended: set[int] = set()  # rows whose end an event has reported
        self._values: dict[tuple[int, int], Any] = {}

    def pull(self) -> list[StreamEvent]:
        """Return the events of the rows that have changed."""
        with self._call.engine.lock:
            events = (self._event(index, detokenizer) for index, detokenizer in enumerate(self._detokenizers))
            return [event for event in events if event is not None]

    def items(self, events: Sequence[StreamEvent]) -> Iterator[Any]:
        """Yield the events; or their texts as one grid, if there are any; or all partial values, if one has changed."""
        if self._options.events:
            yield from events
        elif self._options.partial:
            before = dict(self._values)
            self._values.update({(event.batch, event.sample): event.value for event in events})
            if any(value is not before.get(index) for index, value in self._values.items()):
                yield self._grid(self._values, None)
        elif any(event.text for event in events):
            yield self._grid({(event.batch, event.sample): event.text for event in events}, "")

    def _grid(self, items: Mapping[tuple[int, int], Any], missing: Any) -> Any:
        samples = range(self._call.num_samples)
        return squeezed([[items.get((b, s), missing) for s in samples] for b in range(self._call.batch_size)])

    def _event(self, index: int, detokenizer: Detokenizer | None) -> StreamEvent | None:
        row = self._call.rows[index]
        batch, sample = divmod(index, self._call.num_samples)
        if index in self._ended:
            return None
        if row is None or detokenizer is None:
            self._ended.add(index)
            error = self._call.results[index].error
            return StreamEvent(batch=batch, sample=sample, finish_reason="error", error=error) if error else None
        delta = detokenizer.changes(row)
        # With its value if values are shown, which is a step later.
        end: Row | StateRow | None = self._call.ended_row(index) if self._partial else row if row.is_over else None
        is_end = end is not None
        if not delta and not is_end:
            return None
        if is_end:
            self._ended.add(index)
        tokens = range(delta.start, delta.stop)
        return StreamEvent(
            batch=batch,
            sample=sample,
            text=delta.text,
            token_ids=tuple(row.token_ids[delta.start : delta.stop]),
            logprobs=tuple(row.tokens.logprobs[i] for i in tokens),
            top=tuple(row.tokens.tops[i] for i in tokens) if row.tokens.num_top else ((),) * len(tokens),
            retract=delta.retract,
            retract_tokens=delta.retract_tokens,
            finish_reason=row.piece.finish_reason if is_end else "",
            stop=row.piece.stop if is_end else None,
            error=end.error if end is not None else None,
            value=self._value(index, delta, end) if self._partial else None,
            **self._draft_counts(index, row),
        )

    def _draft_counts(self, index: int, row: Row) -> dict[str, Any]:
        """Return the counts of the draft of a row since the last event, as fields of an event."""
        if row.piece.draft is None:
            return {}
        before, now = self._drafts.get(index, Meter()), replace(row.piece.draft.counts)
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
