"""`asked_chat` and `asked_completion`: check a request, and return its `Answer`; nothing runs before its events are iterated over. All
choices of all requests run in the one loop of the model's engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from outlines_cont import policies, samplers
from outlines_cont.chat import Chat
from outlines_cont.chats.tool import Tool
from outlines_cont.continuation import continuous
from outlines_cont.engine.guidance import Guidance
from outlines_cont.generate import Generator
from outlines_cont.generation.thinking import Thinking
from outlines_cont.serve.api_error import APIError, api_error
from outlines_cont.serve.choice import Answer, Choice
from outlines_cont.serve.messages import conversation
from outlines_cont.serve.requests import ChatRequest, CompletionRequest

_MAX_DIGITS = 18  # of the id of a token


async def asked_chat(
    model: Any, generator: Generator, tools: Sequence[Tool], request: ChatRequest, most: int
) -> Answer:
    """Return the answer to a chat by the generator of its constraint; `most` is the largest number of tokens of a reply."""
    calls = request.calls
    if calls and generator.constraint is not None:
        raise APIError(
            400,
            "expected tools or a constraint of the reply, got both: give `tool_choice`: 'none' for the latter",
            "tools",
        )
    top = 0 if request.top is None else request.top
    count = request.n or 1

    def opened() -> list[Choice]:
        drawn, options = replace(generator, sampler=_sampler(request)), _options(request, most)
        with _errors_of():
            variables = request.chat_template_kwargs
            chat = Chat(model, rng=request.seed, tools=tools if calls else (), template_variables=variables)
        with _errors_of("messages"):
            for message in conversation(request.messages):
                chat = chat.message(message)
            num_prompt = chat.state.shape[2]
            chats = chat.fork(count, feed=False) if count > 1 else [chat]
        with _errors_of():
            streams = [chat.stream(drawn, top=top, **calls, **options) for chat in chats]
        return [Choice(i, num_prompt, stream) for i, stream in enumerate(streams)]

    return Answer(await asyncio.to_thread(opened), request.top)


async def asked_completion(model: Any, generator: Generator, request: CompletionRequest, most: int) -> Answer:
    """Return the answer to a request of Completions, whose prompts are texts or token ids; `most` is the largest number of tokens."""
    top = 0 if request.top is None else request.top
    count, prompts = request.n or 1, request.prompts

    def opened() -> list[Choice]:
        writing, options = continuous(replace(generator, sampler=_sampler(request))), _options(request, most)
        choices: list[Choice] = []
        with _errors_of("prompt"):
            for prompt in prompts:
                num_prompt = len(prompt) if isinstance(prompt, list) else len(model.tokenizer.encode(prompt))
                for _ in range(count):
                    rng = None if request.seed is None else request.seed + len(choices)
                    stream = writing.stream(prompt, top=top, rng=rng, **options)
                    choices.append(Choice(len(choices), num_prompt, stream))
        return choices

    return Answer(await asyncio.to_thread(opened), request.top, len(prompts))


@contextmanager
def _errors_of(field: str | None = None) -> Iterator[None]:
    """Raise errors of the block as those of a field of the request, or of the option that they name."""
    try:
        yield
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
        top_k = request.top_k if request.top_k is not None and request.top_k > 0 else None
        given |= {"top_k": top_k} | {name: getattr(request, name) for name in ("temperature", "top_p", "min_p")}
    make = samplers.greedy if request.temperature == 0 else samplers.multinomial
    with _errors_of():
        return make(**{name: value for name, value in given.items() if value is not None})


def _token_id(name: str) -> int:
    if not name.isdecimal() or len(name) > _MAX_DIGITS:
        raise APIError(400, f"expected ids of tokens as the keys of `logit_bias`, got {name[:40]!r}", "logit_bias")
    return int(name)


def _options(request: ChatRequest | CompletionRequest, most: int) -> dict[str, Any]:
    """Return the options of the call."""
    wanted = request.most_tokens
    if wanted is not None and wanted > most:
        raise APIError(
            400, f"expected at most {most} tokens of a reply, the limit of this server, got {wanted}", "max_tokens"
        )
    default = request.default_tokens if isinstance(request, CompletionRequest) else most
    most = min(default, most) if wanted is None else wanted
    options: dict[str, Any] = {"max_tokens": most}
    thoughts = request.num_thoughts(most) if isinstance(request, ChatRequest) else None
    if thoughts is not None:
        options |= {"max_tokens": max(most - thoughts, 1), "thinking": Thinking(max_tokens=thoughts)}
    if request.stops:
        options["stop_at"] = request.stops
    if request.draft is not None:
        options["draft"] = request.draft
    with _errors_of():
        if request.ban:
            options["policies"] = [policies.ban(request.ban)]
        if request.guidance is not None:
            options["guidance"] = Guidance(request.guidance.negative_prompt, request.guidance.scale)
    return options
