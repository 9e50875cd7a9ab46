"""`ResponsesRequest`: a request to `/v1/responses` (Open Responses), which `as_chat` translates to one of Chat Completions. Nothing is
stored: each request has the whole conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.messages import Strict, Tolerant, check_media, check_url, invalid, wrong_place
from outlines_cont.serve.protocols.requests import MAX_TOP, ChatRequest, Effort, Sampling
from outlines_cont.serve.protocols.tools import Grammar, Named, TextFormat


def _by_type(default: str, *names: str) -> Callable[[Any], str]:
    """Return what chooses a form by its `type`, which may be absent."""

    def tag(value: Any) -> str:
        found = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default)
        return found if isinstance(found, str) and (not names or found in names) else default

    return tag


class InputText(Tolerant):
    """A part of a message, or of the result of a call; of an earlier reply with what it had beside its text."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    _check = field_validator("type", mode="before")(partial(check_media, image="input_image"))

    @property
    def content(self) -> str:
        """Its text."""
        return self.text or self.refusal or ""


class InputImage(Tolerant):
    """An image of a message, in a URL; `detail` changes nothing."""

    type: Literal["input_image"]
    image_url: str | None = None

    @field_validator("image_url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        check_url(url, "image_url")
        return url

    @model_validator(mode="after")
    def _has_url(self) -> InputImage:
        if self.image_url is None:
            raise invalid("expected an `image_url`, as this server keeps no files", "image_url")
        return self

    @property
    def content(self) -> str:
        """No text."""
        return ""

    def as_chat(self) -> dict[str, Any]:
        """Return the image as a chat has it."""
        return {"type": "image_url", "image_url": {"url": self.image_url}}


Content = str | list[InputText]
Shown = (
    str
    | list[
        Annotated[
            Annotated[InputText, Tag("text")] | Annotated[InputImage, Tag("input_image")],
            Discriminator(_by_type("text", "text", "input_image")),
        ]
    ]
)


def _text(content: Shown | Content | None) -> str:
    return "".join(part.content for part in content) if isinstance(content, list) else content or ""


def _shown(content: Shown) -> str | list[dict[str, Any]]:
    """Return what a user has said, or a tool has returned, as a chat has it: a text, or parts, if there are images."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [
        part.as_chat() if isinstance(part, InputImage) else {"type": "text", "text": part.content} for part in content
    ]


class _Item(Tolerant):
    """What all items of an input may have; other fields are ignored, as those of messages are."""

    id: str | None = None
    status: Any = None


class MessageItem(_Item):
    """A message."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Shown

    @model_validator(mode="after")
    def _has_own_parts(self) -> MessageItem:
        if self.role != "user" and _shown(self.content) != _text(self.content):
            raise invalid(wrong_place(self.role), "content")
        return self


class FunctionCallItem(_Item):
    """A call of a function in an earlier reply."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str | dict[str, Any] | None = None

    def as_call(self) -> dict[str, Any]:
        """Return the call as a chat has it."""
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class CustomCallItem(_Item):
    """A call of a custom tool in an earlier reply."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    def as_call(self) -> dict[str, Any]:
        """Return the call as a chat has it."""
        return {"id": self.call_id, "type": "custom", "custom": {"name": self.name, "input": self.input}}


class OutputItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Shown


class ReasoningItem(_Item):
    """The thoughts of an earlier reply."""

    type: Literal["reasoning"]
    summary: list[InputText] | None = None
    content: list[InputText] | None = None


class ReferenceItem(_Item):
    """An item of an earlier response, by its id; there is none."""

    type: Literal["item_reference"]

    @model_validator(mode="after")
    def _is_kept(self) -> ReferenceItem:
        raise invalid(
            "expected the item itself, as this server stores nothing, got an 'item_reference'. Clients send items "
            "whole with `store`: false"
        )


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[OutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")],
    Discriminator(_by_type("message")),
]


_Unread = Annotated[Any, Field(exclude=True)]  # changes nothing


class FunctionTool(Strict):
    """A function that may be called."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: _Unread = None
    allowed_callers: _Unread = None
    output_schema: _Unread = None
    cache_control: _Unread = None

    def as_told(self) -> dict[str, Any]:
        """Return the tool as a response has it."""
        return self.model_dump()

    def as_chat(self) -> dict[str, Any]:
        """Return the tool as a chat has it."""
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"type"})}


class GrammarFormat(Grammar):
    """A text of a language."""

    type: Literal["grammar"]


class CustomTool(Strict):
    """A tool that takes a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None

    def as_told(self) -> dict[str, Any]:
        """Return the tool as a response has it."""
        return self.model_dump(exclude_none=True)

    def as_chat(self) -> dict[str, Any]:
        """Return the tool as a chat has it."""
        custom = self.model_dump(exclude_none=True, exclude={"type"})
        if isinstance(self.format, GrammarFormat):
            custom["format"] = {"type": "grammar", "grammar": self.format.model_dump(exclude={"type"})}
        return {"type": "custom", "custom": custom}


class OtherTool(Strict):
    """A tool of another kind, which a service would run: the model is not told of it."""

    model_config = ConfigDict(extra="allow")

    type: str


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_by_type("other", "function", "custom")),
]


class NamedTool(Named):
    """A tool that may be called."""

    type: Literal["function", "custom"]

    def as_chat(self) -> dict[str, Any]:
        """Return the choice as a chat has it."""
        return {"type": self.type, self.type: {"name": self.name}}


