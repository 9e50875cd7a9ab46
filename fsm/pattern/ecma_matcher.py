r"""`EcmaMatcher`: whether a pattern of ECMA-262 is found in a text, by backtracking; for patterns that no automaton matches (`(.+)-\1`).
A pattern in postfix order becomes a program of operations; a state of a match is the next operation, the position, what
the groups that are referred to matched, and the iterations of the open loops. A state that failed once is not tried again, so patterns
without references take time polynomial in the text; `MAX_STEPS` bounds all others.

Lookarounds are matched by a search of their own, to their first match. Captures inside a loop are forgotten when an iteration begins, an
iteration beyond the least number that reads nothing fails, and lookbehinds are matched from their end.
Source: ECMA-262, section 22.2.2 (Pattern Semantics).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from fsm.errors import BudgetExceeded, clip
from fsm.pattern import postfix
from fsm.pattern.unicode_sets import case_class
from fsm.terms.characters import Ranges

MAX_STEPS = 250_000  # of one match: some 0.6 s

Span = tuple[int, int] | None


class _State(NamedTuple):
    """The next operation, the position, the spans of groups (and starts of open ones), and per loop its iterations and the last start."""

    at: int
    position: int
    spans: tuple[Span, ...]
    rounds: tuple[tuple[int, int], ...]


class _Operation(Protocol):
    """One operation of a program."""

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        """The states after it, the one to try first at the end; none if it fails."""


class EcmaMatcher:
    """One pattern, to be found in texts.

    Args:
        pattern: as it is written, for messages.
        program: the same in postfix order, with marks around its groups.
    """

    def __init__(self, pattern: str, program: Iterable[postfix.WithReferences]) -> None:
        self._pattern = pattern
        program = list(program)
        numbers = sorted({step.number for step in program if isinstance(step, postfix.Reference)})
        compiler = _Compiler(numbers)
        self._operations = compiler.compile(program)
        self._start = _State(0, 0, (None,) * (2 * len(numbers)), ((0, -1),) * compiler.num_loops)

    def found_in(self, text: str) -> bool:
        """True if the pattern is found anywhere in a text.

        Raises:
            BudgetExceeded: that takes more than `MAX_STEPS` steps.
        """
        match = _Match(self._pattern, self._operations, text)
        return any(match.first(self._start._replace(position=place)) for place in range(len(text) + 1))


class _Match:
    """The search for one match in one text."""

    def __init__(self, pattern: str, operations: list[_Operation], text: str) -> None:
        self._pattern, self._operations, self.text = pattern, operations, text
        self._failed = set[_State]()
        self._looked = dict[_State, _State | None]()
        self._steps = 0

    def first(self, state: _State) -> _State | None:
        """The state at the end of the first match from a state, or None."""
        return self._search(state, self._failed)

    def look(self, state: _State) -> _State | None:
        """The same for the body of a lookaround, which may be matched again from the same state."""
        if state not in self._looked:
            self._looked[state] = self._search(state, set())
        return self._looked[state]

    def _search(self, start: _State, met: set[_State]) -> _State | None:
        stack = [start]
        while stack:
            state = stack.pop()
            operation = self._operations[state.at]
            if isinstance(operation, _End):
                return state
            if isinstance(operation, _Split | _Round | _ReadSome):
                if state in met:
                    continue
                met.add(state)
            following = operation.follow(state, self)
            self.count(1 + len(following) + (len(state.rounds) + len(state.spans)) // 16)
            stack += following
        return None

    def count(self, steps: int) -> None:
        """Count steps; raises `BudgetExceeded` beyond `MAX_STEPS`."""
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise BudgetExceeded(
                f"whether a text matches the pattern {clip(self._pattern, 80)!r} was not decided within {MAX_STEPS:,} steps of "
                "backtracking. Write the pattern without the back-reference, give it fewer ways to match (`[^-]+` instead of `.+`), "
                "or a `maxLength`.",
                "max_backtracks",
                MAX_STEPS,
            )


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the pattern, or of a lookaround."""

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class _ReadSet:
    """Read a character of a set: its ranges as their edges, each the first code point that is in, or again out."""

    edges: tuple[int, ...]
    is_backward: bool

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        place = state.position - self.is_backward
        if not 0 <= place < len(match.text) or not bisect_right(self.edges, ord(match.text[place])) % 2:
            return ()
        return (_moved(state, -1 if self.is_backward else 1),)


