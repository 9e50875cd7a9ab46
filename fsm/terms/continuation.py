"""`Continuation`: the rest of a pattern with lookarounds, as a linked list of steps that has Brzozowski derivatives. A lookaround is a
condition on the whole rest of the text, or on all of the text before it; `(?!x)` followed by R is the intersection of R with the complement
of `x.*`. A lookbehind is a second term that is derived in parallel, from the beginning of the text. So a state is a term that is being
read, the continuation after it, and the derivatives of its lookbehinds.

Inside a repetition the continuation contains the repetition itself with one iteration less, and is expanded only when it is reached; so
`(?:(?!-->).)*` is read iteration by iteration, each adding a condition. Every iteration reads at least one byte: assertions without width
are removed when the steps are made. Patterns are read in `postfix.py` and `lookaround.py`; `derivative.py` calls `parts` and `arcs`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakValueDictionary

from fsm.terms import node as nodes
from fsm.terms.byte_classes import completed, product
from fsm.terms.node import ANYTHING, EMPTY, EPSILON, Kind, Node

MAX_BEGINNINGS = 64
"""The most alternatives at the beginning of a pattern that become terms one by one."""

Behind = tuple[Node, ...]
"""For each lookbehind that a continuation may still test, in its order: the derivative of its term by the text so far."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A part of a pattern, of the kind of the subclass. `behind`: the lookbehinds that it may test."""

    behind: frozenset[Node]


@dataclass(frozen=True, slots=True, eq=False)
class Plain(Step):
    """Reads a text of a language; every such text begins with one of `first`, and ends with one of `last` (None: of the language)."""

    node: Node
    first: Node | None = None
    last: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation(Step):
    """Concatenation: reads one step after the other."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation(Step):
    """Alternation: reads one of the steps; without steps nothing matches."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition(Step):
    """Repetition: reads the body, never empty, `lo` to `hi` times (None: no bound); `is_lazy` matters to match priority alone."""

    body: Step
    lo: int
    hi: int | None
    is_lazy: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead(Step):
    """A lookahead: reads nothing; true where the body matches next, or, if negative, where it does not."""

    body: Step
    is_negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Rest(Step):
    """Reads nothing; true where the whole rest of the text belongs to a language; with `is_local` it depends on the next character only.

    `characters` are those with which the rest may begin, if that is known.
    """

    node: Node
    is_local: bool = False
    characters: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class After(Step):
    """A lookbehind: reads nothing; true where all of the text so far belongs to a language, or, if negative, where it does not.

    With `is_local` it depends on the last character only; `characters` are those that belong to the language, if that is known.
    """

    node: Node
    is_negative: bool
    is_local: bool = False
    characters: tuple[tuple[int, int], ...] | None = None

    def among(self, node: Node) -> Node:
        """The texts of a term, which reads all of the text so far, after which the lookbehind is true."""
        return nodes.intersection((node, nodes.complement(self.node) if self.is_negative else self.node))


class Continuation:
    """A step, and the continuation after it; made by `continuation`, equal ones are one object.

    Attributes:
        step, lo, hi, rest: the step, its remaining iterations where it is a repetition, and the continuation after it.
        behind: the lookbehinds that may still be tested, in the order of `Behind`.
        plain: all of it as a term, where it tests no lookbehind and has no lookaround inside a repetition.
    """

    __slots__ = ("__weakref__", "behind", "hi", "lo", "plain", "rest", "step")

    behind: Behind
    plain: Node | None
    known: ClassVar[WeakValueDictionary[tuple[object, ...], Continuation]] = WeakValueDictionary()

    def __init__(self, step: Step, lo: int, hi: int | None, rest: Continuation | None) -> None:
        self.step, self.lo, self.hi, self.rest = step, lo, hi, rest
        found = step.behind.union(() if rest is None else rest.behind)
        self.behind = tuple(sorted(found, key=lambda node: node.serial))
        after = EPSILON if rest is None else rest.plain
        self.plain = None if after is None else self._plain(after)

    def _plain(self, after: Node) -> Node | None:
        """All of it as a term, given that of the rest; None if it tests lookbehinds, or is expanded iteration by iteration."""
        step, rest = self.step, self.rest
        if isinstance(step, Plain):
            return nodes.concat(step.node, after)
        if isinstance(step, Rest):
            return nodes.intersection((step.node, after))
        if isinstance(step, Alternation):
            ways = [continuation(part, rest) for part in step.steps]
            plain = [after if way is None else way.plain for way in ways]
            return None if None in plain else nodes.alternation(way for way in plain if way is not None)
        if isinstance(step, Lookahead):
            seen = continuation(step.body, continuation(_ANYTHING, None))
            if seen is not None and seen.plain is not None:
                return nodes.intersection((nodes.complement(seen.plain) if step.is_negative else seen.plain, after))
        return None

    def is_over(self, behind: Behind) -> bool:
        """True when the text may end here."""
        place: Continuation | None = self
        now = dict(zip(self.behind, behind, strict=True))
        while place is not None:
            if not (place.lo == 0 if isinstance(place.step, Repetition) else reads_nothing(place.step, now)):
                return False
            place = place.rest
        return True


