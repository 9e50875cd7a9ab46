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
        nexts = [self.next(before, state) for before, state in zip(states, done, strict=True)]
        for index in (index for index, kind in enumerate(nexts) if kind == "text"):
            rest = self.rest(states[index], done[index], options)
            done[index] = cut(done[index])
            if rest is not None:
                (done[index],) = _parts(continuous(self.writer).resume(done[index], **rest))
        calling = [index for index, kind in enumerate(nexts) if kind == "calls"]
        for index in calling:
            done[index] = self.called(done[index])
        for index, part in self._continued(calling, states, done, options) if calling else ():
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
        kind = self._follows(done, told + str(done)[len(str(state)) :])
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

    def next(self, before: SequenceState, done: SequenceState) -> Literal["nothing", "text", "calls"]:
        """Return what follows the text: calls, or more text if the marker of a call is not at the beginning."""
        return self._follows(done, str(done)[len(str(before)) :])

    def _follows(self, done: SequenceState, text: str) -> Literal["nothing", "text", "calls"]:
        row = done.rows[0][0]
        if row.piece is None or row.piece.stop != (self.marker if self.marker_id is None else self.marker_id):
            return "nothing"
        return "text" if self.form.is_whole_reply and text.removesuffix(self.marker).strip() else "calls"

    def called(self, done: SequenceState) -> SequenceState:
        """Return a state whose text calls follow, with what begins them."""
        return done if self.marker_id is None else done.append([self.marker_id])

    @property
    def caller(self) -> Generator:
        """The generator of the rest of calls."""
        return generate.fsm(
            self.writer.model, self.form.expression(self.tools, self.marker), sampler=self.writer.sampler
        )

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

    def _continued(
        self,
        indices: Sequence[int],
        states: Sequence[SequenceState],
        done: Sequence[SequenceState],
        options: PieceOptions,
    ) -> list[tuple[int, SequenceState]]:
        """Return some rows with the rest of their calls, in as many tokens as are left of the reply."""
        caller = continuous(self.caller)
        left: list[tuple[int, SequenceState]] = []
        groups: dict[int | None, tuple[PieceOptions, list[int]]] = {}
        for index in indices:
            rest = self.rest(states[index], done[index], options)
            if rest is None:
                left.append((index, cut(done[index])))
            else:
                groups.setdefault(rest.get("max_tokens"), (rest, []))[1].append(index)
        for rest, members in groups.values():
            parts = _parts(caller([done[index] for index in members], **rest))
            left += zip(members, parts, strict=True)
        return left


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
