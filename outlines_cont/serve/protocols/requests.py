"""The requests as pydantic models: the fields of OpenAI's Chat Completions and Completions, those that vLLM has beside them, and ours. A
field that is not here is refused by its name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, Json, field_validator, model_validator

from outlines_cont.serve.protocols.messages import Body, Message, Strict, as_tools, invalid
from outlines_cont.serve.protocols.tools import (
    Function,
    FunctionTool,
    Named,
    NamedCustom,
    NamedFunction,
    Tool,
    ToolChoice,
)

EFFORTS = {"minimal": 1 / 8, "low": 1 / 4, "medium": 1 / 2, "high": 3 / 4, "xhigh": 7 / 8, "max": 7 / 8}
"""Which part of the tokens of a reply its thoughts take at most, by `reasoning_effort`."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MAX_TOP = 20
MAX_CALLS = 32
"""The most calls of a reply."""
Bias = Annotated[float, Field(ge=-100, le=100)]
_SEEDS = {"minimum": -(2**63), "maximum": 2**64 - 1}


def _as_seed(seed: int) -> int:
    if not _SEEDS["minimum"] <= seed <= _SEEDS["maximum"]:
        raise invalid("expected an integer from -2 ** 63 up to 2 ** 64 - 1, got another one")
    return seed % 2**64


Seed = Annotated[int, Field(json_schema_extra=_SEEDS), AfterValidator(_as_seed)]
"""A seed; a negative one is that of the same 64 bits."""


class JSONSchemaFormat(Strict):
    """The schema of a reply."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(alias="schema", default_factory=dict)
    strict: bool | None = None


class ResponseFormat(Strict):
    """Text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise invalid("`json_schema` belongs to the type 'json_schema'")
        return self


class TagStructure(Strict):
    """JSON of a schema between two texts."""

    begin: str
    schema_: dict[str, Any] | bool = Field(alias="schema")
    end: str


class StructuralTag(Strict):
    """Free text in which a trigger obliges a structure that begins with it."""

    type: Literal["structural_tag"] | None = "structural_tag"
    structures: list[TagStructure] = Field(min_length=1)
    triggers: list[str] = Field(min_length=1)


class StructuredOutputs(Strict):
    """The constraint of a reply, as vLLM spells it: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(alias="json", default=None)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: StructuralTag | Json[StructuralTag] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> StructuredOutputs:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise invalid(f"expected exactly one of {', '.join(_OUTPUTS)}, got {len(given)}")
        return self


_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StreamOptions(Strict):
    """Whether the last chunk has the usage; without `stream` they change nothing."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class GuidanceOptions(Strict):
    """Classifier-free guidance."""

    negative_prompt: str
    scale: float


class Sampling(Body):
    """What all kinds of requests have. Those from `user` to `safety_identifier` change nothing."""

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)  # 0 is greedy
    seed: Seed | None = None
    stream: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    top_k: int | None = Field(None, ge=-1)  # 0 and -1 are all tokens, as in vLLM
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.001, le=1_000)
    structured_outputs: StructuredOutputs | None = None
    draft: Literal["lookup"] | None = None
    ban: list[str] | None = None
    guidance: GuidanceOptions | None = None
    against: list[str] | None = Field(None, min_length=1)


