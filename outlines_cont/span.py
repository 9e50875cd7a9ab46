"""`Span`: a stretch of a row's tokens that came about in one way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from outlines_cont.interfaces import Tokenizer
from outlines_cont.state_row import APPENDED, FORCED, GENERATED, PROMPT, StateRow

KINDS = {PROMPT: "prompt", APPENDED: "appended", GENERATED: "generated", FORCED: "forced"}


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one kind.

    Attributes:
        kind: `prompt`, `appended` (given, or encoded anew), `generated` (sampled) or `forced` (without a choice).
        tokens: their indices in the row, a range.
        text: their bytes, decoded with `errors="replace"`; a character that ends in the next span is cut.
        is_piece: whether they belong to the last piece.
    """

    kind: str
    tokens: range
    text: str
    is_piece: bool


def spans_of(row: StateRow, tokenizer: Tokenizer) -> list[Span]:
    """Return the spans of a row, in order; together they are all of its tokens."""
    start = row.piece.start if row.piece is not None else len(row.token_ids)
    keys = [(row.kinds[i : i + 1], i >= start) for i in range(len(row.token_ids))]
    out, at = [], 0
    for (kind, is_piece), group in groupby(keys):
        stop = at + len(list(group))
        text = tokenizer.text_bytes(row.token_ids[at:stop]).decode(errors="replace")
        out.append(Span(KINDS[kind], range(at, stop), text, is_piece))
        at = stop
    return out
