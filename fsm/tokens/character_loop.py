"""`CharacterLoop`: the product of `X*` and the token trie as arrays, where X is a character class, for the masks of `X{lo,hi} rest`. One
breadth-first walk gives each token its iterations (here `rounds`) if it stays inside, and each trie node those before it. Tokens that leave
the loop are found by what they have from the byte on with which they leave (`Exits`).
There is no mask where `rest` may begin with many bytes, or with more than 4 of X and counts matter or too many tokens leave.

X is any prefix-free term with many first bytes (`is_character_class`). Excluded names (`X* & ~words`) are masked here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton
from fsm.bitmask import add_ids, from_ids, pack
from fsm.terms import node as nodes
from fsm.terms.derivative import bytes_in
from fsm.terms.node import EPSILON, Kind, Node
from fsm.tokens.walk import NEVER, Exits, ExitsOf, finish, leave_from, read_words, sweep
from fsm.trie import Trie

# The most bytes with which both an iteration and `rest` may begin; with more, a breadth-first walk is cheaper.
MAX_OVERLAP = 4
MAX_OVERLAPPING = 4_000  # the most tokens that contain these bytes, if there are more of them
MAX_EXIT_BYTES = 64  # the most bytes that may follow a loop
MAX_LEFT_OUT = 2_000  # the most texts that a loop may exclude
MAX_KNOWN = 4  # the most bytes of which a loop keeps the tokens that may leave with them

_Leaving = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint16]]


def is_character_class(body: Node, *, min_bytes: int = FEW_BYTES + 1, max_states: int = 3000) -> bool:
    """True when `body` may begin with many bytes and is prefix-free (no text of it is a proper prefix of another), as characters are.

    Then every text has one division into iterations of the loop. Cost: one visit of each state of `body`.
    """
    if body.nullable or not body.is_plain:
        return False
    automaton = Automaton(body)
    if len(automaton.moves(automaton.initial_state)) < min_bytes:
        return False
    states = nodes.reached(automaton.initial_state, lambda state: automaton.moves(state).values())
    for count, state in enumerate(states):
        if count > max_states or (automaton.is_accepting(state) and automaton.nodes[state] is not EPSILON):
            return False
    return True


def as_loop_without(node: Node) -> tuple[Node, Node, Node] | None:
    """Read a term as `(body* & ~texts) rest`, the form of property names that are not declared, or return None; `texts` is a term, too.

    Also None with more than `MAX_LEFT_OUT` texts.
    """
    head, rest = nodes.first_and_rest(node)
    if head.kind is not Kind.INTERSECTION or len(head.args) != 2:
        return None
    left, right = head.args if head.args[0].kind is Kind.REPEAT else reversed(head.args)
    if left.kind is not Kind.REPEAT or left.args[1:] != (0, None) or right.kind is not Kind.COMPLEMENT:
        return None
    texts = right.args[0]
    return None if _as_words(texts) is None else (left.args[0], texts, rest)


def _as_words(texts: Node) -> tuple[Sequence[bytes], int, int, int] | None:
    """A finite language as sorted words lo..hi without their first `depth` bytes."""
    if texts.kind is Kind.WORDS:
        word_list, lo, hi, depth = texts.args
        return (word_list.words, lo, hi, depth) if hi - lo <= MAX_LEFT_OUT else None
    if texts is EPSILON or texts.kind is Kind.LITERAL:
        return texts.args or (b"",), 0, 1, 0
    return None


class CharacterLoop:
    """The product of `body*` and the token trie below one of its nodes.

    Args:
        body: one character class; see `is_character_class`.
        trie: the trie of the tokens that have bytes, labelled with token ids.
        exits: the exits of one vocabulary.
        node: the trie node where the loop is entered; the root when a token begins inside the loop.

    Attributes:
        automaton: the DFA of `body*`.
        rounds: per token, its iterations, an incomplete last one included; NEVER where it does not stay inside.
        between: per node of the trie, the complete iterations before it if none has begun there; else NEVER.

    Cost: 1 to 4 ms and 1 MB for 131,072 tokens.
    """

    def __init__(self, body: Node, trie: Trie, exits: ExitsOf, node: int = Trie.root) -> None:
        self._node, self._trie, self._exits = node, trie, exits
        self.automaton = automaton = Automaton(nodes.repeat(body))
        self._first = frozenset(automaton.moves(automaton.initial_state))
        self._known: dict[int, _Leaving] = {}
        self._run(automaton, node)
        self._inside = pack(self.rounds < NEVER)

    def _run(self, automaton: Automaton, node: int) -> None:
        """Walk the trie in step with `body*`, and set `rounds` and `between`; a token may leave only at nodes between two iterations."""
        trie, between = self._trie, automaton.initial_state
        # Complete iterations plus one, 0 if a node is dead: one multiplication is faster than boolean masks.
        rounds, is_between = np.zeros(len(trie) + 1, np.uint16), np.zeros(len(trie) + 1, bool)
        rounds[node], is_between[node] = 1, True
        tail: list[tuple[int, int]] = []
        self.most_rounds = 0  # an iteration has at least one byte, so the number of levels is an upper bound
        for first, codes, rows in sweep(automaton, trie, between, node, tail):
            span = slice(first, first + len(codes))
            np.equal(codes, rows.code(between), out=is_between[span])
            done = rounds.take(trie.parent[span], mode="clip")
            done += is_between[span]
            np.multiply(done, codes != 0, out=rounds[span])
            self.most_rounds += 1
        for parent, child, state in finish(automaton, trie, tail):
            is_between[child] = state == between
            rounds[child] = rounds[parent] + (state == between)
            self.most_rounds = max(self.most_rounds, int(rounds[child]))
        self.between = (rounds * is_between)[:-1]
        self.between -= 1  # 0 becomes NEVER
        rounds += (rounds > 0) & ~is_between  # an incomplete iteration counts
        rounds -= 1
        rounds[node] = NEVER  # a token that ends there is not below it
        self.rounds = rounds.take(trie.ends, mode="clip")

    @property
    def nbytes(self) -> int:
        """Bytes of memory; those of the DFA, and of tokens that leave, are an estimate."""
        return 60_000 + int(self.rounds.nbytes + 1.3 * self.between.nbytes) + self._inside.nbytes

    def mask(self, automaton: Automaton, lo: int, hi: int | None, rest: Node) -> NDArray[np.int32] | None:
        """The packed mask of `body{lo,hi} rest`, or None if `rest` may begin with too many bytes."""
        leaving = self._leaving(automaton, lo, hi, rest)
        if leaving is None:
            return None
        words = pack(self.rounds <= hi) if hi is not None and self._counts(hi) else self._inside.copy()
        for ids in leaving:
            add_ids(words, ids)
        return words

    def mask_without(self, automaton: Automaton, texts: Node, rest: Node) -> NDArray[np.int32] | None:
        """The packed mask of `(body* & ~texts) rest`, or None if this method does not apply; `as_loop_without` finds `texts`.

        It is that of `body* rest` without tokens that leave right after one of the texts, which is correct where a token has at most one
        exit. Tokens that stay inside are allowed, as more characters can follow.
        """
        words, left_out = _as_words(texts), list[int]()
        first = bytes_in(automaton.derivatives.first_bytes(rest))
        if words is None or any(byte in self._first for byte in first):
            return None
        mask = self.mask(automaton, 0, None, rest)
        if mask is None:
            return None
        for _, end, _ in read_words(self._trie, self._node, [], *words):
            if self.between[end] < NEVER:
                left_out += [step[0] for byte in first if (step := self._trie.step(end, byte)) is not None]
        if left_out:
            mask &= ~from_ids(self._trie.texts_below(np.array(left_out, np.int32))[1], len(mask))
        return mask

    def _counts(self, hi: int | None) -> bool:
        """True when some token has more iterations than `hi`, whether it stays inside or leaves."""
        return hi is not None and hi < self.most_rounds

    def _leaving(self, automaton: Automaton, lo: int, hi: int | None, rest: Node) -> list[NDArray[np.int32]] | None:
        """The tokens that leave after `lo` to `hi` iterations and continue in `rest`, and perhaps some that stay inside."""
        if rest is EPSILON:
            return []
        state, first = automaton.state_of(rest), bytes_in(automaton.derivatives.first_bytes(rest))
        overlaps = sum(byte in self._first for byte in first) > MAX_OVERLAP
        if len(first) > MAX_EXIT_BYTES or (overlaps and self._counts(hi)):
            return None
        if overlaps and int(self._trie.num_texts[self._trie.nodes_with(first)].sum()) > MAX_OVERLAPPING:
            return None
        most = NEVER - 1 if hi is None else min(hi, NEVER - 1)
        found, swept = list[NDArray[np.int32]](), list[int]()
        for byte in first:
            exits = self._exits(byte, overlaps)
            if exits is None:
                swept.append(byte)
                continue
            token_ids, texts, rounds = self._leaving_with(byte, exits)
            kept = exits.alive(automaton, state)[texts]
            found.append(token_ids[kept & (rounds >= lo) & (rounds <= most) if lo or self._counts(hi) else kept])
        if swept:
            rounds = self.between[self._trie.parent[steps := self._trie.nodes_with(swept)]]
            found.append(leave_from(automaton, self._trie, state, steps[(rounds >= lo) & (rounds <= most)])[0])
        return found

    def _leaving_with(self, byte: int, exits: Exits) -> _Leaving:
        """The tokens that may leave with a byte: ids, the numbers of what they have from it on, and their iterations before it."""
        known = self._known.get(byte)
        if known is None:
            rounds = self.between[self._trie.parent[exits.nodes]][exits.which]
            kept = np.flatnonzero(rounds < NEVER)
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            known = self._known[byte] = exits.token_ids[kept], exits.texts[kept], rounds[kept]
        return known
