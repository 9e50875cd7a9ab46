"""`Answer`: the work of one request: its choices, each a stream of events of the engine, and the tokens that they have cost. `all_events`
joins the events of a choice. `Echo`: the prompt of a completion with its log-probabilities, as replies repeat it: OpenAI's `echo`, and
`prompt_logprobs` of vLLM; `echo_of` computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outlines_cont.chats.call_ids import random_call_id
from outlines_cont.engine.scoring import TokenScore
from outlines_cont.events.event import OpenCall, StreamEvent
from outlines_cont.serve.protocols.requests import CompletionRequest
from outlines_cont.state.row import StateRow


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as a reply repeats it.

    Attributes:
        text: the prompt, if the text of the reply begins with it, else empty.
        token_ids: its tokens.
        scores: the scores of all of them but the first; empty if none are asked for.
        in_columns: whether the log-probabilities of the reply begin with them.
        is_listed: whether the reply has them as `prompt_logprobs`.
    """

    text: str
    token_ids: tuple[int, ...]
    scores: Sequence[TokenScore]
    in_columns: bool
    is_listed: bool


@dataclass(slots=True)
class Choice:
    """One of the texts of an answer.

    Attributes:
        index: its number.
        num_prompt: how many tokens its prompt has.
        stream: its `StreamEvent`s, which nothing has begun to iterate over.
        num_tokens: how many tokens were written.
        num_thoughts: how many of these were thoughts.
        calls: whether it has called a tool.
        told: how many characters of the input of each call chunks of a stream have told.
        echo: the prompt, if the reply repeats it.
        ids: the id of each call, which no other reply has, whatever its seed.
    """

    index: int
    num_prompt: int
    stream: Any
    num_tokens: int = 0
    num_thoughts: int = 0
    calls: bool = False
    told: dict[int, int] = field(default_factory=dict)
    echo: Echo | None = None
    ids: dict[int, str] = field(default_factory=dict)

    @property
    def num_cached(self) -> int:
        """How many tokens of the prompt were not fed, as their keys and values were known."""
        found: int = self.stream.reused_tokens
        return found

    def reason(self, event: StreamEvent) -> str:
        """Return the `finish_reason` of the protocol."""
        if event.finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def id_of(self, call: OpenCall) -> str:
        """Return the id of a call."""
        return self.ids.get(call.index) or self.ids.setdefault(call.index, random_call_id())

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

    @property
    def streams(self) -> list[Any]:
        """The streams of the choices."""
        return [choice.stream for choice in self.choices]

    def counted(self, items: Iterable[tuple[int, StreamEvent]]) -> Iterator[tuple[Choice, StreamEvent]]:
        """Yield events of the streams with their choices, and count their tokens; raise the error of a row that has failed."""
        for index, event in items:
            if event.error is not None:
                raise event.error
            choice, count = self.choices[index], len(event.token_ids)
            choice.num_tokens += count
            choice.num_thoughts += count if event.is_thought else 0
            choice.calls = choice.calls or event.call is not None
            yield choice, event

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


def echo_of(model: Any, prompt: Any, row: StateRow, request: CompletionRequest) -> Echo | None:
    """Return the prompt as the reply repeats it; None if it does not. Cost: its tokens are fed if they are scored."""
    if not request.echo and request.prompt_logprobs is None:
        return None
    tops = [request.prompt_logprobs, request.logprobs if request.echo else None]
    wanted = [top for top in tops if top is not None]
    scores: Sequence[TokenScore] = ()
    if wanted:
        (scores,) = model.score_rows([row], [1], max(wanted))
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode(list(row.token_ids))
    return Echo(
        text if request.echo else "",
        row.token_ids,
        scores,
        in_columns=bool(request.echo) and request.logprobs is not None,
        is_listed=request.prompt_logprobs is not None,
    )
