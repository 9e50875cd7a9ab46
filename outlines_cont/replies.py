"""`OpenCalls`: an incremental parser of the tool calls in a reply that is being generated: a name between the fixed texts of a `ToolForm`,
then JSON until its value is complete, or members one by one, of which it makes JSON. It reports the new text and the partial arguments of
each call. It relies on the constraint of the reply, and does not check the format.

`ReplyConstraint`: a reply that may call tools as one policy: the writer's text, and after the marker of a call (a special token or text)
names and JSON under the constraint of the tools. `ReplyMaker`: the generator of such replies, whose limits, policies, searches and streams
are those of any other span; a reply with calls has no value.

If calls have no marker of their own, a call may only begin a reply, and the marker inside of the text is text. Where the answers of a model
have a head of their own, such as the final channel of gpt-oss, a reply begins with the choice of that head or a call, and its text is a
piece behind the head (`Answer`).

`FormattedReply`: calls, or a text under a constraint, as one constraint to the union of both: so the first tokens decide which of them it
is, by their probabilities, and nothing in the text is a call. A text that begins as a call does is not among them.

`ChatStream`: the events of a reply, in a `for` or `async for` loop; at any time `chat` is the conversation with the reply so far. Those
of a reply that may call tools are split at the marker of a call, by `ReplyEvents`: events of text, then of calls (parsed by `OpenCalls`). A
possible beginning of the marker is held back until that is known; no text is retracted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Generic, Literal, TypeVar, cast

from fsm import Expression, ExpressionError, choice, regex
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import ArgumentForm, ToolForm, marked
from outlines_cont.errors import OptionError
from outlines_cont.events.event import OpenCall, StreamEvent, StreamOptions
from outlines_cont.events.partial_type import MISSING
from outlines_cont.events.partial_value import PartialValue
from outlines_cont.generation.call import Call
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.stream import StateStream
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import SpecialNames, special_names_of
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet
from outlines_cont.policies.constraint import CheckedConstraint, Constraint
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.policies.stop import FreeText, StopAt, StopState
from outlines_cont.state.row import StateRow, written
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.streams.stream_state import TextDecoder


class OpenCalls:
    """Parses tool calls from text that arrives in chunks.

    `ids` returns the id of a call by its number in the reply; `text` is the text of the calls so far, from `form.before` on.
    """

    def __init__(self, form: ToolForm, tools: Sequence[Tool], ids: Callable[[int], str], text: str) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._id_of = ids
        self._id = ""
        self._text = text  # not parsed yet; if arguments are no JSON, the text from the present call on
        self._shown = 0  # characters of the JSON of the present call that were reported, if the JSON is made here
        self._count = 0
        self._name: str | None = None
        self._has_begun = False
        self._value: PartialValue | None = None

    def push(self, text: str) -> Iterator[OpenCall]:
        """Parse more text, and yield the new part of each call. Cost: proportional to the text and the open arguments."""
        self._text += text
        while (found := self._read()) is not None:
            yield found

    def has_special_in(self, names: SpecialNames) -> bool:
        """Return whether special tokens stand in calls behind their marker, or in that, if it is not known yet."""
        inside = self._form.before[len(self._text) :]
        others = self._form.spellings[1:]
        return any(
            map(names.count_in, (inside, *self._form.texts[1:], *(text for one in others for text in one.texts)))
        )

    def _read(self) -> OpenCall | None:
        """Return the next change; None if it needs more text."""
        if self._name is None and not self._find_name():
            return None
        assert self._name is not None
        assert self._value is not None
        read = (
            self._read_json(self._value) if self._form.arguments is None else self._read_members(self._form.arguments)
        )
        if not read and self._has_begun:
            return None
        self._has_begun = True
        value = self._value.value
        arguments = {} if value is MISSING else value
        news = OpenCall(self._count, self._id, self._name, read, arguments, self._value.is_whole)
        if news.is_whole:
            self._shown = 0
            self._name = None
            self._count += 1
        return news

    def _read_json(self, value: PartialValue) -> str:
        """Return the new text of arguments that are JSON."""
        value.push(self._text)
        read, self._text = self._text.removesuffix(value.rest), value.rest
        return read

    def _read_members(self, form: ArgumentForm) -> str:
        """Return the new text of the JSON of arguments that are written one by one. Cost: proportional to all of their text."""
        assert self._name is not None
        assert self._value is not None
        tool = self._tools[self._name]
        made, whole = form.begun(self._text, 0, tool), self._form.read(self._text, 0, tool)
        if whole is not None:
            made, self._text = made + "}", self._text[whole[1] :]
        new, self._shown = made[self._shown :], len(made)
        self._value.push(new)
        return new

    def _find_name(self) -> bool:
        form = self._form if self._count else self._form.spelling(self._text)
        before = form.separator or "" if self._count else form.before
        name, between, rest = self._text[len(before) :].partition(form.between)
        if not between or not self._text.startswith(before) or not before:
            return False
        self._name, self._text, self._has_begun = name, rest, False
        self._id = self._id_of(self._count)
        self._value = PartialValue(self._tools[name].partial_type)
        return True


AnyConstraint = Constraint | CheckedConstraint


class _Unhealed:
    """What constraints read of a row before their first token; the calls respell nothing."""

    healed = b""


@dataclass(frozen=True, slots=True, eq=False)
class ReplyState:
    """The state after some tokens: of the text, of the search for a marker that is text, and of the calls; None before these begin.

    Until a text or calls are chosen: the state of the constraint of that choice, and the tokens so far.
    """

    text: Any
    search: StopState | None
    calls: Any = None
    is_blank: bool = True  # whether there is nothing but white space before the marker
    head: Any = None
    token_ids: tuple[int, ...] = ()


class ReplyConstraint(Policy[ReplyState]):
    """Text, or text, the marker of a call, and calls.

    Args:
        writer: the constraint of the text; None for free text.
        calls: the constraint of what follows the marker.
        marker: the text by which a call is recognised; empty for a reply that must be calls.
        begins_reply: whether a call may only begin a reply.
        model: the model that writes.
        head: the head of a text, and the constraint to that or calls; None for texts without a head. There is no marker then.
    """

    finish_reason = "constraint"
    horizon: int = 0
    max_retries: int | None = None

    def __init__(
        self,
        writer: AnyConstraint | None,
        calls: AnyConstraint,
        marker: str,
        *,
        begins_reply: bool,
        model: LanguageModel,
        head: tuple[str, AnyConstraint] | None = None,
    ) -> None:
        self.calls = calls
        self.marker = marker
        special = model.tokenizer.special_tokens
        self.marker_id = next((token_id for token_id, name in sorted(special.items()) if name == marker), None)
        self._head: Any = None if head is None else head[1]
        self._head_data: bytes = b"" if head is None else head[1].spelled(model.tokenizer.encode_special(head[0]))
        self.must_call = not marker and head is None
        self.horizon = max(calls.horizon, 0 if writer is None else writer.horizon)
        self.max_retries = calls.max_retries or (None if writer is None else writer.max_retries)
        self._writer: Any = FreeText.of_model(model) if writer is None else writer
        self.is_free = writer is None
        self._begins_reply = begins_reply
        has_text = self.marker_id is None and marker
        self._search = StopAt(marker, model.tokenizer, keep=True) if has_text else None
        self._tokenizer = model.tokenizer
        self._eos = TokenSet.of(model.eos_token_ids)
        self._marker_set = TokenSet.of(() if self.marker_id is None else (self.marker_id,))
        self._first: Any = calls.initial(cast(RowView, _Unhealed()))

    def initial(self, row: RowView) -> ReplyState:
        """Return the state before the first token."""
        if self.must_call:
            return ReplyState(None, None, self.calls.initial(row))
        if self._head is not None and self.choice(row.token_ids, len(row.token_ids)) is None:
            return ReplyState(None, None, head=self._head.initial(row))
        return ReplyState(self._writer.initial(row), None if self._search is None else self._search.initial(row))

    def advance(self, state: ReplyState, token_id: int) -> ReplyState:
        """Return the state after one more token."""
        if state.head is not None:
            return self._chosen(state, token_id)
        if self._has_calls(state):
            calls = self._first if state.calls is None else state.calls
            return replace(state, calls=self.calls.advance(calls, token_id))
        if token_id == self.marker_id:
            return replace(state, calls=self._first)
        search, is_blank = self._searched(state.search, token_id, state.is_blank)
        return ReplyState(self._writer.advance(state.text, token_id), search, None, is_blank)

    def branches(self, state: ReplyState, row: RowView) -> list[Branch]:
        """Return the branches of the calls after a marker, else of the text; where the text may end, a marker may follow, too."""
        if state.head is not None:
            return cast("list[Branch]", self._head.branches(state.head, row))
        if self._has_calls(state):
            return self.calls.branches(self._first if state.calls is None else state.calls, row)
        if self._search is not None and state.search is not None and self._may_call(state) and state.search.match:
            return self._search.branches(state.search, row)  # cuts behind the marker
        branches: list[Branch] = self._writer.branches(state.text, row)
        if len(branches) == 1 and branches[0].ff_tokens and not branches[0].is_rewind:
            return [replace(branches[0], ff_tokens=[self._up_to_marker(state, ids) for ids in branches[0].ff_tokens])]
        mask = branches[0].sample_mask if len(branches) == 1 else None
        if mask is None or isinstance(mask, LazyTokenSet) or not self._may_call(state) or not (mask & self._eos):
            return branches
        return [replace(branches[0], sample_mask=mask | self._marker_set)] if self._marker_set else branches

    def rewound(self, before: ReplyState, after: ReplyState, row: RowView) -> ReplyState:
        """Return the state after this policy has rewound the row."""
        if self._has_calls(before):
            if self._has_calls(after):
                calls = self.calls.rewound(before.calls, after.calls, row)
                return replace(after, calls=calls)
            return after
        if self._search is not None and before.search is not None and after.search is not None and before.search.match:
            return replace(after, search=self._search.rewound(before.search, after.search, row))
        return replace(after, text=self._writer.rewound(before.text, after.text, row))

    def at_end(self, state: ReplyState, row: RowView) -> Branch | None:
        """Return the branch that rewinds if the text must not end here."""
        policy, inner = self._present(state)
        return cast("Branch | None", policy.at_end(inner, row))

    def give_up(self, state: ReplyState, row: RowView, reason: str) -> ReplyState:
        """Raise the error of the constraint in force, or accept the text."""
        policy, inner = self._present(state)
        inner = policy.give_up(inner, row, reason)
        return replace(state, calls=inner) if policy is self.calls else replace(state, text=inner)

    def hint(self, state: ReplyState, row: RowView) -> int | None:
        """Return the hint of the constraint in force."""
        policy, inner = self._present(state)
        return cast("int | None", policy.hint(inner, row))

    def wish(self, state: ReplyState, row: RowView) -> str:
        """Return what must follow."""
        policy, inner = self._present(state)
        return "" if policy is self.calls else str(policy.wish(inner, row))

    def held_bytes(self, state: ReplyState) -> int:
        """Return how many trailing bytes may yet be rewound; those of a possible marker, too."""
        policy, inner = self._present(state)
        held = int(policy.held_bytes(inner))
        if state.head is not None:
            return len(self._tokenizer.text_bytes(state.token_ids))
        if policy is self.calls or self._search is None or state.search is None or not self._may_call(state):
            return held
        return max(held, self._search.held_bytes(state.search))

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole reply conforms; its tokens begin with `healed`, no part of it."""
        at = self.calls_begin(token_ids, 0, healed)
        if at is not None and (self._head is None or self.calls.accepts(token_ids)):
            return self.calls.accepts(token_ids[at:])
        return self.is_free or bool(self._writer.accepts(token_ids, healed))

    def spelled(self, token_ids: Sequence[int], healed: bytes = b"") -> bytes:
        """Return the text of a reply."""
        return self._tokenizer.text_bytes(token_ids)[len(healed) :]

    def choice(self, token_ids: Sequence[int], start: int) -> Literal["text", "calls"] | None:
        """Return what a reply with a head is, whose piece begins at `start` of some tokens; None before that is chosen."""
        size = len(self._head_data)  # a token of which nothing is spelled is none of the head
        if self._head.spelled(token_ids[max(start - size, 0) : start]).endswith(self._head_data):
            return "text"
        return None if self._head_data.startswith(self._head.spelled(token_ids[start:])) else "calls"

    def calls_begin(self, row_ids: Sequence[int], start: int, healed: bytes = b"") -> int | None:
        """Return the index, in the piece of a row that begins at `start`, of the first token after the marker; None if there is none.

        Cost: the tokens before it.
        """
        if self._head is not None:
            return 0 if self.choice(row_ids, start) == "calls" else None
        token_ids = row_ids[start:]
        if self.must_call:
            return 0
        if self.marker_id is not None:
            return token_ids.index(self.marker_id) + 1 if self.marker_id in token_ids else None
        assert self._search is not None
        view = _Unhealed()
        view.healed = healed
        search: StopState | None = self._search.initial(cast(RowView, view))
        is_blank = True
        for index, token_id in enumerate(token_ids, 1):
            search, is_blank = self._searched(search, token_id, is_blank)
            if search is not None and search.match is not None:
                is_whole = search.num_bytes == search.match.end
                return index if is_whole and (is_blank or not self._begins_reply) else None
        return None

    def _present(self, state: ReplyState) -> tuple[Any, Any]:
        """Return the policy in force, and its state."""
        if state.head is not None:
            return self._head, state.head
        if self._has_calls(state):
            return self.calls, self._first if state.calls is None else state.calls
        return self._writer, state.text

    def _chosen(self, state: ReplyState, token_id: int) -> ReplyState:
        """Return the state after one more token of the head or of calls."""
        token_ids = (*state.token_ids, token_id)
        if self._head_data.startswith(self._head.spelled(token_ids)):
            return replace(state, head=self._head.advance(state.head, token_id), token_ids=token_ids)
        return ReplyState(None, None, reduce(self.calls.advance, token_ids, self._first))

    def _has_calls(self, state: ReplyState) -> bool:
        """Whether the marker is complete, so that calls follow."""
        if state.calls is not None:
            return True
        search = state.search
        if search is None or search.match is None or not self._may_call(state):
            return False
        return search.num_bytes == search.match.end

    def _may_call(self, state: ReplyState) -> bool:
        return state.is_blank or not self._begins_reply

    def _up_to_marker(self, state: ReplyState, token_ids: list[int]) -> list[int]:
        """Return the tokens up to the one with the end of a marker."""
        search, is_blank = state.search, state.is_blank
        for count, token_id in enumerate(token_ids, 1):
            search, is_blank = self._searched(search, token_id, is_blank)
            if search is not None and search.match is not None and (is_blank or not self._begins_reply):
                return token_ids[:count]
        return token_ids

    def _searched(self, search: StopState | None, token_id: int, is_blank: bool) -> tuple[StopState | None, bool]:
        """Return the search after one more token, and whether the text that is no part of a marker is still blank."""
        data = self._tokenizer.text_bytes([token_id])
        if self._search is None or search is None:
            return None, is_blank and not data.strip()
        _, text = search.matcher.push(data[search.num_healed :])
        return self._search.advance(search, token_id), is_blank and not text.strip()


