"""`spans_of`: divides the tokens of a row into spans of one provenance: prompt, appended, generated, forced or healed. A span also ends
where the last generated one begins, and where its healed text ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from outlines_cont.interfaces import Tokenizer
from outlines_cont.state.row import APPENDED, FORCED, GENERATED, HEALED, PROMPT, StateRow

KINDS = {PROMPT: "prompt", APPENDED: "appended", GENERATED: "generated", FORCED: "forced", HEALED: "healed"}


@dataclass(frozen=True, slots=True)
class Span:
    """A run of neighbouring tokens of one provenance, and their text.

    Attributes:
        kind: `prompt`, `appended` (given, or encoded anew), `generated` (sampled), `forced` (without a choice) or `healed` (sampled
            or forced, of text that the row had before).
        tokens: their indices in the row, a range.
        text: their part of the text of the row, decoded with `errors="replace"`; a character that ends in the next span is cut.
        is_piece: whether they belong to the last generated span.
        num_healed: how many bytes at the beginning of `text` the row had before token healing; such tokens are a span of their own.
    """

    kind: str
    tokens: range
    text: str
    is_piece: bool
    num_healed: int = 0


def spans_of(row: StateRow, tokenizer: Tokenizer) -> list[Span]:
    """Return the spans of a row, in order; together they are all of its tokens."""
    start, num_healed = (len(row.token_ids), 0) if row.piece is None else (row.piece.start, row.piece.healed)
    keys, left = [], num_healed
    for index, token_id in enumerate(row.token_ids):
        is_healed = index >= start and left > 0
        keys.append((row.kinds[index : index + 1], index >= start, is_healed))
        left -= len(tokenizer.text_bytes([token_id])) if is_healed else 0
    left = num_healed
    parts = row.written(tokenizer)
    out, at = [], 0
    for (kind, is_piece, is_healed), group in groupby(keys):
        stop = at + len(list(group))
        data = b"".join(parts[at:stop])
        num_healed = min(left, len(data)) if is_healed else 0
        left -= num_healed
        out.append(Span(KINDS[kind], range(at, stop), data.decode(errors="replace"), is_piece, num_healed))
        at = stop
    return out
