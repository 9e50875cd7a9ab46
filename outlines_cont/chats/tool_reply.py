"""A reply that is text, or calls of tools: free text up to what begins a call, and then nothing else than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont import generate
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.continuation import continuous
from outlines_cont.errors import OptionError
from outlines_cont.generate import Generator
from outlines_cont.models.special_names import special_names_of
from outlines_cont.options import PieceOptions
from outlines_cont.random_stream import Rng
from outlines_cont.state import SequenceState
from outlines_cont.state_row import StateRow


@dataclass(frozen=True, slots=True)
class ToolReply:
    """How a reply is written that may call tools.

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
        token_id, begin = self._begin(options)
        done = _parts(continuous(self.writer)(list(states), rng=rng, **begin))
        calling: list[int] = []
        texts: list[int] = []
        for index, state in enumerate(done):
            row = state.rows[0][0]
            if row.piece is None or row.piece.stop != (self._marker if token_id is None else token_id):
                continue
            text = str(state)[len(str(states[index])) :]
            is_inside = self.form.is_whole_reply and bool(text.removesuffix(self._marker).strip())
            (texts if is_inside else calling).append(index)
        for index, part in self._continued(self.writer, texts, states, done, options):
            done[index] = part
        if token_id is not None:
            for index in calling:
                done[index] = done[index] + (token_id,)
        caller = generate.fsm(
            self.writer.model, self.form.expression(self.tools, self._marker), sampler=self.writer.sampler
        )
        for index, part in self._continued(caller, calling, states, done, options):
            done[index] = part
        return done

    @property
    def _marker(self) -> str:
        return self.form.marker(special_names_of(self.writer.model.tokenizer).first_in(self.form.before))

    def _begin(self, options: PieceOptions) -> tuple[int | None, PieceOptions]:
        """Return the special token that begins a call, if one does, and the options for the text before."""
        special = self.writer.model.tokenizer.special_tokens
        token_id = next((i for i, name in sorted(special.items()) if name == self._marker), None)
        if token_id is not None:
            return token_id, {**options, "stop_token_ids": (*options.get("stop_token_ids", ()), token_id)}
        if options.get("stop_at"):
            raise OptionError(
                f"expected no `stop_at` beside tools whose calls begin with text, here {self._marker!r}, got {options['stop_at']!r}. "
                "Use a policy, or stop a stream.",
                "stop_at",
            )
        return None, {**options, "stop_at": self._marker, "keep_stop": True}

    def _continued(
        self,
        generator: Generator,
        indices: Sequence[int],
        states: Sequence[SequenceState],
        done: Sequence[SequenceState],
        options: PieceOptions,
    ) -> list[tuple[int, SequenceState]]:
        """Return some rows with what a generator writes after them, in as many tokens as are left of the reply."""
        left: list[tuple[int, SequenceState]] = []
        most = options.get("max_tokens")
        groups: dict[int | None, list[int]] = {}
        for index in indices:
            used = len(done[index].rows[0][0].token_ids) - len(states[index].rows[0][0].token_ids)
            room = None if most is None else most - used
            if room is None or room > 0:
                groups.setdefault(room, []).append(index)
            else:
                left.append((index, _cut(done[index])))
        for room, members in groups.items():
            given: PieceOptions = {**options, "min_tokens": 0}
            if room is not None:
                given["max_tokens"] = room
            parts = _parts(continuous(generator)([done[index] for index in members], **given))
            left += zip(members, parts, strict=True)
        return left


def _parts(state: SequenceState) -> list[SequenceState]:
    """Return the batch entries of a state, each with its best sample."""
    state = state.best()
    return [SequenceState(state.model, (group,), seed) for group, seed in zip(state.rows, state.seeds, strict=True)]


def _cut(state: SequenceState) -> SequenceState:
    """Return a state as one whose piece a limit has cut."""
    row: StateRow = replace(state.rows[0][0], finish_reason="length", value=None)
    return replace(state, rows=((row,),))


def call_messages(calls: Sequence[tuple[str, dict[str, Any]]], first: int) -> list[dict[str, Any]]:
    """Return calls as messages hold them, with ids of nine letters and digits, as Mistral's templates want them."""
    return [
        {"type": "function", "id": f"call{first + i:05d}", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
