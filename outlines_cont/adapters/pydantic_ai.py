"""`AgentModel`: a model of this package as a `Model` of pydantic-ai, in process: agents with tools, structured outputs and streams, and no
server (extra `pydantic-ai`).

Each request is a conversation (`Chat`) whose reply is text, calls of tools, or JSON under the schema of the output; what the model knows of
earlier requests of an agent comes from its prefix cache. Files, native tools of services and citations are left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, check_allow_model_requests
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from outlines_cont import generate, samplers
from outlines_cont.chat import Chat
from outlines_cont.chats.tool import Tool
from outlines_cont.errors import OptionError
from outlines_cont.events.event import StreamEvent
from outlines_cont.generate import Generator
from outlines_cont.generation.thinking import Thinking
from outlines_cont.interfaces import LanguageModel
from outlines_cont.replies import ChatStream

SYSTEM = "outlines-cont"
"""The provider of responses."""
_EFFORTS = {"minimal": 1 / 8, "low": 1 / 4, "medium": 1 / 2, "high": 3 / 4, "xhigh": 7 / 8}
"""Which part of `max_tokens` thoughts take at most, as on the server."""
_MOST_TOKENS = 4_096
_KEPT = 64  # schemas and tools


class AgentModel(Model[Any]):
    """A model of this package for agents of pydantic-ai.

        agent = Agent(AgentModel(models.transformers("Qwen/Qwen3-0.6B")), output_type=Order, tools=[price])
        agent.run_sync("Two lamps, please.").output

    Requests of agents that run at the same time share the engine of the model, and its batches. Replies are greedy unless the settings have
    a `temperature`, `top_p` or `top_k`.

    Args:
        model: a chat model of `models`.
        name: what responses call it.
        template_variables: variables of the chat template, such as `{"enable_thinking": False}`.
        profile: what replaces the default profile of pydantic-ai.
        settings: the settings of each request, such as `{"max_tokens": 500}`. The default of `max_tokens` is 4,096.

    Raises:
        UserError: from a request: it has images or other files, or asks for tools that there are not.
        OutlinesContError, FSMError: from a request: a schema cannot be read, or the conversation does not fit the model.
    """

    unsupported_settings = frozenset({"extra_body", "extra_headers", "max_retries", "service_tier", "timeout"})

    def __init__(
        self,
        model: LanguageModel,
        *,
        name: str = "local",
        template_variables: Mapping[str, Any] | None = None,
        profile: Any = None,
        settings: ModelSettings | None = None,
    ) -> None:
        self._model, self._name, self._variables = model, name, template_variables
        self._text = generate.text(model)
        self._json = lru_cache(_KEPT)(lambda schema: generate.json(model, schema))
        own = ModelProfile(
            supports_json_schema_output=True, supports_json_object_output=True, supports_thinking=_can_think(model)
        )
        super().__init__(settings=settings, profile=own if profile is None else profile)

    @property
    def model_name(self) -> str:
        """What responses call it."""
        return self._name

    @property
    def system(self) -> str:
        """The provider."""
        return SYSTEM

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return a whole response."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as streamed:
            async for _ in streamed:
                pass
            return streamed.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Yield a response that grows; the reply is cut if the block ends before it."""
        check_allow_model_requests()
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        stream, num_prompt = await asyncio.to_thread(self._opened, messages, settings or {}, parameters)
        async with stream:
            yield AgentResponse(
                model_request_parameters=parameters, _name=self._name, _stream=stream, _num_prompt=num_prompt
            )

    async def count_tokens(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> RequestUsage:
        """Return how many tokens the prompt of a request has."""
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        stream, num_prompt = await asyncio.to_thread(self._opened, messages, settings or {}, parameters)
        stream.close()
        return RequestUsage(input_tokens=num_prompt)

    def _opened(
        self, messages: Sequence[ModelMessage], settings: Mapping[str, Any], parameters: ModelRequestParameters
    ) -> tuple[ChatStream[Chat], int]:
        """Return the stream of a reply that has not begun, and the number of tokens of its prompt."""
        choice = _ToolChoice.of(settings, parameters)
        chat = Chat(self._model, rng=settings.get("seed"), tools=choice.tools, template_variables=self._variables)
        chat = chat.add(_conversation(messages, parameters))
        num_prompt = chat.state.shape[2]
        calls: dict[str, Any] = {}
        if choice.tools:
            names = [*choice.names] if choice.must_call else ["auto", *choice.names]
            calls = {"tools": choice.tools, "tool_choice": names, "max_calls": choice.most}
        writer = replace(self._writer(parameters), sampler=_sampler(settings))
        return chat.stream(writer, **calls, **_options(settings, parameters)), num_prompt

    def _writer(self, parameters: ModelRequestParameters) -> Generator:
        """Return the generator of a text of a reply: JSON of the schema of the output, if it has one."""
        found = parameters.output_object
        if found is None or parameters.output_mode not in ("native", "prompted"):
            return self._text
        return self._json(json.dumps(found.json_schema))


@dataclass
class AgentResponse(StreamedResponse):
    """A response that grows."""

    _name: str
    _stream: ChatStream[Chat]
    _num_prompt: int
    _time: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._name

    @property
    def provider_name(self) -> str:
        """The provider."""
        return SYSTEM

    @property
    def provider_url(self) -> None:
        """There is none."""

    @property
    def timestamp(self) -> datetime:
        """When it was asked for."""
        return self._time

    async def close_stream(self) -> None:
        """Cut the reply, and free its row."""
        await self._stream.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        known: set[int] = set()
        thoughts = 0
        async for event in self._stream:
            if event.error is not None:
                raise event.error
            thoughts += len(event.token_ids) if event.is_thought else 0
            self._usage = RequestUsage(
                input_tokens=self._num_prompt,
                cache_read_tokens=self._stream.reused_tokens,
                output_tokens=self._usage.output_tokens + len(event.token_ids),
                details={"reasoning_tokens": thoughts} if thoughts else {},
            )
            for one in self._shown(event, known):
                yield one
            if event.finish_reason:
                is_cut = event.finish_reason == "length"
                self.finish_reason = "length" if is_cut else "tool_call" if known else "stop"
                self.provider_details = {"finish_reason": event.finish_reason}

    def _shown(self, event: StreamEvent, known: set[int]) -> Iterable[ModelResponseStreamEvent]:
        """Yield an event as those of pydantic-ai; `known` are the calls that have begun."""
        parts, call = self._parts_manager, event.call
        if event.text and event.is_thought:
            yield from parts.handle_thinking_delta(vendor_part_id="thinking", content=event.text, provider_name=SYSTEM)
        elif event.text:
            yield from parts.handle_text_delta(vendor_part_id="text", content=event.text)
        if call is not None:
            begun: dict[str, Any] = {} if call.index in known else {"tool_name": call.name, "tool_call_id": call.id}
            known.add(call.index)
            one = parts.handle_tool_call_delta(vendor_part_id=f"call {call.index}", args=call.text, **begun)
            yield from () if one is None else (one,)


# -- settings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ToolChoice:
    """Which tools the model is told of, which of them it may call, whether it must, and how many calls a reply has at most."""

    tools: list[Tool]
    names: list[str]
    must_call: bool
    most: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any], parameters: ModelRequestParameters) -> _ToolChoice:
        """Return the choice of a request; tools of functions are chosen by `tool_choice`, those of outputs only by a list of names."""
        declared = getattr(parameters, "declared_function_tools", parameters.function_tools)  # of later versions
        functions = {tool.name: tool for tool in declared}
        outputs = {tool.name: tool for tool in parameters.output_tools}
        chosen, must_call = settings.get("tool_choice"), not parameters.allow_text_output
        names: list[str] = [*functions, *outputs]
        if chosen == "none" or chosen == []:
            names = [*outputs]
        elif chosen == "required":
            names, must_call = [*functions], True
        elif isinstance(chosen, list):
            names, must_call = [name for name in names if name in chosen], True
        elif chosen is not None and chosen != "auto":  # a `ToolOrOutput`
            names = [name for name in functions if name in chosen.function_tools] + [*outputs]
        if must_call and not names:
            raise UserError(f"expected a tool that the reply can call, with `tool_choice` {chosen!r}, got none")
        described = [_tool(_described(tool)) for tool in (functions | outputs).values()] if names else []
        is_one = settings.get("parallel_tool_calls") is False or (must_call and not functions)
        return cls(described, names, must_call, 1 if is_one else None)


