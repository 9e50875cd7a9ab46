"""`StreamEvent`: the difference of one row to the event before: text, tokens, log-probabilities, finish reason; `OpenCall`: a tool call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Alternatives = tuple[tuple[int, float], ...]
"""Token ids with the model's log-probabilities, the most probable first."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call, from its name on.

    Attributes:
        index: its number among those of the reply, from 0.
        id: that which `ToolCall.id` will be.
        name: of the tool.
        text: what is new of its arguments, as JSON; all texts of a call, joined, are its arguments.
        arguments: the arguments so far, by name; with the types of the tool, as far as they are whole, and strings as far as they go.
        is_whole: whether the arguments have come to their end.
    """

    index: int
    id: str
    name: str
    text: str
    arguments: dict[str, Any]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """What is new in one row.

    First take back what `retract` and `retract_tokens` say, then append. All texts of a row, joined like that, are the text of its
    piece, and all ids its tokens. Without `retract=True` nothing is ever taken back: text and ids come when they are certain.

    Attributes:
        batch, sample: the row.
        text: new text, whole characters; it may come before the token that it ends in.
        token_ids: new tokens; each comes once. An end-of-text token is not among them.
        logprobs: theirs, natural logarithms by the model itself (no mask, temperature 1).
        top: for each of them the most probable tokens at its place, as many as were asked for; empty for forced tokens, and where
            none were asked for.
        retract: how many characters at the end of what was shown are taken back.
        retract_tokens: how many tokens are.
        finish_reason: at the end of the piece why it has ended, see `SequenceState.finish_reasons`; empty before.
        stop: the stop text or the stop token that has ended it; None where none has.
        error: what the row has failed with.
        value: with `partial=True` the value so far, at the end the final one; the same object as before where it is equal. None where
            there is none yet.
        call: in a conversation with tools, what is new in a tool call; its text is not part of `text`. See `Chat.stream`.
        proposed_tokens, accepted_tokens, saved_forwards: what the draft of the row has guessed since the event before, how much of that
            was right, and how many forwards the row has not needed for it; see `Meter`. 0 without a draft.
    """

    batch: int
    sample: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[Alternatives, ...] = ()
    retract: int = 0
    retract_tokens: int = 0
    finish_reason: str = ""
    stop: str | int | None = None
    error: Exception | None = None
    value: Any = None
    call: OpenCall | None = None
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    saved_forwards: int = 0
