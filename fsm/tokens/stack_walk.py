"""`StackWalk`: the masks of context-free grammars by a walk of the token trie with a pushdown automaton, whose stacks, and what they read,
are kept from one walk to the next (`stacks`). Loops over many characters, such as names, are products of a small DFA and the trie, which
all constraints share (`LexemeProduct`).

A walk with sets of alternatives has a state, with all its transitions, for each set of stacks, of which an operator grammar has thousands.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded
from fsm.process_fork import rlock
from fsm.terms import node as nodes
from fsm.terms.derivative import bytes_in
from fsm.terms.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.tokens.stacks.factor import Factors, Head
from fsm.tokens.stacks.reading import READ_RUN, Readings, Walk, Wide
from fsm.tokens.stacks.stack import DEAD, END, Stacks
from fsm.tokens.walk import Exits
from fsm.trie import Trie

MAX_STACKS = 40_000  # beyond them all are forgotten before the next walk
MAX_READINGS = 100_000  # of terms at nodes of the trie, likewise
MAX_PLACES = 64  # where a product may be left with one byte, before its rests are walked once for all of them
MAX_LEAVING = 200  # products with what leaves them that are kept, 20 to 100 kilobytes each
_FINITE = frozenset({Kind.EPSILON, Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.CONCAT, Kind.ALTERNATION})


_Many = tuple[Trie, NDArray[np.int32], NDArray[np.int32]]
"""A trie of what tokens go on with, these tokens, and for each the number of its text in that trie."""


class _Exit(NamedTuple):
    """A byte with which a product is left, the nodes before it, and where these are many the texts from the byte on."""

    byte: int
    places: list[int]
    many: _Many | None


class _Below(NamedTuple):
    """Texts below some children of a node, as ranges of the sorted texts: where each begins, ascending, and its end."""

    firsts: NDArray[np.int32]
    ends: NDArray[np.int32]

    @classmethod
    def of(cls, trie: Trie, children: list[int]) -> _Below:
        """The texts below siblings, which are in order."""
        firsts = trie.first_text[children]
        return cls(firsts, firsts + trie.num_texts[children])

    def has(self, trie: Trie, nodes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """For each of some nodes at or below the children, or beside them, whether it is at or below one."""
        texts = trie.first_text[nodes]
        which = np.searchsorted(self.firsts, texts, side="right") - 1
        found: NDArray[np.bool_] = (which >= 0) & (texts < self.ends[which])
        return found


class _Leaving:
    """The product of a term and the tokens below a node: those that end inside, and where the others leave it, by the next byte.

    Texts that a term excludes, such as keywords among names, are nodes at which it is not left: it has the product of all names.
    Where it may begin with some of its bytes alone, `hidden` are the children of the node by the others.
    """

    def __init__(
        self, product: LexemeProduct, excluded: set[int], hidden: list[int] | None, node: int, vocabulary: Tokens
    ) -> None:
        self._product, self._vocabulary = product, vocabulary
        self._excluded = excluded if hidden is None else excluded | {node}
        self.inside = product.inside
        self._hidden = None
        if hidden:
            self._hidden = _Below.of(vocabulary.trie, hidden)
            self.inside = product.inside & ~bitmask.from_ids(
                vocabulary.trie.texts_below(np.array(hidden))[1], vocabulary.num_words
            )
        self._by_byte: dict[int, _Exit] = {}
        self._by_mask: dict[int, list[_Exit]] = {}

    def exits(self, mask: int) -> list[_Exit]:
        """Where it is left by the bytes of a mask."""
        known = self._by_mask.get(mask)
        if known is None:
            found = (self._exit(byte) for byte in bytes_in(mask & self._product.bytes))
            known = self._by_mask[mask] = [exit for exit in found if exit.places]
        return known

    def _exit(self, byte: int) -> _Exit:
        known = self._by_byte.get(byte)
        if known is None:
            parents = self._vocabulary.trie.parent[self._product.exits(byte)]
            if self._hidden is not None:
                parents = parents[~self._hidden.has(self._vocabulary.trie, parents)]
            places = [node for node in dict.fromkeys(parents.tolist()) if node not in self._excluded]
            many = self._find_many(byte) if len(places) > MAX_PLACES else None
            known = self._by_byte[byte] = _Exit(byte, places, many)
        return known

    def _find_many(self, byte: int) -> _Many | None:
        trie, exits = self._vocabulary.trie, self._vocabulary.exits(byte, True)
        if exits is None:
            return None
        is_left = np.ones(len(trie), bool)
        is_left[list(self._excluded)] = False
        steps = self._product.exits(byte)
        parents = trie.parent[steps]
        is_exit = np.zeros(len(trie), bool)
        is_exit[steps] = (
            is_left[parents] if self._hidden is None else is_left[parents] & ~self._hidden.has(trie, parents)
        )
        chosen = np.flatnonzero(is_exit[exits.nodes][exits.which])
        return exits.trie, exits.token_ids[chosen], exits.texts[chosen]


class Tokens(Protocol):
    """What is needed of `Vocabulary`."""

    num_words: int
    trie: Trie

    def lexeme_product(self, term: Node, node: int) -> LexemeProduct:
        """See `Vocabulary`."""

    def exits(self, byte: int, at_once: bool) -> Exits | None:
        """See `Vocabulary`."""


class StackWalk:
    """The walks of one vocabulary's trie with the stacks of one language, which are kept from one walk to the next."""

    def __init__(self, automaton: Automaton, vocabulary: Tokens) -> None:
        self._automaton, self._vocabulary, self._trie = automaton, vocabulary, vocabulary.trie
        self._lock = rlock()
        self._forget()

    def _forget(self) -> None:
        self._factors = Factors(self._automaton.derivatives)
        self._stacks = Stacks(self._automaton, self._factors)
        self._readings = self._readings_of(self._trie, has_products=True)
        self._rest_readings: dict[int, Readings] = {}
        self._rests: dict[tuple[int, int], NDArray[np.bool_]] = {}
        self._divisions: dict[Node, tuple[Node, Node | None]] = {}
        self._leaving: dict[tuple[Wide, int], _Leaving] = {}

    def _readings_of(self, trie: Trie, has_products: bool) -> Readings:
        return Readings(self._stacks, self._factors, self._automaton.derivatives, trie, has_products)

    def mask(self, term: Node) -> NDArray[np.int32] | None:
        """The packed mask of a term that has a text; None if the walk takes too many steps.

        Cost: 1 us for each place of the trie where a term may end, and 10 us for each stack that is new; more while terms are met for the
        first time.
        """
        with self._lock:  # a thread must not number a stack while another one does
            return self._mask(term)

    def _mask(self, term: Node) -> NDArray[np.int32] | None:
        if len(self._stacks) > MAX_STACKS or len(self._readings) > MAX_READINGS:
            self._forget()
        words = np.zeros(self._vocabulary.num_words, np.int32)
        try:
            found = self._walked(self._readings, self._stacks.push(term, END), words)
        except BudgetExceeded as error:
            if error.limit not in ("max_heads", "max_visits"):
                raise
            return None
        bitmask.add_ids(words, np.array(found, np.int32))
        return words

    def _walked(self, readings: Readings, stack: int, words: NDArray[np.int32]) -> list[int]:
        """The labels of the texts that a stack reads, some of them several times; `words` takes the tokens of products."""
        walk, added = readings.walk(stack), set[_Leaving]()
        readings.finish(walk)
        while walk.late:
            late, walk.late = walk.late, {}
            runs = dict[int, set[int]]()
            for node, number, after in late:
                if number == READ_RUN:
                    runs.setdefault(node, set()).add(after)
                    continue
                what = readings.late[number]
                if isinstance(what, Head):
                    self._read_opaque(readings, walk, node, what, after)
                else:
                    leaving = self._left(what, node)
                    if leaving not in added:
                        added.add(leaving)
                        words |= leaving.inside
                    self._leave(readings, walk, leaving, after, words)
            walk.read_runs(runs)
            readings.finish(walk)
        return walk.found

    def _read_opaque(self, readings: Readings, walk: Walk, node: int, head: Head, below: int) -> None:
        """Read a byte of a head that depends on all that follows."""
        branches = readings.trie.branches(node)
        for mask, stack in readings.opaque_arcs(head, below):
            for byte in bytes_in(mask) if stack != DEAD else ():
                step = branches.get(byte)
                if step is not None:
                    child, labels, below_child = step
                    walk.move(child, labels, below_child > 0, EPSILON, EMPTY, stack)

    def _leave(self, readings: Readings, walk: Walk, leaving: _Leaving, stack: int, words: NDArray[np.int32]) -> None:
        """Go on where tokens leave a head that may begin with many bytes, and add those that leave it with one byte at many nodes."""
        done = set[int]()
        for level in self._stacks.levels(stack)[0]:
            for byte, places, many in leaving.exits(level[0]):
                if many is None:
                    walk.enter_level(places, level)
                elif byte not in done:
                    done.add(byte)
                    trie, token_ids, texts = many
                    bitmask.add_ids(words, token_ids[self._rests_after(byte, stack, trie)[texts]])

    def _left(self, wide: Wide, node: int) -> _Leaving:
        """Where tokens leave a head that may begin with many bytes."""
        known = self._leaving.get((wide, node))
        if known is None:
            whole, excluded = self._without(wide.atom)
            places = set[int]() if excluded is None else self._places_of(excluded, node)
            hidden = None
            if wide.first != ALL_BYTES:
                others = self._automaton.derivatives.first_bytes(wide.atom) & ~wide.first
                hidden = [child for child, byte in self._trie.children(node) if others >> byte & 1]
            if len(self._leaving) > MAX_LEAVING:
                self._leaving.clear()
            product = self._vocabulary.lexeme_product(whole, node)
            known = self._leaving[wide, node] = _Leaving(product, places, hidden, node, self._vocabulary)
        return known

    def _without(self, term: Node) -> tuple[Node, Node | None]:
        """Read a term as another one without finitely many texts, after each of which the other goes on; else the term, and None."""
        known = self._divisions.get(term)
        if known is None:
            known = term, None
            if term.kind is Kind.INTERSECTION and len(term.args) == 2:
                one, other = term.args if term.args[1].kind is Kind.COMPLEMENT else reversed(term.args)
                if (
                    other.kind is Kind.COMPLEMENT
                    and one.is_plain
                    and nodes.ends_in_loop(one)
                    and _is_finite(other.args[0])
                ):
                    known = one, other.args[0]
            self._divisions[term] = known
        return known

    def _places_of(self, texts: Node, node: int) -> set[int]:
        """The nodes below one at which one of some texts ends."""
        found, waiting = set[int](), [(node, texts)]
        while waiting:
            here, term = waiting.pop()
            if term.nullable:
                found.add(here)
            moves, arcs = self._factors.atom(term)
            steps = [(byte, target) for mask, target in arcs for byte in bytes_in(mask)] if arcs else moves.items()
            for byte, target in steps:
                step = self._trie.step(here, byte)
                if step is not None and target is not None and (step[2] or target.nullable):
                    waiting.append((step[0], target))
        return found

    def _rests_after(self, byte: int, stack: int, trie: Trie) -> NDArray[np.bool_]:
        """For each text from a byte on, with which tokens go on, whether a stack reads it."""
        known = self._rests.get((byte, stack))
        if known is None:
            readings = self._rest_readings.get(byte)
            if readings is None or readings.trie is not trie:
                readings = self._rest_readings[byte] = self._readings_of(trie, has_products=False)
            known = np.zeros(len(trie.ends), bool)
            known[self._walked(readings, stack, np.zeros(0, np.int32))] = True
            if len(self._rests) > 500:
                self._rests.clear()
            self._rests[byte, stack] = known
        return known


def _is_finite(term: Node) -> bool:
    return all(part.kind in _FINITE for part in nodes.all_parts(term))
