"""`StackWalk`: the masks of context-free grammars by a walk of the token trie with a pushdown automaton. A term is read as a stack of
factors that share their lower parts (a graph-structured stack); where a factor begins, its rules are expanded to the terminals with which
it may begin, in a table by their first bytes that is made once for each stack. Loops over many characters, such as names, are products of
a small DFA and the trie, shared by all constraints (`LexemeProduct`).

A walk with sets of alternatives has a state, with all its transitions, for each set of stacks, of which an operator grammar has thousands.
Here stacks are followed one by one, and only by bytes that tokens have. What a stack leaves is tested for a text when it is made, so a
token is allowed as soon as one stack survives it.

A mask is new since the lower part of its stack is, while few terms are ever on top. So what a term reads from a node of the trie on is
found once (`_Reading`), above a hole in place of what is below: the tokens that end inside, those that are allowed if what is below may
follow, and the nodes where the term ends and what is below begins. `_Walk` puts these together for one stack.

Source: Tomita 1987 (graph-structured stacks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, exceeded
from fsm.process_fork import rlock
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.byte_classes import completed, product
from fsm.terms.derivative import bytes_in
from fsm.terms.free_text import ANY_TEXT, Masks
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.tokens.trie import Trie
from fsm.tokens.walk import Exits

MAX_STACKS = 40_000  # beyond them all are forgotten before the next walk
MAX_READINGS = 40_000  # of terms at nodes of the trie, likewise
MAX_VISITS = 60_000  # of places in one walk; one that takes more is given up
MIN_PRODUCT_TEXTS = 64  # the fewest tokens below a place for which a product is made
MAX_HEADS = 5_000  # with which one factor may begin; with more the walk is given up
MAX_PLACES = 64  # where a product may be left with one byte, before its rests are walked once for all of them
MAX_LEAVING = 200  # products with what leaves them that are kept, 20 to 100 kilobytes each
_VISITS_PER_WORK = 4
_COUNTED = 256 * _VISITS_PER_WORK  # visits are counted in parcels
_END = 0  # the stack without factors
_HOLE = 1  # a stack of which nothing is known
_DEAD = -1
_MAIN = -1  # the trie of the vocabulary, among those of the texts from a byte on
_REGULAR_ATOMS = frozenset(
    {Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION}
)

_Path = tuple[Node, "_Path"] | None
"""Terms that are left of a factor: the first, and those after it."""
_Move = tuple[Node, Node, _Path, int]
"""What is left of a head after a byte, a rival of it with what follows (EMPTY: none), what is left of its factor, and the stack below."""
_Place = tuple[int, Node, int]
"""A node of a trie, what is left of a head there, and the stack after it."""
_Item = tuple[int, Node, int]
"""A node of a trie, a term that is read there, and the stack after it."""


class _Head(NamedTuple):
    """A term with which a factor may begin, what is left of the factor, and a rival: no prefix of what follows is a text of it."""

    atom: Node
    path: _Path
    rival: Node


class _Wide(NamedTuple):
    """A head that may begin with many bytes: its transitions by the mask of bytes that may be read."""

    atom: Node
    arcs: tuple[tuple[int, Node], ...]
    is_whole: bool  # no byte of it is excluded
    path: _Path


class _Factor(NamedTuple):
    """How a factor begins, whatever is below it on the stack.

    Attributes:
        moves: by byte, what is left of a head, the rival then, and the path.
        wide: the heads with many bytes.
        opaque: heads that depend on all that follows.
        calls: rules with which the factor may begin in several ways: the rule, the rival, and the paths after it.
        ends: the rivals with which it may be empty.
    """

    moves: dict[int, list[tuple[Node, Node, _Path]]]
    wide: list[_Wide]
    opaque: list[_Head]
    calls: dict[tuple[Node, Node], list[_Path]]
    ends: list[Node]


class _Table(NamedTuple):
    """What a stack above a hole does with its next byte.

    Attributes:
        moves: by byte.
        wide: the heads with many bytes, each with the stack after it.
        opaque: heads that depend on all that follows, each with the stack below its factor.
        ends: the rivals with which the hole may be reached at once.
        found: what the moves without rivals lead to, made when a token has the byte: what is left of a head, and the stack after it.
    """

    moves: dict[int, list[_Move]]
    wide: list[tuple[_Wide, int]]
    opaque: list[tuple[_Head, int]]
    ends: list[Node]
    found: dict[int, list[tuple[Node, int]]]


class _Level(NamedTuple):
    """A term on a stack: the bytes with which it may begin, and the stack below it."""

    mask: int
    term: Node
    below: int


class _Late(NamedTuple):
    """A move that waits for the stack below the hole: the node after it, the tokens that end there, and whether others go on."""

    labels: tuple[int, ...]
    has_more: bool
    move: _Move


class _Reading(NamedTuple):
    """What a term reads from a node of a trie on, whatever is below it on the stack.

    Attributes:
        found: the tokens after which every stack is alive.
        products: packed masks of more of them.
        conditional: tokens by the stack above the hole that they leave, which must have a text together with what is below.
        exits: the nodes at which the term may end, each with a rival.
        late: what depends on the stack below: a node, what is read there, and the stack above the hole after it.
    """

    found: list[int]
    products: list[NDArray[np.int32]]
    conditional: dict[int, list[int]]
    exits: dict[tuple[int, Node], None]
    late: list[tuple[int, _Wide | _Head | _Late, int]]


class _Leaving(NamedTuple):
    """The product of a term and the tokens below a node.

    Attributes:
        inside: the packed mask of the tokens that end inside.
        places: the nodes at which it is left.
        many: the same for bytes with which it is left at many nodes: the byte, the trie of what tokens go on with, the tokens, and for
            each the number of its text in that trie.
    """

    inside: NDArray[np.int32]
    places: list[int]
    many: list[tuple[int, Trie, NDArray[np.int32], NDArray[np.int32]]]


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
        self._stacks: list[tuple[Node, int]] = [(EPSILON, _END), (EPSILON, _HOLE)]
        self._open = [False, True]  # for each stack, whether a hole is below it
        self._numbers: dict[tuple[Node, int], int] = {}
        self._unions: dict[int, tuple[int, ...]] = {}
        self._union_numbers: dict[frozenset[int], int] = {}
        self._wholes: dict[int, Node] = {_END: EPSILON}
        self._tables: dict[int, _Table] = {}
        self._factors: dict[Node, _Factor] = {}
        self._atoms: dict[Node, _Factor] = {}
        self._divisions: dict[Node, tuple[Node, Node | None]] = {}
        self._ends: dict[tuple[Node, int], list[int]] = {}
        self._rests: dict[tuple[int, int], NDArray[np.bool_]] = {}
        self._readings: dict[tuple[int, Node, int], _Reading] = {}
        self._conditions: dict[int, Masks] = {}
        self._followed: dict[tuple[Masks, int], bool] = {}
        self._levels: dict[tuple[int, Node], list[_Level]] = {}
        self._branch_masks: dict[tuple[int, int], int] = {}
        self._closed: dict[tuple[int, int], int] = {}
        self._first: dict[int, int] = {}
        self._leaving: dict[tuple[Node, int, int], _Leaving] = {}

    def mask(self, term: Node) -> NDArray[np.int32] | None:
        """The packed mask of a term that has a text; None where the walk takes too many steps.

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
            found = _Walk(self, self._trie, _MAIN, words).run(self.push(term, _END))
        except BudgetExceeded as error:
            if error.limit not in ("max_heads", "max_visits"):
                raise
            return None
        bitmask.add_ids(words, np.array(found, np.int32))
        return words

    # -- stacks ------------------------------------------------------------------------------------------------------------------

    def push(self, term: Node, stack: int) -> int:
        """The stack with a term on top of another one, factor by factor; `_DEAD` where it has no text."""
        if term is EPSILON or stack == _DEAD:
            return stack
        known = self._numbers.get((term, stack))
        if known is not None:
            return known
        factors = list[Node]()
        rest = term
        while rest is not EPSILON:
            factor, rest = self._divided(rest)
            factors.append(factor)
        number = stack
        for factor in reversed(factors):
            number = self._push_factor(factor, number)
        self._numbers[term, stack] = number
        return number

    def push_path(self, path: _Path, stack: int) -> int:
        """The stack with the terms of a path on top of another one; `_DEAD` where it has no text."""
        terms = list[Node]()
        while path is not None:
            term, path = path
            terms.append(term)
        for term in reversed(terms):
            stack = self.push(term, stack)
        return stack

    def _push_factor(self, factor: Node, stack: int) -> int:
        if stack == _DEAD:
            return _DEAD
        number = self._numbers.get((factor, stack))
        if number is None:
            number = _DEAD
            if self._open[stack]:
                is_alive = bool(self._left(factor, ANY_TEXT)) or self._automaton.is_alive(factor)
            else:
                is_alive = self._seems_alive(factor, stack) or self._automaton.is_alive(
                    nodes.concat(factor, self._whole(stack))
                )
            if is_alive:
                number = len(self._stacks)
                self._stacks.append((factor, stack))
                self._open.append(self._open[stack])
            self._numbers[factor, stack] = number
        return number

    def _united(self, stacks: Collection[int]) -> int:
        """The stack that any of some stacks is, which have the same above them: what they do next is done once."""
        if len(stacks) == 1:
            return next(iter(stacks))
        members = frozenset(member for stack in stacks for member in self._unions.get(stack, (stack,)))
        number = self._union_numbers.get(members)
        if number is None:
            number = self._union_numbers[members] = len(self._stacks)
            self._stacks.append((EPSILON, number))
            self._open.append(any(self._open[one] for one in members))
            self._unions[number] = tuple(sorted(members))
        return number

    def _whole(self, stack: int) -> Node:
        """The term that a stack is."""
        waiting = [stack]
        while waiting:
            here = waiting[-1]
            if here in self._wholes:
                waiting.pop()
                continue
            below = self._unions.get(here) or self._stacks[here][1:]
            missing = [one for one in below if one not in self._wholes]
            if missing:
                waiting += missing
            elif here in self._unions:
                self._wholes[here] = nodes.alternation(self._wholes[one] for one in below)
            else:
                self._wholes[here] = nodes.concat(self._stacks[here][0], self._wholes[below[0]])
        return self._wholes[stack]

    def _divided(self, term: Node) -> tuple[Node, Node]:
        """The first factor of a term, and the rest. Classes of bytes and texts in a row are one factor, such as a keyword of any case, and
        a class or a loop of many bytes is one with its loop and with what must follow: a name, or the inside of a comment with its end.
        """
        first, rest = nodes.first_and_rest(term)
        if first.kind not in (Kind.BYTES, Kind.LITERAL, Kind.REPEAT) or first.has_munch or not first.is_regular:
            return first, rest
        is_wide = self._is_wide(first)
        if first.kind is Kind.REPEAT and not is_wide:
            return first, rest
        parts = [first]
        while rest is not EPSILON:
            after, more = nodes.first_and_rest(rest)
            if after.kind is Kind.REPEAT:
                is_own = is_wide and after.is_regular and not after.has_munch
                if not is_own or (
                    after.nullable and (len(parts) > 1 or first.kind is not Kind.BYTES or not self._is_wide(after))
                ):
                    break
            elif after.kind is not Kind.BYTES and after.kind is not Kind.LITERAL:
                break
            parts.append(after)
            rest = more
        return nodes.sequence(parts), rest

    def _left(self, factor: Node, masks: Masks) -> Masks:
        return self._automaton.derivatives.free_texts.left(factor, masks)

    def _seems_alive(self, factor: Node, stack: int) -> bool:
        """True where a factor is seen to have a text that the stack below may follow; False where that takes a search."""
        return self._seems_after(self._left(factor, ANY_TEXT), stack)

    def _seems_after(self, masks: Masks, stack: int) -> bool:
        """True where a stack is seen to have a text that begins with no byte of one of some masks."""
        while masks and masks != ANY_TEXT and stack != _END:
            stack = self._unions.get(stack, (stack,))[0]
            factor, stack = self._stacks[stack]
            masks = self._left(factor, masks)
        return bool(masks)

    def condition(self, stack: int) -> Masks:
        """The bytes with which what is below the hole must not begin, so that a stack above it has a text; none where that is not seen.

        With other bytes it may have one, too.
        """
        known = self._conditions.get(stack)
        if known is None:
            known, here = ANY_TEXT, stack
            while known and here != _HOLE:
                here = self._unions.get(here, (here,))[0]
                if here != _HOLE:
                    factor, here = self._stacks[here]
                    known = self._left(factor, known)
            self._conditions[stack] = known
        return known

    def closed(self, stack: int, below: int) -> int:
        """The stack above a hole, with another one in its place; `_DEAD` where it has no text there."""
        waiting = [stack]
        while waiting:
            here = waiting[-1]
            if here == _HOLE or not self._open[here]:
                waiting.pop()
                self._closed[here, below] = below if here == _HOLE else here
                continue
            parts = self._unions.get(here) or self._stacks[here][1:]
            missing = [one for one in parts if (one, below) not in self._closed]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            found = [self._closed[one, below] for one in parts]
            if here in self._unions:
                alive = {one for one in found if one != _DEAD}
                self._closed[here, below] = self._united(alive) if alive else _DEAD
            else:
                self._closed[here, below] = self._push_factor(self._stacks[here][0], found[0])
        return self._closed[stack, below]

    def follows(self, stack: int, below: int) -> bool:
        """Whether a stack above a hole has a text with another one in its place, which has one."""
        masks = self.condition(stack)
        if masks == ANY_TEXT:
            return True
        known = self._followed.get((masks, below))
        if known is None:
            known = self._followed[masks, below] = self._seems_after(masks, below)
        return known or self.closed(stack, below) != _DEAD

    def first_bytes(self, stack: int) -> int:
        """All bytes that a stack without a hole may read, and perhaps others."""
        known = self._first.get(stack)
        if known is None:
            known = self._first[stack] = reduce(or_, (level.mask for level in self.levels(stack, EMPTY)), 0)
        return known

    def _is_atom(self, term: Node) -> bool:
        """True for a term that is read byte by byte; a loop only over one byte, or with many first bytes, as others are read by rounds."""
        kind = term.kind
        if not term.is_regular or term.has_munch:
            return False
        if kind is Kind.CONCAT:
            return self._divided(term)[1] is EPSILON
        if kind is Kind.REPEAT:
            return term.args[0].kind in (Kind.BYTES, Kind.LITERAL) or self._is_wide(term.args[0])
        return kind in _REGULAR_ATOMS

    def _is_wide(self, term: Node) -> bool:
        return self._automaton.derivatives.first_bytes(term).bit_count() > FEW_BYTES

    # -- tables ------------------------------------------------------------------------------------------------------------------

    def _heads(self, factor: Node) -> tuple[list[_Head], list[Node]]:
        """The terms with which a factor may begin, and the rivals with which it may be empty.

        A rule that it may begin with in several ways is not expanded: rules that begin with rules twice would double what is found.
        """
        several = set[Node]()
        while True:
            met, heads, ends = Counter[Node](), list[_Head](), list[Node]()
            for head in self._expanded(factor, several, ends):
                if head.atom.kind is Kind.RULE and head.atom not in several:
                    met[head.atom] += 1
                    if met[head.atom] > 1:
                        break
                heads.append(head)
            else:
                return [head for head in heads if head.atom.kind is not Kind.RULE or head.atom in several], ends
            several.add(head.atom)

    def _expanded(self, factor: Node, several: Collection[Node], ends: list[Node]) -> Iterator[_Head]:
        """The terms with which a factor may begin, rules included; those in `several` are not expanded."""
        waiting, seen = [_Head(factor, None, EMPTY)], set[_Head]()
        while waiting:
            item = term, path, rival = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            if len(seen) > MAX_HEADS:
                raise exceeded("max_heads", MAX_HEADS, "a term begins in too many ways")
            kind = term.kind
            if kind is Kind.EPSILON:
                if path is None:
                    ends.append(rival)
                else:
                    waiting.append(_Head(*path, rival))
            elif self._is_atom(term):
                if term.nullable:
                    waiting.append(_Head(EPSILON, path, rival))
                yield item
            elif kind is Kind.CONCAT:
                head, tail = self._divided(term)
                waiting.append(_Head(head, (tail, path), rival))
            elif kind is Kind.ALTERNATION:
                waiting += [_Head(member, path, rival) for member in term.args]
            elif kind is Kind.RULE:
                if item.path is not None or term is not factor:
                    yield item
                if term not in several or term is factor:
                    waiting.append(_Head(term.args[0].body, path, rival))
            elif kind is Kind.MUNCH and term.args[0] is EPSILON:
                _, tail, other = term.args
                waiting.append(_Head(tail, path, nodes.alternation((rival, other))))
            elif kind is Kind.REPEAT:
                body, least, _ = term.args
                if not least:
                    waiting.append(_Head(EPSILON, path, rival))
                waiting.append(_Head(body, (nodes.fewer(term), path), rival))
            else:
                yield item

    def factor(self, term: Node) -> _Factor:
        """How a term begins. Cost: 5 us and more for each head, once for a term."""
        known = self._factors.get(term)
        if known is not None:
            return known
        heads, ends = self._heads(term)
        made = self._factors[term] = _Factor({}, [], [], {}, [*dict.fromkeys(ends)])
        for head in heads:
            if head.atom.kind is Kind.RULE:
                made.calls.setdefault((head.atom, head.rival), []).append(head.path)
            elif not self._is_atom(head.atom):
                made.opaque.append(head)
            else:
                self._add(made, head, self._automaton.derivatives.live_arcs(head.atom))
        work.add(2 + (len(heads) + len(made.moves)) // _VISITS_PER_WORK)
        work.check()
        return made

    def atom(self, term: Node) -> _Factor:
        """How what is left of a head begins, as a whole; its paths are empty."""
        known = self._atoms.get(term)
        if known is None:
            known = self._atoms[term] = _Factor({}, [], [], {}, [])
            self._add(known, _Head(term, None, EMPTY), self._automaton.derivatives.live_arcs(term))
        return known

    def _add(self, made: _Factor, head: _Head, arcs: tuple[tuple[int, Node], ...]) -> None:
        atom, path, rival = head
        size = len(arcs)
        for mask, target, still in self._beside(arcs, rival):
            if still is not EMPTY:
                for byte in bytes_in(mask):
                    made.moves.setdefault(byte, []).append((target, still, path))
        arcs = tuple((mask, target) for mask, target, still in self._beside(arcs, rival) if still is EMPTY)
        own = sum(mask for mask, _ in arcs)
        if own.bit_count() > FEW_BYTES:
            is_whole = size == len(arcs) and own == self._automaton.derivatives.first_bytes(atom)
            made.wide.append(_Wide(atom, arcs, is_whole, path))
            return
        for mask, target in arcs:
            for byte in bytes_in(mask):
                made.moves.setdefault(byte, []).append((target, EMPTY, path))

    def _beside(self, arcs: tuple[tuple[int, Node], ...], rival: Node) -> Iterator[tuple[int, Node, Node]]:
        """The transitions without those after which a text of a rival is complete, each with what is left of the rival."""
        if rival is EMPTY:
            yield from ((mask, target, EMPTY) for mask, target in arcs)
            return
        for mask, (target, still) in product((arcs, completed(self._automaton.derivatives.arcs(rival), EMPTY))):
            if not still.nullable:
                yield mask, target, still

    def table(self, stack: int) -> _Table:
        """What a stack above a hole does with its next byte: the top factor, and those below it where it may be empty."""
        known = self._tables.get(stack)
        if known is not None:
            return known
        made = _Table({}, [], [], [], {})
        moves, wide, ends = made.moves, dict[_Wide, set[int]](), dict[Node, None]()
        waiting, seen = [(stack, EMPTY)], set[tuple[int, Node]]()
        while waiting:
            item = here, rival = waiting.pop()
            if here == _HOLE:
                ends[rival] = None
                continue
            if item in seen:
                continue
            seen.add(item)
            if here in self._unions:
                waiting += [(member, rival) for member in self._unions[here]]
                continue
            term, below = self._stacks[here]
            factor = self.factor(_guarded(term, rival))
            for byte, found in factor.moves.items():
                moves.setdefault(byte, []).extend([(target, still, path, below) for target, still, path in found])
            for one in factor.wide:
                after = self.push_path(one.path, below)
                if after != _DEAD:
                    wide.setdefault(one._replace(path=None), set()).add(after)
            made.opaque.extend((head, below) for head in factor.opaque)
            for (rule, other), paths in factor.calls.items():
                number = self.called(rule, paths, below)
                if number != _DEAD:
                    waiting.append((number, other))
            waiting += [(below, other) for other in factor.ends]
        work.add(2)
        made.wide.extend((one, self._united(stacks)) for one, stacks in wide.items())
        made.ends.extend(ends)
        self._tables[stack] = made
        return made

    def called(self, rule: Node, paths: list[_Path], below: int) -> int:
        """The stack of a rule with what may follow it; `_DEAD` where it has no text."""
        after_rule = {self.push_path(path, below) for path in paths} - {_DEAD}
        return self.push(rule, self._united(after_rule)) if after_rule else _DEAD

    def moved(self, table: _Table, byte: int) -> list[tuple[Node, int]]:
        """What is left of heads without a rival after a byte, and the stack after each."""
        known = table.found.get(byte)
        if known is None:
            by_target: dict[Node, set[int]] = {}
            for target, rival, path, below in dict.fromkeys(table.moves[byte]):
                stack = self.push_path(path, below) if rival is EMPTY else _DEAD
                if stack != _DEAD:
                    by_target.setdefault(target, set()).add(stack)
            known = table.found[byte] = [(target, self._united(stacks)) for target, stacks in by_target.items()]
        return known

    def after(self, move: _Move) -> tuple[Node, int]:
        """What is left of a head, and the stack after it; `_DEAD` where that has no text. Not above a hole."""
        target, rival, path, below = move
        stack = self.push_path(path, below)
        if rival is EMPTY or stack == _DEAD:
            return target, stack
        return EPSILON, self.push(nodes.munch(EPSILON, nodes.concat(target, self._whole(stack)), rival), _END)

    def opaque_arcs(self, head: _Head, below: int) -> tuple[tuple[int, Node], ...]:
        """The arcs of a head that depends on all that follows. Not above a hole."""
        rest = self.push_path(head.path, below)
        if rest == _DEAD:
            return ()
        return self._automaton.derivatives.live_arcs(
            nodes.munch(EPSILON, nodes.concat(head.atom, self._whole(rest)), head.rival)
        )

    def levels(self, stack: int, rival: Node) -> list[_Level]:
        """What a stack without a hole may begin with beside a rival: its terms down to the first that cannot be empty."""
        known = self._levels.get((stack, rival))
        if known is None:
            known = self._levels[stack, rival] = [*self._find_levels(stack, rival)]
        return known

    def _find_levels(self, stack: int, rival: Node) -> Iterator[_Level]:
        waiting, seen = [(stack, rival)], set[tuple[int, Node]]()
        while waiting:
            item = here, other = waiting.pop()
            if here == _END or item in seen:
                continue
            seen.add(item)
            known = self._levels.get(item)
            if known is not None:
                yield from known
                continue
            if here in self._unions:
                waiting += [(member, other) for member in self._unions[here]]
                continue
            term, below = self._stacks[here]
            term = _guarded(term, other)
            yield _Level(self._automaton.derivatives.first_bytes(term), term, below)
            if term.nullable:
                factor = self.factor(term)
                waiting += [(below, one) for one in factor.ends]
                for (rule, one), paths in factor.calls.items():
                    if rule.nullable:
                        waiting.append((self.called(rule, paths, below), one))

    def below(self, trie: Trie, name: int, node: int, rival: Node, stack: int) -> list[_Item]:
        """What is read at a node where a stack begins, beside a rival."""
        own = self._branch_masks.get((name, node))
        if own is None:
            own = self._branch_masks[name, node] = sum(1 << byte for byte in trie.branches(node))
        return [(node, term, after) for mask, term, after in self.levels(stack, rival) if mask & own]

    # -- readings ----------------------------------------------------------------------------------------------------------------

    def reading(self, trie: Trie, name: int, term: Node, node: int) -> _Reading:
        """What a term reads from a node of a trie on. Cost: some us for each place of the trie and stack there, once."""
        known = self._readings.get((name, term, node))
        if known is None:
            known = _Reading([], [], {}, {}, [])
            self._read_all(trie, name == _MAIN, known, (node, EPSILON, self.push(term, _HOLE)))
            self._readings[name, term, node] = known
        return known

    def _read_all(self, trie: Trie, is_main: bool, reading: _Reading, first: _Place) -> None:
        waiting: list[_Place] = [first] if first[2] != _DEAD else []
        seen = set[_Place]()
        while waiting:
            place = node, atom, stack = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if len(seen) % _COUNTED == 0:
                _count(len(seen))
            if atom is EPSILON:
                if stack == _HOLE:
                    reading.exits[node, EMPTY] = None
                else:
                    self._read(trie, is_main, place, reading, waiting)
            elif atom.kind is Kind.LITERAL and len(atom.args[0]) > 1:
                labels, node = trie.follow(node, atom.args[0])
                self._end(reading, labels, stack)
                if node >= 0 and trie.below(node):
                    waiting.append((node, EPSILON, stack))
            else:
                self._read_atom(trie, is_main, place, reading, waiting)

    def _end(self, reading: _Reading, labels: Sequence[int], stack: int) -> None:
        """Add tokens that end before a stack above a hole."""
        if labels and self.condition(stack) != ANY_TEXT:
            reading.conditional.setdefault(stack, []).extend(labels)
        else:
            reading.found.extend(labels)

    def _read(self, trie: Trie, is_main: bool, place: _Place, reading: _Reading, waiting: list[_Place]) -> None:
        """Read a byte where a head begins."""
        node, _, stack = place
        table, branches = self.table(stack), trie.branches(node)
        moves = table.moves
        for byte in moves if len(moves) < len(branches) else branches:
            step = branches.get(byte)
            if step is not None and byte in moves:
                child, labels, below = step
                for target, after in self.moved(table, byte):
                    self._end(reading, labels, after)
                    if below:
                        waiting.append((child, target, after))
                for move in moves[byte]:
                    if move[1] is not EMPTY:
                        reading.late.append((child, _Late(labels, below > 0, move), move[3]))
        for wide, after in table.wide:
            self._read_wide(trie, is_main, node, wide, after, reading, waiting)
        reading.late.extend((node, head, after) for head, after in table.opaque)
        for rival in table.ends:
            reading.exits[node, rival] = None

    def _read_atom(self, trie: Trie, is_main: bool, place: _Place, reading: _Reading, waiting: list[_Place]) -> None:
        """Read a byte within a head."""
        node, atom, stack = place
        factor, branches = self.atom(atom), trie.branches(node)
        moves = factor.moves
        for byte in moves if len(moves) < len(branches) else branches:
            step, targets = branches.get(byte), moves.get(byte)
            if step is not None and targets is not None:
                child, labels, below = step
                self._end(reading, labels, stack)
                if below:
                    waiting += [(child, target, stack) for target, _, _ in targets]
        is_left = False
        for wide in factor.wide:
            is_left = self._read_wide(trie, is_main, node, wide, stack, reading, waiting)
        if atom.nullable and not is_left:
            waiting.append((node, EPSILON, stack))

    def _read_wide(
        self, trie: Trie, is_main: bool, node: int, wide: _Wide, stack: int, reading: _Reading, waiting: list[_Place]
    ) -> bool:
        """Read a head that may begin with many bytes; True where it is read by a product, with where it is left."""
        if is_main and is_large(trie, node, wide):
            reading.late.append((node, wide, stack))
            return True
        for byte, (child, labels, below) in trie.branches(node).items():
            for mask, target in wide.arcs:
                if mask >> byte & 1:
                    self._end(reading, labels, stack)
                    if below:
                        waiting.append((child, target, stack))
        return False

    # -- products ----------------------------------------------------------------------------------------------------------------

    def leaving(self, term: Node, node: int, mask: int) -> _Leaving:
        """Where tokens leave a head that may begin with many bytes, by a byte of a mask.

        Texts that a term excludes, such as keywords among names, are places at which it is not left: it has the product of all names.
        """
        known = self._leaving.get((term, node, mask))
        if known is not None:
            return known
        whole, excluded = self._without(term)
        product = self._vocabulary.lexeme_product(whole, node)
        kept = None if excluded is None else self._places_of(excluded, node)
        places, many = dict[int, None](), []
        for byte, steps in product.exits(mask) if mask else ():
            if kept:
                steps = steps[~np.isin(self._trie.parent[steps], kept)]
            exits = self._vocabulary.exits(byte, True) if len(steps) > MAX_PLACES else None
            if exits is None:
                places.update(dict.fromkeys(self._trie.parent[steps].tolist()))
                continue
            is_exit = np.zeros(len(self._trie), bool)
            is_exit[steps] = True
            chosen = np.flatnonzero(is_exit[exits.nodes][exits.which])
            many.append((byte, exits.trie, exits.token_ids[chosen], exits.texts[chosen]))
        if len(self._leaving) > MAX_LEAVING:
            self._leaving.clear()
        known = self._leaving[term, node, mask] = _Leaving(
            bitmask.from_ids(product.token_ids, self._vocabulary.num_words), [*places], many
        )
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

    def _places_of(self, texts: Node, node: int) -> list[int]:
        """The nodes below one at which one of some texts ends."""
        known = self._ends.get((texts, node))
        if known is None:
            known, waiting = [], [(node, texts)]
            while waiting:
                here, term = waiting.pop()
                if term.nullable:
                    known.append(here)
                for mask, target in self._automaton.derivatives.arcs(term):
                    waiting += [
                        (step[0], target)
                        for byte in bytes_in(mask)
                        if (step := self._trie.step(here, byte)) is not None
                    ]
            self._ends[texts, node] = known
        return known

    def rests_after(self, byte: int, stack: int, trie: Trie) -> NDArray[np.bool_]:
        """For each text from a byte on, with which tokens go on, whether a stack reads it."""
        known = self._rests.get((byte, stack))
        if known is None:
            known = np.zeros(len(trie.ends), bool)
            known[_Walk(self, trie, byte, None).run(stack)] = True
            if len(self._rests) > 500:
                self._rests.clear()
            self._rests[byte, stack] = known
        return known


class _Walk:
    """The walk of a trie with one stack, by what is known of the terms on it; `words` takes the tokens inside of products."""

    def __init__(self, stacks: StackWalk, trie: Trie, name: int, words: NDArray[np.int32] | None) -> None:
        self._stacks, self._trie, self._name, self._words = stacks, trie, name, words
        self._found = list[int]()
        self._waiting = list[_Item]()
        self._added = set[tuple[Node, int]]()

    def run(self, stack: int) -> list[int]:
        """The labels of the tokens that a stack reads, some of them several times."""
        seen = set[_Item]()
        self._waiting = self._below(Trie.root, EMPTY, stack)
        while self._waiting:
            item = self._waiting.pop()
            if item not in seen:
                seen.add(item)
                if len(seen) % _COUNTED == 0:
                    _count(len(seen))
                if item[2] == _END:  # the rest of a text, which hardly another state has
                    self._begin(*item)
                else:
                    self._read(*item)
        return self._found

    def _below(self, node: int, rival: Node, stack: int) -> list[_Item]:
        return self._stacks.below(self._trie, self._name, node, rival, stack)

    def _begin(self, node: int, term: Node, below: int) -> None:
        """Read the first byte of a term."""
        stacks, trie, factor = self._stacks, self._trie, self._stacks.factor(term)
        branches = trie.branches(node)
        for byte, targets in factor.moves.items():
            step = branches.get(byte)
            if step is not None:
                child, labels, more = step
                for target, rival, path in targets:
                    self._move(child, _Late(labels, more > 0, (target, rival, path, below)), below)
        for wide in factor.wide:
            after = stacks.push_path(wide.path, below)
            if after != _DEAD:
                self._read_wide(node, wide, after)
        for head in factor.opaque:
            self._read_opaque(node, head, below)
        for (rule, rival), paths in factor.calls.items():
            number = stacks.called(rule, paths, below)
            if number != _DEAD:
                self._waiting += self._below(node, rival, number)

    def _read(self, node: int, term: Node, below: int) -> None:
        """Read a term, and what depends on what is below it."""
        stacks, reading = self._stacks, self._stacks.reading(self._trie, self._name, term, node)
        self._found += reading.found
        for stack, labels in reading.conditional.items():
            if stacks.follows(stack, below):
                self._found += labels
        for end, rival in reading.exits:
            if end != node:  # there `levels` has what is below
                self._waiting += self._below(end, rival, below)
        for at, what, stack in reading.late:
            after = stacks.closed(stack, below)
            if after == _DEAD:
                continue
            if isinstance(what, _Late):
                self._move(at, what, after)
            elif isinstance(what, _Wide):
                self._read_wide(at, what, after)
            else:
                self._read_opaque(at, what, after)

    def _move(self, child: int, late: _Late, below: int) -> None:
        target, rival, path, _ = late.move
        target, stack = self._stacks.after((target, rival, path, below))
        if stack != _DEAD:
            self._found += late.labels
            if late.has_more:
                self._go_on(child, target, stack)

    def _go_on(self, node: int, target: Node, stack: int) -> None:
        if target.nullable:
            self._waiting += self._below(node, EMPTY, stack)
        if target is not EPSILON:
            self._waiting.append((node, target, stack))

    def _read_opaque(self, node: int, head: _Head, below: int) -> None:
        branches = self._trie.branches(node)
        for mask, target in self._stacks.opaque_arcs(head, below):
            stack = self._stacks.push(target, _END)
            for byte in bytes_in(mask):
                step = branches.get(byte)
                if step is not None and stack != _DEAD:
                    self._found += step[1]
                    if step[2]:
                        self._go_on(step[0], EPSILON, stack)

    def _read_wide(self, node: int, wide: _Wide, stack: int) -> None:
        """Read a head that may begin with many bytes, by a product where that has many tokens."""
        if self._words is not None and is_large(self._trie, node, wide):
            self._leave(node, wide.atom, stack, self._words)
            return
        for byte, (child, labels, below) in self._trie.branches(node).items():
            for mask, target in wide.arcs:
                if mask >> byte & 1:
                    self._found += labels
                    if below:
                        self._go_on(child, target, stack)

    def _leave(self, node: int, term: Node, stack: int, words: NDArray[np.int32]) -> None:
        """Add the tokens that end inside of a term, and where one byte has many places at which it is left, those that go on from there."""
        leaving = self._stacks.leaving(term, node, self._stacks.first_bytes(stack))
        if (term, node) not in self._added:
            self._added.add((term, node))
            words |= leaving.inside
        for place in leaving.places:
            self._go_on(place, EPSILON, stack)
        for byte, trie, token_ids, texts in leaving.many:
            bitmask.add_ids(words, token_ids[self._stacks.rests_after(byte, stack, trie)[texts]])


def _count(num_visits: int) -> None:
    """Count one more parcel of visits; `BudgetExceeded` if these are too many."""
    work.add(_COUNTED // _VISITS_PER_WORK)
    work.check()
    if num_visits > MAX_VISITS:
        raise exceeded("max_visits", MAX_VISITS, "a walk of the tokens")


def _guarded(term: Node, rival: Node) -> Node:
    return term if rival is EMPTY else nodes.munch(EPSILON, term, rival)


def is_large(trie: Trie, node: int, wide: _Wide) -> bool:
    """True where a head is read by a product; a byte is one step."""
    return wide.is_whole and trie.below(node) >= MIN_PRODUCT_TEXTS and wide.atom.kind is not Kind.BYTES


_FINITE = frozenset({Kind.EPSILON, Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.CONCAT, Kind.ALTERNATION})


def _is_finite(term: Node) -> bool:
    return all(part.kind in _FINITE for part in nodes.all_parts(term))
