"""`StackWalk`: the masks of context-free grammars by a walk of the token trie with a pushdown automaton. A term is read as a stack of
factors that share their lower parts (a graph-structured stack); where a factor begins, its rules are expanded to the terminals with which
it may begin, in a table by their first bytes that is made once for each stack. Loops over many characters, such as names, are products of
a small DFA and the trie, shared by all constraints (`LexemeProduct`).

A walk with sets of alternatives has a state, with all its transitions, for each set of stacks, of which an operator grammar has thousands.
Here stacks are followed one by one, and only by bytes that tokens have. What a stack leaves is tested for a text when it is made, so a
token is allowed as soon as one stack survives it.

Source: Tomita 1987 (graph-structured stacks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
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
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.tokens.trie import Trie
from fsm.tokens.walk import Exits

MAX_STACKS = 40_000  # beyond them all are forgotten before the next walk
MAX_VISITS = 60_000  # of places in one walk; one that takes more is given up
MIN_PRODUCT_TEXTS = 64  # the fewest tokens below a place for which a product is made
MAX_HEADS = 5_000  # with which one factor may begin; with more the walk is given up
MAX_PLACES = 64  # where a product may be left with one byte, before its rests are walked once for all of them
_VISITS_PER_WORK = 4
_END = 0  # the stack without factors
_DEAD = -1
_REGULAR_ATOMS = frozenset(
    {Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION}
)

_Path = tuple[Node, "_Path"] | None
"""Terms that are left of a factor: the first, and those after it."""
_Move = tuple[Node, Node, _Path, int]
"""What is left of a head after a byte, a rival of it with what follows (EMPTY: none), what is left of its factor, and the stack below."""
_Place = tuple[int, Node, int]
"""A node of the trie, what is left of a head there, and the stack after it."""


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
    """What a stack does with its next byte.

    Attributes:
        moves: by byte.
        wide: the heads with many bytes, each with the stack after it.
        mask: all bytes that may be read.
        found: what the moves lead to, which is made when a token has the byte: what is left of a head, and the stack after it.
    """

    moves: dict[int, list[_Move]]
    wide: list[tuple[_Wide, int]]
    mask: int
    found: dict[int, list[tuple[Node, int]]]


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
        self._stacks: list[tuple[Node, int]] = [(EPSILON, _END)]
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

    def mask(self, term: Node) -> NDArray[np.int32] | None:
        """The packed mask of a term that has a text; None where the walk takes too many steps.

        Cost: some us for each place of the trie and stack there, and 50 to 200 us for each stack that is new.
        """
        with self._lock:  # a thread must not number a stack while another one does
            return self._mask(term)

    def _mask(self, term: Node) -> NDArray[np.int32] | None:
        if len(self._stacks) > MAX_STACKS:
            self._forget()
        words = np.zeros(self._vocabulary.num_words, np.int32)
        found = list[int]()
        try:
            if not self._walk(self._trie, self.push(term, _END), found, words):
                return None
        except BudgetExceeded as error:
            if error.limit != "max_heads":
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

    def _push_path(self, path: _Path, stack: int) -> int:
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
            if self._seems_alive(factor, stack) or self._automaton.is_alive(nodes.concat(factor, self._whole(stack))):
                number = len(self._stacks)
                self._stacks.append((factor, stack))
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

    def _seems_alive(self, factor: Node, stack: int) -> bool:
        """True where a factor is seen to have a text that the stack below may follow; False where that takes a search."""
        left = self._automaton.derivatives.free_texts.left
        mask = left(factor, 0)
        while mask and stack != _END:
            stack = self._unions.get(stack, (stack,))[0]
            factor, stack = self._stacks[stack]
            mask = left(factor, mask)
        return mask is not None

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

    def _factor(self, term: Node) -> _Factor:
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

    def _atom(self, term: Node) -> _Factor:
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

    def _table(self, stack: int) -> _Table:
        """What a stack does with its next byte: the top factor, and those below it where it may be empty."""
        known = self._tables.get(stack)
        if known is not None:
            return known
        moves: dict[int, list[_Move]] = {}
        wide, mask = dict[_Wide, set[int]](), 0
        waiting, seen = [(stack, EMPTY)], set[tuple[int, Node]]()
        while waiting:
            item = here, rival = waiting.pop()
            if here == _END or item in seen:
                continue
            seen.add(item)
            if here in self._unions:
                waiting += [(member, rival) for member in self._unions[here]]
                continue
            term, below = self._stacks[here]
            factor = self._factor(term) if rival is EMPTY else self._factor(nodes.munch(EPSILON, term, rival))
            for byte, found in factor.moves.items():
                moves.setdefault(byte, []).extend([(target, still, path, below) for target, still, path in found])
            for one in factor.wide:
                after = self._push_path(one.path, below)
                if after != _DEAD:
                    wide.setdefault(one._replace(path=None), set()).add(after)
            for atom, path, other in factor.opaque:
                rest = self._push_path(path, below)
                if rest != _DEAD:
                    whole = nodes.munch(EPSILON, nodes.concat(atom, self._whole(rest)), other)
                    for some, target in self._automaton.derivatives.live_arcs(whole):
                        for byte in bytes_in(some):
                            moves.setdefault(byte, []).append((EPSILON, EMPTY, (target, None), _END))
            for (rule, other), paths in factor.calls.items():
                after_rule = {self._push_path(path, below) for path in paths} - {_DEAD}
                number = self.push(rule, self._united(after_rule)) if after_rule else _DEAD
                if number != _DEAD:
                    waiting.append((number, other))
            waiting += [(below, other) for other in factor.ends]
        for byte in moves:
            mask |= 1 << byte
        for one in wide:
            for some, _ in one.arcs:
                mask |= some
        work.add(2)
        after_wide = [(one, self._united(stacks)) for one, stacks in wide.items()]
        made = self._tables[stack] = _Table(moves, after_wide, mask, {})
        return made

    def _moved(self, table: _Table, byte: int) -> list[tuple[Node, int]]:
        """What is left of heads after a byte, and the stack after each, all that have a text."""
        known = table.found.get(byte)
        if known is None:
            by_target: dict[Node, set[int]] = {}
            for move in dict.fromkeys(table.moves[byte]):
                target, stack = self._after(move)
                if stack != _DEAD:
                    by_target.setdefault(target, set()).add(stack)
            known = table.found[byte] = [(target, self._united(stacks)) for target, stacks in by_target.items()]
        return known

    def _after(self, move: _Move) -> tuple[Node, int]:
        """What is left of a head, and the stack after it; `_DEAD` where that has no text."""
        target, rival, path, below = move
        stack = self._push_path(path, below)
        if rival is EMPTY or stack == _DEAD:
            return target, stack
        return EPSILON, self.push(nodes.munch(EPSILON, nodes.concat(target, self._whole(stack)), rival), _END)

    # -- walks -------------------------------------------------------------------------------------------------------------------

    def _walk(self, trie: Trie, stack: int, found: list[int], words: NDArray[np.int32] | None) -> bool:
        """Add the labels of the tokens that a stack reads to `found`; with `words`, those inside of products there; False if given up."""
        waiting: list[_Place] = [(Trie.root, EPSILON, stack)]
        seen = set[_Place]()
        while waiting:
            place = node, atom, stack = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if len(seen) % (256 * _VISITS_PER_WORK) == 0:
                work.add(256)
                work.check()
                if len(seen) > MAX_VISITS:
                    return False
            if atom is EPSILON:
                self._read(trie, place, found, words, waiting)
            elif atom.kind is Kind.LITERAL and len(atom.args[0]) > 1:
                labels, node = trie.follow(node, atom.args[0])
                found += labels
                if node >= 0 and trie.below(node):
                    waiting.append((node, EPSILON, stack))
            else:
                self._read_atom(trie, place, found, words, waiting)
        return True

    def _read(
        self, trie: Trie, place: _Place, found: list[int], words: NDArray[np.int32] | None, waiting: list[_Place]
    ) -> None:
        """Read a byte where a head begins."""
        node, _, stack = place
        table, branches = self._table(stack), trie.branches(node)
        moves = table.moves
        for byte in moves if len(moves) < len(branches) else branches:
            step = branches.get(byte)
            if step is not None and byte in moves:
                child, labels, below = step
                targets = self._moved(table, byte)
                if targets:
                    found += labels
                if below:
                    waiting += [(child, target, after) for target, after in targets]
        for wide, after in table.wide:
            self._read_wide(trie, node, wide, after, found, words, waiting)

    def _read_atom(
        self, trie: Trie, place: _Place, found: list[int], words: NDArray[np.int32] | None, waiting: list[_Place]
    ) -> None:
        """Read a byte within a head."""
        node, atom, stack = place
        factor, branches = self._atom(atom), trie.branches(node)
        moves = factor.moves
        for byte in moves if len(moves) < len(branches) else branches:
            step, targets = branches.get(byte), moves.get(byte)
            if step is not None and targets is not None:
                child, labels, below = step
                found += labels
                if below:
                    waiting += [(child, target, stack) for target, _, _ in targets]
        is_left = False
        for wide in factor.wide:
            is_left = self._read_wide(trie, node, wide, stack, found, words, waiting)
        if atom.nullable and not is_left:
            waiting.append((node, EPSILON, stack))

    def _read_wide(
        self,
        trie: Trie,
        node: int,
        wide: _Wide,
        stack: int,
        found: list[int],
        words: NDArray[np.int32] | None,
        waiting: list[_Place],
    ) -> bool:
        """Read a head that may begin with many bytes; True where it was by a product, with where it is left."""
        is_large = trie.below(node) >= MIN_PRODUCT_TEXTS and wide.atom.kind is not Kind.BYTES  # a byte is one step
        if words is not None and wide.is_whole and is_large:
            waiting += self._left(wide.atom, node, stack, words)
            return True
        for byte, (child, labels, below) in trie.branches(node).items():
            for mask, target in wide.arcs:
                if mask >> byte & 1:
                    found += labels
                    if below:
                        waiting.append((child, target, stack))
        return False

    def _left(self, term: Node, node: int, stack: int, words: NDArray[np.int32]) -> list[_Place]:
        """Add the tokens that end inside a term, and return the places at which it is left before a stack.

        Where one byte has many of these places, their tokens are added, too. Texts that a term excludes, such as keywords among names, are
        places at which it is not left, so that it has the product of all names.
        """
        whole, excluded = self._without(term)
        product = self._vocabulary.lexeme_product(whole, node)
        bitmask.add_ids(words, product.token_ids)
        if stack == _END:
            return []
        kept = None if excluded is None else self._places_of(excluded, node)
        places = list[int]()
        for byte, steps in product.exits(self._table(stack).mask):
            if kept:
                steps = steps[~np.isin(self._trie.parent[steps], kept)]
            exits = self._vocabulary.exits(byte, True) if len(steps) > MAX_PLACES else None
            if exits is None:
                places += self._trie.parent[steps].tolist()
                continue
            is_exit = np.zeros(len(self._trie), bool)
            is_exit[steps] = True
            alive = self._rests_after(byte, stack, exits.trie)
            bitmask.add_ids(words, exits.token_ids[is_exit[exits.nodes][exits.which] & alive[exits.texts]])
        return [(place, EPSILON, stack) for place in dict.fromkeys(places)]

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

    def _rests_after(self, byte: int, stack: int, trie: Trie) -> NDArray[np.bool_]:
        """For each text from a byte on, with which tokens go on, whether a stack reads it."""
        known = self._rests.get((byte, stack))
        if known is None:
            found = list[int]()
            self._walk(trie, stack, found, None)
            known = np.zeros(len(trie.ends), bool)
            known[found] = True
            if len(self._rests) > 500:
                self._rests.clear()
            self._rests[byte, stack] = known
        return known


_FINITE = frozenset({Kind.EPSILON, Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.CONCAT, Kind.ALTERNATION})


def _is_finite(term: Node) -> bool:
    return all(part.kind in _FINITE for part in nodes.all_parts(term))
