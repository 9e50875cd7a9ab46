"""`SparseProduct`: a depth-first product of the token trie below one node with the DFA of the expression that a state begins with: a short
prefix (in `prefix rest`) or the body of a loop (in `body{lo,hi} rest`). It lists the tokens that end inside, and the trie nodes at which
the expression may end and `rest` begin, both with their numbers of iterations (here `rounds`), so one product serves all continuations and
bounds. `SparseProducts` caches them for all constraints; a prefix of more than `MAX_COST` steps, and a body that is no class, have none.

`CharacterLoop` does the same with arrays, for large subtries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from fsm.automaton.byte_dfa import FEW_BYTES, ByteDFA
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import PREFIX_KINDS, Kind, Node
from fsm.tokens.cache import ByteCache
from fsm.trie import Trie

MAX_TERMS = 40
MAX_COST = 600


def is_byte(body: Node) -> bool:
    """True if every text of `body` is a single byte, so that none is a proper prefix of another."""
    return body.kind is Kind.BYTES or (body.kind is Kind.LITERAL and len(body.args[0]) == 1)


def is_narrow(body: Node) -> bool:
    """True for a single byte out of a few, such as a space: then few tokens stay inside a loop over it, at any node."""
    return is_byte(body) and (body.kind is Kind.LITERAL or body.args[0].bit_count() <= FEW_BYTES)


class SparseProduct:
    """The product of a DFA and the subtrie below a node, independent of what follows the DFA's language.

    A text either ends inside the DFA, or may leave it at a node where the DFA accepts; both are listed. Each return to the initial state
    counts as one iteration, as it is in the DFA of `body*` where no text of `body` is a prefix of another. The DFA is in its initial state
    at `node`; after `max_cost` steps the product is abandoned.

    Attributes:
        labels: the texts that end inside.
        rounds: for each of them, its number of iterations, an incomplete last one included.
        most_rounds: the most iterations of any text before it ends or leaves.
        ends: by the next byte, the nodes where the DFA accepts: node, iterations, number of texts below.
        is_complete: whether the product was not abandoned.

    Cost: 1 us per node below and byte that may follow there.
    """

    def __init__(self, automaton: ByteDFA, trie: Trie, node: int, max_cost: float = float("inf")) -> None:
        self.labels: list[int] = []
        self.rounds: list[int] = []
        self.most_rounds = 0
        ends: dict[int, list[tuple[int, int, int]]] = {}
        start, cost = automaton.initial_state, 0
        stack = [(node, start, 0, trie.below(node))]
        while stack and cost <= max_cost:
            node, state, rounds, below = stack.pop()
            branches, moves = trie.branches(node), automaton.moves(state)
            cost += 4 + min(len(branches), len(moves))
            if automaton.is_accepting(state):
                self.most_rounds = max(self.most_rounds, rounds)
                for byte in branches:
                    ends.setdefault(byte, []).append((node, rounds, below))
            for byte in moves if len(moves) <= len(branches) else branches:
                step, target = branches.get(byte), moves.get(byte)
                if step is None or target is None:
                    continue
                child, labels, more = step
                if labels:
                    self.labels += labels
                    self.rounds += [rounds + 1] * len(labels)
                    self.most_rounds = max(self.most_rounds, rounds + 1)
                if more:
                    stack.append((child, target, rounds + (target == start), more))
        self.is_complete = not stack
        # Many bytes have the same; tuples of numbers are nothing that Python's collector of cycles visits, as it does lists.
        shared: dict[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]] = {}
        self.ends = {byte: shared.setdefault(found := tuple(at), found) for byte, at in ends.items()}

    @property
    def nbytes(self) -> int:
        """The estimated memory in bytes, with a part of the automaton."""
        return 5_000 + 20 * len(self.labels) + sum(200 + 100 * len(nodes) for nodes in self.ends.values())

    def inside(self, hi: int | None = None) -> list[int]:
        """The texts that end inside after at most `hi` iterations."""
        if hi is None or hi >= self.most_rounds:
            return self.labels
        return [label for label, rounds in zip(self.labels, self.rounds, strict=True) if rounds <= hi]

    def exits(self, next_bytes: Collection[int], lo: int = 0, hi: int | None = None) -> Collection[tuple[int, int]]:
        """The nodes where the DFA may end after `lo` to `hi` iterations before one of `next_bytes`, each with the number of texts below."""
        most, found = self.most_rounds if hi is None else hi, dict[tuple[int, int], None]()
        for byte in self.ends.keys() & next_bytes:
            for node, rounds, below in self.ends[byte]:
                if lo <= rounds <= most:
                    found[node, below] = None
        return found


class SparseProducts:
    """The products of one vocabulary, each made when it is first needed, in a cache of `max_bytes`.

    Attributes:
        known: the products, by term or body of a loop, node, and whether it is a loop.
    """

    def __init__(self, trie: Trie, max_bytes: int, automaton_of: Callable[[Node], ByteDFA]) -> None:
        self._trie, self._automaton_of = trie, automaton_of
        self.known: ByteCache[tuple[Node, int, bool], SparseProduct] = ByteCache(max_bytes)
        # By serial number, so that they keep no term alive:
        self._classes: dict[int, ByteDFA] = {}
        self._automata: dict[int, ByteDFA | None] = {}

    def add_class(self, body: Node, automaton: ByteDFA) -> None:
        """Note that `body` is a class of characters, and the automaton of `body*`."""
        if len(self._classes) > 200:
            self._classes.clear()
        self._classes[body.serial] = automaton

    def is_wide_class(self, body: Node) -> bool:
        """True if `body` is known to be a class of characters with many first bytes."""
        automaton = self._classes.get(body.serial)
        return automaton is not None and len(automaton.moves(automaton.initial_state)) > FEW_BYTES

    def loop(self, body: Node, node: int) -> SparseProduct | None:
        """The product of `body*` and the tokens below a node; None if `body` is not known to be a class of characters."""
        key = body, node, True
        product = self.known.get(key)
        if product is None:
            automaton = self._classes.get(body.serial)
            if automaton is None and is_byte(body):
                automaton = self._automaton_of(nodes.repeat(body))
            product = None if automaton is None else self._make(key, automaton)
        return product

    def prefix(self, term: Node, node: int) -> SparseProduct | None:
        """The product of a prefix `term` and the tokens below a node; None above `MAX_COST` steps, and for terms that are not narrow."""
        key = term, node, False
        product = self.known.get(key)
        automaton = self._narrow_automaton(term) if product is None else None
        if automaton is not None:
            product = self._make(key, automaton, MAX_COST)
        return product if product is not None and product.is_complete else None

    def _narrow_automaton(self, term: Node) -> ByteDFA | None:
        """The automaton of a small term with few first bytes; None for others, where a walk of the whole state costs no more."""
        if term.serial not in self._automata:
            if len(self._automata) > 200:
                self._automata.clear()
            with work.uncounted():
                is_small = all(
                    node.kind in PREFIX_KINDS and number < MAX_TERMS
                    for number, node in enumerate(nodes.all_parts(term))
                )
                automaton = self._automaton_of(term) if is_small else None
                is_narrow = automaton is not None and len(automaton.moves(automaton.initial_state)) <= FEW_BYTES
                self._automata[term.serial] = automaton if is_narrow else None
        return self._automata[term.serial]

    def _make(self, key: tuple[Node, int, bool], automaton: ByteDFA, max_cost: float = float("inf")) -> SparseProduct:
        with work.uncounted():  # it is made for all constraints, and bounded by the tokens
            product = SparseProduct(automaton, self._trie, key[1], max_cost)
        if product.nbytes <= self.known.max_bytes:
            self.known.put(key, product, product.nbytes)
        return product
