"""`ToolPlan`: a reply that may call tools, in two generated spans: text up to the marker of a call (a special token or a stop text), then
names and JSON under the token FSM of the tools; `max_tokens` limits both together. `written` generates such replies for a batch of states,
first the text of all, then the calls of those that reached the marker; `resumed` continues one that was cut.

If calls have no marker of their own, a call may only begin a reply, and the marker inside of the text is text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fsm import Expression
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.errors import OptionError
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.models.tokenizer.special_names import special_names_of
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState

Kind = Literal["nothing", "text", "calls"]


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How a reply that may call tools is written, and what follows its text: `writer` generates the text, and `make_caller` returns the
    generator of the calls from their language.
    """

    writer: PieceMaker
    form: ToolForm
    tools: tuple[Tool, ...]
    make_caller: Callable[[Expression], PieceMaker]

    def text_options(self, options: PieceOptions) -> PieceOptions:
        """Return the options for the text up to the marker of a call.

        Raises:
            OptionError: `stop_at` is given, and calls begin with text.
        """
        if self.marker_id is not None:
            return {**options, "stop_token_ids": (*options.get("stop_token_ids", ()), self.marker_id)}
        if options.get("stop_at"):
            raise OptionError(
                f"expected no `stop_at` together with tools whose calls begin with text, here {self.marker!r}, got "
                f"{options['stop_at']!r}. Use a policy, or stop a stream.",
                "stop_at",
            )
        return {**options, "stop_at": self.marker, "keep_stop": True}

    def rest(
        self, before: SequenceState, done: SequenceState, options: PieceOptions, earlier: str = ""
    ) -> tuple[Kind, SequenceState, PieceOptions | None]:
        """Return what follows the text, the state that it continues, and its options, None if nothing may be generated.

        Calls follow, or more text if the marker of a call is not at the beginning of the reply, or nothing. If `max_tokens` are used
        up, the state counts as cut.

        The text begins after the state `before` and ends with `done`; `earlier` is the part of the reply that `before` ends with.
        """
        row, text = done.rows[0][0], earlier + str(done)[len(str(before)) :]
        if row.piece is None or row.piece.stop != (self.marker if self.marker_id is None else self.marker_id):
            return "nothing", done, None
        kind: Kind = "text" if self.form.is_whole_reply and text.removesuffix(self.marker).strip() else "calls"
        if kind == "text":
            done = cut(done)
        elif self.marker_id is not None:
            done = done.append([self.marker_id])
        rest: PieceOptions = {**options, "min_tokens": 0}
        most = options.get("max_tokens")
        if most is not None:
            left = most - len(done.rows[0][0].token_ids) + len(before.rows[0][0].token_ids)
            if left <= 0:
                return kind, cut(done), None
            rest["max_tokens"] = left
        return kind, done, rest

    @property
    def caller(self) -> PieceMaker:
        """The generator of the calls after the marker."""
        return self.make_caller(self.form.expression(self.tools, self.marker))

    @property
    def marker(self) -> str:
        """The text by which a call is recognised."""
        return self.form.marker(special_names_of(self.writer.model.tokenizer).first_in(self.form.before))

    @property
    def marker_id(self) -> int | None:
        """The special token that begins a call, if one does."""
        special = self.writer.model.tokenizer.special_tokens
        return next((i for i, name in sorted(special.items()) if name == self.marker), None)


def written(plan: ToolPlan, states: Sequence[SequenceState], rng: Rng, options: PieceOptions) -> list[SequenceState]:
    """Return each state of one row with a reply; the rows run in two batches, for the text and for the calls.

    Raises:
        OptionError: `stop_at` is given, and calls begin with text.
    """
    done = entries(_generated(plan.writer, list(states), plan.text_options(options), rng=rng))
    calling: dict[int | None, tuple[PieceOptions, list[int]]] = {}
    for index, before in enumerate(states):
        kind, done[index], rest = plan.rest(before, done[index], options)
        if rest is not None and kind == "calls":
            calling.setdefault(rest.get("max_tokens"), (rest, []))[1].append(index)
        elif rest is not None:
            (done[index],) = entries(_generated(plan.writer, done[index], rest, resume=True))
    for rest, members in calling.values():
        called = entries(_generated(plan.caller, [done[index] for index in members], rest))
        for index, state in zip(members, called, strict=True):
            done[index] = state
    return done


def resumed(plan: ToolPlan, state: SequenceState, earlier: str, options: PieceOptions) -> SequenceState:
    """Return a state of one row whose reply was cut with more of it, as if it had not been cut.

    The state ends with the reply, whose text is `earlier`; `max_tokens` is the most tokens to add now.

    Raises:
        ResumeError: another generator has written the reply.
    """
    row, caller = state.rows[0][0], plan.caller
    if row.piece is not None and row.piece.source == caller.source:
        return _generated(caller, state, options, resume=True)
    if row.piece is None and row.token_ids[-1] == plan.marker_id:
        return _generated(caller, state, options)
    done = _generated(plan.writer, state, plan.text_options(options), resume=True)
    kind, begun, rest = plan.rest(state, done, options, earlier)
    if rest is None:
        return begun
    return _generated(caller if kind == "calls" else plan.writer, begun, rest, resume=kind == "text")


def cut(state: SequenceState) -> SequenceState:
    """Return a state of one row as one whose last generated span a limit has cut."""
    row = replace(state.rows[0][0], finish_reason="length", value=None)
    return replace(state, rows=((row,),))


def _generated(
    maker: PieceMaker,
    prompt: SequenceState | list[SequenceState],
    options: PieceOptions,
    *,
    rng: Rng = None,
    resume: bool = False,
) -> SequenceState:
    return Call(maker, prompt, Options.of(options), rng=rng, resume=resume).finished_state()


def entries(state: SequenceState) -> list[SequenceState]:
    """Return the batch entries of a state, each with its best sample."""
    state = state.best()
    return [SequenceState(state.model, (group,), seed) for group, seed in zip(state.rows, state.seeds, strict=True)]