@dataclass(frozen=True, slots=True, eq=False)
class FormattedState:
    """The state of the constraint after some tokens, and their bytes until it is known whether they begin a text or calls."""

    inner: Any
    undecided: bytes | None = b""


class FormattedReply(ReplyConstraint):
    """Calls, or a text under a constraint.

    Args:
        whole: the constraint to the texts and the calls.
        begins: the bytes with which calls begin; no text does.
        model: the model that writes.
    """

    def __init__(self, whole: AnyConstraint, begins: Sequence[bytes], model: LanguageModel) -> None:
        self.whole: Any = whole
        self.calls: Any = None  # they are part of the whole
        self.marker, self.marker_id, self.must_call, self.is_free = "", None, False, False
        self.horizon, self.max_retries = whole.horizon, whole.max_retries
        self._begins = tuple(begins)

    @property
    def judges_whole_texts(self) -> bool:
        """Whether a text that a stop text cuts is not checked; see `Policy`."""
        return bool(self.whole.judges_whole_texts)

    def initial(self, row: RowView) -> FormattedState:  # type: ignore[override]
        """Return the state before the first token."""
        return FormattedState(self.whole.initial(row), None if row.healed else b"")

    def advance(self, state: FormattedState, token_id: int) -> FormattedState:  # type: ignore[override]
        """Return the state after one more token."""
        inner, data = self.whole.advance(state.inner, token_id), state.undecided
        if data is not None:
            data += self.whole.spelled([token_id])
            data = data if self._kind(data) is None else None
        return FormattedState(inner, data)

    def branches(self, state: FormattedState, row: RowView) -> list[Branch]:  # type: ignore[override]
        """Return the branches of the constraint."""
        return cast("list[Branch]", self.whole.branches(state.inner, row))

    def rewound(self, before: FormattedState, after: FormattedState, row: RowView) -> FormattedState:  # type: ignore[override]
        """Return the state after the constraint has rewound the row."""
        return replace(after, inner=self.whole.rewound(before.inner, after.inner, row))

    def give_up(self, state: FormattedState, row: RowView, reason: str) -> FormattedState:  # type: ignore[override]
        """Raise the error of the constraint."""
        return replace(state, inner=self.whole.give_up(state.inner, row, reason))

    def held_bytes(self, state: FormattedState) -> int:  # type: ignore[override]
        """Return how many trailing bytes may yet be rewound, or be the beginning of a call."""
        return max(int(self.whole.held_bytes(state.inner)), len(state.undecided or b""))

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole reply conforms; its tokens begin with `healed`, no part of it."""
        return bool(self.whole.accepts(token_ids, healed))

    def spelled(self, token_ids: Sequence[int], healed: bytes = b"") -> bytes:
        """Return the text of a reply."""
        return cast("bytes", self.whole.spelled(token_ids, healed))

    def calls_begin(self, row_ids: Sequence[int], start: int, healed: bytes = b"") -> int | None:
        """Return 0 for a reply with calls, None for another one."""
        data, count = b"", start
        while count < len(row_ids) and (len(data) <= len(healed) or self._kind(data[len(healed) :]) is None):
            data += self.whole.spelled([row_ids[count]])
            count += 1
        return 0 if self._kind(data[len(healed) :]) == "calls" else None

    def _present(self, state: FormattedState) -> tuple[Any, Any]:  # type: ignore[override]
        return self.whole, state.inner

    def _kind(self, data: bytes) -> Literal["text", "calls"] | None:
        """Return what a reply is that begins with some bytes; None if that is not known yet."""
        if any(map(data.startswith, self._begins)):
            return "calls"
        return None if any(begin.startswith(data) for begin in self._begins) else "text"


@dataclass(frozen=True, eq=False)
class ReplyMaker(PieceMaker):
    """The generator of replies that may call tools; `constraint` is a `ReplyConstraint`. `head`: the head of a text, such as a channel."""

    head: str = field(default="", repr=False)

    def finish(self, row: StateRow) -> StateRow:
        """Return a finished row with its value: none if it calls."""
        assert isinstance(self.constraint, ReplyConstraint)
        return replace(row, value=None) if self.calls(row) else super().finish(row)

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the reply is complete; free text always is."""
        assert isinstance(self.constraint, ReplyConstraint)
        return super().is_whole(row) or (self.constraint.is_free and not self.calls(row))

    @property
    def chooses(self) -> bool:
        """Whether a reply is a text behind a head, or calls."""
        assert isinstance(self.constraint, ReplyConstraint)
        return bool(self.head) and not self.constraint.must_call

    def calls(self, row: StateRow) -> bool:
        """Return whether a row has written the beginning of a call."""
        assert isinstance(self.constraint, ReplyConstraint)
        if row.piece is None:
            return False
        healed = self.model.tokenizer.text_bytes(row.token_ids[row.piece.start :])[: row.piece.healed]
        return self.constraint.calls_begin(row.token_ids, row.piece.start, healed) is not None


