"""`preferred`: the texts `w` that `re.match(pattern, w)` takes whole, by leftmost-first (Perl) priority, as a term that simulates Pike's
matcher. A state is an ordered list of threads; a complete one drops those after it, those before it continue, and a text belongs to the
term where a thread is complete at its end. Lookarounds see the matched text only; lookaheads inside lookbehinds and some loops are refused.
`simplest`: the plain language of the pattern, where a bounded comparison proves both equal.

So `/x|xy/` never matches all of "xy", and `/".*?"/` ends at the first quote.
Source: the ordered threads of Pike's and Thompson's matchers, as in R. Cox, "Regular Expression Matching: the Virtual Machine
Approach", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsm.errors import BudgetExceeded
from fsm.pattern import postfix
from fsm.pattern.lookaround import asserted, combined, plain
from fsm.terms import node as nodes
from fsm.terms.characters import Speller
from fsm.terms.continuation import (
    After,
    Alternation,
    Concatenation,
    Lookahead,
    Plain,
    Repetition,
    Rest,
    Step,
    continuation,
    follow,
)
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY, EPSILON, Node

MAX_COMPARED = 500  # states in which a pattern is compared with its language
MAX_STEPS = 250_000  # for that; some 3 us each


@dataclass(frozen=True, slots=True, eq=False)
class _Position:
    """A position in the pattern: the next step, its remaining iterations, and the position after it."""

    step: Step
    lo: int
    hi: int | None
    after: _Position | None

    def follows(self, loop: _Position) -> bool:
        """True if this is the rest of a loop after an iteration beyond its lower bound."""
        return loop.step is self.step and loop.after is self.after and loop.lo == 0


_Thread = tuple[frozenset[Node], Node, _Position | None]
"""Conditions on the rest of the text, the term that is being read, and the position after it."""
_State = tuple[tuple[_Thread, ...], tuple[Node, ...]]
"""The threads in their order, and the derivatives of the conditions on the text so far."""
_Pending = tuple[frozenset[Node], _Position | None, _Position | None]
"""Conditions, a position, and the loop of which an iteration begins there, if one does."""
_Ordered = tuple[Step, Step]
"""A part with its order of alternatives, and a simpler step of the same language."""
_COMPLETE: _Thread = (frozenset(), EPSILON, None)


def preferred(program: Iterable[postfix.Instruction], spell: Speller) -> Node:
    """The texts `w` of a pattern for which `re.match(pattern, w)` is all of `w`; arguments and errors are those of `lookaround.full_match`.

    Cost: linear in the pattern; a state for each list of threads that is reached.
    """
    looks: list[Step] = []

    def leaf(instruction: postfix.Leaf) -> _Ordered:
        if isinstance(instruction, postfix.Text):
            parts = [plain(spell(((ord(c), ord(c)),))) for c in instruction.text]
            return _sequence(parts), combined(postfix.Join(len(parts)), parts, spell)
        step = plain(spell(instruction.ranges)) if isinstance(instruction, postfix.Character) else asserted(instruction)
        looks.extend([] if isinstance(step, Plain) else [step])
        return step, step

    def combine(instruction: postfix.Combination, operands: list[_Ordered]) -> _Ordered:
        step = combined(instruction, [step for _, step in operands], spell)
        parts = [part for part, _ in operands]
        if isinstance(instruction, postfix.Look):
            looks.append(step)
            return step, step
        if isinstance(instruction, postfix.Loop):
            return Repetition(step.behind, parts[0], instruction.lo, instruction.hi, instruction.is_lazy), step
        is_row = isinstance(instruction, postfix.Join)
        return _sequence(parts) if is_row else Alternation(step.behind, tuple(parts)), step

    whole, _ = postfix.evaluated(program, leaf, combine)
    reader = _Reader(looks, is_plain=not looks and _is_plain(whole))
    return nodes.machine(reader, reader.start(whole), is_plain=reader.is_plain)


def simplest(taken: Node, language: Node) -> Node:
    """Return `language`, the simpler term, where all texts of it are known to be in `taken`, the result of `preferred`; else `taken`.

    Raises:
        BudgetExceeded: the comparison takes more than `MAX_STEPS`.
    """
    reader: _Reader = taken.args[0]
    reader.steps_left = MAX_STEPS
    left_out = nodes.intersection((language, nodes.complement(taken)))
    try:
        return taken if Derivatives(max_search=MAX_COMPARED).is_inhabited(left_out) else language
    except BudgetExceeded as refusal:
        if refusal.limit == "max_steps":
            raise
        return taken
    finally:
        reader.steps_left = math.inf


def _is_plain(whole: Step) -> bool:
    """True if no part has a lookaround or a term that may have no text."""
    steps = [whole]
    for step in steps:
        if isinstance(step, Plain) and not step.node.is_plain:
            return False
        if isinstance(step, Concatenation | Alternation):
            steps += step.steps
        elif isinstance(step, Repetition):
            steps.append(step.body)
    return True


def _sequence(parts: Sequence[Step]) -> Step:
    return Concatenation(frozenset[Node]().union(*(part.behind for part in parts)), tuple(parts))


class _Reader(nodes.Machine):
    """Simulates the threads of one pattern; a machine in the sense of `node.Machine`.

    `looks` are all steps that look ahead or behind. `is_plain`: every thread can be completed. Then some text leads from every state to a
    complete thread: the shortest that any thread reads, since no other is complete before it.
    """

    def __init__(self, looks: Sequence[Step], *, is_plain: bool) -> None:
        self.is_plain = is_plain
        self.steps_left: float = math.inf
        found = frozenset[Node]().union(*(look.behind for look in looks))
        self._behind = tuple(sorted(found, key=lambda node: node.serial))
        self._positions: dict[tuple[object, ...], _Position] = {}

    def start(self, whole: Step) -> _State:
        """The state before the first byte."""
        threads: dict[_Thread, None] = {}
        behind = dict(zip(self._behind, self._behind, strict=True))
        self._advance(threads, frozenset(), self._position(whole, None), behind)
        return tuple(threads), self._behind

    def is_accepting(self, state: _State) -> bool:
        """True when a thread is complete; those before it have priority, but are not complete."""
        return _COMPLETE in state[0]

    def parts(self, state: _State) -> tuple[Node, ...]:
        """The terms of the threads and of all conditions."""
        threads, behind = state
        found = dict.fromkeys(behind)
        for conditions, node, _ in threads:
            found[node] = None
            found.update(dict.fromkeys(conditions))
        return tuple(found)

    def arcs(self, state: _State, known: Mapping[Node, Sequence[tuple[int, Node]]]) -> Iterator[tuple[int, Node]]:
        """Read a byte in every thread, in their order, up to one that is complete.

        Raises:
            BudgetExceeded: a comparison took more than `MAX_STEPS`.
        """
        if self.steps_left < 0:
            raise BudgetExceeded(
                f"reading a pattern in the order of `re` took more than {MAX_STEPS:,} steps: loops inside loops that can begin "
                "and end at many positions. Simplify the nested counts.",
                "max_steps",
                MAX_STEPS,
            )
        threads, behind = state
        parts = self.parts(state)
        for mask in _atoms(known[part] for part in parts):
            byte = mask & -mask
            target = {part: next((to for m, to in known[part] if m & byte), EMPTY) for part in parts}
            now = tuple(target[node] for node in behind)
            behind_now = dict(zip(self._behind, now, strict=True))
            found: dict[_Thread, None] = {}
            for conditions, node, after in threads:
                left = frozenset(target[c] for c in conditions) - {ANYTHING}
                if target[node] is EMPTY or EMPTY in left:
                    continue
                if target[node] is not EPSILON:
                    found[left, target[node], after] = None
                elif self._advance(found, left, after, behind_now):
                    break
            if found:
                yield mask, nodes.machine(self, (tuple(found), now), is_plain=self.is_plain)

    def _position(self, step: Step, after: _Position | None, lo: int | None = None, hi: int | None = None) -> _Position:
        if lo is None and isinstance(step, Repetition):
            lo, hi = step.lo, step.hi
        key = step, lo, hi, after
        found = self._positions.get(key)
        if found is None:
            found = self._positions[key] = _Position(step, lo or 0, hi, after)
        return found

    def _advance(
        self,
        threads: dict[_Thread, None],
        conditions: frozenset[Node],
        position: _Position | None,
        behind: Mapping[Node, Node],
    ) -> bool:
        """Add the threads that can be read from a position on, in their order; True if one is complete, so that none follows it."""
        stack: list[_Pending] = [(conditions, position, None)]
        seen = set[tuple[frozenset[Node], _Position, tuple[_Position, ...]]]()
        empty_loops: list[
            tuple[int, _Position]
        ] = []  # loops whose iteration has read nothing yet, and the size of the stack then
        while stack:
            conditions, position, loop = stack.pop()
            while empty_loops and len(stack) < empty_loops[-1][0]:
                empty_loops.pop()
            if loop is not None:
                empty_loops.append((len(stack), loop))
            if position is None:
                if conditions:
                    continue  # complete only before some texts
                threads[_COMPLETE] = None
                return True
            if isinstance(position.step, Repetition) and any(position.follows(loop) for _, loop in empty_loops):
                stack.append((conditions, position.after, None))  # an optional iteration that read nothing is the last
                continue
            key = conditions, position, tuple(loop for _, loop in empty_loops)
            if key in seen:
                continue
            seen.add(key)
            self.steps_left -= 1
            step = position.step
            if isinstance(step, Plain) and step.node is not EPSILON:
                if step.node is not EMPTY:
                    threads.setdefault((conditions, step.node, position.after))
            else:
                stack += self._expanded(conditions, position, behind)
        return False

    def _expanded(
        self, conditions: frozenset[Node], position: _Position, behind: Mapping[Node, Node]
    ) -> Iterable[_Pending]:
        """The positions to which a step that reads nothing leads; the last one is tried first."""
        step, after = position.step, position.after
        if isinstance(step, Alternation):
            return [(conditions, self._position(part, after), None) for part in reversed(step.steps)]
        if isinstance(step, Repetition):
            return [(conditions, *turn) for turn in self._turns(position, step)]
        if isinstance(step, Concatenation):
            for part in reversed(step.steps):
                after = self._position(part, after)
        elif isinstance(step, After):
            if behind[step.node].nullable is step.is_negative:
                return ()
        elif not isinstance(step, Plain):
            condition = _ahead(step, behind)
            if condition is EMPTY:
                return ()
            conditions |= {condition} - {ANYTHING}
        return ((conditions, after, None),)

    def _turns(self, position: _Position, loop: Repetition) -> list[tuple[_Position | None, _Position | None]]:
        """The positions after a loop and in another iteration of it (then with the loop); the last one is tried first."""
        lo, hi, after = position.lo, position.hi, position.after
        if hi == 0:
            return [(after, None)]
        turn = self._position(loop.body, self._position(loop, after, max(lo - 1, 0), None if hi is None else hi - 1))
        if lo:
            return [(turn, position)]
        return [(turn, position), (after, None)] if loop.is_lazy else [(after, None), (turn, position)]


def _ahead(step: Step, behind: Mapping[Node, Node]) -> Node:
    if isinstance(step, Rest):
        return step.node
    if not isinstance(step, Lookahead):
        raise postfix.NotSupported("a lookaround of this kind", "Write it in another way.")
    whole = continuation(step.body, continuation(_ANYTHING, None))
    seen = follow(EPSILON, whole, behind)
    return nodes.complement(seen) if step.is_negative else seen


_ANYTHING = plain(ANYTHING)


def _atoms(lists: Iterable[Sequence[tuple[int, Node]]]) -> list[int]:
    """The coarsest disjoint masks of which every mask in the lists is a union."""
    atoms = [ALL_BYTES]
    for arcs in lists:
        for mask, _ in arcs:
            atoms = [part for atom in atoms for part in (atom & mask, atom & ~mask) if part]
    return atoms
