"""`live_router`: the inspector as a page of the server at `/`, at `/models/NAME/` for each of several models, and what it asks for: to
write a chain of spans after a prompt, or to cut a state before a token and go on with another. What the state has cached up to there is
not fed again.

The server keeps the last states that it has written, the page the tokens of all of them: a state that is no longer kept is made of its
tokens, which are fed again.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import Field

from outlines_cont import policies, samplers
from outlines_cont.events.event import StreamEvent, StreamOptions
from outlines_cont.generate import Generator
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.generation.stream import StateStream
from outlines_cont.inspector.page import page
from outlines_cont.serve.constraints import Constraints, Wanted
from outlines_cont.serve.limits import Door, ServerLimits, check_phrases, check_prompt
from outlines_cont.serve.model_list import ModelList
from outlines_cont.serve.protocols.api_error import APIError, api_error
from outlines_cont.serve.protocols.messages import Body, Strict
from outlines_cont.state.inspection import inspection, name_of
from outlines_cont.state.row import FORCED, StateRow, WrittenPiece
from outlines_cont.state.sequence_state import SequenceState, kv_bytes

_TOP = 10
_MAX_STATES = 64
_KINDS = {"text": "text", "regex": "regex", "choice": "choice", "json": "json", "grammar": "cfg"}


class Step(Strict):
    """A span of a chain: how it is constrained, which texts end it, and which it may not have; or, to `write`, its text."""

    kind: Literal["text", "regex", "choice", "json", "grammar", "write"]
    source: str = ""
    max_tokens: int = Field(100, ge=1)
    temperature: float = Field(0, ge=0, le=2)
    stops: list[str] = Field(default_factory=list, max_length=16)
    bans: list[str] = Field(default_factory=list, max_length=256)


class RunRequest(Body):
    """What the page asks for: the steps of a chain after a prompt, or after the first tokens of a state.

    The first step is the rest of one that began at token `start`, if that is given; `token` is written before it.
    """

    steps: list[Step] = Field(max_length=32)
    prompt: str | None = None
    is_chat: bool = False
    state: str | None = None
    ids: list[int] = Field(default_factory=list)
    start: int | None = Field(None, ge=0)
    token: int | None = Field(None, ge=0)


def live_router(models: ModelList[Any], limits: ServerLimits, door: Door, *, has_key: bool) -> APIRouter:
    """Return the routes of the page; `has_key`: it asks for the key of the server. A page opens no model, but its first run does."""
    router, kept = APIRouter(), dict[str, LiveRuns]()
    first = models.first.name

    def shown(name: str) -> HTMLResponse:
        models.check(name)
        told = {"rows": [], "live": {"model": name, "has_key": has_key}}
        return HTMLResponse(
            page(told, title=name, is_live=True), headers={"Content-Security-Policy": "frame-ancestors 'none'"}
        )

    @router.get("/", include_in_schema=False)
    async def inspector() -> HTMLResponse:
        return shown(first)

    @router.get("/models/{name:path}/", include_in_schema=False)
    async def inspector_of(name: str) -> HTMLResponse:
        return shown(name)

    @router.post("/inspect/run")
    async def run(body: RunRequest, request: Request) -> StreamingResponse:
        return await run_of(first, body, request)

    @router.post("/models/{name:path}/inspect/run", include_in_schema=False)
    async def run_of(name: str, body: RunRequest, request: Request) -> StreamingResponse:
        models.check(name)
        request.state.model = name
        with ExitStack() as stack:
            stack.enter_context(door.entered(1))
            served = await models.get(name)
            runs = kept.setdefault(name, LiveRuns(served.model, limits, served.state_bytes))
            runs.max_bytes = served.state_bytes  # which is less since another model was opened
            constraints = served.constraints
            try:
                check_prompt("prompt", [body.prompt or ""], limits, served.model)
                for i, step in enumerate(body.steps):
                    check_phrases(step.bans, limits, f"steps/{i}/bans")
                    check_phrases(step.stops, limits, f"steps/{i}/stops")
                generators = [await _generator(constraints, step, f"steps/{i}") for i, step in enumerate(body.steps)]
            except Exception as error:
                raise api_error(error) from error
            sent = _sent(runs.news(body, generators), stack.pop_all())
            return StreamingResponse(sent, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    return router


async def _generator(constraints: Constraints, step: Step, field: str) -> Generator | None:
    """Return the generator of a step; None if the step writes a given text."""
    if step.kind == "write":
        return None
    source: Any = step.source.splitlines() if step.kind == "choice" else step.source
    if step.kind == "json":
        try:
            source = json.loads(step.source)
        except (ValueError, RecursionError) as error:
            raise APIError(400, f"expected a JSON schema: {error}", f"{field}/source") from error
    found = await constraints.generator(Wanted(_KINDS[step.kind], source, f"{field}/source"))
    is_greedy = step.temperature == 0
    return replace(
        found, sampler=samplers.greedy() if is_greedy else samplers.multinomial(temperature=step.temperature)
    )


async def _sent(news: AsyncIterator[dict[str, Any]], stack: ExitStack) -> AsyncIterator[bytes]:
    """Yield server-sent events; an error is the last of them."""
    with stack:
        try:
            async for one in news:
                yield _event(one)
        except Exception as error:
            yield _event(api_error(error).body)
        finally:
            await news.aclose()  # type: ignore[attr-defined]


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


class LiveRuns:
    """Runs chains for pages, and keeps the states that they have written, of `max_bytes` at most."""

    def __init__(self, model: Any, limits: ServerLimits, max_bytes: int) -> None:
        self._model, self._limits, self.max_bytes = model, limits, max_bytes
        self._states: OrderedDict[str, SequenceState] = OrderedDict()

    async def news(self, body: RunRequest, generators: Sequence[Generator | None]) -> AsyncIterator[dict[str, Any]]:
        """Yield what the page is told: `tokens` that replace those of its row from the index `first` on, and facts of the row.

        The last has the name of the state, and how many tokens of the row were not fed for the first step.
        """
        first = 0 if body.prompt is not None else len(body.ids)
        if body.token is not None and body.token >= (size := len(self._model.tokenizer.token_bytes)):
            raise APIError(400, f"expected a token below {size}, the size of the vocabulary", "token")
        state, start = await asyncio.to_thread(self._begun, body, generators)
        pieces, notes, reused = list[dict[str, int]](), dict[int, dict[str, Any]](), None
        if body.token is not None and body.token not in self._model.eos_token_ids:
            notes[len(body.ids)] = {"chosen": True}
        if start is None:  # a prompt, or a token that was chosen in it
            yield self._described(state, first, pieces, notes, top=0)
        steps = list(enumerate(zip(body.steps, generators, strict=True)))
        if body.start is not None and start is None:  # the end of the first step was chosen
            steps = steps[1:]
        for index, (step, generator) in steps:
            if generator is None:
                state = await asyncio.to_thread(state.append, step.source)
            else:
                stream = await asyncio.to_thread(self._stream, generator, state, step, start is not None)
                shown = _Shown(body.ids if start is not None else state.rows[0][0].token_ids, start)
                async with stream:
                    async for event in stream:
                        if event.error is not None:
                            raise event.error
                        if (one := shown.changed(event, self._model.tokenizer)) is not None:
                            yield one
                state, first = stream.state, min(first, shown.low)
                notes |= shown.taken
                reused = stream.reused_tokens if reused is None else reused
                pieces.append({"start": shown.start, "stop": len(state.rows[0][0].token_ids), "step": index})
            start = None
            yield await asyncio.to_thread(self._described, state, first, pieces, notes)
            first = len(state.rows[0][0].token_ids)
        yield {"first": first, "tokens": [], "state": self._kept(state), "reused": reused or 0}

    def _begun(self, body: RunRequest, generators: Sequence[Generator | None]) -> tuple[SequenceState, int | None]:
        """Return the state after which the steps write, and the first token of the span that the first of them resumes, if it does."""
        if body.prompt is not None:
            message = [{"role": "user", "content": body.prompt}]
            return self._prompted(message if body.is_chat else body.prompt), None
        known, count = self._states.get(body.state or ""), len(body.ids)
        if known is not None and list(known.rows[0][0].token_ids[:count]) == body.ids:
            state = known.tokens[0, 0, :count]
        else:
            state = self._prompted(body.ids)
        row, start = state.rows[0][0], body.start
        if body.token in self._model.eos_token_ids:
            return state, None
        if body.token is not None:
            row = _chosen(row, body.token, is_written=start is not None)
        if start is not None and generators and generators[0] is not None:
            piece = WrittenPiece(min(start, count), source=generators[0].source)
            row = replace(row, piece=piece, finish_reason="length")
        return replace(state, rows=((row,),)), start

    def _prompted(self, prompt: Any) -> SequenceState:
        opened = open_prompt(self._model, prompt, None, None)
        return SequenceState(self._model, tuple(map(tuple, opened.rows)), opened.seed)

    def _stream(self, generator: Generator, state: SequenceState, step: Step, resume: bool) -> StateStream:
        most = min(step.max_tokens, self._limits.max_tokens)
        given: dict[str, Any] = {"max_tokens": most}
        if step.stops:
            given["stop_at"] = step.stops
        if step.bans:
            given["policies"] = [policies.ban(step.bans)]
        options, row = Options.of(given), state.rows[0][0]
        if resume and row.piece is not None:  # the tokens that it has already are part of it
            options = replace(options, max_tokens=max(most - (len(row.token_ids) - row.piece.start), 0))
        call = Call(generator, state, options, resume=resume)
        return StateStream(call, StreamOptions(True, _TOP, retract=True))

    def _described(
        self,
        state: SequenceState,
        first: int,
        pieces: list[dict[str, int]],
        notes: dict[int, dict[str, Any]],
        top: int = _TOP,
    ) -> dict[str, Any]:
        """Return all that is known of the tokens from `first` on; `notes` are about tokens at their indices."""
        (row,) = inspection(self._model, state.rows, top, first)["rows"]
        for index, note in notes.items():
            if 0 <= index - first < len(row["tokens"]):
                row["tokens"][index - first][5].update(note)
        return {"first": first, **row, "pieces": pieces}

    def _kept(self, state: SequenceState) -> str:
        key = uuid4().hex
        self._states[key] = state
        while len(self._states) > _MAX_STATES or kv_bytes([*self._states.values()]) > self.max_bytes:
            self._states.popitem(last=False)
        return key


def _chosen(row: StateRow, token_id: int, *, is_written: bool) -> StateRow:
    """Return a row with a token that was chosen for it, inside of a span as a forced one, which is scored when it is fed."""
    if not is_written:
        return row.append([token_id], reset=False)
    count = len(row.token_ids)
    return replace(
        row,
        token_ids=(*row.token_ids, token_id),
        kinds=row.kinds + FORCED,
        logprobs=(*row.logprobs, 0.0),
        sampling_logprobs=(*row.sampling_logprobs, 0.0),
        unscored=(*row.unscored, count),
        kv=None if row.kv is None or count < 2 else row.kv[: count - 1],  # the last is fed for the logits after it
        logits=None,
    )


class _Shown:
    """The tokens of a row as the page has them while a step is streamed.

    Attributes:
        start: the index of the first token of the span.
        low: the index of the first that has changed.
        taken: text that was written and taken back, as notes by the index at which it began.
    """

    def __init__(self, token_ids: Sequence[int], start: int | None) -> None:
        """Begin with the tokens of the page; events are those of a span that begins at `start`, after them if it is None."""
        self._sent = [*token_ids]
        self.start = self.low = len(token_ids) if start is None else start
        self.low = len(token_ids)
        self._now: list[list[Any]] = []
        self.taken: dict[int, dict[str, Any]] = {}

    def changed(self, event: StreamEvent, tokenizer: Any) -> dict[str, Any] | None:
        """Return what an event changes on the page; None for nothing."""
        kept = len(self._now) - event.retract_tokens
        if event.retract_tokens:
            self.taken[self.start + kept] = {"taken": "".join(token[1] for token in self._now[kept:])}
        tops = event.top or ((),) * len(event.token_ids)
        found = zip(event.token_ids, event.logprobs, tops, strict=True)
        self._now[kept:] = [_streamed(token_id, logprob, top, tokenizer) for token_id, logprob, top in found]
        ids = [token[0] for token in self._now[kept:]]
        first, before = self.start + kept, self._sent[self.start + kept :]
        same = next((i for i, pair in enumerate(zip(ids, before, strict=False)) if pair[0] != pair[1]), None)
        first += min(len(ids), len(before)) if same is None else same
        is_shorter = len(self._sent) > self.start + len(self._now)
        if first == self.start + len(self._now) and not is_shorter:
            return None
        self.low = min(self.low, first)
        self._sent[first:] = [token[0] for token in self._now[first - self.start :]]
        return {"first": first, "tokens": self._now[first - self.start :]}


def _streamed(token_id: int, logprob: float, top: Sequence[tuple[int, float]], tokenizer: Any) -> list[Any]:
    """Return a token as it is streamed; what is known of it at the end replaces it."""
    likely = [[one, name_of(one, tokenizer), _finite(value)] for one, value in top]
    more = {"top": likely} if likely else {}
    return [token_id, name_of(token_id, tokenizer), "g" if likely else "f", _finite(logprob), None, more]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
