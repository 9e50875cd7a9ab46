"""`read_fsm`, `make_fsm`: convert automata of `interegular` to a `CharacterDFA`, and back; no other module imports that library. Its
automata are DFAs over characters, in which all characters that no transition names are one symbol, `anything_else`. `make_fsm` lists the
characters of all minterms but the largest one by one; more than `max_symbols` raise `BudgetExceeded`. Texts with surrogates are left out
when read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from interegular.fsm import FSM, Alphabet, anything_else

from fsm.automaton.character_dfa import CharacterDFA, explored
from fsm.errors import ExpressionError, exceeded, shorten
from fsm.terms.characters import ALL_CHARACTERS, MAX_CODE_POINT, Ranges, intersect, invert, normalize


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
