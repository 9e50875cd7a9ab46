"""`MessagesRequest`: a request to `/v1/messages` (Anthropic's Messages API), which `as_chat` translates to one of Chat Completions, and
`CountRequest`, one to `/v1/messages/count_tokens`. `error_body`: an error as clients of that protocol read it.

What messages, blocks and tools have beside the fields that are read here, such as `cache_control`, changes nothing; an unknown field of the
request itself is refused by its name. Nothing is stored: each request has the whole conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.requests import ChatRequest, Sampling

PATH = "/v1/messages"
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_OF_A_SERVICE = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset")
"""The types of tools that a service runs begin with these: the model is not told of such tools."""
_FIELDS = {"max_completion_tokens": "max_tokens", "reasoning_effort": "thinking", "stop": "stop_sequences"}
"""The fields of Chat Completions that have another name there."""
_NO_THREADS = "thread_unsupported_request"
_ADAPTIVE = "medium"  # the effort of a model that decides itself how much it thinks
_MOST_THOUGHTS = 7 / 8  # of the tokens of a reply; the answer has the rest


class ErrorDetails(BaseModel):
    """What is wrong."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class MessagesErrorBody(BaseModel):
    """An error as it is sent."""

    type: Literal["error"] = "error"
    error: ErrorDetails


def error_body(error: APIError) -> dict[str, Any]:
    """Return what is sent for an error; its text names the field that is wrong, for which the protocol has no place."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    message: str = error.body["error"]["message"]
    field = _FIELDS.get(error.param or "", error.param)
    if field is not None and field not in message:
        message = f"{field}: {message}"
    found = {"type": _KINDS.get(error.status, default), "message": message}
    if error.code == _NO_THREADS:  # by which clients know that they have to send the whole conversation
        return {"type": "error", "error": found | {"details": {"error_code": _NO_THREADS, "unsupported": ["thread"]}}}
    return {"type": "error", "error": found}


class _Part(BaseModel):
    """A part of a request that may have more fields than are read."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


def _by_type(*names: str) -> Discriminator:
    """Return what chooses a form by its `type`: one of some names, or 'other'."""

    def tag(value: Any) -> str:
        found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return found if found in names else "other"

    return Discriminator(tag)


# -- blocks ------------------------------------------------------------------------------------------------------------


class TextBlock(_Part):
    """A text."""

    type: Literal["text"]
    text: str


class OtherBlock(_Part):
    """A block that a model of texts cannot read; there is none."""

    type: str

    @field_validator("type")
    @classmethod
    def _is_read(cls, kind: str) -> str:
        if kind == "image":
            raise ValueError("an image belongs to a message of the user, or to the result of a tool. Send it there.")
        raise ValueError(
            f"expected a block of one of the types {', '.join(map(repr, _BLOCKS))}, got {kind[:100]!r}. Send its content as text."
        )


class Base64Source(_Part):
    """The file of an image."""

    type: Literal["base64"]
    data: str
    media_type: str = Field("image/png", pattern=r"^image/[A-Za-z0-9.+-]{1,40}$")

    @property
    def image_url(self) -> str:
        """The image as a `data:` URL."""
        return f"data:{self.media_type};base64,{self.data}"


class URLSource(_Part):
    """An image by http."""

    type: Literal["url"]
    url: str

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url.partition(":")[0].lower() not in ("http", "https"):
            raise ValueError(f"expected a URL of http or https, got {url[:100]!r}. Send other images as 'base64'.")
        return url

    @property
    def image_url(self) -> str:
        """Its URL."""
        return self.url


class OtherImage(_Part):
    """An image of another source; there is none."""

    type: str

    @field_validator("type")
    @classmethod
    def _is_read(cls, kind: str) -> str:
        raise ValueError(
            f"expected an image of the source 'base64' or 'url', got {kind[:100]!r}: this server keeps no files"
        )