@dataclass(frozen=True, slots=True)
class _ReadSome:
    """Read characters of a set, as many as possible first, or as few with `is_lazy`.

    Attributes:
        run: any number of these characters, for `re`.
        edges: see `_ReadSet`.
        loop: how many.
        is_backward: the direction.
        then: the text that is read next; empty if that is not known.
    """

    run: re.Pattern[str]
    edges: tuple[int, ...]
    loop: postfix.Loop
    is_backward: bool
    then: str = ""

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        step = -1 if self.is_backward else 1
        num_read = self._num_read(state.position, match.text)
        widths: Iterable[int] = range(self.loop.lo, num_read + 1)
        if self.then:
            match.count(num_read // 64)
            widths = _places(self.then, match.text, state.position + self.loop.lo, state.position + num_read)
            widths = [place - state.position for place in widths]
        found = [_moved(state, step * width) for width in widths]
        return tuple(found[::-1] if self.loop.is_lazy else found)

    def _num_read(self, start: int, text: str) -> int:
        """How many of the characters follow, or precede, a position: at most the greatest count."""
        if not self.is_backward:
            most = len(text) if self.loop.hi is None else min(len(text), start + self.loop.hi)
            found = self.run.match(text, start, most)
            return 0 if found is None else found.end() - start
        place = start
        while start - place != self.loop.hi and place > 0 and bisect_right(self.edges, ord(text[place - 1])) % 2:
            place -= 1
        return start - place


def _places(wanted: str, text: str, first: int, last: int) -> Iterator[int]:
    """Yield the places from `first` to `last` at which a text begins."""
    place = text.find(wanted, first)
    while 0 <= place <= last:
        yield place
        place = text.find(wanted, place + 1)


@dataclass(frozen=True, slots=True)
class _ReadText:
    """Read a text."""

    text: str
    is_backward: bool

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        width = -len(self.text) if self.is_backward else len(self.text)
        start = min(state.position, state.position + width)
        return (_moved(state, width),) if start >= 0 and match.text.startswith(self.text, start) else ()


@dataclass(frozen=True, slots=True)
class _ReadAgain:
    """Read what a group matched."""

    place: int
    ignores_case: bool
    is_backward: bool

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        start, end = state.spans[2 * self.place + 1] or (0, 0)
        width = start - end if self.is_backward else end - start
        first, last = sorted((state.position, state.position + width))
        if first < 0 or last > len(match.text):
            return ()
        there, wanted = match.text[first:last], match.text[start:end]
        if there != wanted and not (
            self.ignores_case and list(map(case_class, there)) == list(map(case_class, wanted))
        ):
            return ()
        return (_moved(state, width),)


@dataclass(frozen=True, slots=True)
class _AtEdge:
    """Assert that the position is at the start, or the end, of the text."""

    is_end: bool

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        return (_moved(state),) if state.position == (len(match.text) if self.is_end else 0) else ()


@dataclass(frozen=True, slots=True)
class _Around:
    """Assert that the operations up to `end` match at the position, or do not."""

    is_negative: bool
    end: int

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        found = match.look(_moved(state))
        if (found is None) != self.is_negative:
            return ()
        spans = state.spans if found is None else found.spans
        return (state._replace(at=self.end + 1, spans=spans),)


@dataclass(frozen=True, slots=True)
class _Limit:
    """One side of a group that is referred to: the one that is met first, then the other."""

    place: int

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        opened = state.spans[2 * self.place]
        now: tuple[Span, Span] = ((state.position, state.position), None)
        if opened is not None:
            now = (None, (min(opened[0], state.position), max(opened[0], state.position)))
        return (_moved(state)._replace(spans=_with(state.spans, 2 * self.place, *now)),)


@dataclass(frozen=True, slots=True)
class _Split:
    """Go on at any of some operations, tried in their order."""

    ways: tuple[int, ...]

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        return tuple(state._replace(at=at) for at in reversed(self.ways))


@dataclass(frozen=True, slots=True)
class _Jump:
    """Go on at another operation."""

    to: int

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        return (state._replace(at=self.to),)


@dataclass(frozen=True, slots=True)
class _Round:
    """Begin an iteration of a loop, or go on after it; `forgotten`: the first place, and the number, of the groups inside."""

    number: int
    lo: int
    hi: int | None
    is_lazy: bool
    forgotten: tuple[int, int]
    end: int

    def follow(self, state: _State, match: _Match) -> tuple[_State, ...]:
        count, start = state.rounds[self.number]
        if count > self.lo and state.position == start:
            return ()
        most = count + 1 if self.hi is not None else min(count + 1, self.lo + 1)
        first, num_groups = self.forgotten
        spans = _with(state.spans, 2 * first, *(None,) * (2 * num_groups))
        again = _State(state.at + 1, state.position, spans, _with(state.rounds, self.number, (most, state.position)))
        after = _State(self.end, state.position, state.spans, _with(state.rounds, self.number, (0, -1)))
        if count < self.lo:
            return (again,)
        if self.hi is not None and count >= self.hi:
            return (after,)
        return (again, after) if self.is_lazy else (after, again)


def _moved(state: _State, width: int = 0) -> _State:
    return _State(state.at + 1, state.position + width, state.spans, state.rounds)


def _with(values: tuple[Any, ...], place: int, *new: Any) -> tuple[Any, ...]:
    return (*values[:place], *new, *values[place + len(new) :])


@dataclass(frozen=True, slots=True)
class _Tree:
    """An instruction with its operands; `groups`: the least and greatest number of a group inside, or (0, 0)."""

    step: postfix.Combination
    parts: tuple[_Tree | postfix.Leaf | postfix.Mark | postfix.Reference, ...]
    groups: tuple[int, int]


_Part = _Tree | postfix.Leaf | postfix.Mark | postfix.Reference


def _tree(step: postfix.Combination, parts: list[_Part]) -> _Part:
    inside = [number for part in parts for number in _groups(part) if number]
    return _Tree(step, tuple(parts), (min(inside, default=0), max(inside, default=0)))


def _groups(part: _Part) -> tuple[int, int]:
    if isinstance(part, _Tree):
        return part.groups
    return (part.number, part.number) if isinstance(part, postfix.Mark) else (0, 0)


_Task = Callable[[], None] | tuple[_Part, bool]
"""What is still to do: a function to call, or a part to write, forward or backward."""


class _Compiler:
    """Writes the operations of a pattern, with an explicit stack; operations with jumps are put in when these are known.

    Args:
        numbers: of the groups that are referred to, ascending; the states have their spans in this order.
    """

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self._places = {number: place for place, number in enumerate(numbers)}
        self._operations: list[_Operation] = []
        self.num_loops = 0

    def compile(self, program: Iterable[postfix.WithReferences]) -> list[_Operation]:
        """Return the operations of a pattern."""
        whole: _Part = postfix.evaluated(program, lambda leaf: leaf, _tree)
        tasks: list[_Task] = [(whole, False)]
        while tasks:
            task = tasks.pop()
            if isinstance(task, tuple):
                tasks += reversed(self._expand(*task))
            else:
                task()
        self._operations.append(_End())
        for at, operation in enumerate(self._operations):
            if isinstance(operation, _ReadSome) and not operation.is_backward:
                self._operations[at] = replace(operation, then=self._text_at(at + 1))
        return self._operations

    def _text_at(self, at: int) -> str:
        """The text that is read first from an operation on; empty if that is not known."""
        while isinstance(self._operations[at], _Limit):
            at += 1
        operation = self._operations[at]
        return operation.text if isinstance(operation, _ReadText) and not operation.is_backward else ""

    def _expand(self, part: _Part, is_backward: bool) -> list[_Task]:
        if not isinstance(part, _Tree):
            self._operations += self._leaf(part, is_backward)
            return []
        parts: list[_Task] = [(one, is_backward) for one in part.parts]
        if isinstance(part.step, postfix.Join):
            return parts[::-1] if is_backward else parts
        if isinstance(part.step, postfix.Choose):
            return self._choice(parts)
        if isinstance(part.step, postfix.Look):
            return self._lookaround(part.step, part.parts[0])
        if isinstance(part.parts[0], postfix.Character):
            ranges = part.parts[0].ranges
            self._operations.append(_ReadSome(_run(ranges), _edges(ranges), part.step, is_backward))
            return []
        return self._loop(part.step, part.parts[0], parts[0])

    def _leaf(self, leaf: postfix.Leaf | postfix.Mark | postfix.Reference, is_backward: bool) -> list[_Operation]:
        if isinstance(leaf, postfix.Text):
            return [_ReadText(leaf.text, is_backward)] if leaf.text else []
        if isinstance(leaf, postfix.Character):
            return [_ReadSet(_edges(leaf.ranges), is_backward)]
        if isinstance(leaf, postfix.Reference):
            return [_ReadAgain(self._places[leaf.number], leaf.ignores_case, is_backward)]
        if isinstance(leaf, postfix.Mark):
            return [_Limit(self._places[leaf.number])] if leaf.number in self._places else []
        return [_AtEdge(leaf.anchor is postfix.Anchor.TEXT_END)]

    def _put(self) -> tuple[int, Callable[[_Operation], None]]:
        """Reserve an operation: where it is, and a function that puts it there."""
        at = len(self._operations)
        self._operations.append(_End())

        def put(operation: _Operation) -> None:
            self._operations[at] = operation

        return at, put

    def _choice(self, ways: list[_Task]) -> list[_Task]:
        _, put = self._put()
        starts, jumps, tasks = list[int](), list[Callable[[_Operation], None]](), list[_Task]()
        for way in ways:
            tasks += [lambda: starts.append(len(self._operations)), way, lambda: jumps.append(self._put()[1])]

        def finish() -> None:
            put(_Split(tuple(starts)))
            for jump in jumps:
                jump(_Jump(len(self._operations)))

        return [*tasks, finish]

    def _lookaround(self, look: postfix.Look, body: _Part) -> list[_Task]:
        _, put = self._put()

        def finish() -> None:
            put(_Around(look.is_negative, len(self._operations)))
            self._operations.append(_End())

        return [(body, look.is_behind), finish]

    def _loop(self, loop: postfix.Loop, body: _Part, task: _Task) -> list[_Task]:
        at, put = self._put()
        least, greatest = _groups(body)  # the numbers of the groups inside, which follow one another
        first, last = bisect_left(self._numbers, least), bisect_right(self._numbers, greatest)
        number, self.num_loops = self.num_loops, self.num_loops + 1

        def finish() -> None:
            self._operations.append(_Jump(at))
            inside = (first, max(last - first, 0))
            put(_Round(number, loop.lo, loop.hi, loop.is_lazy, inside, len(self._operations)))

        return [task, finish]


def _run(ranges: Ranges) -> re.Pattern[str]:
    inside = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)
    return re.compile(f"[{inside}]*" if inside else "")


def _edges(ranges: Ranges) -> tuple[int, ...]:
    edges = [edge for first, last in ranges for edge in (first, last + 1)]
    assert all(before < after for before, after in pairwise(edges)), "ranges are ascending and do not touch"
    return tuple(edges)
