"""`ServerLimits`: the limits of a server and of each request. `Door`: counts the requests inside, and refuses what is too much.
`CacheShares`: how the memory for what is kept is shared out.

`check_sizes`: refuses a request that asks to read too much, before any of it is encoded, rendered, compiled or searched for. Each error
names the option of `outlines-cont serve` that bounds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Self

from fsm import Limits, TokenFSM
from outlines_cont.interfaces import LanguageModel
from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.messages import CustomCall
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest, Generation, Sampling
from outlines_cont.serve.protocols.responses import ResponsesRequest

_CACHE_BYTES = 1 << 30  # if the model keeps no prefixes
_CHARACTERS_PER_TOKEN = 8
_UNBOUNDED_CONTEXT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of a server.

    Attributes:
        max_requests: how many requests are answered at the same time; more get the status 429.
        max_body_bytes: the size of a request; a larger one gets the status 413.
        max_tokens: the most tokens of a text, and the default.
        max_choices: the most texts of a request: prompts times `n`.
        max_prompt_characters: of a prompt, or of all messages; None for 8 times the context of the model, in tokens.
        max_messages: of a conversation.
        max_tools: the most tools, or structures of a structural tag.
        max_phrases: the most texts of `ban`, and of `stop`.
        max_phrase_characters: the most characters of these.
        max_images: the most images of a request.
        max_image_bytes: of the file of an image, before it is decoded.
        max_image_pixels: width times height, which are read before it is decoded.
        max_image_seconds: for how long the images of a request are fetched.
        cache_bytes: the most bytes of what is kept for later requests; see `CacheShares`. None for twice the prefix cache of the first
            model, which has a sixteenth of the memory by default.
        prefix_cache_bytes: the most bytes of keys and values of prefixes; None for half of `cache_bytes`.
        schema: those of compiling a schema.
        max_mask_work: `fsm.TokenFSM.max_mask_work` of the process that `run` serves from.
        max_slow_work: work for all masks of a request that are made outside of the batch's steps, in that process.
    """

    max_requests: int = 256
    max_body_bytes: int = 4_000_000
    max_tokens: int = 4_096
    max_choices: int = 16
    max_prompt_characters: int | None = None
    max_messages: int = 2_048
    max_tools: int = 256
    max_phrases: int = 1_024
    max_phrase_characters: int = 65_536
    max_images: int = 16
    max_image_bytes: int = 16_000_000
    max_image_pixels: int = 16_000_000
    max_image_seconds: float = 10.0
    cache_bytes: int | None = None
    prefix_cache_bytes: int | None = None
    schema: Limits = field(default_factory=Limits)
    max_mask_work: int = TokenFSM.max_mask_work
    max_slow_work: int = 4_000_000


