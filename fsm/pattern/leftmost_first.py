"""`preferred`: the texts that `re.match` matches in full by leftmost-first (Perl) priority, as a term; a state is one of Pike's matcher.

Of all ways to match, `re` takes the first in the order of alternatives and greedy or lazy repetition, so `/x|xy/` never matches all of
"xy", and `/".*?"/` ends at the first quote. A state is an ordered list of threads: after a complete thread all others are dropped, and
those before it continue; a text belongs to the term where a thread is complete at its end. `simplest` returns the plain language of the
pattern where a bounded comparison proves both equal.
Not supported: the same constructs as in `lookaround.py`. Lookarounds see the matched text and nothing around it.
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
class _Place:
    """A position in the pattern: the step that comes next, its remaining iterations, and the position after it."""

    step: Step
    lo: int
    hi: int | None
    after: _Place | None

    def follows(self, turn: _Place) -> bool:
        """True where this is the rest of a loop after an iteration beyond its lower bound."""
        return turn.step is self.step and turn.after is self.after and turn.lo == 0


_Thread = tuple[frozenset[Node], Node, _Place | None]
"""What must yet hold of the rest of the text, what is being read, and where the thread goes on (one way to match, half read)."""
_State = tuple[tuple[_Thread, ...], tuple[Node, ...]]
"""The threads in their order, and what it would take for each condition on what was read to hold."""
_Ordered = tuple[Step, Step]
"""A part as it is written, whose order matters, and the same language simplified."""
_COMPLETE: _Thread = (frozenset(), EPSILON, None)


def preferred(program: Iterable[postfix.Instruction], spell: Speller) -> Node:
    """The texts `w` of a pattern for which `re.match(pattern, w)` is all of `w`; see `simplest`.

    Args:
        program: a well-formed pattern in postfix order.
        spell: how a character is written in bytes.

    Raises:
        NotSupported: a lookaround is used in a way that is not supported.

    Cost: linear in the pattern; a state for each list of threads that is met.
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
        return _sequence(parts) if isinstance(instruction, postfix.Join) else Alternation(
            step.behind, tuple(parts)
        ), step

    whole, _ = postfix.evaluated(program, leaf, combine)
    reader = _Reader(looks, is_plain=not looks and _is_plain(whole))
    return nodes.machine(reader, reader.start(whole), is_plain=reader.is_plain)


def simplest(taken: Node, language: Node) -> Node:
    """`language` of a pattern, where all its texts are `taken` whole, as that is the simpler term; `taken` where it is not known.

    Raises:
        BudgetExceeded: there are very many ways to read the pattern.
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
    """True where every part can be read."""
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
    """Reads the threads of one pattern; a machine in the sense of `node.Machine`.

    Args:
        looks: all steps that look ahead or behind.
        is_plain: whether every thread can be read to its end. Then some text leads from every state to a complete thread: the shortest that
            any thread reads, since no other is complete before it.
    """

    def __init__(self, looks: Sequence[Step], *, is_plain: bool) -> None:
        self.is_plain = is_plain
        self.steps_left: float = math.inf
        found = frozenset[Node]().union(*(look.behind for look in looks))
        self._behind = tuple(sorted(found, key=lambda node: node.serial))
        self._places: dict[tuple[object, ...], _Place] = {}

    def start(self, whole: Step) -> _State:
        """The state before the first byte."""
        threads: dict[_Thread, None] = {}
        self._advance(
            threads, frozenset(), self._place(whole, None), dict(zip(self._behind, self._behind, strict=True))
        )
        return tuple(threads), self._behind

    def is_accepting(self, state: _State) -> bool:
        """True when a thread is complete: those that would be taken instead of it have not come to an end."""
        return _COMPLETE in state[0]

    def parts(self, state: _State) -> tuple[Node, ...]:
        """The terms that the threads read, and those that their conditions are."""
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
                "and end in many places. Simplify the nested counts.",
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

    def _place(self, step: Step, after: _Place | None, lo: int | None = None, hi: int | None = None) -> _Place:
        if lo is None and isinstance(step, Repetition):
            lo, hi = step.lo, step.hi
        key = step, lo, hi, after
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(step, lo or 0, hi, after)
        return place

    def _advance(
        self,
        threads: dict[_Thread, None],
        conditions: frozenset[Node],
        place: _Place | None,
        behind: Mapping[Node, Node],
    ) -> bool:
        """Add all that may be read from `place` on, in its order; True where a thread is complete, so that none comes after it."""
        stack: list[tuple[frozenset[Node], _Place | None, _Place | None]] = [(conditions, place, None)]
        seen = set[tuple[frozenset[Node], _Place, tuple[_Place, ...]]]()
        turns: list[
            tuple[int, _Place]
        ] = []  # the loops whose turn has begun and read nothing, and how long the stack was
        while stack:
            conditions, place, loop = stack.pop()
            while turns and len(stack) < turns[-1][0]:
                turns.pop()
            if loop is not None:
                turns.append((len(stack), loop))
            if place is None:
                if conditions:
                    continue  # it would hold only for some of what may follow
                threads[_COMPLETE] = None
                return True
            step, after = place.step, place.after
            if isinstance(step, Repetition) and any(place.follows(turn) for _, turn in turns):
                stack.append((conditions, after, None))  # a turn that need not be and read nothing is the last
                continue
            key = conditions, place, tuple(turn for _, turn in turns)
            if key in seen:
                continue
            seen.add(key)
            self.steps_left -= 1
            if isinstance(step, Plain):
                if step.node is EPSILON:
                    stack.append((conditions, after, None))
                elif step.node is not EMPTY:
                    threads.setdefault((conditions, step.node, after))
            elif isinstance(step, Concatenation):
                for part in reversed(step.steps):
                    after = self._place(part, after)
                stack.append((conditions, after, None))
            elif isinstance(step, Alternation):
                stack += [(conditions, self._place(part, after), None) for part in reversed(step.steps)]
            elif isinstance(step, Repetition):
                stack += [(conditions, *turn) for turn in self._turns(place, step)]
            elif isinstance(step, After):
                if behind[step.node].nullable is not step.is_negative:
                    stack.append((conditions, after, None))
            else:
                condition = _ahead(step, behind)
                if condition is not EMPTY:
                    stack.append((conditions | ({condition} - {ANYTHING}), after, None))
        return False

    def _turns(self, place: _Place, loop: Repetition) -> list[tuple[_Place | None, _Place | None]]:
        """Where a loop may go on, and the loop where that is another turn of it; the last one is tried first."""
        if place.hi == 0:
            return [(place.after, None)]
        less = self._place(loop, place.after, max(place.lo - 1, 0), None if place.hi is None else place.hi - 1)
        turn = self._place(loop.body, less)
        if place.lo:
            return [(turn, place)]
        return [(turn, place), (place.after, None)] if loop.is_lazy else [(place.after, None), (turn, place)]


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
