"""`CharacterDFA`: a DFA whose transitions are labelled with sets of characters, made from a byte DFA, or turned into a term. It converts
between terms, which are over the bytes of UTF-8, and the automata over characters of other libraries. `character_dfa` takes those states of
a byte DFA that lie between two characters, breadth first (`explored`; `CharacterSteps` for single states, as drawings need), and raises
`BudgetExceeded` above `max_states`. Only valid UTF-8 is read, so surrogates are excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from fsm.automaton.byte_dfa import ByteDFA
from fsm.errors import exceeded
from fsm.terms import node as nodes
from fsm.terms.characters import Ranges, intersect, normalize, utf8
from fsm.terms.node import EMPTY, EPSILON, Node

Arcs = tuple[tuple[Ranges, int], ...]
"""Disjoint sets of characters, each with the state after any of them; no two lead to the same state."""

State = TypeVar("State", bound=Hashable)

_Pieces = list[tuple[int, int, int]]
"""Ranges of numbers, first and last, each with the state after them."""

_LEADS: tuple[tuple[int, int, int, Ranges], ...] = (
    # the first lead byte, the number of lead bytes, how many bytes follow one, and the characters that are spelled so
    (0x00, 0x80, 0, ((0, 0x7F),)),
    (0xC0, 0x20, 1, ((0x80, 0x7FF),)),
    (0xE0, 0x10, 2, ((0x800, 0xD7FF), (0xE000, 0xFFFF))),
    (0xF0, 0x08, 3, ((0x10000, 0x10FFFF),)),
)


class CharacterDFA(nodes.Content, nodes.Machine):
    """A deterministic automaton over characters; state 0 is the initial one. Immutable, equal where all states are the same.

    Args:
        arcs: for each state, disjoint sets of characters with the state after them.
        accepting: the states in which a text may end.

    Attributes:
        transitions: the arcs, without those to states from which no accepting state can be reached.
        accepting: the states in which a text may end.
    """

    __slots__ = ("accepting", "transitions")

    def __init__(self, arcs: Sequence[Iterable[tuple[Ranges, int]]], accepting: Iterable[int]) -> None:
        joined = [_joined(found) for found in arcs]
        self.accepting = frozenset(accepting)
        alive = _reaching(joined, self.accepting)
        self.transitions: tuple[Arcs, ...] = tuple(tuple(arc for arc in found if arc[1] in alive) for found in joined)
        super().__init__(self.transitions, self.accepting)

    def language(self, state: int = 0) -> Node:
        """The texts that the automaton accepts from a state on, as a term. Cost: none; arcs are made when they are needed.

        Arcs from a state to itself are a loop over characters, for which masks are made fast.
        """
        arcs = self.transitions[state]
        if not arcs and state not in self.accepting:
            return EMPTY
        loop = utf8(next((ranges for ranges, target in arcs if target == state), ()))
        is_left = any(target != state for _, target in arcs)
        rest = nodes.machine(self, state, is_plain=True) if is_left else EPSILON
        return nodes.concat(nodes.repeat(loop), rest)

    def is_accepting(self, state: int) -> bool:
        """True when a text may end in `state`."""
        return state in self.accepting

    def parts(self, state: int) -> tuple[Node, ...]:
        """What is accepted from a state on, where it is left with the first character, as one term."""
        arcs = self.transitions[state]
        ways = (nodes.concat(utf8(ranges), self.language(target)) for ranges, target in arcs if target != state)
        return (nodes.alternation(ways),)


def character_dfa(automaton: ByteDFA, max_states: int) -> CharacterDFA:
    """The automaton over characters of a regular term without checks, given that over bytes.

    Raises:
        BudgetExceeded: it has more than `max_states` states.

    Cost: some 20 us per state and byte that leads somewhere else.
    """
    steps = CharacterSteps(automaton)

    def arcs(state: int) -> Iterable[tuple[Ranges, int]]:
        return ((ranges, target) for target, ranges in steps.of(state).items())

    return explored(automaton.initial_state, arcs, automaton.is_accepting, max_states)


def explored(
    initial: State,
    arcs: Callable[[State], Iterable[tuple[Ranges, State]]],
    is_accepting: Callable[[State], bool],
    max_states: int | None = None,
) -> CharacterDFA:
    """The states that can be reached from an initial one, numbered breadth first.

    Raises:
        BudgetExceeded: there are more than `max_states`.
    """
    numbers = {initial: 0}
    found: list[list[tuple[Ranges, int]]] = []
    queue = [initial]
    for state in queue:
        found.append([])
        for ranges, target in arcs(state):
            if target not in numbers:
                numbers[target] = len(numbers)
                queue.append(target)
            found[-1].append((ranges, numbers[target]))
        if max_states is not None and len(numbers) > max_states:
            problem = f"expected an automaton of at most {max_states:,} states, received one with more"
            raise exceeded("max_states", max_states, problem, "Simplify the expression (nested counts multiply)")
    return CharacterDFA(found, (number for state, number in numbers.items() if is_accepting(state)))


class CharacterSteps:
    """The transitions of a byte DFA by whole characters, computed for each state when it is needed."""

    def __init__(self, automaton: ByteDFA) -> None:
        self._automaton = automaton
        self._known: dict[tuple[int, int], _Pieces] = {}

    def of(self, state: int) -> dict[int, Ranges]:
        """The characters that lead from a state to another, by that state."""
        found: dict[int, list[tuple[int, int]]] = {}
        moves = self._automaton.moves(state)
        for first, num_leads, num_following, spelled in _LEADS:
            by_target: dict[int, list[tuple[int, int]]] = {}
            for bits in range(num_leads):
                if first + bits in moves:
                    base = bits << 6 * num_following
                    for low, high, target in self._after(moves[first + bits], num_following):
                        by_target.setdefault(target, []).append((base + low, base + high))
            for target, ranges in by_target.items():
                found.setdefault(target, []).extend(intersect(normalize(ranges), spelled))
        return {target: normalize(ranges) for target, ranges in found.items() if ranges}

    def _after(self, state: int, num_following: int) -> _Pieces:
        """The targets of `num_following` bytes 0x80 to 0xBF, at most three, by the number that their last six bits make together."""
        if not num_following:
            return [(0, 0, state)]
        known = self._known.get((state, num_following))
        if known is None:
            known = self._known[state, num_following] = []
            moves = self._automaton.moves(state)
            for byte in range(0x80, 0xC0):
                base = (byte & 0x3F) << 6 * (num_following - 1)
                for low, high, target in self._after(moves[byte], num_following - 1) if byte in moves else ():
                    if known and known[-1][1:] == (base + low - 1, target):
                        known[-1] = (known[-1][0], base + high, target)
                    else:
                        known.append((base + low, base + high, target))
        return known


def _joined(arcs: Iterable[tuple[Ranges, int]]) -> Arcs:
    """One arc for each target."""
    by_target: dict[int, list[tuple[int, int]]] = {}
    for ranges, target in arcs:
        by_target.setdefault(target, []).extend(ranges)
    return tuple((normalize(ranges), target) for target, ranges in by_target.items() if ranges)


def _reaching(arcs: Sequence[Arcs], accepting: frozenset[int]) -> set[int]:
    """The states from which an accepting one can be reached."""
    sources: dict[int, list[int]] = {}
    for state, found in enumerate(arcs):
        for _, target in found:
            sources.setdefault(target, []).append(state)
    alive, queue = set(accepting), list(accepting)
    for state in queue:
        new = [source for source in sources.get(state, ()) if source not in alive]
        alive.update(new)
        queue += new
    return alive