@lru_cache(_KEPT)
def _tool(described: str) -> Tool:
    return Tool.of(json.loads(described))


def _described(tool: Any) -> str:
    """Return a tool as JSON of OpenAI's form, in which it is compiled once."""
    function = {"name": tool.name, "parameters": tool.parameters_json_schema}
    if tool.description:
        function["description"] = tool.description
    return json.dumps({"type": "function", "function": function})


def _sampler(settings: Mapping[str, Any]) -> Any:
    """Return the sampler of a request."""
    bias = {int(name): value for name, value in (settings.get("logit_bias") or {}).items()}
    given = {"logit_bias": bias or None} | {
        name: settings.get(name) for name in ("presence_penalty", "frequency_penalty")
    }
    drawn = {name: settings.get(name) for name in ("temperature", "top_p", "top_k")}
    is_greedy = drawn["temperature"] == 0 or all(value is None for value in drawn.values())
    make: Any = samplers.greedy if is_greedy else samplers.multinomial
    return make(**{name: value for name, value in (given if is_greedy else given | drawn).items() if value is not None})


def _options(settings: Mapping[str, Any], parameters: ModelRequestParameters) -> dict[str, Any]:
    """Return the options of the call."""
    most = settings.get("max_tokens") or _MOST_TOKENS
    options: dict[str, Any] = {"max_tokens": most}
    if parameters.thinking:
        effort = parameters.thinking if isinstance(parameters.thinking, str) else "medium"
        thoughts = max(int(most * _EFFORTS[effort]), 1)
        options = {"max_tokens": max(most - thoughts, 1), "thinking": Thinking(max_tokens=thoughts)}
    if settings.get("stop_sequences"):
        options["stop_at"] = settings["stop_sequences"]
    return options