class ImageBlock(_Part):
    """An image of a message of the user."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("base64")] | Annotated[URLSource, Tag("url")] | Annotated[OtherImage, Tag("other")],
        _by_type("base64", "url"),
    ]

    def as_chat(self) -> dict[str, Any]:
        """Return the image as a chat has it."""
        return {"type": "image_url", "image_url": {"url": getattr(self.source, "image_url", "")}}


class TextSource(_Part):
    """The text of a document."""

    type: Literal["text"]
    data: str


class ContentSource(_Part):
    """The parts of a document."""

    type: Literal["content"]
    content: str | list[AnyText]


class OtherSource(OtherBlock):
    """A document that is no text, such as a PDF; there is none."""

    @field_validator("type")
    @classmethod
    def _is_read(cls, kind: str) -> str:
        raise ValueError(f"expected a document of the source 'text' or 'content', got {kind[:100]!r}. Send its text.")


AnyText = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[OtherBlock, Tag("other")],
    _by_type("text"),
]


class DocumentBlock(_Part):
    """A document that is text."""

    type: Literal["document"]
    source: Annotated[
        Annotated[TextSource, Tag("text")]
        | Annotated[ContentSource, Tag("content")]
        | Annotated[OtherSource, Tag("other")],
        _by_type("text", "content"),
    ]
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        """Its title, what is said about it, and its text."""
        source = self.source
        body = source.data if isinstance(source, TextSource) else _text(getattr(source, "content", ""))
        return "\n".join(filter(None, (self.title, self.context, body)))


class SearchResultBlock(_Part):
    """A result of a search."""

    type: Literal["search_result"]
    title: str
    source: str
    content: list[AnyText]

    @property
    def text(self) -> str:
        """Its title, where it is from, and its text."""
        return "\n".join((self.title, self.source, _text(self.content)))


class ThinkingBlock(_Part):
    """The thoughts of an earlier reply."""

    type: Literal["thinking"]
    thinking: str


class RedactedBlock(_Part):
    """Thoughts that nobody can read; they are left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(_Part):
    """A call of a tool in an earlier reply."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def as_call(self) -> dict[str, Any]:
        """Return the call as a chat has it."""
        arguments = json.dumps(self.input, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


_READ = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[SearchResultBlock, Tag("search_result")]
    | Annotated[OtherBlock, Tag("other")],
    _by_type("text", "image", "document", "search_result"),
]


class ToolResultBlock(_Part):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_READ] | None = None


_BLOCKS = ("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result")
_BLOCKS_OF = {
    "user": ("text", "image", "document", "search_result", "tool_result"),
    "assistant": ("text", "document", "search_result", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text", "document", "search_result"),
}
Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[SearchResultBlock, Tag("search_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[OtherBlock, Tag("other")],
    _by_type(*_BLOCKS),
]


def _text(content: str | Sequence[Any] | None) -> str:
    """Return the texts of blocks that somebody else than the model has written, one below the other."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content or () if hasattr(block, "text"))


