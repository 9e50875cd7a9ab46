"""`Turn`: one message of a conversation, with the text and the value of a reply; `turns_json` and `read_turns` write and read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from outlines_cont.chats.message import checked_message
from outlines_cont.errors import ChatError


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Attributes:
        message: the message as templates read it.
        text: the text of a reply in the row; None if it is not known.
        value: the value that the generator has parsed.
    """

    message: Mapping[str, Any]
    text: str | None = None
    value: Any = None

    @property
    def is_reply(self) -> bool:
        """Whether the message is one of the model."""
        return bool(self.message["role"] == "assistant")

    def extended(self, text: str, value: Any, cut: int) -> Turn:
        """Return a reply with `text` in place of its last `cut` characters."""
        content, known = ((part or "") for part in (self.message.get("content"), self.text))
        message = {**self.message, "content": content[: max(len(content) - cut, 0)] + text}
        return replace(self, message=message, text=known[: max(len(known) - cut, 0)] + text, value=value)


class _TurnRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    message: dict[str, Any]
    text: str | None
    value: Any


class _ChatRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    turns: list[_TurnRecord]
    options: dict[str, Any]
    tools: list[dict[str, Any]] = []


def turns_json(turns: Sequence[Turn], options: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as JSON.

    Raises:
        ChatError: JSON cannot hold a message or an option.
    """
    records = [{"message": turn.message, "text": turn.text, "value": turn.value} for turn in turns]
    try:
        return json.dumps({"turns": records, "options": options, "tools": tools}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ChatError(f"expected messages that JSON can hold, to save them: {error}") from error


def read_turns(text: str) -> tuple[tuple[Turn, ...], dict[str, Any], list[dict[str, Any]]]:
    """Return the turns, the options of the template, and the tools of a conversation that `turns_json` has written.

    Raises:
        pydantic.ValidationError, ChatError: it is something else.
    """
    record = _ChatRecord.model_validate_json(text)
    turns = tuple(Turn(checked_message(turn.message), turn.text, turn.value) for turn in record.turns)
    return turns, record.options, record.tools
