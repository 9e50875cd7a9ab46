"""`ShortLoop`: `CharacterLoop` in tuple form, for loops that are entered where few tokens continue (sparse subtries)."""

from __future__ import annotations

from fsm.automaton.byte_dfa import FEW_BYTES, ByteDFA
from fsm.terms.node import Kind, Node
from fsm.tokens.trie import Trie


def is_byte(body: Node) -> bool:
    """True for one byte, out of some: then no text of `body` begins another."""
    return body.kind is Kind.BYTES or (body.kind is Kind.LITERAL and len(body.args[0]) == 1)


def is_narrow(body: Node) -> bool:
    """True for one byte out of a few, such as a blank: then the texts inside a loop are few wherever it is entered."""
    return is_byte(body) and (body.kind is Kind.LITERAL or body.args[0].bit_count() <= FEW_BYTES)


class SparseCharacterLoop:
    """The product of `body*` and the few texts below one trie node, whatever follows the loop.

    A text either stays inside to its end, or may leave at a node that lies between two rounds; both are listed.

    Args:
        automaton: the states of `body*`, where no text of `body` is the beginning of another.
        trie: the texts.
        node: where the loop is entered.

    Attributes:
        labels: the texts that stay inside.
        rounds: for each of them, the rounds it takes, one that it ends in the middle of included.
        most_rounds: the most rounds of any text before it ends or leaves.
        places: by the byte that comes next, the nodes between two rounds: node, rounds, texts below.

    Cost: 1 us per node below and byte that may follow there; once per body and node.
    """

    __slots__ = ("labels", "most_rounds", "places", "rounds")

    def __init__(self, automaton: ByteDFA, trie: Trie, node: int) -> None:
        self.labels: list[int] = []
        self.rounds: list[int] = []
        self.most_rounds = 0
        self.places: dict[int, list[tuple[int, int, int]]] = {}
        between = automaton.initial_state
        stack = [(node, between, 0, trie.below(node))]
        while stack:
            node, state, rounds, below = stack.pop()
            branches, moves = trie.branches(node), automaton.moves(state)
            if state == between:
                self.most_rounds = max(self.most_rounds, rounds)
                for byte in branches:
                    self.places.setdefault(byte, []).append((node, rounds, below))
            for byte, (child, ends, more) in branches.items():
                target = moves.get(byte)
                if target is None:
                    continue
                self.labels += ends
                self.rounds += [rounds + 1] * len(ends)
                if ends:
                    self.most_rounds = max(self.most_rounds, rounds + 1)
                if more:
                    stack.append((child, target, rounds + (target == between), more))

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        return 600 + 20 * len(self.labels) + sum(200 + 100 * len(nodes) for nodes in self.places.values())

    def inside(self, hi: int | None) -> list[int]:
        """The texts that stay inside `body{0,hi}`."""
        if hi is None or hi >= self.most_rounds:
            return self.labels
        return [label for label, rounds in zip(self.labels, self.rounds, strict=True) if rounds <= hi]

    def exits(self, byte: int, lo: int, hi: int | None) -> list[tuple[int, int]]:
        """The nodes, and the texts below each, where the loop may end with `byte` to come, after `lo` to `hi` rounds."""
        places = self.places.get(byte, ())
        return [(node, below) for node, rounds, below in places if lo <= rounds and (hi is None or rounds <= hi)]
