"""`Answer`: the work of one request: its choices, each a stream of events of the engine, and the tokens that they have cost.

`asked_chat` and `asked_completion` check a request, and return its answer; nothing runs before `events` is iterated over. All choices of
all requests run in the one loop of the model's engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont import policies, samplers
from outlines_cont.chat import Chat
from outlines_cont.continuation import continuous
from outlines_cont.engine.guidance import Guidance
from outlines_cont.events.event import StreamEvent
from outlines_cont.generate import Generator
from outlines_cont.serve.api_error import APIError, api_error
from outlines_cont.serve.constraints import Constraints, Wanted
from outlines_cont.serve.requests import ChatRequest, CompletionRequest

Open = Callable[[], Any]


@dataclass(slots=True)
class Choice:
    """One of the texts of an answer.

    Attributes:
        index: its number.
        num_prompt: how many tokens its prompt has.
        open: makes its stream of `StreamEvent`s.
        num_tokens: how many tokens were written.
        calls: whether it has called a tool.
    """

    index: int
    num_prompt: int
    open: Open
    num_tokens: int = 0
    calls: bool = False

    def reason(self, event: StreamEvent) -> str:
        """Return the `finish_reason` of the protocol."""
        if event.finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"


@dataclass(slots=True)
class Answer:
    """The choices of one request.

    Attributes:
        choices: in their order.
        top: how many of the most probable tokens are reported; None without log-probabilities.
        prompts: how many prompts they answer; the choices of a prompt share its tokens.
    """

    choices: list[Choice]
    top: int | None
    prompts: int = 1

    async def events(self) -> AsyncIterator[tuple[Choice, StreamEvent]]:
        """Yield the events of all choices as they come. Closing the iterator cancels the rows that still run.

        Raises:
            APIError: a row has failed.
        """
        queue: asyncio.Queue[tuple[Choice, StreamEvent | BaseException | None]] = asyncio.Queue()
        tasks = [asyncio.create_task(_read(choice, queue)) for choice in self.choices]
        running = len(tasks)
        try:
            while running:
                choice, event = await queue.get()
                if event is None:
                    running -= 1
                elif isinstance(event, BaseException):
                    raise api_error(event) if isinstance(event, Exception) else event
                else:
                    choice.num_tokens += len(event.token_ids)
                    choice.calls = choice.calls or event.call is not None
                    yield choice, event
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def num_prompt(self) -> int:
        """The tokens of all prompts."""
        each = len(self.choices) // self.prompts
        return sum(choice.num_prompt for choice in self.choices[::each])

    @property
    def num_written(self) -> int:
        """The tokens of all choices."""
        return sum(choice.num_tokens for choice in self.choices)


async def _read(choice: Choice, queue: asyncio.Queue[Any]) -> None:
    """Put the events of a choice into a queue, then None; or its error. A cancelled task releases the rows."""
    try:
        async with await asyncio.to_thread(choice.open) as stream:
            async for event in stream:
                await queue.put((choice, event if event.error is None else event.error))
        await queue.put((choice, None))
    except Exception as error:
        await queue.put((choice, error))


async def asked_chat(model: Any, constraints: Constraints, request: ChatRequest, most: int) -> Answer:
    """Return the answer to a chat; `most` is the largest number of tokens of a reply."""
    wanted = Wanted.of(request.response_format, request.structured_outputs)
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    calls = bool(tools) and request.tool_choice != "none"
    if calls and wanted.kind != "text":
        raise APIError(
            400,
            "expected tools or a constraint of the reply, got both: give `tool_choice`: 'none' for the latter",
            wanted.field,
        )
    if request.parallel_tool_calls is not None and not tools:
        raise APIError(400, "expected `tools` together with `parallel_tool_calls`, got none", "parallel_tool_calls")
    generator = replace(await constraints.generator(wanted), sampler=_sampler(request))
    options = _options(request, most)
    top = 0 if request.top is None else request.top
    count = request.n or 1

    def begun() -> list[Chat]:
        chat = Chat(model, rng=request.seed, tools=tools if calls else (), **(request.chat_template_kwargs or {}))
        for message in request.messages:
            chat = chat.message(message.as_dict())
        _ = chat.state
        return chat.fork(count) if count > 1 else [chat]

    chats = await _checked(begun, "messages")
    num_prompt = chats[0].state.shape[2]

    def opened(chat: Chat) -> Open:
        return lambda: chat.stream(generator, top=top, **options)

    return Answer([Choice(i, num_prompt, opened(chat)) for i, chat in enumerate(chats)], request.top)


async def asked_completion(model: Any, constraints: Constraints, request: CompletionRequest, most: int) -> Answer:
    """Return the answer to a request of Completions, whose prompts are texts or token ids; `most` is the largest number of tokens."""
    wanted = Wanted.of(None, request.structured_outputs)
    generator = replace(await constraints.generator(wanted), sampler=_sampler(request))
    options = _options(request, most)
    top = 0 if request.top is None else request.top
    count, prompts = request.n or 1, request.prompts
    choices: list[Choice] = []
    for prompt in prompts:
        num_prompt = len(prompt) if isinstance(prompt, list) else len(model.tokenizer.encode(prompt))
        for _ in range(count):
            rng = None if request.seed is None else request.seed + len(choices)
            choices.append(Choice(len(choices), num_prompt, _completion(generator, prompt, top, rng, options)))
    return Answer(choices, request.top, len(prompts))


def _completion(generator: Generator, prompt: Any, top: int, rng: int | None, options: dict[str, Any]) -> Open:
    return lambda: continuous(generator).stream(prompt, top=top, rng=rng, **options)


async def _checked(make: Callable[[], Any], field: str) -> Any:
    """Return what a function makes in a thread; its errors are those of a field of the request."""
    try:
        return await asyncio.to_thread(make)
    except Exception as error:
        raise api_error(error, field) from error


def _sampler(request: ChatRequest | CompletionRequest) -> Any:
    """Return the sampler of a request: greedy at temperature 0, else as OpenAI's default, temperature 1."""
    bias = {_token_id(name): value for name, value in (request.logit_bias or {}).items()}
    given: dict[str, Any] = {
        "logit_bias": bias or None,
        "repetition_penalty": request.repetition_penalty,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
    }
    if request.temperature != 0:
        given |= {name: getattr(request, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    make = samplers.greedy if request.temperature == 0 else samplers.multinomial
    try:
        return make(**{name: value for name, value in given.items() if value is not None})
    except Exception as error:
        raise api_error(error) from error


def _token_id(name: str) -> int:
    if not name.isdecimal():
        raise APIError(400, f"expected ids of tokens as the keys of `logit_bias`, got {name[:40]!r}", "logit_bias")
    return int(name)


def _options(request: ChatRequest | CompletionRequest, most: int) -> dict[str, Any]:
    """Return the options of the call."""
    wanted = request.most_tokens
    if wanted is not None and wanted > most:
        raise APIError(
            400, f"expected at most {most} tokens of a reply, the limit of this server, got {wanted}", "max_tokens"
        )
    options: dict[str, Any] = {"max_tokens": most if wanted is None else wanted}
    if request.stops:
        options["stop_at"] = request.stops
    if request.draft is not None:
        options["draft"] = request.draft
    try:
        if request.ban:
            options["policies"] = [policies.ban(request.ban)]
        if request.guidance is not None:
            options["guidance"] = Guidance(request.guidance.negative_prompt, request.guidance.scale)
    except Exception as error:
        raise api_error(error) from error
    return options


def all_events(found: Sequence[StreamEvent]) -> StreamEvent:
    """Return the events of a choice as one."""
    last = found[-1]
    return replace(
        last,
        text="".join(event.text for event in found),
        token_ids=tuple(token for event in found for token in event.token_ids),
        logprobs=tuple(value for event in found for value in event.logprobs),
        top=tuple(one for event in found for one in event.top),
    )
