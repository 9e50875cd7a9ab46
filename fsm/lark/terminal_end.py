"""`TerminalEnd`: maximal munch (longest match) for a terminal, as a negative condition on what may follow each of its texts: nothing that
extends it to a longer text of the terminal or of a rival that the lexer prefers, nor what it excludes. Extensions of up to `MAX_BYTES`
bytes are enumerated in the product automaton of both; longer ones are approximated by their first bytes, which excludes a few texts and
allows no wrong one.

So the number `1` may end before `..`, since only a digit after the dot makes a longer number. Above `MAX_PLACES` product states the
condition is evaluated while the text is read (a term of kind MUNCH).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import Any, TypeVar

from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.terms.state_elimination import MAX_STATES, Arcs, eliminated

MAX_PLACES = 3_000  # states of the product automaton of head and rival
MAX_BYTES = 8  # of an extension; longer ones are approximated by their first bytes

_Pair = tuple[int, int]
"""A state of the head, and one of the rival."""

_NO_TEXT = Automaton(EPSILON)
_Argument = TypeVar("_Argument", bound=Hashable)
_Owner = TypeVar("_Owner")
_Found = TypeVar("_Found")


def cached_method(find: Callable[[_Owner, _Argument], _Found]) -> Callable[[_Owner, _Argument], _Found]:
    """Cache a method of one argument in the dictionary `_memo` of its object; a cache of bound methods would be a reference cycle."""

    @wraps(find)
    def cached(self: Any, argument: _Argument) -> _Found:
        memo: dict[Any, Any] = self._memo
        if (find, argument) not in memo:
            memo[find, argument] = find(self, argument)
        return memo[find, argument]  # type: ignore[no-any-return]

    return cached


class TerminalEnd:
    """The texts of `head`, each followed by nothing that extends it to a longer text of `head` or of a rival, nor by a text of `avoided`.

    `rival` is the automaton of other terminals that the lexer would prefer.
    """

    def __init__(self, head: Node, rival: Automaton, avoided: Node = EMPTY) -> None:
        self.head = head
        self._rival, self._avoided = rival, avoided
        self._memo: dict[Any, Any] = {}

    def short(self, head: Node, after: int) -> Node:
        """The same as `before` for a part of the texts of the head."""
        guards = self._guards(after)
        if guards is not None and len(set(guards.values())) <= 1:
            return nodes.concat(head, next(iter(guards.values()), EPSILON))
        tail = nodes.munch(EPSILON, EPSILON, self._avoided)
        return nodes.munch(head, tail, self._rival.nodes[Automaton.initial_state])

    @cached_method
    def before(self, after: int) -> Node:
        """The texts before the end, or before one of the bytes of a mask."""
        guards = self._guards(after)
        if guards is not None and len(set(guards.values())) > 1 and len(self._arcs) <= MAX_STATES:
            return eliminated(self._arcs, self._first, guards)
        return self.short(self.head, after)

    def _guards(self, after: int) -> dict[_Pair, Node] | None:
        """For each state where a text can end, the condition on the rest; None with too many states."""
        if len(self._arcs) > MAX_PLACES:
            return None
        ends = (pair for pair in self._arcs if self._texts.is_accepting(pair[0]))
        avoided = self._avoided
        if avoided is not EMPTY and not Derivatives().first_bytes(avoided) & after:
            avoided = EMPTY
        more = {pair: nodes.alternation((self._more(pair, after), avoided)) for pair in ends}
        return {pair: nodes.munch(EPSILON, EPSILON, rest) for pair, rest in more.items()}

    @cached_property
    def _texts(self) -> Automaton:
        return _NO_TEXT if self.head.kind is Kind.LITERAL else Automaton(self.head)

    @property
    def _first(self) -> _Pair:
        return self._texts.initial_state, self._rival.initial_state

    @cached_property
    def _arcs(self) -> Arcs[_Pair]:
        """The transitions of the product automaton while the head is alive; with too many states more than `MAX_PLACES`, incomplete."""
        if self.head.kind is Kind.LITERAL:  # only the state after the text is needed
            return {(_NO_TEXT.initial_state, self._rival.next_state(self._rival.initial_state, self.head.args[0])): []}
        found: Arcs[_Pair] = {}
        queue = [self._first]
        for pair in queue:
            if pair not in found:
                found[pair] = [(mask, target) for mask, target in self._steps(pair) if target[0] != DEAD]
                queue += [target for _, target in found[pair]]
            if len(found) > MAX_PLACES:
                break
        return found

    def _steps(self, pair: _Pair) -> list[tuple[int, _Pair]]:
        """The transitions of a state of the product automaton of head and rival: disjoint masks of bytes, and their targets."""
        own = self._texts.arcs(pair[0]) if pair[0] != DEAD else []
        others = self._rival.arcs(pair[1]) if pair[1] != DEAD else []
        steps, taken = [], 0
        for mask, target in own:
            for other, rival in others:
                if mask & other:
                    steps.append((mask & other, (target, rival)))
                    mask &= ~other
            if mask:
                steps.append((mask, (target, DEAD)))
        for mask, _ in own:
            taken |= mask
        steps += [(other & ~taken, (DEAD, rival)) for other, rival in others if other & ~taken]
        return steps

    def _more(self, pair: _Pair, after: int, depth: int = 0) -> Node:
        """The shortest texts from a state to acceptance by the head or the rival; their first byte is one of a mask."""
        texts = []
        for mask, target in self._steps(pair):
            if mask & after:
                is_end = depth == MAX_BYTES or any(
                    state != DEAD and automaton.is_accepting(state)
                    for automaton, state in zip((self._texts, self._rival), target, strict=True)
                )
                rest = EPSILON if is_end else self._more(target, nodes.ALL_BYTES, depth + 1)
                texts.append(nodes.concat(nodes.byte_set(mask & after), rest))
        return nodes.alternation(texts)
