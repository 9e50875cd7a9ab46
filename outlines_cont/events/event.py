"""`StreamEvent`: the changes of one row since its last event: text, tokens with log-probabilities, retractions, finish reason, error,
value, counters of drafts. `OpenCall`: the changes of a tool call of a chat that is being generated.

`Closing`: base class of streams: a context manager, synchronous and asynchronous, that calls `close` when its block ends.

`StreamOptions`: the checked options of a stream: events, partial values, and, with events only, top log-probabilities (1,000 at most)
and retractions. `check_streamed` refuses samplers whose text is known only at the end: beam search and best-of-n.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from outlines_cont.checks import check, checked_bool, is_int
from outlines_cont.errors import OptionError
from outlines_cont.near_names import NearNames
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.params import Sampler

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
class StreamEvent(NearNames):
    """The changes of one row since its last event.

    First remove `retract` characters and `retract_tokens` tokens from the end, then append. Applied in order, the events of a row give the
    text and the tokens of its generated span. Without `retract=True` nothing is ever removed: text and ids are reported when final.

    Attributes:
        batch, sample: the row.
        text: new text, whole characters; it may be reported before its last token.
        token_ids: new tokens, each once; without end-of-text tokens.
        logprobs: theirs, natural logarithms by the model itself (no mask, temperature 1); NaN for text that no model wrote, such as the
            mark at the end of thoughts.
        top: for each of them the most probable tokens at its position, as many as were requested; empty for forced tokens.
        retract: how many characters at the end of the text are removed.
        retract_tokens: how many tokens at the end are removed.
        finish_reason: at the end of the generated span why it ended, see `SequenceState.finish_reasons`; empty before.
        stop: the stop text or the stop token that ended it; None if neither did.
        error: what the row has failed with.
        value: with `partial=True` the value so far, at the end the final one; the same object as before if it is equal. None before
            the first value.
        is_thought: whether text and tokens are thoughts, before the answer, which has events of its own; see `Thinking`. The text has no
            marks, the tokens have that at the end.
        call: in a chat with tools, the change of a tool call; its text is not part of `text`. See `Chat.stream`.
        name: in a stream of a template, the name under which the text is generated; None for text of the template, and without a name.
        proposed_tokens, accepted_tokens, saved_forwards: how many tokens were drafted for the row since the last event, how many of
            these were accepted, and how many forwards that has saved the row; see `Meter`. 0 without a draft.
    """

    batch: int = 0
    sample: int = 0
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
    is_thought: bool = False
    call: OpenCall | None = None
    name: str | None = None
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    saved_forwards: int = 0


class Closing(NearNames, ABC):
    """A context manager, also with `async with`, that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """End the work."""

    async def aclose(self) -> None:
        """End the work in another thread, so that the event loop is not blocked."""
        await asyncio.shield(asyncio.to_thread(self.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


_MAX_TOP = 1000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream.

    Attributes:
        events: yield events instead of texts.
        top: how many of the most probable tokens an event reports for each token.
        retract: yield text before it is final, and retractions.
        partial: report the value so far.

    Raises:
        OptionError: a value is out of its range, or needs events.
    """

    events: bool = False
    top: int = 0
    retract: bool = False
    partial: bool = False

    def __post_init__(self) -> None:
        top, retract = self.top, self.retract
        check("top", top, is_int(top, 0, _MAX_TOP), f"a number of tokens from 0 to {_MAX_TOP}")
        for name in ("events", "retract", "partial"):
            checked_bool(getattr(self, name), name)
        if (top or retract) and not self.events:
            name = "top" if top else "retract"
            raise OptionError(
                f"expected `events=True` with `{name}`, which a stream of texts does not show, got no events", name
            )


def check_streamed(sampler: Sampler | BeamSearch) -> None:
    """Raise `OptionError` for beam search and best-of-n."""
    if isinstance(sampler, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler that draws token by token, to stream its text: a search chooses at the end. "
            "Use `greedy()` or `multinomial()`, or call the generator without `stream`.",
            "sampler",
        )
