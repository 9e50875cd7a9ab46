"""`Stacks`: terms as stacks of factors that share their lower parts (a graph-structured stack). A stack is a number; alternatives that have
the same factors above them are one stack, a union. Whether a stack has a text is found when it is made.

A stack may have a hole at its bottom in place of what is below: what it does above the hole is the same for all stacks in its place.

Source: Tomita 1987 (graph-structured stacks).
"""

from __future__ import annotations

from collections.abc import Collection

from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms.free_text import ANY_TEXT, Masks
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.tokens.stacks.factor import Factors, Path, guard, guarded

END = 0  # the stack without factors
HOLE = 1  # a stack of which nothing is known
DEAD = -1


Level = tuple[int, int, int]
"""A term on a stack: the bytes with which it may begin, its number (`Stacks.terms`), and the stack below it."""
Levels = tuple[tuple[Level, ...], tuple[int, ...]]
"""What a stack may begin with: its terms down to the first that cannot be empty, and the rivals (numbers) with which a hole is reached."""


class Stacks:
    """The stacks of one language. Terms have numbers: the collector of cycles visits every tuple with a term in it, and none of numbers.

    Attributes:
        terms: by number; 0 is EMPTY, of a rival that there is not.
        is_open: for each stack, whether a hole is below it.
    """

    def __init__(self, automaton: Automaton, factors: Factors) -> None:
        self._automaton, self._factors = automaton, factors
        self.terms: list[Node] = [EMPTY]
        self._term_numbers: dict[Node, int] = {EMPTY: 0}
        self.is_open = [False, True]
        self._tops: list[Node] = [EPSILON, EPSILON]
        self._lower: list[int] = [END, HOLE]
        self._numbers: dict[int, int] = {}  # by the serial number of a term, which other tables keep, and a stack
        self._unions: dict[int, tuple[int, ...]] = {}
        self._union_numbers: dict[frozenset[int], int] = {}
        self._wholes: dict[int, Node] = {END: EPSILON}
        self._lefts: dict[Masks, dict[Node, Masks]] = {}
        self._conditions: dict[int, Masks] = {}
        self._followed: dict[tuple[Masks, int], bool] = {}
        self._levels: dict[int, Levels] = {}
        self._begins: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        self._closed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tops)

    def push(self, term: Node, stack: int) -> int:
        """The stack with a term on top of another one, factor by factor; `DEAD` where it has no text."""
        if term is EPSILON or stack == DEAD:
            return stack
        known = self._numbers.get(term.serial << 32 | stack)
        if known is not None:
            return known
        if stack == END:
            return self._push_whole(term)
        factors, rest = list[Node](), term
        while rest is not EPSILON:
            factor, rest = self._factors.divided(rest)
            factors.append(factor)
        number = self._push_factors(factors, stack)
        self._numbers[term.serial << 32 | stack] = number
        return number

    def push_path(self, path: Path, stack: int) -> int:
        """The stack with the terms of a path on top of another one; `DEAD` where it has no text."""
        for term in path:
            stack = self.push(term, stack)
        return stack

    def push_guard(self, rival: Node, stack: int) -> int:
        """The stack of which no prefix is a text of a rival; `DEAD` where it has no text."""
        return self._push_factor(guard(rival), stack)

    def _push_whole(self, term: Node) -> int:
        """The stack of a term after which nothing is left. Its alternatives are stacks where each has a rest of the text in it, as
        `nodes.concat` makes them at a place where a lexeme may end or go on.
        """
        numbers, waiting = self._numbers, [term]
        while waiting:
            top = waiting[-1]
            factors, rest = list[Node](), top
            while rest is not EPSILON and not _is_divided(rest):
                factor, rest = self._factors.divided(rest)
                factors.append(factor)
            missing = [member for member in _members(rest) if member.serial << 32 not in numbers]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            number = END
            if rest is not EPSILON:
                alive = {numbers[member.serial << 32] for member in rest.args} - {DEAD}
                number = self.united(alive) if alive else DEAD
            numbers[top.serial << 32] = self._push_factors(factors, number)
        return numbers[term.serial << 32]

    def _push_factors(self, factors: list[Node], stack: int) -> int:
        for factor in reversed(factors):
            stack = self._push_factor(factor, stack)
        return stack

    def _push_factor(self, factor: Node, stack: int) -> int:
        if stack == DEAD:
            return DEAD
        key = factor.serial << 32 | stack
        number = self._numbers.get(key)
        if number is None:
            number = DEAD
            if self._is_alive(factor, stack):
                number = self._add(factor, stack, self.is_open[stack])
            self._numbers[key] = number
        return number

    def _add(self, factor: Node, stack: int, is_open: bool) -> int:
        self._tops.append(factor)
        self._lower.append(stack)
        self.is_open.append(is_open)
        return len(self._tops) - 1

    def _is_alive(self, factor: Node, stack: int) -> bool:
        """Whether a factor has a text that a stack may follow; above a hole whether it has one."""
        left = self._left(factor)
        if self.is_open[stack]:
            return bool(left) or self._automaton.is_alive(factor)
        return self._seems_after(left, stack) or self._automaton.is_alive(nodes.concat(factor, self.whole(stack)))

    def united(self, stacks: Collection[int]) -> int:
        """The stack that any of some stacks is, which have the same above them: what they do next is done once."""
        if len(stacks) == 1:
            return next(iter(stacks))
        members = frozenset(member for stack in stacks for member in self._unions.get(stack, (stack,)))
        number = self._union_numbers.get(members)
        if number is None:
            number = self._add(EPSILON, len(self._tops), any(self.is_open[one] for one in members))
            self._union_numbers[members] = number
            self._unions[number] = tuple(sorted(members))
        return number

    def called(self, rule: Node, paths: list[Path], below: int) -> int:
        """The stack of a rule with what may follow it; `DEAD` where it has no text."""
        after_rule = {self.push_path(path, below) for path in paths} - {DEAD}
        return self.push(rule, self.united(after_rule)) if after_rule else DEAD

    def _parts(self, stack: int) -> tuple[int, ...]:
        return self._unions.get(stack) or (self._lower[stack],)

    def whole(self, stack: int) -> Node:
        """The term that a stack is."""
        waiting = [stack]
        while waiting:
            here = waiting[-1]
            if here in self._wholes:
                waiting.pop()
                continue
            below = self._parts(here)
            missing = [one for one in below if one not in self._wholes]
            if missing:
                waiting += missing
            elif here in self._unions:
                self._wholes[here] = nodes.alternation(self._wholes[one] for one in below)
            else:
                self._wholes[here] = nodes.concat(self._tops[here], self._wholes[below[0]])
        return self._wholes[stack]

    def _left(self, factor: Node, masks: Masks = ANY_TEXT) -> Masks:
        lefts = self._lefts.get(masks)
        if lefts is None:
            lefts = self._lefts[masks] = {}
        known = lefts.get(factor)
        if known is None:
            known = lefts[factor] = self._automaton.derivatives.free_texts.left(factor, masks)
        return known

    def _seems_after(self, masks: Masks, stack: int) -> bool:
        """True if a stack is seen to have a text that begins with no byte of one of some masks; False if that takes a search."""
        while masks and masks != ANY_TEXT and stack != END:
            stack = self._unions.get(stack, (stack,))[0]
            masks, stack = self._left(self._tops[stack], masks), self._lower[stack]
        return bool(masks)

    def condition(self, stack: int) -> Masks:
        """The bytes with which what is below the hole must not begin, so that a stack above it has a text; none if that is not seen.

        With other bytes it may have one, too.
        """
        known = self._conditions.get(stack)
        if known is None:
            known, here = ANY_TEXT, stack
            while known and here != HOLE:
                here = self._unions.get(here, (here,))[0]
                if here != HOLE:
                    known, here = self._left(self._tops[here], known), self._lower[here]
            self._conditions[stack] = known
        return known

    def closed(self, stack: int, below: int) -> int:
        """The stack above a hole, with another one in its place; `DEAD` where it has no text there."""
        waiting = [stack]
        while waiting:
            here = waiting[-1]
            if here == HOLE or not self.is_open[here]:
                waiting.pop()
                self._closed[here << 32 | below] = below if here == HOLE else here
                continue
            parts = self._parts(here)
            missing = [one for one in parts if one << 32 | below not in self._closed]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            found = [self._closed[one << 32 | below] for one in parts]
            if here in self._unions:
                alive = {one for one in found if one != DEAD}
                number = self.united(alive) if alive else DEAD
            else:
                number = self._push_factor(self._tops[here], found[0])
            self._closed[here << 32 | below] = number
        return self._closed[stack << 32 | below]

    def follows(self, stack: int, below: int) -> bool:
        """Whether a stack above a hole has a text with another one in its place, which has one."""
        masks = self.condition(stack)
        if masks == ANY_TEXT:
            return True
        known = self._followed.get((masks, below))
        if known is None:
            known = self._followed[masks, below] = self._seems_after(masks, below)
        return known or self.closed(stack, below) != DEAD

    def number_of(self, term: Node) -> int:
        """The number of a term."""
        number = self._term_numbers.get(term)
        if number is None:
            number = self._term_numbers[term] = len(self.terms)
            self.terms.append(term)
        return number

    def levels(self, stack: int, rival: int = 0) -> Levels:
        """What a stack may begin with beside a rival, which is given by its number."""
        key = rival << 32 | stack
        known = self._levels.get(key)
        if known is None:
            known = self._levels[key] = self._find_levels(stack, rival)
        return known

    def _find_levels(self, stack: int, rival: int) -> Levels:
        levels, rivals = list[Level](), dict[int, None]()
        waiting, seen = [(stack, rival)], set[tuple[int, int]]()
        while waiting:
            item = here, other = waiting.pop()
            if here == END or item in seen:
                continue
            if here == HOLE:
                rivals[other] = None
                continue
            seen.add(item)
            known = self._levels.get(other << 32 | here)
            if known is not None:
                levels += known[0]
                rivals.update(dict.fromkeys(known[1]))
                continue
            if here in self._unions:
                waiting += [(member, other) for member in self._unions[here]]
                continue
            below = self._lower[here]
            mask, term, ends = self._begun(self._tops[here], other)
            if mask:
                levels.append((mask, term, below))
            waiting += [(below, one) for one in ends]
        return tuple(levels), tuple(rivals)

    def _begun(self, factor: Node, rival: int) -> tuple[int, int, tuple[int, ...]]:
        """The bytes with which a factor beside a rival may begin, the number of both, and the rivals with which it may be empty."""
        key = rival << 64 | factor.serial
        known = self._begins.get(key)
        if known is None:
            term = guarded(factor, self.terms[rival])
            ends = self._factors.factor(term).ends if term.nullable else []
            mask = self._automaton.derivatives.first_bytes(term)
            known = self._begins[key] = mask, self.number_of(term), tuple(map(self.number_of, ends))
        return known


def _is_divided(term: Node) -> bool:
    """True for alternatives each of which may have a rest of the text in it."""
    return term.kind is Kind.ALTERNATION and term.has_munch and not term.is_regular


def _members(rest: Node) -> tuple[Node, ...]:
    return () if rest is EPSILON else rest.args
