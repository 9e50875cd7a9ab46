"""`Answer`: the work of one request: its choices, each a stream of events of the engine, and the tokens that they have cost. `all_events`
joins the events of a choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from outlines_cont.events.event import OpenCall, StreamEvent
from outlines_cont.serve.api_error import api_error


@dataclass(slots=True)
class Choice:
    """One of the texts of an answer.

    Attributes:
        index: its number.
        num_prompt: how many tokens its prompt has.
        stream: its `StreamEvent`s, which nothing has begun to iterate over.
        num_cached: how many tokens of the prompt were not fed, as their keys and values were known.
        num_tokens: how many tokens were written.
        num_thoughts: how many of these were thoughts.
        calls: whether it has called a tool.
        told: how many characters of the input of each call chunks of a stream have told.
    """

    index: int
    num_prompt: int
    stream: Any
    num_cached: int = 0
    num_tokens: int = 0
    num_thoughts: int = 0
    calls: bool = False
    told: dict[int, int] = field(default_factory=dict)

    async def events(self) -> AsyncGenerator[tuple[Choice, StreamEvent], None]:
        """Yield the events, counted; raise `APIError` where the row has failed. Closing the iterator cancels the row."""
        try:
            async with self.stream as stream:
                async for event in stream:
                    if event.error is not None:
                        raise event.error
                    self.num_cached = stream.reused_tokens
                    self.num_tokens += len(event.token_ids)
                    self.num_thoughts += len(event.token_ids) if event.is_thought else 0
                    self.calls = self.calls or event.call is not None
                    yield self, event
        except Exception as error:
            raise api_error(error) from error

    def reason(self, event: StreamEvent) -> str:
        """Return the `finish_reason` of the protocol."""
        if event.finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def news(self, call: OpenCall, *, is_custom: bool) -> str:
        """Return what chunks have not told of the arguments of a call, or of the input of a custom tool."""
        told = self.told.setdefault(call.index, 0)
        text = call.arguments.get("input", "")[told:] if is_custom else call.text
        self.told[call.index] += len(text)
        return text


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

    def events(self) -> AsyncGenerator[tuple[Choice, StreamEvent], None]:
        """Return the events of all choices as they come. Closing the iterator cancels the rows that still run.

        Raises:
            APIError: a row has failed.
        """
        return self.choices[0].events() if len(self.choices) == 1 else self._joined()

    async def _joined(self) -> AsyncGenerator[tuple[Choice, StreamEvent], None]:
        queue: asyncio.Queue[tuple[Choice, StreamEvent] | Exception | None] = asyncio.Queue()
        tasks = [asyncio.create_task(_read(choice, queue)) for choice in self.choices]
        running = len(tasks)
        try:
            while running:
                found = await queue.get()
                if found is None:
                    running -= 1
                elif isinstance(found, Exception):
                    raise found
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):  # of a client that goes away: the tasks go on to release their rows
                await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))

    @property
    def counts(self) -> dict[str, int]:
        """The tokens of all prompts, those of them that were cached, the tokens of all choices, and those of them that were thoughts."""
        each = len(self.choices) // self.prompts
        firsts = range(0, len(self.choices), each)
        return {
            "prompt": sum(self.choices[i].num_prompt for i in firsts),
            "cached": sum(min(choice.num_cached for choice in self.choices[i : i + each]) for i in firsts),
            "written": sum(choice.num_tokens for choice in self.choices),
            "thoughts": sum(choice.num_thoughts for choice in self.choices),
        }


async def _read(choice: Choice, queue: asyncio.Queue[Any]) -> None:
    """Put the events of a choice into a queue, then None; or its error. A cancelled task releases the rows."""
    try:
        async with aclosing(choice.events()) as events:
            async for found in events:
                await queue.put(found)
        await queue.put(None)
    except Exception as error:
        await queue.put(error)


def all_events(found: Sequence[StreamEvent]) -> StreamEvent:
    """Return the events of a choice as one, without thoughts."""
    told = [event for event in found if not event.is_thought] or [
        replace(found[-1], text="", token_ids=(), logprobs=(), top=())
    ]
    return replace(
        told[-1],
        text="".join(event.text for event in told),
        token_ids=tuple(token for event in told for token in event.token_ids),
        logprobs=tuple(value for event in told for value in event.logprobs),
        top=tuple(one for event in told for one in event.top),
    )