class InputMessage(_Part):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @model_validator(mode="after")
    def _has_own_blocks(self) -> InputMessage:
        found = next((block.type for block in self.blocks if block.type not in _BLOCKS_OF[self.role]), None)
        if found is not None:
            raise ValueError(f"a block of the type {found!r} belongs to no message of the role {self.role!r}")
        return self

    @property
    def blocks(self) -> list[Any]:
        """Its content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


# -- tools -------------------------------------------------------------------------------------------------------------


_VALUES = ("const", "enum", "default", "examples")  # what these keywords hold is no schema


def with_pointers(schema: Any) -> Any:
    """Return a schema whose references are pointers: LiteLLM sends `/$defs/Item` for `#/$defs/Item`, which is a file of no schema."""
    if isinstance(schema, list):
        return [with_pointers(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: one if key in _VALUES else with_pointers(one) for key, one in schema.items()}
    pointer = schema.get("$ref")
    return found | ({"$ref": f"#{pointer}"} if isinstance(pointer, str) and pointer.startswith("/$defs/") else {})


class FunctionTool(_Part):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """Return the tool as a chat has it."""
        given = self.model_dump(exclude_none=True, exclude={"type", "input_schema"})
        return {"type": "function", "function": given | {"parameters": with_pointers(self.input_schema)}}


class ServiceTool(_Part):
    """A tool that a service would run: the model is not told of it."""

    type: str


class OtherTool(_Part):
    """A tool whose schema is known to the models of Anthropic alone; there is none."""

    type: str

    @field_validator("type")
    @classmethod
    def _has_schema(cls, kind: str) -> str:
        raise ValueError(
            f"expected a tool with `input_schema`, got one of the type {kind[:100]!r}. Describe it as a custom tool."
        )


def _tool_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind in (None, "custom"):
        return "custom"
    return "service" if isinstance(kind, str) and kind.startswith(_OF_A_SERVICE) else "other"


Tool = Annotated[
    Annotated[FunctionTool, Tag("custom")]
    | Annotated[ServiceTool, Tag("service")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_tool_tag),
]


class ToolChoice(_Part):
    """Which tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _has_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("`name` belongs to the type 'tool'")
        return self

    @property
    def must_call(self) -> bool:
        """Whether the reply is a call."""
        return self.type in ("any", "tool")

    def as_chat(self) -> dict[str, Any]:
        """Return the choice as fields of a chat."""
        named = {"type": "function", "function": {"name": self.name}}
        choice = named if self.type == "tool" else {"any": "required"}.get(self.type, self.type)
        parallel = {"parallel_tool_calls": False} if self.disable_parallel_tool_use and self.type != "none" else {}
        return {"tool_choice": choice} | parallel


# -- the request -------------------------------------------------------------------------------------------------------


