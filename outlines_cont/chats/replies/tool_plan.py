"""`ToolPlan`: a reply that may call tools, in two generated spans: free text up to the marker of a call (a special token or a stop text),
then names and JSON under the token FSM of the tools. It decides what follows the text, and how many tokens are left for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from outlines_cont import generate
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.errors import OptionError
from outlines_cont.generate import Generator
from outlines_cont.generation.options import PieceOptions
from outlines_cont.models.tokenizer.special_names import special_names_of
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How a reply that may call tools is written, and what follows its text.

    Attributes:
        writer: writes the text.
        form: how calls are written.
        tools: what may be called.
    """

    writer: Generator
    form: ToolForm
    tools: tuple[Tool, ...]

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
            before: the state that the text continues.
            done: the state that ends with it.
            told: the part of the reply that `before` ends with.
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


def cut(state: SequenceState) -> SequenceState:
    """Return a state as one whose last generated span a limit has cut."""
    row: StateRow = replace(state.rows[0][0], finish_reason="length", value=None)
    return replace(state, rows=((row,),))
