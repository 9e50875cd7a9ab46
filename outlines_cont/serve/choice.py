"""`Answer`: the work of one request: its choices, each a stream of events of the engine, and the tokens that they have cost. `all_events`
joins the events of a choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont.events.event import StreamEvent
from outlines_cont.serve.api_error import api_error

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
            with suppress(asyncio.CancelledError):  # of a client that goes away: the tasks go on to release their rows
                await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))

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
