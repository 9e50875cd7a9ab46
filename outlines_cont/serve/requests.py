"""The requests as pydantic models: the fields of OpenAI's Chat Completions and Completions, those that vLLM has beside them, and ours. A
field that is not here is refused by its name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_TOP = 20
Bias = Annotated[float, Field(ge=-100, le=100)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(_Part):
    """A part of a message. Images and audio are refused, as models here read text."""

    type: Literal["text"]
    text: str


class CalledFunction(_Part):
    """The function of a call, with its arguments as the text of a JSON object."""

    name: str
    arguments: str


class CalledTool(_Part):
    """A call in an earlier reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Part):
    """A message of the conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        for key in ("name", "tool_call_id"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        return message


class JSONSchemaFormat(_Part):
    """The schema of a reply."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema", default_factory=dict)
    strict: bool | None = None


class ResponseFormat(_Part):
    """Text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("`json_schema` belongs to the type 'json_schema'")
        return self


class StructuredOutputs(_Part):
    """The constraint of a reply, as vLLM spells it: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(alias="json", default=None)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _has_one(self) -> StructuredOutputs:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of json, regex, choice, grammar and json_object, got {len(given)}")
        return self


class Function(_Part):
    """A tool that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(_Part):
    """A tool; custom ones are not supported."""

    type: Literal["function"]
    function: Function


class NamedFunction(_Part):
    """The name of a tool."""

    name: str


class NamedTool(_Part):
    """The tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(_Part):
    """Whether the last chunk has the usage."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class GuidanceOptions(_Part):
    """Classifier-free guidance."""

    negative_prompt: str
    scale: float


class _Generation(_Part):
    """What both kinds of requests have."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, Bias] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None
    draft: Literal["lookup"] | None = None
    ban: list[str] | None = None
    guidance: GuidanceOptions | None = None

    @model_validator(mode="after")
    def _streams(self) -> _Generation:
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` belong to a request with `stream`: true")
        return self

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(_Generation):
    """A request to `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("`top_logprobs` belongs to a request with `logprobs`: true")
        format_ = self.response_format
        if format_ is not None and format_.type != "text" and self.structured_outputs is not None:
            raise ValueError("expected one of `response_format` and `structured_outputs`, got both")
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(self, name) not in (None, "none") and not self.tools:
                raise ValueError(f"`{name}` belongs to a request with `tools`")
        if (self.messages[-1].role == "assistant") != bool(self.continue_final_message):
            raise ValueError(
                "expected `continue_final_message`: true exactly where the last message is one of the assistant, which is continued then"
            )
        return self

    @property
    def calls(self) -> dict[str, Any]:
        """Which tools the reply calls, and how many times, as options of a chat; empty where it may call none."""
        choice = (
            self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else self.tool_choice or "auto"
        )
        if not self.tools or choice == "none":
            return {}
        return {"tool_choice": choice, "max_calls": 1 if self.parallel_tool_calls is False else None}

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a reply."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens are reported; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Generation):
    """A request to `/v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    echo: Literal[False] | None = None
    best_of: None = None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a text; 16 as OpenAI's default."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens are reported; None without log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a text or token ids."""
        prompt = self.prompt
        is_many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        return list(prompt) if is_many else [prompt]
