"""`CertainFeed`, `EarlyFeed`: incremental detokenization of a running row of the engine. The first returns text and tokens when they
are final; the second all text at once, and retractions where the row was rewound. Both return whole characters only; invalid UTF-8
becomes U+FFFD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outlines_cont.engine.row import Row
from outlines_cont.policies.piece_text import TextPosition
from outlines_cont.streams.text_decoder import TextDecoder


@dataclass(frozen=True, slots=True)
class News:
    """The changes of a row: characters and tokens to remove, then new text, and the indices of new tokens, from `start` to `stop`."""

    text: str
    start: int
    stop: int
    retract: int = 0
    retract_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.text or self.stop > self.start or self.retract or self.retract_tokens)


class Feed(Protocol):
    """Returns the changes of a row between two steps."""

    def pull(self, row: Row) -> News:
        """Return the changes since the last call."""


class CertainFeed:
    """Whole characters that are final; joined, they are the text of the generated span.

    Make it when generation begins; from then on the row reports what is final, see `Row.hold`.
    """

    def __init__(self, row: Row) -> None:
        row.hold()
        self._decoder = TextDecoder()
        self._at = row.text.begin
        self._token = row.piece_start
        self._is_over = False

    def pull(self, row: Row) -> News:
        """Return the text and tokens that have become final. Cost: the tokens that are not final."""
        if self._is_over:
            return News("", 0, 0)
        place = row.certain_until()
        data = row.text.between(row.token_ids, self._at, place)
        self._at = place
        text = ""
        if data:
            self._decoder, text = self._decoder.push(data)
        if row.has_ended:
            text += self._decoder.flush()
        start, self._token = self._token, max(min(place.token, row.num_scored), self._token)
        self._is_over = row.is_over
        return News(text, start, self._token)


class EarlyFeed:
    """Whole characters as soon as they are written; what a rewind removes is retracted later."""

    def __init__(self, row: Row) -> None:
        self._start = row.text.begin
        self._token = row.piece_start
        # For each token the decoder after it, and what it has added to the text.
        self._shown: list[tuple[TextDecoder, str]] = []
        self._first = TextDecoder()
        self._flushed = ""
        self._is_over = False
        row.tokens.low_water = row.piece_start

    def pull(self, row: Row) -> News:
        """Return the changes. Cost: the tokens that are new or were removed."""
        if self._is_over:
            return News("", 0, 0)
        low = max(row.tokens.low_water - row.piece_start, 0)
        gone = "".join(text for _, text in self._shown[low:])
        del self._shown[low:]
        new = "".join(self._push(row, index) for index in range(row.piece_start + low, len(row.token_ids)))
        if row.has_ended and not self._flushed:
            self._flushed = (self._shown[-1][0] if self._shown else self._first).flush()
            new += self._flushed
        same = next((i for i, (a, b) in enumerate(zip(gone, new, strict=False)) if a != b), min(len(gone), len(new)))
        taken = max(self._token - (row.piece_start + low), 0)
        start = self._token - taken
        self._token = max(row.num_scored, start)
        row.tokens.low_water = len(row.token_ids)
        self._is_over = row.is_over
        return News(new[same:], start, self._token, len(gone) - same, taken)

    def _push(self, row: Row, index: int) -> str:
        decoder = self._shown[-1][0] if self._shown else self._first
        begin = max(TextPosition(index), self._start, key=lambda place: (place.token, place.offset))
        decoder, text = decoder.push(row.text.between(row.token_ids, begin, TextPosition(index + 1)))
        self._shown.append((decoder, text))
        return text
