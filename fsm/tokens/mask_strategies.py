"""`MaskMaker`: the token mask of a state, by the first of several strategies, in a fixed order, that recognises the form of its term. A
mask has every token after whose bytes the Brzozowski derivative of the term is not empty. For loops, exclusions and patterns with counts
(`DIRECT`), mostly cached parts that do not depend on what follows are combined; other terms are walked with the trie. In a vocabulary that
lacks bytes all masks are by `spelled`, a search. Also here: `mask_key`, the term under which a mask is cached, without counts out of reach.

`STRATEGIES` is that order; of alternatives the masks are united. The definition, which each but `spelled` equals
(`tests/fsm/test_mask_strategies.py`), is one loop:

    for token_id, token in enumerate(vocabulary.tokens):
        allowed[token_id] = bool(token) and automaton.next_state(state, token) != DEAD

End-of-sequence tokens are added by `TokenFSM`. Times are for 131,072 tokens on one core of a machine with 2 cores, with all that the
vocabulary shares already made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton, as_loop, begins_with_byte_loop, opened
from fsm.errors import BudgetExceeded
from fsm.limits import work_bound
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import Kind, Node
from fsm.tokens.cache import ByteCache
from fsm.tokens.character_loop import MAX_OVERLAP, CharacterLoop, as_loop_without
from fsm.tokens.coreachable import Spelling
from fsm.tokens.open_walk import as_counted
from fsm.tokens.sparse_product import is_byte, is_narrow
from fsm.tokens.stack_walk import StackWalk
from fsm.tokens.vocabulary import Vocabulary
from fsm.tokens.walk import READ_AT_ONCE, walk_narrow, walk_wide
from fsm.tokens.ways_walk import WaysWalk
from fsm.trie import Trie

Words = NDArray[np.int32]
"""A packed mask: `(ceil(V / 32),)`, bit `t % 32` of word `t // 32` allows token t."""

# Bytes that a mask takes besides its words: the terms that are its key alone, the array object, the entry.
MASK_OVERHEAD = 1_000
# Steps after which the depth-first walk is abandoned, because a breadth-first walk costs as much.
MAX_NARROW_COST = 4_000
# The most trie nodes at which a depth-first walk may stop, so that other strategies find the tokens below.
MAX_JUMPS = 6
# Work (see `fsm/terms/work.py`) that a product with open counters may take before the plain walk is cheaper.
MAX_OPEN_WORK = 40_000
MAX_WIDE_WORK = 20_000  # the same for a plain walk, before one way by way is


class MaskMaker:
    """Makes the masks of one language over one vocabulary; `spelling` is for a vocabulary that lacks bytes."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, spelling: Spelling | None = None) -> None:
        self.automaton, self.vocabulary, self.spelling = automaton, vocabulary, spelling
        self.ways = WaysWalk(vocabulary.trie, automaton.max_states)
        self.stacks = StackWalk(automaton, vocabulary)
        self.too_wide = set[Node]()  # what follows the terms that were walked way by way
        self.too_heavy = set[Node]()  # what follows the patterns whose walks `pattern_and_loop` gave up
        # The same loop occurs in unboundedly many states of recursive rules.
        self._is_recursive = not automaton.nodes[automaton.initial_state].is_regular

    def mask(self, term: Node) -> Words:
        """The packed mask of `term`, without end-of-sequence tokens; a new array."""
        words = self.first(STRATEGIES, term)
        assert words is not None, "the last strategy takes every term"
        return words

    def first(self, strategies: Iterable[Strategy], term: Node, node: int = Trie.root) -> Words | None:
        """The mask by the first of the strategies that recognises `term`; None if none does.

        Only tokens below the trie node `node` count, and without their bytes up to it.
        """
        for make in strategies:
            words = make(self, term, node)
            if words is not None:
                return words
        return None

    def direct(self, term: Node, node: int) -> Words | None:
        """The mask of an alternative by a strategy of `DIRECT`; at the root it is cached, for other states that have it."""
        is_kept = node == Trie.root and not term.nullable
        words = self.vocabulary.masks.get(term) if is_kept else None
        if words is None:
            words = self.first(DIRECT, term, node)
            if words is not None and is_kept:
                self.keep(self.vocabulary.masks, term, words)
        return words

    def keep(self, masks: ByteCache[Node, Words], term: Node, words: Words) -> Words:
        """Store and return the mask of a term, read-only from now on."""
        words.setflags(write=False)
        return masks.put(term, words, words.nbytes + MASK_OVERHEAD, self.automaton.nodes[self.automaton.initial_state])

    def loop(self, body: Node, lo: int, hi: int | None, node: int = Trie.root) -> CharacterLoop | None:
        """The product of `body*` and the tokens below `node`; None if `body` is not a character class, or was not used often enough."""
        is_counted = lo > 1 or hi is not None  # then a plain walk reaches a state for every count
        return self.vocabulary.loop(body, node, at_once=is_counted or self._is_recursive)