_lock = threading.RLock()
_ANYTHING = Plain(frozenset(), ANYTHING)


def continuation(
    step: Step, rest: Continuation | None, lo: int | None = None, hi: int | None = None
) -> Continuation | None:
    """The continuation of `step` and then `rest`; `lo` and `hi` are the remaining iterations of a repetition that has begun."""
    if isinstance(step, Concatenation):
        for part in reversed(step.steps):
            rest = continuation(part, rest)
        return rest
    if isinstance(step, Repetition):
        if lo is None:
            lo, hi = step.lo, step.hi
        if hi == 0:
            return rest
    key = step, lo, hi, rest
    with _lock:
        found = Continuation.known.get(key)
        if found is None:
            found = Continuation.known[key] = Continuation(step, lo or 0, hi, rest)
    return found


def reads_nothing(step: Step, now: Mapping[Node, Node]) -> bool:
    """True when the step matches the empty text at the end, given the state of the lookbehinds."""
    if isinstance(step, Plain | Rest):
        return step.node.nullable
    if isinstance(step, Concatenation):
        return all(reads_nothing(part, now) for part in step.steps)
    if isinstance(step, Alternation):
        return any(reads_nothing(part, now) for part in step.steps)
    if isinstance(step, Repetition):
        return step.lo == 0
    if isinstance(step, After):
        return now[step.node].nullable is not step.is_negative
    assert isinstance(step, Lookahead)
    return reads_nothing(step.body, now) is not step.is_negative


def follow(head: Node, rest: Continuation | None, behind: Mapping[Node, Node]) -> Node:
    """The term of `head` followed by `rest`; `behind` has the state of the lookbehinds before the head."""
    if head is EMPTY or rest is None:
        return head
    if rest.plain is not None:
        return nodes.concat(head, rest.plain)
    now = tuple(behind[node] for node in rest.behind)
    return nodes.intern(Kind.CONTINUATION, (head, rest, now), head.nullable and rest.is_over(now), (head, *now))


def begin(step: Step) -> Node:
    """The term of a step that reads a whole text.

    A lookbehind after a single term is an intersection with it; alternatives are followed one by one, up to `MAX_BEGINNINGS`.
    """
    found, waiting = list[Node](), [(EPSILON, continuation(step, None))]
    while waiting:
        head, rest = waiting.pop()
        while rest is not None and rest.plain is None and isinstance(rest.step, Plain | After):
            head = nodes.concat(head, rest.step.node) if isinstance(rest.step, Plain) else rest.step.among(head)
            rest = rest.rest
        if rest is None or rest.plain is not None:
            found.append(head if rest is None or rest.plain is None else nodes.concat(head, rest.plain))
        elif isinstance(rest.step, Alternation) and len(found) + len(waiting) < MAX_BEGINNINGS:
            waiting += [(head, continuation(part, rest.rest)) for part in rest.step.steps]
        else:
            found.append(follow(head, rest, {node: node for node in rest.behind}))
    return nodes.alternation(found)


def entered(rest: Continuation, behind: Behind) -> Node:
    """The term of `rest` with its first step expanded; finitely many such expansions lead to a character."""
    step, now = rest.step, dict(zip(rest.behind, behind, strict=True))
    if isinstance(step, Plain):
        return follow(step.node, rest.rest, now)
    after = follow(EPSILON, rest.rest, now)
    if isinstance(step, Alternation):
        return nodes.alternation(follow(EPSILON, continuation(part, rest.rest), now) for part in step.steps)
    if isinstance(step, Repetition):
        less = continuation(step, rest.rest, max(rest.lo - 1, 0), None if rest.hi is None else rest.hi - 1)
        iteration = follow(EPSILON, continuation(step.body, less), now)
        return iteration if rest.lo else nodes.alternation((iteration, after))
    if isinstance(step, Rest):
        return nodes.intersection((step.node, after))
    if isinstance(step, After):
        return after if now[step.node].nullable is not step.is_negative else EMPTY
    assert isinstance(step, Lookahead)
    whole = continuation(step.body, continuation(_ANYTHING, None))
    seen = follow(EPSILON, whole, now)
    return nodes.intersection((nodes.complement(seen) if step.is_negative else seen, after))


def parts(head: Node, rest: Continuation, behind: Behind) -> tuple[Node, ...]:
    """The terms whose transitions `arcs` needs."""
    return (head, *behind, entered(rest, behind)) if head.nullable else (head, *behind)


Arcs = Sequence[tuple[int, Node]]


def arcs(head: Node, rest: Continuation, behind: Behind, known: Mapping[Node, Arcs]) -> Iterator[tuple[int, Node]]:
    """The transitions of the head followed by `rest`, with the lookbehinds derived in parallel."""
    ways = product([known[head], *(completed(known[node], EMPTY) for node in behind)])
    for mask, (target, *now) in ways:
        yield mask, follow(target, rest, dict(zip(rest.behind, now, strict=True)))