def reply_maker(
    writer: PieceMaker,
    form: ToolForm,
    tools: Sequence[Tool],
    calls: Callable[[Expression], PieceMaker],
    *,
    must_call: bool = False,
    max_calls: int | None = None,
    head: str = "",
) -> ReplyMaker:
    """Return the generator of replies with the text of `writer`, or calls of tools.

    Args:
        writer: the generator of the text.
        form: how calls are written.
        tools: what may be called.
        calls: makes the generator of their language.
        must_call: whether there is no text, but calls.
        max_calls: the most calls of a reply; None for any number.
        head: the head of a text, see `head_of`.
    """
    model = writer.model
    names = special_names_of(model.tokenizer)
    text = writer.constraint
    assert isinstance(text, Constraint | CheckedConstraint | None)
    marker = "" if must_call or head or text is not None else form.marker(names.first_in(form.before))
    called = form.expression(tools, marker, names, max_calls)
    caller = calls(called)
    assert isinstance(caller.constraint, Constraint | CheckedConstraint)
    if text is not None and not must_call and not head:
        formatted = _formatted(text, form, tools, called, model)
        if formatted is not None:
            return _maker_of(writer, caller, formatted, "")
    choosing = None
    if head and not must_call:
        begins = reduce(or_, [marked(one, names) for one in (head, *(one.before for one in form.spellings))])
        choosing = head, Constraint.of_model(model, begins)
    constraint = ReplyConstraint(
        text, caller.constraint, marker, begins_reply=form.is_whole_reply, model=model, head=choosing
    )
    return _maker_of(writer, caller, constraint, head)


