"""`check_sizes`: refuses a request that asks to read too much, before any of it is encoded, rendered, compiled or searched for. Each error
names the option of `outlines-cont serve` that bounds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlines_cont.interfaces import LanguageModel
from outlines_cont.serve.api_error import APIError
from outlines_cont.serve.limits import ServerLimits
from outlines_cont.serve.messages import TextPart
from outlines_cont.serve.requests import ChatRequest, CompletionRequest, Generation, Sampling
from outlines_cont.serve.responses import ResponsesRequest

_CHARACTERS_PER_TOKEN = 8
_UNBOUNDED_CONTEXT = 1_000_000


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
        _check_count("tools", len(body.tools or ()), limits, "max_tools", "tools")
        check_prompt("messages", _said(body), limits, model)
    elif isinstance(body, ResponsesRequest):  # its characters are checked as those of the chat that it becomes
        _check_count("input", 1 if isinstance(body.input, str) else len(body.input), limits, "max_messages", "items")
        _check_count("tools", len(body.tools), limits, "max_tools", "tools")
    elif isinstance(body, CompletionRequest):
        for prompt in body.prompts:
            check_prompt("prompt", [prompt] if isinstance(prompt, str) else (), limits, model)
    if body.guidance is not None:
        check_prompt("guidance/negative_prompt", [body.guidance.negative_prompt], limits, model)


def check_phrases(phrases: Iterable[str], limits: ServerLimits, field: str) -> None:
    """Raise `APIError` for more phrases, or characters of them, than a request may search for."""
    lengths = [*map(len, phrases)]
    _check_count(field, len(lengths), limits, "max_phrases", "phrases")
    _check_count(field, sum(lengths), limits, "max_phrase_characters", "characters of phrases")


def check_prompt(field: str, texts: Iterable[str], limits: ServerLimits, model: LanguageModel) -> None:
    """Raise `APIError` for a prompt of more characters than a request may have."""
    most = limits.max_prompt_characters
    if most is None:
        most = _CHARACTERS_PER_TOKEN * (model.context_length or _UNBOUNDED_CONTEXT // _CHARACTERS_PER_TOKEN)
    _check(field, sum(map(len, texts)), most, "characters of a prompt (`--max-prompt-characters`)")


def _said(body: ChatRequest) -> Iterable[str]:
    """Yield the texts of the messages of a request."""
    for message in body.messages:
        content: list[TextPart] | str = message.content or ""
        yield from [content] if isinstance(content, str) else (part.text for part in content)
        yield message.reasoning_content or ""
        for call in message.tool_calls or ():
            yield call.function.arguments if call.type == "function" else call.custom.input


def _check_count(field: str, found: int, limits: ServerLimits, name: str, what: str) -> None:
    most: Any = getattr(limits, name)
    _check(field, found, most, f"{what} of one request (`--{name.replace('_', '-')}`)")


def _check(field: str, found: int, most: int, what: str) -> None:
    if found > most:
        told = f"expected at most {most:,} {what}, got {found:,}. Send fewer, or raise the limit of the server"
        raise APIError(400, told, field, "too_large")
