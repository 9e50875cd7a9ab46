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
from outlines_cont.engine.guidance import Guidance
from outlines_cont.events.event import StreamOptions
from outlines_cont.generate import Generator
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.generation.stream import StateStream
from outlines_cont.generation.thinking import Thinking
from outlines_cont.serve.protocols.api_error import APIError, api_error
from outlines_cont.serve.protocols.choice import Answer, Choice, echo_of
from outlines_cont.serve.protocols.messages import conversation
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest
from outlines_cont.state.sequence_state import SequenceState

_MAX_DIGITS = 18  # of the id of a token


async def asked_chat(
    model: Any, generator: Generator, tools: Sequence[Tool], request: ChatRequest, most: int
) -> Answer:
    """Return the answer to a chat by the generator of its constraint; `most` is the largest number of tokens of a reply."""
    calls = request.calls
    if calls and generator.constraint is not None:  # calls, or a text under the constraint
        calls["tools"] = tools
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
            chats = [chat, *chat.fork(count, feed=False)[1:]]  # the first is what it would be alone
        with _errors_of():
            streams = [chat.stream(drawn, top=top, **calls, **options) for chat in chats]
        return [Choice(i, num_prompt, stream) for i, stream in enumerate(streams)]

    return Answer(await asyncio.to_thread(opened), request.top)


async def asked_completion(model: Any, generator: Generator, request: CompletionRequest, most: int) -> Answer:
    """Return the answer to a request of Completions, whose prompts are texts or token ids; `most` is the largest number of tokens."""
    top = 0 if request.top is None else request.top
    count, prompts = request.n or 1, request.prompts

    def opened() -> list[Choice]:
        drawn, options = replace(generator, sampler=_sampler(request)), _options(request, most)
        # A call takes no 0, with which only the prompt is scored.
        checked = replace(
            Options.of(options | {"max_tokens": options["max_tokens"] or 1}), max_tokens=options["max_tokens"]
        )
        choices: list[Choice] = []
        with _errors_of("prompt"):
            for prompt in prompts:
                states = _samples(model, prompt, count, request.seed)
                echo = echo_of(model, prompt, states[0].rows[0][0], request)
                for state in states:
                    stream = StateStream(Call(drawn, state, checked), StreamOptions(True, top))
                    choices.append(Choice(len(choices), state.shape[2], stream, echo=echo))
        return choices

    return Answer(await asyncio.to_thread(opened), request.top, len(prompts))


def _samples(model: Any, prompt: Any, count: int, seed: int | None) -> list[SequenceState]:
    """Return a prompt as the states of its samples, which are drawn as those of one call."""
    opened = open_prompt(model, prompt, 1, seed)
    ((row,),) = opened.rows
    streams = [replace(row.stream, sample=i) for i in range(count)]
    return [SequenceState(model, ((replace(row, stream=stream),),), opened.seed) for stream in streams]


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
    options: dict[str, Any] = {"max_tokens": most, "stop_token_ids": request.stop_token_ids or ()}
    thoughts = request.num_thoughts(most) if isinstance(request, ChatRequest) else None
    if thoughts is not None:
        options |= {"max_tokens": max(most - thoughts, 1), "thinking": Thinking(max_tokens=thoughts)}
    if request.stops:
        options |= {"stop_at": request.stops, "keep_stop": bool(request.include_stop_str_in_output)}
    least = options["max_tokens"] if request.ignore_eos else request.min_tokens or 0
    if least > options["max_tokens"]:
        raise APIError(
            400, f"expected at most {options['max_tokens']} tokens, the most of this reply, got {least}", "min_tokens"
        )
    options["min_tokens"] = least
    if request.draft is not None:
        options["draft"] = request.draft
    with _errors_of():
        if request.ban:
            options["policies"] = [policies.ban(request.ban)]
        if request.guidance is not None:
            options["guidance"] = Guidance(request.guidance.negative_prompt, request.guidance.scale)
    return options