def _maker_of(writer: PieceMaker, caller: PieceMaker, constraint: ReplyConstraint, head: str) -> ReplyMaker:
    given = {part.name: getattr(writer, part.name) for part in fields(PieceMaker)}
    source = json.dumps({"reply": [writer.source, caller.source]}, ensure_ascii=False)
    return ReplyMaker(**{**given, "constraint": constraint, "source": source}, head=head)


def _formatted(
    text: AnyConstraint, form: ToolForm, tools: Sequence[Tool], called: Expression, model: LanguageModel
) -> FormattedReply | None:
    """Return the constraint to calls, or a text; None if each text begins as a call does."""
    plain = text.constraint if isinstance(text, CheckedConstraint) else text
    names = special_names_of(model.tokenizer)
    begins = _beginnings(form, tools, names)
    spelled = [
        Constraint.of_model(model, marked(one, names)).spelled(model.tokenizer.encode_special(one)) for one in begins
    ]
    expression = plain.token_fsm.expression
    automaton = plain.token_fsm.automaton
    if any(automaton.next_state(automaton.initial_state, data) for data in spelled):
        try:
            expression = expression & ~reduce(or_, [choice([one]) + regex(r"[\s\S]*") for one in begins])
        except ExpressionError as error:  # a recursive one, or one with checks
            raise OptionError(
                f"expected a constraint without a text that begins as a call does, {begins[0]!r}, got one with such texts: {error}",
                "tools",
            ) from error
        if expression.is_empty():
            return None
    whole = Constraint.of_model(model, expression | called, force=plain.force, end=plain.end)
    if isinstance(text, CheckedConstraint) or called.has_checks:
        eos = TokenSet.of(model.eos_token_ids)
        retries = (text.max_retries, text.max_rejections) if isinstance(text, CheckedConstraint) else ()
        return FormattedReply(CheckedConstraint(whole, expression | called, eos, *retries), spelled, model)
    return FormattedReply(whole, spelled, model)


