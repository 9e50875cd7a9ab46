"""`written`: replies that may call tools, for a batch of states in two passes: free text up to the marker of a call, then the calls of
those that reached it; `resumed` continues one that was cut. If a call may only begin a reply, a marker inside of the text is text.

The marker is a special token or a stop text. Calls are generated under a token FSM: a name, and JSON by the schema of that tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlines_cont.chats.replies.tool_plan import ToolPlan, cut
from outlines_cont.chats.tool import call_id
from outlines_cont.continuation import continuous
from outlines_cont.generation.options import PieceOptions
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


def written(plan: ToolPlan, states: Sequence[SequenceState], rng: Rng, options: PieceOptions) -> list[SequenceState]:
    """Return each state of one row with a reply; the rows run in two batches, for the text and for the calls.

    Raises:
        OptionError: `stop_at` is given, and calls begin with text.
    """
    done = _parts(continuous(plan.writer)(list(states), rng=rng, **plan.begin(options)))
    calling: dict[int | None, tuple[PieceOptions, list[int]]] = {}
    for index, before in enumerate(states):
        kind = plan.next(before, done[index])
        if kind == "nothing":
            continue
        going = plan.called(done[index]) if kind == "calls" else cut(done[index])
        rest = plan.rest(before, going, options)
        done[index] = going if rest is not None else cut(going)
        if rest is not None and kind == "calls":
            calling.setdefault(rest.get("max_tokens"), (rest, []))[1].append(index)
        elif rest is not None:
            (done[index],) = _parts(continuous(plan.writer).resume(going, **rest))
    for rest, members in calling.values():
        parts = _parts(continuous(plan.caller)([done[index] for index in members], **rest))
        for index, part in zip(members, parts, strict=True):
            done[index] = part
    return done


def resumed(plan: ToolPlan, state: SequenceState, told: str, options: PieceOptions) -> SequenceState:
    """Return a state of one row whose reply was cut with more of it, as if it had not been cut.

    Args:
        state: it ends with the reply.
        told: the text of the reply.
        options: those of the call; `max_tokens` is the most tokens to add now.

    Raises:
        ResumeError: another generator has written the reply.
    """
    row, caller = state.rows[0][0], continuous(plan.caller)
    if row.piece is not None and row.piece.source == plan.caller.source:
        return caller.resume(state, **options)
    if row.piece is None and row.token_ids[-1] == plan.marker_id:
        return caller(state, **options)
    done = continuous(plan.writer).resume(state, **plan.begin(options))
    kind = plan.next(state, done, told)
    if kind == "nothing":
        return done
    going = plan.called(done) if kind == "calls" else cut(done)
    rest = plan.rest(state, going, options)
    if rest is None:
        return cut(going)
    return caller(going, **rest) if kind == "calls" else continuous(plan.writer).resume(going, **rest)


def _parts(state: SequenceState) -> list[SequenceState]:
    """Return the batch entries of a state, each with its best sample."""
    state = state.best()
    return [SequenceState(state.model, (group,), seed) for group, seed in zip(state.rows, state.seeds, strict=True)]


def call_messages(calls: Sequence[tuple[str, dict[str, Any]]], first: int) -> list[dict[str, Any]]:
    """Return calls in the format of messages; the first is call number `first` of the conversation."""
    return [
        {"type": "function", "id": call_id(first + i), "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
