"""`ServedModel`: a model as the server has it: with the constraints of its requests, and the thread of its engine. It checks a request, and
makes the `Answer` to it, of which nothing runs before its events are iterated over, and the writer of the reply. All choices of all
requests to a model run in the one loop of its engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from outlines_cont import policies, samplers
from outlines_cont.chat import Chat, answering
from outlines_cont.chats.tool import Tool
from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.guidance import Guidance
from outlines_cont.errors import OptionError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generate import Generator
from outlines_cont.generation.call import Call
from outlines_cont.generation.choices.json_values import FieldFinder
from outlines_cont.generation.engine_thread import EngineThread
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.generation.stream import StateStream
from outlines_cont.generation.thinking import Thinking
from outlines_cont.policies.constraint import CheckedConstraint, Constraint, KeptConstraints, vocabulary_of_model
from outlines_cont.serve.constraints import Constraints, Wanted
from outlines_cont.serve.limits import CacheShares, ServerLimits, check_sizes
from outlines_cont.serve.protocols.anthropic import MessagesRequest
from outlines_cont.serve.protocols.anthropic_writer import MessageWriter
from outlines_cont.serve.protocols.api_error import APIError, api_error
from outlines_cont.serve.protocols.choice import Answer, Choice, echo_of
from outlines_cont.serve.protocols.messages import conversation
from outlines_cont.serve.protocols.replies import ChatWriter, CompletionWriter, Writer
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest
from outlines_cont.serve.protocols.response_writer import ResponseWriter
from outlines_cont.serve.protocols.responses import ResponsesRequest
from outlines_cont.serve.request_images import Messages, RequestImages
from outlines_cont.state.sequence_state import SequenceState

_MAX_DIGITS = 18  # of the id of a token
_OF_RESPONSES = {"max_tokens": "max_output_tokens", "reasoning_effort": "reasoning/effort", "messages": "input"}
"""The fields of Chat Completions that have another name there."""

AnyRequest = ChatRequest | CompletionRequest | ResponsesRequest | MessagesRequest


class ServedModel:
    """A model of a server.

    Args:
        model: of `models.transformers` for example.
        name: what requests call it.
        limits: of the server and of each request.
        images: opens the images of requests.

    Attributes:
        engine: the engine of the model.
        thread: runs its streams.
        constraints: compiles and keeps those of its requests.
        state_bytes: the most bytes of keys and values of the states that its page keeps.
        created: when it was opened, in seconds since 1970.
    """

    def __init__(self, model: Any, name: str, limits: ServerLimits, images: RequestImages) -> None:
        self.model, self.name, self._limits, self._images = model, name, limits, images
        self.engine = engine_of(model)
        self.thread = EngineThread(self.engine)
        self.constraints = Constraints(model, limits.schema)
        self.state_bytes = 0
        self.created = int(time.time())

    def bound(self, shares: CacheShares) -> None:
        """Set how many bytes it may keep for later requests. What is over that goes: prefixes at once, the rest when the next is stored."""
        if self.model.prefix_cache.max_bytes != shares.prefixes:
            self.model.prefix_cache.max_bytes = shares.prefixes
        self.constraints.max_bytes = KeptConstraints.of(self.model).max_bytes = shares.constraints // 2
        self.state_bytes = shares.states
        vocabulary_of_model(self.model).bound(shares.masks)

    async def asked(self, body: AnyRequest) -> tuple[Answer, Writer]:
        """Return the answer to a request, of which nothing runs before its events are iterated over, and what writes its reply."""
        most = self._limits.max_tokens
        check_sizes(body, self._limits, self.model)
        if isinstance(body, CompletionRequest):
            wanted = Wanted.of(None, body.structured_outputs, "")
            _check_against(body, wanted)
            generator = await self.constraints.generator(wanted)
            answer = await asked_completion(self.model, generator, body, most)
            return answer, CompletionWriter(self.model, self.name, answer, body)
        if isinstance(body, ChatRequest):
            asked = body
        elif isinstance(body, MessagesRequest):
            asked = body.as_chat(most)
        else:
            asked = body.as_chat()
        try:
            return await self._asked_chat(body, asked, most)
        except APIError as error:
            if isinstance(body, ResponsesRequest):
                error.param = _OF_RESPONSES.get(error.param or "", error.param)
            elif isinstance(body, ChatRequest) and body.functions and (error.param or "").startswith("tools"):
                place = (error.param or "").removeprefix("tools")
                error.param = f"functions{place.replace('#/function/', '#/', 1)}"
            elif (
                error.param == "max_tokens" and isinstance(body, ChatRequest) and body.max_completion_tokens is not None
            ):
                error.param = "max_completion_tokens"
            raise

    async def _asked_chat(
        self, body: ChatRequest | ResponsesRequest | MessagesRequest, asked: ChatRequest, most: int
    ) -> tuple[Answer, Writer]:
        if asked is not body:
            check_sizes(asked, self._limits, self.model)
        wanted = Wanted.of(asked.response_format, body.structured_outputs, body.schema_field)
        _check_against(asked, wanted)
        generator = await self.constraints.generator(wanted)
        tools = await self.constraints.tools(asked.tools or ())
        urls = [url for message in asked.messages for url in message.images]
        if urls:
            with _errors_of("messages"):
                _ = self.model.image_placeholder  # before anything is fetched
        open_images = self._images.opener(await self._images.fetched(urls))
        answer = await asked_chat(self.model, generator, tools, asked, most, open_images)
        if isinstance(body, ResponsesRequest):
            return answer, ResponseWriter(self.model, self.name, answer, body)
        if isinstance(body, MessagesRequest):
            return answer, MessageWriter(self.model, self.name, answer, body)
        return answer, ChatWriter(self.model, self.name, answer, body)


async def asked_chat(
    model: Any,
    generator: Generator,
    tools: Sequence[Tool],
    request: ChatRequest,
    most: int,
    open_images: Callable[[Messages], Messages],
) -> Answer:
    """Return the answer to a chat by the generator of its constraint; `most` is the largest number of tokens of a reply."""
    calls = request.calls
    if calls and generator.constraint is not None:  # calls, or a text under the constraint
        calls["tools"] = tools
    top = 0 if request.top is None else request.top
    count = request.n or 1

    def opened() -> list[Choice]:
        drawn, options = replace(generator, sampler=_sampler(request)), _options(model, request, most)
        with _errors_of():
            variables = request.chat_template_kwargs
            chat = Chat(model, rng=request.seed, tools=tools if calls else (), template_variables=variables)
        with _errors_of("messages"):
            chat = chat.add(open_images(conversation(request.messages)))
            num_prompt = chat.state.shape[2]
            chats = [chat, *chat.fork(count, feed=False)[1:]]  # the first is what it would be alone
        with _errors_of():
            if request.against is not None:
                drawn = _whole_fields(drawn)
                anew = Chat(model, tools=tools if calls else (), template_variables=variables)
                options["against"] = [_asked_otherwise(anew, chat.messages, text) for text in request.against]
            streams = [chat.stream(drawn, top=top, **calls, **options) for chat in chats]
        return [Choice(i, num_prompt, stream) for i, stream in enumerate(streams)]

    return Answer(await asyncio.to_thread(opened), request.top)


async def asked_completion(model: Any, generator: Generator, request: CompletionRequest, most: int) -> Answer:
    """Return the answer to a request of Completions, whose prompts are texts or token ids; `most` is the largest number of tokens."""
    top = 0 if request.top is None else request.top
    count, prompts = request.n or 1, request.prompts

    def opened() -> list[Choice]:
        drawn, options = replace(generator, sampler=_sampler(request)), _options(model, request, most)
        if request.against is not None:
            drawn, options["against"] = _whole_fields(drawn), request.against
        # A call takes no 0, with which only the prompt is scored.
        checked = replace(
            Options.of(options | {"max_tokens": options["max_tokens"] or 1}), max_tokens=options["max_tokens"]
        )
        choices: list[Choice] = []
        for prompt in prompts:
            with _errors_of("prompt"):
                states = _samples(model, prompt, count, request.seed)
                echo = echo_of(model, prompt, states[0].rows[0][0], request)
            with _errors_of("prompt" if request.against is None else "against"):
                for state in states:
                    stream = StateStream(Call(drawn, state, checked), StreamOptions(True, top))
                    choices.append(Choice(len(choices), state.shape[2], stream, echo=echo))
        return choices

    return Answer(await asyncio.to_thread(opened), request.top, len(prompts))


def _check_against(request: ChatRequest | CompletionRequest, wanted: Wanted) -> None:
    """Raise `APIError` for `against` with a constraint that has no options: neither a choice nor JSON."""
    if request.against is not None and wanted.kind not in ("choice", "json"):
        told = "none" if wanted.field is None else f"`{wanted.field}`"
        raise APIError(400, f"expected a choice or JSON, whose options `against` compares, got {told}", "against")


def _whole_fields(generator: Generator) -> Generator:
    """Return a generator of JSON that chooses the values of fields as wholes; another as it is."""
    constraint = generator.constraint
    if generator.exact is not None or not isinstance(constraint, Constraint | CheckedConstraint):
        return generator
    return replace(generator, fields=FieldFinder(constraint.token_fsm.automaton))


def _asked_otherwise(chat: Chat, messages: Sequence[dict[str, Any]], text: str) -> SequenceState:
    """Return the state in which the reply to messages begins of which the last one of the user is another text."""
    last = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=None)
    if last is None:
        raise APIError(400, "expected a message of the user, which `against` replaces, got none", "against")
    with _errors_of("against"):
        return answering(chat.add([one | {"content": text} if i == last else one for i, one in enumerate(messages)]))


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
    """Return the sampler of a request: greedy at temperature or `top_p` 0, else as OpenAI's default, temperature 1."""
    bias = {_token_id(name): value for name, value in (request.logit_bias or {}).items()}
    given: dict[str, Any] = {
        "logit_bias": bias or None,
        "repetition_penalty": request.repetition_penalty,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
    }
    is_greedy = request.temperature == 0 or request.top_p == 0
    if not is_greedy:
        top_k = request.top_k if request.top_k is not None and request.top_k > 0 else None
        given |= {"top_k": top_k} | {name: getattr(request, name) for name in ("temperature", "top_p", "min_p")}
    make = samplers.greedy if is_greedy else samplers.multinomial
    with _errors_of():
        return make(**{name: value for name, value in given.items() if value is not None})


def _token_id(name: str) -> int:
    if not name.isdecimal() or len(name) > _MAX_DIGITS:
        raise APIError(400, f"expected ids of tokens as the keys of `logit_bias`, got {name[:40]!r}", "logit_bias")
    return int(name)


def _can_think(model: Any) -> bool:
    try:
        return Thinking().marks(model)[1] != ""
    except OptionError:
        return False


def _options(model: Any, request: ChatRequest | CompletionRequest, most: int) -> dict[str, Any]:
    """Return the options of the call; a model that cannot think has no thoughts, however many tokens they may take."""
    wanted = request.most_tokens
    if wanted is not None and wanted > most:
        raise APIError(
            400, f"expected at most {most} tokens of a reply, the limit of this server, got {wanted}", "max_tokens"
        )
    default = request.default_tokens if isinstance(request, CompletionRequest) else most
    most = min(default, most) if wanted is None else wanted
    options: dict[str, Any] = {"max_tokens": most, "stop_token_ids": request.stop_token_ids or ()}
    thoughts = request.num_thoughts(most) if isinstance(request, ChatRequest) else None
    if thoughts is not None and _can_think(model):
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