def _beginnings(form: ToolForm, tools: Sequence[Tool], names: SpecialNames) -> list[str]:
    """Return the texts by which calls are known: the marker of a form, and the name of a tool for a form that has none of its own."""
    found = []
    for one in form.spellings:
        if one.is_whole_reply:
            found += [one.before + tool.name + one.between for tool in tools]
        else:
            found.append(one.marker(names.first_in(one.before)))
    return found


ChatT = TypeVar("ChatT")

_NOWHERE = 2**62


class ChatStream(StateStream, Generic[ChatT]):
    """Events of a reply, to be iterated once: `for event in stream`, or `async for event in stream`.

    Leaving the loop cuts the reply; `chat` contains it. Nothing is computed before iteration begins.
    """

    def __init__(
        self, call: Call, shown: StreamOptions, replied: Callable[[SequenceState], ChatT], calls: OpenCalls | None
    ) -> None:
        """Show a call that writes a reply; `replied` returns the conversation with it, and `calls` parses its calls, if it may call."""
        super().__init__(call, shown)
        self._replied = replied
        self._split = None if calls is None else ReplyEvents(call, calls)

    @property
    def chat(self) -> ChatT:
        """The conversation with the reply so far; a constrained reply that was cut has no value.

        Raises:
            Exception: the error of the row.
        """
        return self._replied(self.state)

    def _items(self, events: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
        return iter(events) if self._split is None else chain.from_iterable(map(self._split.of, events))


class ReplyEvents:
    """Splits the events of a reply, the one row of a call by a `ReplyMaker`, at the marker of a tool call."""

    def __init__(self, call: Call, calls: OpenCalls) -> None:
        self._call, self._calls = call, calls
        assert isinstance(call.maker.constraint, ReplyConstraint)
        self._constraint, self._tokenizer = call.maker.constraint, call.maker.model.tokenizer
        self._num_seen = 0  # characters of the reply in earlier events
        self._num_tokens = 0  # tokens of the reply in earlier events
        self._num_called = 0  # those of them that were parsed
        self._decoder = TextDecoder()
        self._reads_tokens = calls.has_special_in(special_names_of(self._tokenizer))
        self._begin: int | None = None  # where the calls begin in its text, once that is known

    def of(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """Yield the event as one of text, and one for each call that it is about; thoughts as they are."""
        if event.is_thought:
            yield event
            return
        text_end, calls_begin = self._marker_place()
        before = max(text_end - self._num_seen, 0)
        text = event.text[:before]
        called = event.text[max(calls_begin - self._num_seen, 0) :]
        self._num_seen += len(event.text)
        if self._reads_tokens:
            called = self._called_by_tokens(event)
        if self._begin is None:
            yield event
            return
        news = list(self._calls.push(called))
        shown = replace(event, text=text, value=None)
        if not news:
            yield shown
            return
        end = (event.finish_reason, event.stop, event.error)
        if text:
            yield replace(shown, finish_reason="", stop=None, error=None)
            shown = StreamEvent(batch=0, sample=0)
        for number, call in enumerate(news):
            new = replace(shown if number == 0 else StreamEvent(batch=0, sample=0), text="", call=call)
            reason, stop, error = end if number == len(news) - 1 else ("", None, None)
            yield replace(new, finish_reason=reason, stop=stop, error=error)

    def _called_by_tokens(self, event: StreamEvent) -> str:
        """Return the text of calls in the tokens of an event, with the names of special tokens, which its text does not have."""
        row = self._call.rows[0]
        self._num_tokens += len(event.token_ids)
        at = None if row is None else self._constraint.calls_begin(row.token_ids, row.piece_start, row.healed)
        if row is None or at is None:
            return ""
        start, self._num_called = max(at, self._num_called), self._num_tokens
        self._decoder, text = self._decoder.push(
            b"".join(written(row.piece_ids[start : self._num_tokens], self._tokenizer))
        )
        return text

    def _marker_place(self) -> tuple[int, int]:
        """Return the numbers of characters before and up to the end of the marker; far beyond the text if there is none yet."""
        constraint = self._constraint
        if self._begin is None:
            row = self._call.rows[0]
            at = None if row is None else constraint.calls_begin(row.token_ids, row.piece_start, row.healed)
            if row is None or at is None:
                return _NOWHERE, _NOWHERE
            data = self._tokenizer.text_bytes(row.piece_ids[:at])[len(row.healed) :]
            self._begin = len(data.decode(errors="replace"))
        marker = 0 if constraint.marker_id is not None else len(constraint.marker)
        return self._begin - marker, self._begin
