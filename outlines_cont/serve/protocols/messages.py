"""The messages of a chat request as pydantic models, and as chat templates read them. What clients add to the messages of earlier replies,
such as `parsed` and `annotations`, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic_core import PydanticCustomError


def invalid(message: str, field: str = "") -> PydanticCustomError:
    """Return the error of a validator; `field` is the wrong one, if the validator checks a whole part."""
    return PydanticCustomError("invalid_value", "{told}", {"told": message, "field": field})


class Part(BaseModel):
    """A part of a request: a field that is null counts as absent, whatever its name."""

    model_config = ConfigDict(allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict) or None not in given.values():
            return given
        return {name: value for name, value in given.items() if value is not None}


class Strict(Part):
    """A part of a request: other fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Tolerant(Part):
    """A part of an earlier reply: other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Body(Strict):
    """A whole request: one that UTF-8 cannot hold, or that is nested too deeply to be written, is refused."""

    @model_validator(mode="before")
    @classmethod
    def _can_be_written(cls, given: Any) -> Any:
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except RecursionError as error:
            raise invalid("expected values that are nested less deeply") from error
        except UnicodeEncodeError as error:
            raise invalid("expected texts without surrogates that stand alone, such as '\\ud800'") from error
        return given


_MEDIA = {"video": "of a video", "audio": "of a sound", "file": "of a file"}


def check_media(kind: Any, image: str = "image_url") -> Any:
    """Return the type of a part of a message; raise for one that is not read, with the type that an image has in its place."""
    if isinstance(kind, str) and "image" in kind:
        raise invalid(
            f"expected an image of a user, or in the result of a tool, as a part of the type {image!r}, got {kind!r}"
        )
    found = next((name for media, name in _MEDIA.items() if isinstance(kind, str) and media in kind), None)
    if found is not None:
        raise invalid(f"expected a text or an image, got a part {found} ({kind!r}), which this server does not read")
    return kind


def check_url(url: str | None, field: str) -> None:
    """Raise for what is no URL of an image; those of http are fetched from hosts that the server names, see `image_urls`."""
    if url is None or url.partition(":")[0].lower() not in ("data", "http", "https"):
        raise invalid("expected an image as a `data:` URL, such as 'data:image/png;base64,...', or by http", field)


def wrong_place(role: str) -> str:
    """Return what is wrong about an image in a message of a role."""
    return f"an image belongs to a message of the user, or to the result of a tool, and this one is of the {role}"


class ImageURL(Tolerant):
    """An image of a message, in a URL; `detail` changes nothing."""

    url: str


class ContentPart(Tolerant):
    """A part of a message: a text, or an image in a URL. No file is opened; sounds and videos are refused."""

    type: Literal["text", "input_text", "output_text", "refusal", "image_url"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageURL | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _is_read(cls, kind: Any) -> Any:
        return kind if kind == "image_url" else check_media(kind)

    @model_validator(mode="after")
    def _has_content(self) -> ContentPart:
        if self.type == "image_url":
            check_url(None if self.image_url is None else self.image_url.url, "image_url")
        elif self.text is None and self.refusal is None:
            raise invalid("expected the text of this part", "text")
        return self

    @property
    def content(self) -> str:
        """Its text."""
        return self.text or self.refusal or ""


class CalledFunction(Tolerant):
    """The function of a call, with its arguments as the text of a JSON object, which may be empty or cut."""

    name: str
    arguments: str | dict[str, Any] | None = None


class FunctionCall(Tolerant):
    """A call of a function in an earlier reply."""

    id: str | None = None
    type: Literal["function"] | None = "function"
    function: CalledFunction

    def as_dict(self) -> dict[str, Any]:
        """Return the call as chat templates read it."""
        return self.model_dump(exclude={"id"} if self.id is None else None)


class CalledCustom(Tolerant):
    """The custom tool of a call, with its input."""

    name: str
    input: str


class CustomCall(Tolerant):
    """A call of a custom tool in an earlier reply."""

    id: str | None = None
    type: Literal["custom"]
    custom: CalledCustom

    def as_dict(self) -> dict[str, Any]:
        """Return the call as chat templates read it: its input is an argument."""
        arguments = json.dumps({"input": self.custom.input}, ensure_ascii=False)
        return FunctionCall(id=self.id, function=CalledFunction(name=self.custom.name, arguments=arguments)).as_dict()


class Message(Tolerant):
    """A message of the conversation. Fields that are not here change nothing."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[FunctionCall | CustomCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_kind_of_calls(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("tool_calls") and "function_call" in given:
            return {name: value for name, value in given.items() if name != "function_call"}
        return given

    @model_validator(mode="after")
    def _has_own_parts(self) -> Message:
        if self.images and self.role not in ("user", "tool", "function"):
            raise invalid(wrong_place(self.role), "content")
        return self

    @property
    def text(self) -> str:
        """Its content as one text, without images; a refusal, if it has no content."""
        parts = self.content
        text = "".join(part.content for part in parts) if isinstance(parts, list) else parts or ""
        return text or (self.refusal if isinstance(self.refusal, str) else "")

    @property
    def images(self) -> list[str]:
        """The URLs of its images."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.image_url.url for part in parts if part.image_url is not None and part.type == "image_url"]

    @property
    def parts(self) -> str | list[dict[str, Any]]:
        """Its content as chat templates read it: one text, or parts where it has images."""
        if not self.images or not isinstance(self.content, list):
            return self.text
        return [
            {"type": "image_url", "image_url": {"url": part.image_url.url}}
            if part.type == "image_url" and part.image_url is not None
            else {"type": "text", "text": part.content}
            for part in self.content
        ]

    @property
    def thoughts(self) -> str | None:
        """The thoughts of an earlier reply, by either of the names that clients have for them."""
        return next((one for one in (self.reasoning_content, self.reasoning) if isinstance(one, str)), None)


def as_tools(messages: Sequence[Message]) -> list[Message]:
    """Return messages of which those of older clients, with a `function_call` or of the role `function`, are calls of tools and results.

    Such a call and its result get the number of the call as their id, which only the template sees.
    """
    found: list[Message] = []
    number = 0
    for message in messages:
        if message.function_call is not None and not message.tool_calls:
            number += 1
            call = FunctionCall(id=f"call{number:05d}", function=message.function_call)
            message = message.model_copy(update={"tool_calls": [call]})
        elif message.role == "function":
            message = message.model_copy(
                update={"role": "tool", "tool_call_id": f"call{number:05d}" if number else None}
            )
        found.append(message)
    return found


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates read them; results of tools have the names of these."""
    calls = [call for one in messages for call in one.tool_calls or ()]
    names = {call.id: call.as_dict()["function"]["name"] for call in calls if call.id is not None}
    return [_as_dict(message, names) for message in messages]


def _as_dict(message: Message, names: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.parts}
    if message.tool_calls:
        found["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    name = message.name or names.get(message.tool_call_id or "")
    others = {"name": name, "tool_call_id": message.tool_call_id, "reasoning_content": message.thoughts}
    return found | {key: value for key, value in others.items() if value is not None}
