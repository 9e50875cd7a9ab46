"""`Checker`: reads languages with checks, by simulating a nondeterministic pushdown automaton, and runs each check where its value ends.
It follows all ways to parse the text so far (its *readings*): each is a stack of the remaining terms, with a mark where a checked value
began. A reading is dropped when its check fails, some before the value ends (`telling_bytes`); more than `max_readings` at the same time
raise `BudgetExceeded`. The DFA of such a language ignores checks. Also here: `checks_of`, `has_checks`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from fsm.errors import exceeded
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Check, Kind, Node

_MAX_MEMO = 1 << 16
"""The most derivatives that are cached; then the cache is cleared."""
_STRUCTURE = frozenset({Kind.CONCAT, Kind.ALTERNATION, Kind.REPEAT, Kind.RULE, Kind.CHECK})


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """An entry of a stack below a checked term: the check, and the index where its value began."""

    check: Check
    start: int


class _Stack:
    """The remaining terms as a linked list: the next one, and the stack below it; None is the empty stack."""

    __slots__ = ("below", "top")

    def __init__(self, top: Node | _Mark, below: _Stack | None) -> None:
        self.top, self.below = top, below


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """A value that failed its check.

    Attributes:
        start: the index of the first byte of what is at fault, such as an item that is there again.
        stop: the index after its last byte.
        value_start: the index of the first byte of the whole value that was checked.
        check: the check; `str` describes its condition.
    """

    start: int
    stop: int
    value_start: int
    check: Check


@dataclass(frozen=True, slots=True, eq=False)
class CheckedReading:
    """The ways to read a text so far, as an immutable value.

    Attributes:
        data: the text.
        stacks: internal.
        failure: where no reading is left, the last value that failed a check; None if the text is rejected without one.
    """

    data: bytes
    stacks: tuple[_Stack | None, ...]
    failure: CheckFailure | None = None

    @property
    def is_alive(self) -> bool:
        """True while a way to read the text is left."""
        return bool(self.stacks)

    @property
    def open_since(self) -> int:
        """The index of the first byte of a value whose check is pending."""
        found = len(self.data)
        for stack in self.stacks:
            while stack is not None:
                if isinstance(stack.top, _Mark):
                    found = min(found, stack.top.start)
                stack = stack.below
        return found


class Checker:
    """Reads texts of one term with checks.

    Args:
        root: the language.
        max_readings: the most ways to read a text at the same time.

    Several threads may use one checker. Cost: some 3 us per byte of an object of six members whose keys must be distinct, that
    check included; more for each further way to read a text.
    """

    def __init__(self, root: Node, *, max_readings: int = 1_000) -> None:
        self._derivatives = Derivatives()
        self._max_readings = max_readings
        self._holds_check: dict[Node, bool] = {}
        self._targets: dict[tuple[Node, int], Node] = {}
        self.initial = CheckedReading(b"", (_Stack(root, None),))

    def read(self, reading: CheckedReading, data: bytes) -> CheckedReading:
        """The reading after more bytes; not alive if no way is left.

        Raises:
            BudgetExceeded: there are more than `max_readings` ways to read the text.
        """
        if not reading.is_alive:
            return CheckedReading(reading.data + data, (), reading.failure)
        text, stacks, failures = reading.data + data, reading.stacks, list[CheckFailure]()
        start = end = len(reading.data)
        for end, byte in enumerate(data, start + 1):
            found = [after for stack in stacks for after in self._next(stack, byte, text, end, failures)]
            if len(found) > 1:  # stacks with equal tops share what is below, if that is equal
                found = list({s and (id(s.top), id(s.below)): s for s in found}.values())
            stacks = tuple(found)
            if len(stacks) > self._max_readings:
                problem = f"a text can be read in more than {self._max_readings:,} ways, each with checks of its own"
                advice = "Make the alternatives with checks begin differently"
                raise exceeded("max_readings", self._max_readings, problem, advice)
            if not stacks:
                break
        text = text[:end] if not stacks else text
        stacks = tuple(stack for stack in stacks if not _must_fail(stack, text, data, failures))
        return CheckedReading(text, stacks, failures[-1] if failures and not stacks else None)

    def end(self, reading: CheckedReading) -> CheckFailure | bool | None:
        """True when the text may end here; else the value that failed a check at the end, or False."""
        failures = list[CheckFailure]()
        for stack in reading.stacks:
            if None in self._expanded(stack, None, reading.data, failures):
                return True
        return failures[-1] if failures else False

    def accepts(self, data: bytes) -> bool:
        """True when the whole of `data` is a text of the language and passes its checks."""
        return self.end(self.read(self.initial, data)) is True

    def _next(
        self, stack: _Stack | None, byte: int, text: bytes, end: int, failures: list[CheckFailure]
    ) -> list[_Stack | None]:
        """The stacks after one by one byte, the one before `end`, without tops that can only be empty there."""
        if stack is None:
            return []
        top = stack.top
        # The usual case: no value with a check begins or ends here.
        if isinstance(top, Node) and not top.nullable and not self._has_parts(top):
            target = self._after(top, byte)
            if target is not EPSILON:
                return [] if target is EMPTY else [_Stack(target, stack.below)]
        found: list[_Stack | None] = []
        for before in self._expanded(stack, byte, text[: end - 1], failures):
            if before is not None and (target := self._after(before[0], byte)) is not EMPTY:
                found += self._close(_Stack(target, before[1]), text[:end], failures)
        return found

    def _after(self, node: Node, byte: int) -> Node:
        target = self._targets.get((node, byte))
        if target is None:
            if len(self._targets) > _MAX_MEMO:
                self._targets.clear()
            target = self._targets[node, byte] = self._derivatives.after(node, byte)
        return target

    def _expanded(
        self, stack: _Stack | None, byte: int | None, text: bytes, failures: list[CheckFailure]
    ) -> Iterator[tuple[Node, _Stack | None] | None]:
        """Expand a stack before a byte, or at the end (None): its tops without checks, each with the stack below; None: it is empty."""
        todo = [stack]
        while todo:
            stack = todo.pop()
            if stack is None:
                yield None
                continue
            top, below = stack.top, stack.below
            if isinstance(top, _Mark):
                if (byte is None or self._may_begin(below, byte)) and _passes(top, text, failures):
                    todo.append(below)
            elif self._has_parts(top):
                todo.extend(self._parts(top, below, len(text)))
            else:
                yield top, below
                if top.nullable:
                    todo.append(below)

    def _parts(self, top: Node, below: _Stack | None, position: int) -> Iterator[_Stack | None]:
        """The parts of a term with checks inside, as alternative stacks."""
        kind, args = top.kind, top.args
        if kind is Kind.CHECK:
            yield _Stack(args[0], _Stack(_Mark(args[1], position), below))
        elif kind is Kind.CONCAT:
            yield _Stack(args[0], _Stack(args[1], below))
        elif kind is Kind.RULE:
            yield _Stack(top.args[0].body, below)
        elif kind is Kind.ALTERNATION:
            plain = nodes.alternation(child for child in args if not self._is_checked(child))
            if plain is not EMPTY:
                yield _Stack(plain, below)
            yield from (_Stack(child, below) for child in args if self._is_checked(child))
        else:
            if args[1] == 0:
                yield below
            rest = nodes.fewer(top)
            yield _Stack(args[0], below if rest is EPSILON else _Stack(rest, below))

    def _close(self, stack: _Stack | None, text: bytes, failures: list[CheckFailure]) -> list[_Stack | None]:
        """Remove marks and empty terms from the top; an empty list where a check fails."""
        while stack is not None:
            if isinstance(stack.top, _Mark):
                if not _passes(stack.top, text, failures):
                    return []
            elif stack.top is not EPSILON:
                break
            stack = stack.below
        return [stack]

    def _may_begin(self, stack: _Stack | None, byte: int) -> bool:
        """False when the next term cannot begin with a byte, so that no check needs to run."""
        while stack is not None and isinstance(stack.top, _Mark):
            stack = stack.below
        if stack is None:
            return False
        top = stack.top
        assert isinstance(top, Node)
        return top.nullable or bool(self._derivatives.first_bytes(top) >> byte & 1)

    def _has_parts(self, node: Node) -> bool:
        """True when a term has to be expanded, since a part of it is checked."""
        return node.kind in _STRUCTURE and self._is_checked(node)

    def _is_checked(self, node: Node) -> bool:
        """True when there is a check inside, in the bodies of rules, too."""
        if not node.is_checked:
            return False
        return has_checks(node, self._holds_check)


def checks_of(root: Node) -> Iterator[Check]:
    """The checks inside a term; of rules that differ only in their nesting depth, those of one. Cost: one visit of each part."""
    return (node.args[1] for node in _may_hold(root, {}) if node.kind is Kind.CHECK)


def has_checks(root: Node, known: dict[Node, bool] | None = None) -> bool:
    """True when a language has checks. Cost: one visit of each part, if there are rules, but for those in the memo `known`."""
    if not root.is_checked:
        return False
    known = {} if known is None else known
    if root not in known:
        visited = list[Node]()
        for node in _may_hold(root, known):
            if node.kind is Kind.CHECK or known.get(node, False):
                known[root] = True
                return True
            visited.append(node)
        known.update(dict.fromkeys(visited, False))
    return known[root]


def _may_hold(root: Node, known: dict[Node, bool]) -> Iterator[Node]:
    """A term and its parts that may have checks inside, without those that are known to have none."""
    seen, stack = {root}, [root]
    families = set[Hashable]()
    while stack:
        node = stack.pop()
        if node.kind is Kind.RULE:
            family = node.args[0].family
            if family in families:
                continue
            families.add(family)
        yield node
        new = [part for part in nodes.children(node) if part.is_checked and part not in seen and known.get(part, True)]
        seen.update(new)
        stack += new


def _passes(mark: _Mark, text: bytes, failures: list[CheckFailure]) -> bool:
    if mark.check.holds(text[mark.start :]):
        return True
    fault = mark.check.fault(text[mark.start :]) or 0
    failures.append(CheckFailure(mark.start + fault, len(text), mark.start, mark.check))
    return False


def _must_fail(stack: _Stack | None, text: bytes, last: bytes, failures: list[CheckFailure]) -> bool:
    """True when a check whose value has not ended must fail, given the text, which ends in the new bytes `last`."""
    while stack is not None:
        mark = stack.top
        if isinstance(mark, _Mark) and not mark.check.telling_bytes.isdisjoint(last):
            fault = mark.check.fault(text[mark.start :])
            if fault is not None:
                failures.append(CheckFailure(mark.start + fault, len(text), mark.start, mark.check))
                return True
        stack = stack.below
    return False
