"""Random texts of a language, the shortest way to an end after random moves; and masks by a walk of every token."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from hypothesis import strategies as st

from fsm import TokenFSM
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.bitmask import to_ids
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.members import MemberTable
from fsm.terms.node import EMPTY, Kind, Node

RANDOMS = st.integers(0, 2**32 - 1).map(Random)
"""Generators of random moves, by a seed: how many ways there are to choose from may depend on which terms other tests have left."""

_LONG = 1_000
_MAX_SEARCH = 300
_SEARCHED = (Kind.INTERSECTION, Kind.COMPLEMENT)


def _is_unknown(node: Node) -> bool:
    return node.kind is Kind.RULE and not node.args[0].is_built


def _parts(node: Node) -> tuple[Node, ...]:
    """What the shortest text of a term is made of; nothing is asked of a rule that no text has come to."""
    if _is_unknown(node):
        return ()
    if node.kind is Kind.MEMBERS:
        table, state = node.args
        return table.parts if _has_many_states(table) else (table.expand(state),)
    return nodes.children(node)


def _has_many_states(table: MemberTable) -> bool:
    return not table.is_ordered and not table.duties and len(table.entries) > 6


class Lengths:
    """The length of the shortest text of a term, by a fixed point over its parts (rules make circles)."""

    def __init__(self) -> None:
        self._known: dict[Node, float] = {}
        self._derivatives = Derivatives()

    def of(self, node: Node) -> float:
        if node not in self._known:
            order = [node]
            found = {node}
            for one in order:
                if one not in self._known and one.kind not in _SEARCHED:
                    new = [child for child in _parts(one) if child not in found]
                    found.update(new)
                    order.extend(new)
            value = {one: self._known.get(one, math.inf) for one in order}
            changed = True
            while changed:
                changed = False
                for one in reversed(order):
                    length = self._known.get(one, value[one])
                    if one not in self._known:
                        length = self._length(one, value)
                    if length < value[one]:
                        value[one], changed = length, True
            self._known.update(value)
        return self._known[node]

    def _length(self, node: Node, value: dict[Node, float]) -> float:
        kind, args = node.kind, node.args
        if kind is Kind.EMPTY:
            return math.inf
        if _is_unknown(node):
            return _LONG
        if node.nullable:
            return 0
        if kind is Kind.BYTES:
            return 1
        if kind is Kind.LITERAL:
            return len(args[0])
        if kind is Kind.WORDS:
            word_list, lo, hi, depth = args
            return min(len(word) for word in word_list.words[lo:hi]) - depth
        if kind is Kind.CONCAT:
            return value[args[0]] + value[args[1]]
        if kind is Kind.ALTERNATION:
            return min(value[child] for child in args)
        if kind is Kind.MUNCH:
            return value[args[0]] + value[args[1]] + 1  # so that leaving is shorter than staying
        if kind is Kind.MEMBERS and _has_many_states(args[0]):
            return _fewest(*args, value)
        if kind in (Kind.MEMBERS, Kind.CHECK, Kind.RULE):
            return value[_parts(node)[0]]
        if kind is Kind.REPEAT:
            return value[args[0]] * args[1] if args[1] else 0
        if kind is Kind.FIELDS:
            return self._fields(node, value)
        return _search(node, self._derivatives)

    def _fields(self, node: Node, value: dict[Node, float]) -> float:
        table, start, lo, hi, depth = node.args
        place = {rank: position for position, rank in enumerate(table.ranks)}
        stop = math.inf if table.stop is EMPTY else value[table.stop]
        best, later = math.inf, math.inf
        for rank in reversed(range(start, len(table.values))):
            is_last = rank == len(table.values) - 1
            after = value[table.last] if is_last else min(stop, value[table.between] + later)
            word = len(table.words[place[rank]])
            later = min(later, word + value[table.values[rank]] + after)
            if lo <= place[rank] < hi:
                best = min(best, word - depth + value[table.values[rank]] + after)
        return best


def _fewest(table: MemberTable, state: tuple[int, int, int], value: dict[Node, float]) -> float:
    """The length of the required members, and of the shortest others up to the least number; at least one."""
    seen, count, _ = state
    required = {entry.slot for entry in table.entries if entry.is_required}
    costs = dict[int, float]()
    for number, entry in enumerate(table.entries):
        slot = -number - 1 if entry.slot is None else entry.slot
        if slot < 0 or not seen >> slot & 1:
            costs[slot] = min(costs.get(slot, math.inf), value[entry.key] + value[entry.value])
    missing = [cost for slot, cost in costs.items() if slot in required]
    more = max(table.lo - count - len(missing), not missing)
    others = sorted(cost for slot, cost in costs.items() if slot not in required)[:more]
    if len(others) < more:
        return math.inf
    return sum(missing) + sum(others) + (len(missing) + len(others) - 1) * value[table.comma] + value[table.close]


def _search(node: Node, derivatives: Derivatives) -> float:
    layer, seen, length = [node], {node}, 0
    while layer and len(seen) < _MAX_SEARCH:
        if any(one.nullable for one in layer):
            return length
        layer = list(dict.fromkeys(t for one in layer for _, t in derivatives.arcs(one) if t not in seen))
        seen.update(layer)
        length += 1
    return _LONG if layer else math.inf


def random_text(node: Node, random: Random, steps: int) -> bytes:
    """A text of `node`: up to `steps` random moves, each class of bytes as likely as another, then the shortest end."""
    automaton, lengths = Automaton(node), Lengths()
    state, text = automaton.initial_state, bytearray()
    while True:
        moves = automaton.moves(state)
        if automaton.is_accepting(state) and (not moves or len(text) >= steps or random.random() < 0.2):
            return bytes(text)
        by_target: dict[int, list[int]] = {}
        for byte, target in moves.items():
            by_target.setdefault(target, []).append(byte)
        # Where a head is to be as long as it can be, what looks shortest may go on for ever; then a random move helps.
        is_stuck = len(text) > 2 * steps + 60 and random.random() < 0.4
        to_end = len(text) >= steps and not is_stuck
        shortest = min(by_target, key=lambda t: lengths.of(automaton.nodes[t])) if to_end else None
        target = shortest or random.choice(sorted(by_target))
        text.append(random.choice(by_target[target]))
        state = target


def plain_mask(token_fsm: TokenFSM, state: int, automaton: Automaton | None = None) -> list[int]:
    """The loop that every mask replaces: the ids of the tokens after whose bytes the automaton is alive, and of the ends."""
    tokens, eos = token_fsm.vocabulary.tokens, token_fsm.vocabulary.eos_token_ids
    automaton = automaton or token_fsm.automaton
    found = [i for i, token in enumerate(tokens) if token and i not in eos and automaton.next_state(state, token) != DEAD]
    return sorted([*found, *(eos if automaton.is_accepting(state) else ())])


def check_masks(token_fsm: TokenFSM, choose: Callable[[list[int]], int | None], steps: int = 6) -> bytes | None:
    """Compare each mask along a path with the plain loop; `choose` takes one of the ids of tokens, or ends. The text, if it is whole."""
    state, text, eos = token_fsm.initial_state, b"", token_fsm.vocabulary.eos_token_ids
    for _ in range(steps):
        expected = plain_mask(token_fsm, state)
        assert expected == token_fsm.allowed_token_ids(state).tolist() == to_ids(token_fsm.bitmask(state)).tolist()
        going_on = [i for i in expected if i not in eos]
        token_id = choose(going_on) if going_on else None
        if token_id is None:
            break
        state, text = token_fsm.next_state(state, token_id), text + (token_fsm.vocabulary.tokens[token_id] or b"")
    return text if token_fsm.is_accepting(state) else None
