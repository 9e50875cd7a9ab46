"""`ToolReply`: writes a reply that may call tools, in two passes over a batch of states.

The first pass is free text that stops at the marker of a call, a special token or a stop string. The rows that have
come to it go on under the token FSM of the calls: JSON by the schema of each tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from outlines_cont import generate
from outlines_cont.chats.tool import Tool, call_id
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.continuation import continuous
from outlines_cont.errors import OptionError
from outlines_cont.generate import Generator
from outlines_cont.generation.options import PieceOptions
from outlines_cont.models.tokenizer.special_names import special_names_of
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState


@dataclass(frozen=True, slots=True)
class ToolReply:
    """Generates a reply that may call tools.

    Attributes:
        writer: writes the text.
        form: how calls are written.
        tools: what may be called.
    """

    writer: Generator
    form: ToolForm
    tools: tuple[Tool, ...]

    def written(self, states: Sequence[SequenceState], rng: Rng, options: PieceOptions) -> list[SequenceState]:
        """Return each state of one row with a reply; the rows run in two batches, for the text and for the calls.

        Raises:
            OptionError: `stop_at` is given, and calls begin with text.
        """
        done = _parts(continuous(self.writer)(list(states), rng=rng, **self.begin(options)))
        calling: dict[int | None, tuple[PieceOptions, list[int]]] = {}
        for index, before in enumerate(states):
            kind = self.next(before, done[index])
            if kind == "nothing":
                continue
            going = self.called(done[index]) if kind == "calls" else cut(done[index])
            rest = self.rest(before, going, options)
            done[index] = going if rest is not None else cut(going)
            if rest is not None and kind == "calls":
                calling.setdefault(rest.get("max_tokens"), (rest, []))[1].append(index)
            elif rest is not None:
                (done[index],) = _parts(continuous(self.writer).resume(going, **rest))
        for rest, members in calling.values():
            parts = _parts(continuous(self.caller)([done[index] for index in members], **rest))
            for index, part in zip(members, parts, strict=True):
                done[index] = part
        return done

    def resumed(self, state: SequenceState, told: str, options: PieceOptions) -> SequenceState:
        """Return a state of one row whose reply was cut with more of it, as if it had not been cut.

        Args:
            state: it ends with the reply.
            told: the text of the reply.
            options: those of the call; `max_tokens` is the most tokens to add now.

        Raises:
            ResumeError: another generator has written the reply.
        """
        row, caller = state.rows[0][0], continuous(self.caller)
        if row.piece is not None and row.piece.source == self.caller.source:
            return caller.resume(state, **options)
        if row.piece is None and row.token_ids[-1] == self.marker_id:
            return caller(state, **options)
        done = continuous(self.writer).resume(state, **self.begin(options))
        kind = self.next(state, done, told)
        if kind == "nothing":
            return done
        going = self.called(done) if kind == "calls" else cut(done)
        rest = self.rest(state, going, options)
        if rest is None:
            return cut(going)
        return caller(going, **rest) if kind == "calls" else continuous(self.writer).resume(going, **rest)

    def begin(self, options: PieceOptions) -> PieceOptions:
        """Return the options for the text up to what begins a call.

        Raises:
            OptionError: `stop_at` is given, and calls begin with text.
        """
        if self.marker_id is not None:
            return {**options, "stop_token_ids": (*options.get("stop_token_ids", ()), self.marker_id)}
        if options.get("stop_at"):
            raise OptionError(
                f"expected no `stop_at` beside tools whose calls begin with text, here {self.marker!r}, got {options['stop_at']!r}. "
                "Use a policy, or stop a stream.",
                "stop_at",
            )
        return {**options, "stop_at": self.marker, "keep_stop": True}

    def next(self, before: SequenceState, done: SequenceState, told: str = "") -> Literal["nothing", "text", "calls"]:
        """Return what follows the text: calls, or more text if the marker of a call is not at the beginning.

        Args:
            before: the state that the text goes on from.
            done: the state that ends with it.
            told: what of the reply `before` ends with.
        """
        row, text = done.rows[0][0], told + str(done)[len(str(before)) :]
        if row.piece is None or row.piece.stop != (self.marker if self.marker_id is None else self.marker_id):
            return "nothing"
        return "text" if self.form.is_whole_reply and text.removesuffix(self.marker).strip() else "calls"

    def called(self, done: SequenceState) -> SequenceState:
        """Return a state whose text calls follow, with what begins them."""
        return done if self.marker_id is None else done.append([self.marker_id])

    @property
    def caller(self) -> Generator:
        """The generator of the rest of calls."""
        language = self.form.expression(self.tools, self.marker)
        return generate.fsm(self.writer.model, language, sampler=self.writer.sampler)

    def rest(self, before: SequenceState, done: SequenceState, options: PieceOptions) -> PieceOptions | None:
        """Return the options for the rest of a reply, None where no token is left of it."""
        rest: PieceOptions = {**options, "min_tokens": 0}
        most = options.get("max_tokens")
        if most is not None:
            left = most - len(done.rows[0][0].token_ids) + len(before.rows[0][0].token_ids)
            if left <= 0:
                return None
            rest["max_tokens"] = left
        return rest

    @property
    def marker(self) -> str:
        """The text by which a call is recognised."""
        return self.form.marker(special_names_of(self.writer.model.tokenizer).first_in(self.form.before))

    @property
    def marker_id(self) -> int | None:
        """The special token that begins a call, if one does."""
        special = self.writer.model.tokenizer.special_tokens
        return next((i for i, name in sorted(special.items()) if name == self.marker), None)


def _parts(state: SequenceState) -> list[SequenceState]:
    """Return the batch entries of a state, each with its best sample."""
    state = state.best()
    return [SequenceState(state.model, (group,), seed) for group, seed in zip(state.rows, state.seeds, strict=True)]


def cut(state: SequenceState) -> SequenceState:
    """Return a state as one whose piece a limit has cut."""
    row: StateRow = replace(state.rows[0][0], finish_reason="length", value=None)
    return replace(state, rows=((row,),))


def call_messages(calls: Sequence[tuple[str, dict[str, Any]]], first: int) -> list[dict[str, Any]]:
    """Return calls as messages hold them; the first is call number `first` of the conversation."""
    return [
        {"type": "function", "id": call_id(first + i), "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