class AllowedTools(Strict):
    """Some of the tools, and whether one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)

    def as_chat(self) -> dict[str, Any]:
        """Return the choice as a chat has it."""
        return {"type": self.type, self.type: {"mode": self.mode, "tools": [tool.as_chat() for tool in self.tools]}}


class ServiceChoice(Strict):
    """A tool of another kind, which no reply calls."""

    model_config = ConfigDict(extra="allow")

    type: str


Choice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedTool, Tag("named")]
        | Annotated[AllowedTools, Tag("allowed_tools")]
        | Annotated[ServiceChoice, Tag("other")],
        Discriminator(
            lambda value: {"function": "named", "custom": "named", "allowed_tools": "allowed_tools"}.get(
                _by_type("other")(value), "other"
            )
        ),
    ]
)


class SchemaFormat(Strict):
    """Text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(alias="schema", default=None)
    strict: bool | None = None

    def as_told(self) -> dict[str, Any]:
        """Return the format as a response has it: with all fields, if it is one of a schema."""
        if self.type != "json_schema":
            return {"type": self.type}
        return self.model_dump(by_alias=True) | {"name": self.name or "", "strict": bool(self.strict)}

    def as_chat(self) -> dict[str, Any]:
        """Return the format as a chat has it."""
        if self.type != "json_schema":
            return {"type": self.type}
        found = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": self.type, self.type: {"name": "", **found}}


class TextOptions(Strict):
    """The form of the text."""

    format: SchemaFormat | None = Field(default_factory=lambda: SchemaFormat(type="text"))
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Strict):
    """How much the model thinks. There are no summaries: the thoughts themselves are in the output."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Strict):
    """There is nothing to obfuscate."""

    include_obfuscation: bool | None = None


Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""What a client may want besides; all but the first change nothing, as there are no such items."""


class ResponsesRequest(Sampling):
    """A request to `/v1/responses`.

    `store`, `truncation`, `context_management` and `client_metadata` change nothing: the response says that it is not stored, and that
    nothing was left out.
    """

    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions | None = Field(default_factory=TextOptions)
    tools: list[Tool] | None = Field(default_factory=list)
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    include: list[Includable] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    max_tool_calls: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[dict[str, Any]] | None = None
    client_metadata: dict[str, Any] | None = None

    num_choices: ClassVar[int] = 1
    schema_field: ClassVar[str] = "text/format/schema"

    @field_validator("background", "previous_response_id", "conversation", mode="before")
    @classmethod
    def _keeps_nothing(cls, value: Any) -> Any:
        if value:
            raise invalid("this server stores nothing: send the whole conversation as `input`")
        return value

    @field_validator("prompt", mode="before")
    @classmethod
    def _has_no_prompts(cls, value: Any) -> Any:
        raise invalid("this server keeps no prompts: send its texts as `instructions` and `input`")

    @property
    def own_tools(self) -> list[FunctionTool | CustomTool]:
        """The tools that the model is told of."""
        return [tool for tool in self.tools or () if not isinstance(tool, OtherTool)]

    @property
    def format(self) -> SchemaFormat:
        """The form of the text."""
        given = None if self.text is None else self.text.format
        return given or SchemaFormat(type="text")

    def as_chat(self) -> ChatRequest:
        """Return the request of Chat Completions whose reply is the same."""
        given = self.model_dump(by_alias=True, exclude_none=True, include={*Sampling.model_fields})
        choice, tools, messages = self.tool_choice, self.own_tools, self._messages()
        if not messages:
            raise APIError(400, "expected an input with a message, got none", "input")
        if messages[-1].get("tool_calls"):
            raise APIError(400, "expected an input that ends with the results of its calls", "input")
        has_logprobs = self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())
        given |= {
            "messages": messages,
            "max_completion_tokens": self.max_output_tokens,
            "response_format": self.format.as_chat(),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "logprobs": has_logprobs or None,
            "top_logprobs": self.top_logprobs,
            "chat_template_kwargs": self.chat_template_kwargs,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "max_tool_calls": self.max_tool_calls,
        }
        if isinstance(choice, ServiceChoice):
            told = f"this server runs no tools, and the model is told of none of the type {choice.type[:40]!r}"
            raise APIError(400, f"{told}: choose a function, or 'auto'", "tool_choice")
        if tools or choice not in (None, "auto"):
            given["tools"] = [tool.as_chat() for tool in tools]
            given["tool_choice"] = choice if choice is None or isinstance(choice, str) else choice.as_chat()
            given["parallel_tool_calls"] = self.parallel_tool_calls
        return ChatRequest.model_validate(given)

    def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self.instructions:
            found.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*found, {"role": "user", "content": self.input}]
        thoughts: dict[str, str] = {}
        for item in self.input:
            if isinstance(item, ReasoningItem):
                thoughts = {"reasoning_content": _text(item.content or item.summary or [])}
            elif isinstance(item, OutputItem):
                found.append({"role": "tool", "tool_call_id": item.call_id, "content": _shown(item.output)})
            elif isinstance(item, MessageItem):
                found.append(
                    {"role": item.role, "content": _shown(item.content)}
                    | (thoughts if item.role == "assistant" else {})
                )
                thoughts = {}
            elif isinstance(item, FunctionCallItem | CustomCallItem):
                if not found or found[-1]["role"] != "assistant" or thoughts:
                    found.append({"role": "assistant", "content": None} | thoughts)
                    thoughts = {}
                found[-1].setdefault("tool_calls", []).append(item.as_call())
        return found
