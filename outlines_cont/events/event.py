"""`StreamEvent`: the changes of one row since its last event: text, tokens with log-probabilities, retractions, finish reason, error,
value, counters of drafts. `OpenCall`: a tool call of a chat that is being written, with the new text of its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Alternatives = tuple[tuple[int, float], ...]
"""Token ids with the model's log-probabilities, the most probable first."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that is being written, from the moment when its name is complete.

    Attributes:
        index: its number among those of the reply, from 0.
        id: the later `ToolCall.id`.
        name: of the tool.
        text: the new text of its arguments, as JSON; all texts of a call, joined, are its arguments.
        arguments: the arguments so far, by name, with the types of the tool: complete ones, and strings that are still being written.
        is_whole: whether the arguments are complete.
    """

    index: int
    id: str
    name: str
    text: str
    arguments: dict[str, Any]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """The changes of one row since its last event.

    First remove `retract` characters and `retract_tokens` tokens from the end, then append. Applied in order, the events of a row give the
    text and the tokens of its generated span. Without `retract=True` nothing is ever removed: text and ids come when they are final.

    Attributes:
        batch, sample: the row.
        text: new text, whole characters; it may come before the token that it ends in.
        token_ids: new tokens; each comes once. An end-of-text token is not among them.
        logprobs: theirs, natural logarithms by the model itself (no mask, temperature 1).
        top: for each of them the most probable tokens at its position, as many as were requested; empty for forced tokens, and where
            none were requested.
        retract: how many characters at the end of the text so far are removed.
        retract_tokens: how many tokens at the end are removed.
        finish_reason: at the end of the generated span why it ended, see `SequenceState.finish_reasons`; empty before.
        stop: the stop text or the stop token that ended it; None where neither did.
        error: what the row has failed with.
        value: with `partial=True` the value so far, at the end the final one; the same object as before where it is equal. None where
            there is none yet.
        call: in a chat with tools, the change of a tool call; its text is not part of `text`. See `Chat.stream`.
        proposed_tokens, accepted_tokens, saved_forwards: how many tokens the draft of the row has guessed since the last event, how
            many of these were right, and how many forwards that has saved the row; see `Meter`. 0 without a draft.
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
