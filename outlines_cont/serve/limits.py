"""`ServerLimits`: the limits of a server and of each request. `Door`: counts the requests inside, and refuses what is too much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fsm import Limits, TokenFSM
from outlines_cont.serve.api_error import APIError


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
        schema: those of compiling a schema.
        max_mask_work: `fsm.TokenFSM.max_mask_work` of the process that `run` serves from.
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
    schema: Limits = field(default_factory=Limits)
    max_mask_work: int = TokenFSM.max_mask_work


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