def _can_think(model: LanguageModel) -> bool:
    try:
        return Thinking().marks(model)[1] != ""
    except OptionError:
        return False


# -- messages ----------------------------------------------------------------------------------------------------------


def _conversation(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[dict[str, Any]]:
    """Return messages as chat templates read them: what the system says first, and texts of one role in a row as one message."""
    found: list[dict[str, Any]] = []
    for message in messages:
        for said in _asked(message) if isinstance(message, ModelRequest) else [_replied(message)]:
            if found and said["role"] == found[-1]["role"] in ("system", "user"):
                found[-1] = {**said, "content": f"{found[-1]['content']}\n\n{said['content']}"}
            else:
                found.append(said)
    told = _instructions(messages, parameters)
    if found and found[0]["role"] == "system":
        told = [found.pop(0)["content"], *told]
    return [{"role": "system", "content": "\n\n".join(told)}, *found] if told else found


def _instructions(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[str]:
    """Return the instructions of an agent, or, of a direct request, those of its last message that has some."""
    if parameters.instruction_parts is not None:
        return [part.content for part in parameters.instruction_parts]
    given = [message.instructions for message in messages if isinstance(message, ModelRequest) and message.instructions]
    return given[-1:]


def _asked(message: ModelRequest) -> Iterable[dict[str, Any]]:
    for part in message.parts:
        one: Any = part
        if one.part_kind == "system-prompt":
            yield {"role": "system", "content": one.content}
        elif one.part_kind == "user-prompt":
            yield {"role": "user", "content": _text(one.content)}
        elif one.part_kind == "tool-return" or (one.part_kind == "retry-prompt" and one.tool_name is not None):
            is_result = one.part_kind == "tool-return"
            content = one.model_response_str() if is_result else one.model_response()
            yield {"role": "tool", "name": one.tool_name, "tool_call_id": one.tool_call_id, "content": content}
        elif hasattr(one, "model_response"):
            yield {"role": "user", "content": one.model_response()}
        else:
            raise UserError(
                f"expected texts and results of tools in a request, got a part of the kind {one.part_kind!r}"
            )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for item in content:
        text = item if isinstance(item, str) else getattr(item, "content", None)
        if isinstance(text, str):
            texts.append(text)
        elif getattr(item, "kind", None) != "cache-point":
            raise UserError(f"expected texts in a message, as models here read no files, got a {type(item).__name__}")
    return "\n".join(texts)


def _arguments(call: Any) -> dict[str, Any]:
    """Return the arguments of a call; none of one that was cut, which no template could write."""
    try:
        found = json.loads(call.args_as_json_str())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _replied(message: ModelResponse) -> dict[str, Any]:
    parts: list[Any] = [*message.parts]
    texts, thoughts = ([part.content for part in parts if part.part_kind == kind] for kind in ("text", "thinking"))
    calls = [
        {
            "type": "function",
            "id": part.tool_call_id,
            "function": {"name": part.tool_name, "arguments": _arguments(part)},
        }
        for part in parts
        if part.part_kind == "tool-call"
    ]
    found: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        found["reasoning_content"] = "\n".join(thoughts)
    return found | ({"tool_calls": calls} if calls else {})
