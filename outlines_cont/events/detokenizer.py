"""Incremental detokenization of a running row, for streams: `FinalDetokenizer` returns text and tokens when no policy may rewind them any
more, `RetractingDetokenizer` all text immediately, and retractions after rewinds. Both return whole characters only, invalid UTF-8 as
U+FFFD, and tokens once their log-probabilities are known. `RowDelta`: the changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlines_cont.engine.row import Row
from outlines_cont.policies.piece_text import TextPosition
from outlines_cont.streams.text_decoder import TextDecoder


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


class FinalDetokenizer:
    """Returns final text in whole characters; all of it, joined, is the text of the generated span.

    To be created before generation begins; from then on the row records which text is final, see `Row.hold`.
    """

    def __init__(self, row: Row) -> None:
        row.hold()
        self._decoder = TextDecoder()
        self._at = row.piece.text.begin
        self._token = row.piece_start
        self._is_over = False

    def changes(self, row: Row) -> RowDelta:
        """Return the text and tokens that have become final. Cost: the tokens that are not final."""
        if self._is_over:
            return RowDelta()
        final = row.piece.final_until(row.token_ids)
        data = row.piece.text.between(row.token_ids, self._at, final)
        self._at = final
        text = ""
        if data:
            self._decoder, text = self._decoder.push(data)
        if row.has_ended:
            text += self._decoder.flush()
        start, self._token = self._token, max(min(final.token, row.num_scored), self._token)
        self._is_over = row.is_over
        return RowDelta(text, start, self._token)


class RetractingDetokenizer:
    """Returns whole characters as soon as their tokens are generated, and retractions of what is rewound later."""

    def __init__(self, row: Row) -> None:
        self._start = row.piece.text.begin
        self._token = row.piece_start
        self._shown: list[tuple[TextDecoder, str]] = []  # for each token the decoder after it, and its text
        self._flushed = ""
        self._is_over = False
        row.tokens.low_water = row.piece_start

    def changes(self, row: Row) -> RowDelta:
        """Return the changes. Cost: the tokens that are new or were rewound."""
        if self._is_over:
            return RowDelta()
        low = max(row.tokens.low_water - row.piece_start, 0)
        removed = "".join(text for _, text in self._shown[low:])
        del self._shown[low:]
        new = "".join(self._push(row, index) for index in range(row.piece_start + low, len(row.token_ids)))
        if row.has_ended and not self._flushed:
            self._flushed = self._decoder.flush()
            new += self._flushed
        same = next(
            (i for i, (a, b) in enumerate(zip(removed, new, strict=False)) if a != b), min(len(removed), len(new))
        )
        retract_tokens = max(self._token - (row.piece_start + low), 0)
        start = self._token - retract_tokens
        self._token = max(row.num_scored, start)
        row.tokens.low_water = len(row.token_ids)
        self._is_over = row.is_over
        return RowDelta(new[same:], start, self._token, len(removed) - same, retract_tokens)

    @property
    def _decoder(self) -> TextDecoder:
        return self._shown[-1][0] if self._shown else TextDecoder()

    def _push(self, row: Row, index: int) -> str:
        begin = max(TextPosition(index), self._start, key=lambda position: (position.token, position.offset))
        decoder, text = self._decoder.push(row.piece.text.between(row.token_ids, begin, TextPosition(index + 1)))
        self._shown.append((decoder, text))
        return text


Detokenizer = FinalDetokenizer | RetractingDetokenizer
