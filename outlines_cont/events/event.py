"""`StreamEvent`: the changes of one row since its last event: text, tokens with log-probabilities, retractions, finish reason, error,
value, counters of drafts. `OpenCall`: the changes of a tool call of a chat that is being generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Alternatives = tuple[tuple[int, float], ...]
"""Token ids with the model's log-probabilities, the most probable first."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that is being generated, reported once its name is complete.

    Attributes:
        index: its number among those of the reply, from 0.
        id: that of the later `ToolCall`.
        name: the name of the tool.
        text: the new text of its arguments, as JSON; all texts of a call, joined, are its arguments.
        arguments: the arguments so far, by name, with the types of the tool: complete ones, and incomplete strings.
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
    text and the tokens of its generated span. Without `retract=True` nothing is ever removed: text and ids are reported when final.

    Attributes:
        batch, sample: the row.
        text: new text, whole characters; it may be reported before its last token.
        token_ids: new tokens, each once; without end-of-text tokens.
        logprobs: theirs, natural logarithms by the model itself (no mask, temperature 1).
        top: for each of them the most probable tokens at its position, as many as were requested; empty for forced tokens.
        retract: how many characters at the end of the text are removed.
        retract_tokens: how many tokens at the end are removed.
        finish_reason: at the end of the generated span why it ended, see `SequenceState.finish_reasons`; empty before.
        stop: the stop text or the stop token that ended it; None if neither did.
        error: what the row has failed with.
        value: with `partial=True` the value so far, at the end the final one; the same object as before if it is equal. None before
            the first value.
        call: in a chat with tools, the change of a tool call; its text is not part of `text`. See `Chat.stream`.
        proposed_tokens, accepted_tokens, saved_forwards: how many tokens were drafted for the row since the last event, how many of
            these were accepted, and how many forwards that has saved the row; see `Meter`. 0 without a draft.
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