class ThinkingConfig(_Part):
    """Whether the model thinks, and with how many tokens."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _has_budget(self) -> ThinkingConfig:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("`budget_tokens` belongs to the type 'enabled'")
        return self


class OutputFormat(_Part):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(_Part):
    """The form of the answer, and how much the model thinks."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesRequest(Sampling):
    """A request to `/v1/messages`."""

    max_tokens: int | None = Field(ge=1)
    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[AnyText] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    stop_sequences: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Nothing depends on these here.
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    speed: Literal["standard", "fast"] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    fallbacks: list[Any] | None = None
    thread: dict[str, Any] | None = None
    container: None = None
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None

    num_choices: ClassVar[int] = 1

    @model_validator(mode="after")
    def _agrees(self) -> MessagesRequest:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise ValueError("expected one of `output_format` and `output_config/format`, got both")
        if all(message.role != "user" for message in self.messages):
            raise ValueError("expected `messages` with one of the user, got none")
        last = self.messages[-1]
        if last.role == "assistant" and any(block.type == "tool_use" for block in last.blocks):
            raise ValueError("expected a message with a `tool_result` after the last `tool_use`, got none")
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and self.max_tokens is not None and budget >= self.max_tokens:
            raise ValueError(f"expected `thinking/budget_tokens` below `max_tokens`, {self.max_tokens}, got {budget}")
        return self

    @property
    def schema_field(self) -> str:
        """Where the schema of the answer is."""
        return "output_format/schema" if self.output_format is not None else "output_config/format/schema"

    @property
    def own_tools(self) -> list[FunctionTool]:
        """The tools that the model is told of."""
        return [tool for tool in self.tools or () if isinstance(tool, FunctionTool)]

    def as_chat(self, most: int) -> ChatRequest:
        """Return the request of Chat Completions whose reply is the same.

        Args:
            most: the most tokens of a reply, which are fewer than `max_tokens` may ask for.
        """
        if self.thread is not None:
            told = "expected no `thread`, as this server stores nothing: send the whole conversation as `messages`"
            raise APIError(400, told, "thread", _NO_THREADS)
        given = self.model_dump(by_alias=True, exclude_none=True, include={*Sampling.model_fields})
        tokens = min(self.max_tokens or most, most)
        given |= {
            "messages": [*self._messages()],
            "max_completion_tokens": tokens,
            "stop": self.stop_sequences or None,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        given["continue_final_message"] = given["messages"][-1]["role"] == "assistant"
        return ChatRequest.model_validate(given | self._thinking(tokens) | self._tools() | self._format())

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages as those of a chat; consecutive ones of one role are one message, as that protocol has it."""
        found: list[dict[str, Any]] = []
        if system := _text(self.system):
            found.append({"role": "system", "content": system})
        for message in self.messages:
            parts = _said(message) if message.role == "assistant" else _told(message)
            for part in parts:
                if found and part["role"] == found[-1]["role"] != "tool":
                    found[-1] = _joined(found[-1], part)
                else:
                    found.append(part)
        yield from found

    def _thinking(self, tokens: int) -> dict[str, Any]:
        thinking = self.thinking
        if thinking is None or thinking.type == "disabled":
            return {}
        if thinking.budget_tokens is not None:
            return {"thinking_token_budget": max(min(thinking.budget_tokens, int(tokens * _MOST_THOUGHTS)), 1)}
        return {"reasoning_effort": (self.output_config and self.output_config.effort) or _ADAPTIVE}

    def _tools(self) -> dict[str, Any]:
        tools, choice = self.own_tools, self.tool_choice
        if not tools:
            if choice is not None and choice.must_call:
                raise APIError(400, f"expected `tools` with a `tool_choice` of the type {choice.type!r}", "tool_choice")
            return {}
        return {"tools": [tool.as_chat() for tool in tools]} | ({} if choice is None else choice.as_chat())

    def _format(self) -> dict[str, Any]:
        format_ = self.output_format or (self.output_config and self.output_config.format)
        if not format_:
            return {}
        schema = {"name": "output", "schema": format_.schema_, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class CountRequest(MessagesRequest):
    """A request to `/v1/messages/count_tokens`."""

    max_tokens: int | None = Field(None, ge=1)


def _said(message: InputMessage) -> Iterator[dict[str, Any]]:
    """Yield an earlier reply as a message of a chat."""
    blocks = message.blocks
    found: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(block.text for block in blocks if hasattr(block, "text")),
    }
    if thoughts := "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
        found["reasoning_content"] = thoughts
    if calls := [block.as_call() for block in blocks if isinstance(block, ToolUseBlock)]:
        found["tool_calls"] = calls
    yield found


def _told(message: InputMessage) -> Iterator[dict[str, Any]]:
    """Yield what a user, or the system, has said as messages of a chat: results of calls, and texts and images between them."""
    said: list[Any] = []
    has_results = False
    for block in message.blocks:
        if not isinstance(block, ToolResultBlock):
            said.append(_shown(block))
            continue
        has_results = True
        if said:
            yield {"role": message.role, "content": _content(said)}
            said = []
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block.content)}
    if said or not has_results:
        yield {"role": message.role, "content": _content(said)}


def _shown(block: Any) -> Any:
    return block.as_chat() if isinstance(block, ImageBlock) else block.text


def _result(content: str | Sequence[Any] | None) -> str | list[dict[str, Any]]:
    """Return the result of a call as the content of a message."""
    return content if isinstance(content, str) else _content([_shown(block) for block in content or ()])


def _content(said: Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return texts, one below the other, and images as the content of a message: a text, if there are no images."""
    found: list[Any] = []
    for item in said:
        if isinstance(item, str) and found and isinstance(found[-1], str):
            found[-1] += f"\n{item}"
        else:
            found.append(item)
    if all(isinstance(item, str) for item in found):
        return "\n".join(found)
    return [{"type": "text", "text": item} if isinstance(item, str) else item for item in found]


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return two messages of one role as one."""
    found = first | second
    for name in ("content", "reasoning_content"):
        given = [one[name] for one in (first, second) if one.get(name)]
        items = [
            part["text"] if isinstance(part, dict) and part["type"] == "text" else part
            for content in given
            for part in (content if isinstance(content, list) else [content])
        ]
        if name in found:
            found[name] = _content(items)
    if calls := [*first.get("tool_calls", ()), *second.get("tool_calls", ())]:
        found["tool_calls"] = calls
    return found
