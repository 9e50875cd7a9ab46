"""The messages of a chat request as pydantic models, and as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """A part of a request: other fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Body(Strict):
    """A whole request: one that UTF-8 cannot hold, or that is nested too deeply to be written, is refused."""

    @model_validator(mode="before")
    @classmethod
    def _can_be_written(cls, given: Any) -> Any:
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except RecursionError as error:
            raise ValueError("expected values that are nested less deeply") from error
        except UnicodeEncodeError as error:
            raise ValueError("expected texts without surrogates that stand alone, such as '\\ud800'") from error
        return given


class TextPart(Strict):
    """A part of a message. Images and audio are refused, as models here read text."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """The function of a call, with its arguments as the text of a JSON object."""

    name: str
    arguments: str


class FunctionCall(Strict):
    """A call of a function in an earlier reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def as_dict(self) -> dict[str, Any]:
        """Return the call as chat templates read it."""
        return self.model_dump()


class CalledCustom(Strict):
    """The custom tool of a call, with its input."""

    name: str
    input: str


class CustomCall(Strict):
    """A call of a custom tool in an earlier reply."""

    id: str
    type: Literal["custom"]
    custom: CalledCustom

    def as_dict(self) -> dict[str, Any]:
        """Return the call as chat templates read it: its input is an argument."""
        arguments = json.dumps({"input": self.custom.input}, ensure_ascii=False)
        return FunctionCall(id=self.id, function=CalledFunction(name=self.custom.name, arguments=arguments)).as_dict()


class Message(Strict):
    """A message of the conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[FunctionCall | CustomCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates read them; results of tools have the names of these."""
    names = {call.id: call.as_dict()["function"]["name"] for one in messages for call in one.tool_calls or ()}
    return [_as_dict(message, names) for message in messages]


def _as_dict(message: Message, names: dict[str, str]) -> dict[str, Any]:
    parts = message.content
    content = "".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        found["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    name = message.name or names.get(message.tool_call_id or "")
    others = {"name": name, "tool_call_id": message.tool_call_id, "reasoning_content": message.reasoning_content}
    return found | {key: value for key, value in others.items() if value is not None}
