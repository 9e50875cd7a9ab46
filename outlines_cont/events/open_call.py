"""`OpenCall`: a tool call that is still being written, as an event reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