class Generation(Sampling):
    """What Chat Completions and Completions have."""

    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    logit_bias: dict[str, Bias] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def num_choices(self) -> int:
        """How many texts are asked for."""
        return self.n or 1

    @property
    def has_usage(self) -> bool:
        """Whether the last chunk of a stream is the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(Generation):
    """A request to `/v1/chat/completions`. The fields from `store` to `prediction` change nothing.

    `functions` and `function_call`, which older clients send, become `tools` and `tool_choice`, and such messages calls and results.
    """

    schema_field: ClassVar[str] = "response_format/json_schema/schema"

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(None, ge=1)
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    functions: list[Function] | None = None
    function_call: Literal["none", "auto"] | Named | None = None
    store: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None
    audio: None = None
    web_search_options: None = None

    @field_validator("audio", "web_search_options", mode="before")
    @classmethod
    def _is_not_asked_for(cls, value: Any, info: Any) -> Any:
        what = {"audio": "writes no sound", "web_search_options": "searches no web"}[info.field_name]
        raise invalid(f"this server {what}: leave it out")

    @model_validator(mode="after")
    def _has_tools(self) -> ChatRequest:
        self.messages = as_tools(self.messages)
        if self.function_call not in (None, "none", "auto") and not self.functions:
            raise invalid("`function_call` belongs to a request with `functions`", "function_call")
        if not self.functions:
            return self
        for name in ("tools", "tool_choice"):
            if getattr(self, name) is not None:
                raise invalid(f"expected one of `functions` and `{name}`, got both", name)
        called = self.function_call
        self.tools = [FunctionTool(type="function", function=one) for one in self.functions]
        self.tool_choice = NamedFunction(type="function", function=called) if isinstance(called, Named) else called
        self.parallel_tool_calls = False  # such a reply has one call
        return self

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise invalid("`top_logprobs` belongs to a request with `logprobs`: true", "top_logprobs")
        format_ = self.response_format
        if format_ is not None and format_.type != "text" and self.structured_outputs is not None:
            raise invalid("expected one of `response_format` and `structured_outputs`, got both", "structured_outputs")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise invalid("`tool_choice` belongs to a request with `tools`", "tool_choice")
        return self

    @model_validator(mode="after")
    def _has_an_end(self) -> ChatRequest:
        last, goes_on = self.messages[-1], bool(self.continue_final_message)
        if self.add_generation_prompt is not None and self.add_generation_prompt == goes_on:
            raise invalid(
                "expected `add_generation_prompt`: false exactly if `continue_final_message` is true",
                "add_generation_prompt",
            )
        if last.role == "assistant" and last.tool_calls:
            raise invalid(
                "expected the results of its calls, as messages of the role 'tool', after the last message", "messages"
            )
        if goes_on and last.role != "assistant":
            raise invalid(
                "expected a last message of the assistant, which `continue_final_message`: true continues",
                "continue_final_message",
            )
        if last.role == "assistant" and not goes_on:  # another reply, which templates write after a message of the user
            self.messages = [*self.messages, Message(role="user", content="")]
        return self

    @property
    def calls(self) -> dict[str, Any]:
        """Which tools the reply calls, and how many times, as options of a chat; empty if it may call none."""
        choice = self.tool_choice or "auto"
        if not self.tools or choice == "none":
            return {}
        named = choice if isinstance(choice, str) else choice.names
        is_one = self.parallel_tool_calls is False or (isinstance(choice, NamedFunction | NamedCustom))
        return {"tool_choice": named, "max_calls": 1 if is_one else min(self.max_tool_calls or MAX_CALLS, MAX_CALLS)}

    def num_thoughts(self, most: int) -> int | None:
        """Return the most tokens of the thoughts of a reply of `most` tokens; None for a reply without thoughts."""
        if self.thinking_token_budget is not None:
            return max(min(self.thinking_token_budget, most - 1), 1)
        effort = self.reasoning_effort
        return None if effort in (None, "none") else max(int(most * EFFORTS[effort]), 1)

    @property
    def custom_names(self) -> set[str]:
        """The names of the custom tools."""
        return {tool.name for tool in self.tools or () if tool.type == "custom"}

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a reply, thoughts included."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens are reported; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generation):
    """A request to `/v1/completions`."""

    default_tokens: ClassVar[int] = 16  # as OpenAI's

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0)  # 0 with `echo`, for the log-probabilities of the prompt alone
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = Field(None, max_length=0)

    @model_validator(mode="after")
    def _lists(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid(
                f"expected the number of choices, {self.n or 1}, as this server draws no more than it returns, got "
                f"{self.best_of}",
                "best_of",
            )
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError(
                "`prompt_logprobs` belongs to a request without `stream`; `echo` with `logprobs` is streamed"
            )
        return self

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a text."""
        return self.max_tokens

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

    @property
    def num_choices(self) -> int:
        """How many texts are asked for."""
        return (self.n or 1) * len(self.prompts)
