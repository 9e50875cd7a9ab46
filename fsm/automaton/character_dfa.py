"""`CharacterDFA`: a DFA whose transitions are labelled with sets of characters, made from a byte DFA, or turned into a term. It converts
between terms, which are over the bytes of UTF-8, and the automata over characters of other libraries. `character_dfa` takes those states of
a byte DFA that lie between two characters, breadth first (`explored`; `CharacterSteps` for single states, as drawings need), and raises
`BudgetExceeded` above `max_states`. Only valid UTF-8 is read, so surrogates are excluded.

`read_fsm`, `make_fsm`: convert automata of `interegular` to a `CharacterDFA`, and back; no other module imports that library. Its
automata are DFAs over characters, in which all characters that no transition names are one symbol, `anything_else`. `make_fsm` lists the
characters of all minterms but the largest one by one; more than `max_symbols` raise `BudgetExceeded`. Texts with surrogates are left out
when read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from interegular.fsm import FSM, Alphabet, anything_else

from fsm.automaton.byte_dfa import ByteDFA
from fsm.errors import ExpressionError, exceeded, shorten
from fsm.terms import node as nodes
from fsm.terms.characters import ALL_CHARACTERS, MAX_CODE_POINT, Ranges, intersect, invert, normalize, utf8
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
        edges = ((state, target) for state, found in enumerate(joined) for _, target in found)
        alive = nodes.reaching(self.accepting, edges)
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


def read_fsm(fsm: Any) -> CharacterDFA:
    """Return an automaton of interegular as a `CharacterDFA`, without texts with a surrogate, as it has no UTF-8.

    Raises:
        ExpressionError: `fsm` is not an automaton of that library, or its symbols are not characters.

    Cost: linear in its symbols and its arcs.
    """
    if not isinstance(fsm, FSM):
        raise ExpressionError(
            f"expected an automaton of interegular, an `interegular.FSM`, received {shorten(fsm)}. "
            "`interegular.parse_pattern(pattern).to_fsm()` makes one; for a pattern as text call `fsm.regex`."
        )
    sets = {key: _characters(symbols, fsm.alphabet) for key, symbols in fsm.alphabet.by_transition.items()}

    def arcs(state: Any) -> Iterable[tuple[Ranges, Any]]:
        return ((sets.get(key, ()), target) for key, target in fsm.map.get(state, {}).items())

    return explored(fsm.initial, arcs, fsm.finals.__contains__)


def _characters(symbols: Iterable[Any], alphabet: Alphabet) -> Ranges:
    """The characters of some symbols of an alphabet."""
    found: list[tuple[int, int]] = []
    for symbol in symbols:
        if symbol is anything_else:
            named = (ord(other) for other in alphabet if _is_character(other))
            found += invert(normalize((code, code) for code in named))
        elif _is_character(symbol):
            found.append((ord(symbol), ord(symbol)))
        else:
            raise ExpressionError(
                f"expected an automaton over characters, received one with the symbol {shorten(symbol)}. "
                "Build it with texts of one character, and `interegular.fsm.anything_else` for all others."
            )
    return normalize(found)


def _is_character(symbol: object) -> bool:
    return isinstance(symbol, str) and len(symbol) == 1


def make_fsm(dfa: CharacterDFA, max_symbols: int) -> FSM:
    """Return the automaton as one of interegular; the largest of its classes of characters is `anything_else`.

    Raises:
        BudgetExceeded: the other sets have more than `max_symbols` characters, each of which is a symbol of its own.

    Cost: 0.2 us per symbol, and the sets of characters times the arcs of a state.
    """
    sets = {
        ranges: number for number, ranges in enumerate(dict.fromkeys(r for arcs in dfa.transitions for r, _ in arcs))
    }
    kinds = _minterms(list(sets))
    sizes = {kind: sum(last - first + 1 for first, last in ranges) for kind, ranges in kinds.items()}
    others = max(sizes, key=lambda kind: sizes[kind])
    num_symbols = sum(sizes.values()) - sizes[others]
    if num_symbols > max_symbols:
        problem = (
            f"expected an automaton with at most {max_symbols:,} named characters, received one with {num_symbols:,}"
        )
        advice = "Name fewer characters (`\\w` of ASCII has 63: `regex(pattern, ascii=True)`)"
        raise exceeded("max_symbols", max_symbols, problem, advice)
    symbols: dict[Any, Any] = {}
    keys: dict[int, list[int]] = {number: [] for number in sets.values()}
    for key, (kind, ranges) in enumerate(kinds.items()):
        characters = (chr(code) for first, last in ranges for code in range(first, last + 1))
        symbols.update(dict.fromkeys((anything_else,) if kind == others else characters, key))
        for number, in_set in keys.items():
            if kind >> number & 1:
                in_set.append(key)
    table = {  # from 1 on, since `FSM.isdisjoint` treats the state 0 as missing
        state: {key: target + 1 for ranges, target in arcs for key in keys[sets[ranges]]}
        for state, arcs in enumerate(dfa.transitions, 1)
    }
    return FSM(Alphabet(symbols), set(table), 1, {state + 1 for state in dfa.accepting}, table)


def _minterms(sets: list[Ranges]) -> dict[int, Sequence[tuple[int, int]]]:
    """The minterms of some sets of characters: the key has a bit for each set that contains them."""
    toggles: dict[int, int] = {0: 0, MAX_CODE_POINT + 1: 0}
    for number, ranges in enumerate(sets):
        for first, last in ranges:
            toggles[first] = toggles.get(first, 0) ^ 1 << number
            toggles[last + 1] = toggles.get(last + 1, 0) ^ 1 << number
    edges = sorted(toggles)
    found: dict[int, list[tuple[int, int]]] = {}
    kind = 0
    for first, after in pairwise(edges):
        kind ^= toggles[first]
        found.setdefault(kind, []).append((first, after - 1))
    kinds = {**found, 0: intersect(normalize(found.get(0, ())), ALL_CHARACTERS)}  # surrogates are in no set
    return {kind: ranges for kind, ranges in kinds.items() if ranges}