@dataclass(frozen=True, slots=True)
class CacheShares:
    """How the bytes of what is kept for later requests are shared out.

    Attributes:
        prefixes: keys and values of earlier prompts and texts: half of all.
        states: keys and values of the states that the page keeps: an eighth.
        constraints: compiled schemas, grammars and tools with the states of their automata, half of it for each of the two places that
            keep them, which mostly keep the same: an eighth.
        masks: masks of tokens, and tables of the vocabulary: an eighth. An eighth is left for what is not counted.
    """

    prefixes: int
    states: int
    constraints: int
    masks: int

    @classmethod
    def of(cls, limits: ServerLimits, prefixes: int) -> Self:
        """Return the shares of a server, whose first model has so many bytes for prefixes by itself."""
        total = limits.cache_bytes
        if total is None:
            total = 2 * (prefixes or _CACHE_BYTES // 2)
        else:
            prefixes = total // 2
        if limits.prefix_cache_bytes is not None:
            prefixes = limits.prefix_cache_bytes
        return cls(prefixes, total // 8, total // 8, total // 8)

    def part(self, count: int) -> CacheShares:
        """Return what each of so many models has of it."""
        return CacheShares(*(getattr(self, one.name) // count for one in fields(self)))


class Door:
    """Lets in as many requests as there is room for."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.num_inside = 0

    @contextmanager
    def entered(self, num_choices: int) -> Iterator[None]:
        """Count a request while the block runs; `APIError` if it is too large, or if there is no room."""
        if num_choices > self.limits.max_choices:
            message = f"expected at most {self.limits.max_choices} texts of one request (prompts times `n`), got {num_choices}"
            raise APIError(400, message, "n")
        if self.num_inside >= self.limits.max_requests:
            message = f"the server answers {self.num_inside} requests, as many as it is allowed to; try again later"
            raise APIError(429, message, None, "too_many_requests", retry_after=1)
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1


def check_sizes(body: Sampling, limits: ServerLimits, model: LanguageModel) -> None:
    """Raise `APIError` for a request that is over a limit. Cost: a look at each of its messages and phrases, not at their characters."""
    if isinstance(body, Generation):
        check_phrases(body.stops, limits, "stop")
        _check("logit_bias", len(body.logit_bias or ()), model.vocab_size, "ids, as many as the model has")
    check_phrases(body.ban or (), limits, "ban")
    outputs = body.structured_outputs
    if outputs is not None and outputs.structural_tag is not None:
        _check_count(
            "structured_outputs/structural_tag",
            len(outputs.structural_tag.structures),
            limits,
            "max_tools",
            "structures",
        )
    if isinstance(body, ChatRequest):
        _check_count("messages", len(body.messages), limits, "max_messages", "messages")
        num_images = sum(len(message.images) for message in body.messages)
        _check_count("messages", num_images, limits, "max_images", "images")
        _check_count("tools", len(body.tools or ()), limits, "max_tools", "tools")
        check_prompt("messages", _said(body), limits, model)
    elif isinstance(body, ResponsesRequest):  # its characters are checked as those of the chat that it becomes
        _check_count("input", 1 if isinstance(body.input, str) else len(body.input), limits, "max_messages", "items")
        _check_count("tools", len(body.tools or ()), limits, "max_tools", "tools")
    elif isinstance(body, CompletionRequest):
        for prompt in body.prompts:
            check_prompt("prompt", [prompt] if isinstance(prompt, str) else (), limits, model)
    if body.against is not None:
        _check_count("against", len(body.against), limits, "max_messages", "texts")
        check_prompt("against", body.against, limits, model)
    if body.guidance is not None:
        check_prompt("guidance/negative_prompt", [body.guidance.negative_prompt], limits, model)


def check_phrases(phrases: Iterable[str], limits: ServerLimits, field: str) -> None:
    """Raise `APIError` for more phrases, or characters of them, than a request may search for."""
    lengths = [*map(len, phrases)]
    _check_count(field, len(lengths), limits, "max_phrases", "phrases")
    _check_count(field, sum(lengths), limits, "max_phrase_characters", "characters of phrases")


def check_prompt(field: str, texts: Iterable[str], limits: ServerLimits, model: LanguageModel) -> None:
    """Raise `APIError` for a prompt of more characters than a request may have."""
    most, code = limits.max_prompt_characters, "too_large"
    if most is None:
        code = "context_length_exceeded"
        most = _CHARACTERS_PER_TOKEN * (model.context_length or _UNBOUNDED_CONTEXT // _CHARACTERS_PER_TOKEN)
    what = "characters of a prompt (`--max-prompt-characters`)"
    _check(field, sum(map(len, texts)), most, what, code)


def _said(body: ChatRequest) -> Iterable[str]:
    """Yield the texts of the messages of a request."""
    for message in body.messages:
        yield message.text
        yield message.thoughts or ""
        for call in message.tool_calls or ():
            given = call.custom.input if isinstance(call, CustomCall) else call.function.arguments
            yield given if isinstance(given, str) else json.dumps(given)


def _check_count(field: str, found: int, limits: ServerLimits, name: str, what: str) -> None:
    most: Any = getattr(limits, name)
    _check(field, found, most, f"{what} of one request (`--{name.replace('_', '-')}`)")


def _check(field: str, found: int, most: int, what: str, code: str = "too_large") -> None:
    if found > most:
        told = f"expected at most {most:,} {what}, got {found:,}. Send fewer, or raise the limit of the server"
        raise APIError(400, told, field, code)