Strategy = Callable[[MaskMaker, Node, int], Words | None]
"""Returns the tokens below a trie node that a term allows, or None for a term that it does not recognise.

The term has a text; so what stays inside a loop can go on."""


def mask_key(term: Node, vocabulary: Vocabulary) -> Node:
    """Return the term under which the mask of `term` is cached: one with the same mask, without counts that no token can reach.

    A loop `body{lo,hi}` of which no token has `hi` iterations becomes `body{lo,}`, so that all states of a string with a large
    `maxLength` share one mask. In a vocabulary that lacks bytes the counts matter and the key is the term itself.
    """
    if not vocabulary.spells_everything or (term.kind is Kind.CONCAT and term.args[0].kind is Kind.LITERAL):
        return term
    if term.kind is Kind.ALTERNATION:
        members = tuple([mask_key(member, vocabulary) for member in term.args])
        return term if members == term.args else nodes.alternation(members)
    loop = as_loop(term)
    if loop is None or loop[0].nullable:
        return term
    body, lo, hi, rest = loop
    reach = vocabulary.reach(body)
    lo, hi = min(lo, reach + 1), None if hi is not None and hi > reach else hi
    return nodes.concat(nodes.repeat(body, lo, hi), rest)


def spelled(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """Any term, in a vocabulary that lacks bytes: the tokens after which further tokens can spell a text, by search (`coreachable.py`)."""
    if maker.spelling is None:
        return None
    token_ids, _ = maker.spelling.steps(maker.automaton.state_of(term))
    return bitmask.from_ids(token_ids, maker.vocabulary.num_words)


def stack_by_stack(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """A term of a grammar with terminals: a walk of the trie with a pushdown automaton (`stack_walk.py`). 0.1 to 5 ms."""
    if term.is_regular or not term.has_munch or node != Trie.root:
        return None
    return maker.stacks.mask(term)


def alternatives(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """`a|b`, also `(a|b) c` where a and b are kinds of object keys: the union of the masks of the alternatives.

    The alternatives that no strategy of `DIRECT` recognises are walked together, as one term.
    """
    members = _members(term)
    if len(members) < 2:
        return None
    found, others = list[Words](), list[Node]()
    for member in members:
        if not maker.automaton.is_alive(member):
            continue
        words = maker.direct(member, node)
        if words is None:
            others.append(member)
        else:
            found.append(words)
    if others:
        found.append(_walked(maker, nodes.alternation(others), node))
    return reduce(np.bitwise_or, found, bitmask.from_ids((), maker.vocabulary.num_words))


def _walked(maker: MaskMaker, term: Node, node: int) -> Words:
    words = maker.first(WALKS, term, node)
    assert words is not None, "the last walk takes every term"
    return words


def _members(term: Node) -> list[Node]:
    if term.kind is not Kind.ALTERNATION and nodes.first_and_rest(term)[0].kind is not Kind.ALTERNATION:
        return [term]
    found = list[Node]()
    for member in term.args if term.kind is Kind.ALTERNATION else (term,):
        head, rest = nodes.first_and_rest(member)
        is_divided = head.kind is Kind.ALTERNATION and any(
            way.kind is Kind.CONCAT and way.args[0].kind is Kind.INTERSECTION for way in head.args
        )
        found += [nodes.concat(way, rest) for way in head.args] if is_divided else [member]
    return found


def character_loop(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """`body{lo,hi} rest`, where `body` is one class of characters, such as the inside of a JSON string (`character_loop.py`).

    Tokens that stay inside the loop are one array, whatever `rest` is; those that leave it are grouped by their remaining bytes, and each
    group is walked once in step with `rest`. 5 to 30 us.
    """
    parts = as_loop(term)
    if parts is None:
        return None
    body, lo, hi, rest = parts
    if hi is not None and node == Trie.root and maker.vocabulary.known_loop(body) is None:
        first_bytes = maker.automaton.derivatives.first_bytes
        if (first_bytes(body) & first_bytes(rest)).bit_count() > MAX_OVERLAP:
            return None
    loop = maker.loop(body, lo, hi, node)
    if loop is None:
        return None
    if node == Trie.root and not lo and is_byte(body) and _is_narrow(maker, rest):
        # After no iteration at all few bytes are possible, among them long runs of blanks, which a depth-first walk reads best.
        words = loop.mask(maker.automaton, 1, hi, rest)
        return None if words is None else words | _walked(maker, rest, node)
    return loop.mask(maker.automaton, lo, hi, rest)


def loop_without_words(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """`(body* & ~words) rest`, such as the name of a property that is not declared: the mask of `body* rest` without exits after a word."""
    parts = as_loop_without(term)
    loop = None if parts is None else maker.loop(parts[0], 0, None, node)
    return None if parts is None or loop is None else loop.mask_without(maker.automaton, *parts[1:])


def pattern_and_loop(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """`(body{lo,hi} & pattern) rest`, such as a `pattern` and a `maxLength`: one product walk for all counts (`open_walk.py`).

    The walk ignores the bounds of counts, and is cached; for a mask each pair of a state and iterations is decided once. 0.3 ms.
    """
    automaton = maker.automaton
    if nodes.first_and_rest(term)[0].kind is not Kind.INTERSECTION:
        return None
    if automaton.derivatives.first_bytes(term).bit_count() <= FEW_BYTES:
        return None
    counted = as_counted(term, maker.vocabulary.is_class)
    if counted is None or counted.rest in maker.too_heavy:
        return None
    try:
        with work_bound("max_open_work", MAX_OPEN_WORK, "a pattern and the counts of its characters"):
            walk = maker.vocabulary.open_walk(counted.term, counted.body, node)
            return None if walk is None else walk.mask(automaton, counted)
    except BudgetExceeded:  # of this strategy, or of the thread, for which `check` raises
        work.check()
        maker.too_heavy.add(counted.rest)
        return None


def loop_after_byte(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """`first body{lo,hi} rest`, where `first` is a byte class within `body`, as in an identifier that does not begin with a digit.

    It is the mask of a loop with one iteration more, without the tokens whose first byte `first` lacks. Only below the root of the trie.
    """
    if as_loop(term) is not None or not begins_with_byte_loop(term):
        return None
    first, after = nodes.first_and_rest(term)
    parts = as_loop(after)
    assert parts is not None
    body, lo, hi, rest = parts
    loop = maker.loop(body, lo, hi, node)
    words = None if loop is None else loop.mask(maker.automaton, lo + 1, None if hi is None else hi + 1, rest)
    if words is None:
        return None
    others, trie = body.args[0] & ~first.args[0], maker.vocabulary.trie
    left_out = np.array([child for child, byte in trie.children(node) if others >> byte & 1], np.int32)
    return words & ~bitmask.from_ids(trie.texts_below(left_out)[1], len(words))


def depth_first(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """A term that begins with texts, or with few bytes: a depth-first walk of trie and automaton in step (`walk_narrow`).

    Where the walk reaches a wide state with much of the trie below, it stops, and a strategy of `BELOW` finds the tokens from there
    on. 5 to 100 us; most states of JSON (keys, punctuation, numbers) are of this kind.
    """
    automaton, vocabulary = maker.automaton, maker.vocabulary
    if not _is_narrow(maker, term):
        return None
    walked = walk_narrow(
        automaton, vocabulary.trie, automaton.state_of(term), max_cost=MAX_NARROW_COST, products=vocabulary.sparse
    )
    if walked is None or len(walked[1]) > MAX_JUMPS:
        return None
    texts, jumps = walked
    words = bitmask.from_ids(texts, vocabulary.num_words)
    for below, target in jumps:
        found = maker.first(BELOW, automaton.nodes[target], below)
        if found is None:
            return None
        words |= found
    return words


def _is_narrow(maker: MaskMaker, term: Node) -> bool:
    """True if a depth-first walk is tried."""
    head = nodes.first_and_rest(term)[0]
    if head.kind in READ_AT_ONCE and not head.has_munch:
        return True
    if maker.automaton.derivatives.first_bytes(term).bit_count() <= FEW_BYTES or opened(term):
        return True
    return is_narrow(head.args[0]) if head.kind is Kind.REPEAT else begins_with_byte_loop(term)


def breadth_first(maker: MaskMaker, term: Node, node: int) -> Words | None:
    """Any term: all nodes of a level of the trie at once, one array operation per level (`walk_wide`). 0.3 to 5 ms.

    Where that takes too much work, the alternatives of the term are followed one by one (`ways_walk.py`).
    """
    automaton, trie, rest = maker.automaton, maker.vocabulary.trie, nodes.first_and_rest(term)[1]
    if rest not in maker.too_wide:
        try:
            with work_bound("max_wide_work", MAX_WIDE_WORK, "a walk with all ways of a text at once"):
                return bitmask.pack(walk_wide(automaton, trie, automaton.state_of(term)))
        except BudgetExceeded:  # of this walk, or of the thread, for which `check` raises
            work.check()
            maker.too_wide.add(rest)
    return bitmask.pack(maker.ways.walk(term))


DIRECT: tuple[Strategy, ...] = (character_loop, loop_without_words, pattern_and_loop)
"""Strategies that need no walk of the trie from its root."""

WALKS: tuple[Strategy, ...] = (depth_first, breadth_first)
"""Walks of the trie from its root; the last takes any term."""

BELOW: tuple[Strategy, ...] = (character_loop, loop_after_byte, loop_without_words, pattern_and_loop)
"""Strategies that work below any node of the trie, where a depth-first walk stops."""

STRATEGIES: tuple[Strategy, ...] = (spelled, stack_by_stack, alternatives, *DIRECT, *WALKS)
"""All strategies, in the order in which they are tried."""
