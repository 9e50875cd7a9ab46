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

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import bytes_in
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.tokens.trie import Trie
from fsm.tokens.vocabulary import Vocabulary

MAX_STACKS = 40_000  # beyond them all are forgotten before the next walk
MAX_VISITS = 60_000  # of places in one walk; one that takes more is given up
MIN_PRODUCT_TEXTS = 64  # the fewest tokens below a place for which a product is made
MAX_DEPTH = 12  # of parts of a term that are looked at
MAX_PLACES = 64  # where a product may be left with one byte, before its rests are walked once for all of them
_VISITS_PER_WORK = 4
_END = 0  # the stack without factors
_DEAD = -1
_REGULAR_ATOMS = frozenset({Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION})

_Head = tuple[Node, int, Node]
"""A term with which a stack may begin, the stack after it, and a rival: no prefix of both together is a text of it."""
_Move = tuple[Node, int]
"""A term that is left of a head after a byte, and the stack after it."""


class _Wide(NamedTuple):
    """A head that may begin with many bytes: the term, the stack after it, and its transitions."""

    atom: Node
    stack: int
    arcs: tuple[tuple[int, Node], ...]
    is_whole: bool  # no byte of it is excluded


class _Table(NamedTuple):
    """What a stack does with its next byte: moves by bytes, heads with many bytes, and a mask of all bytes that it may read."""

    moves: dict[int, list[_Move]]
    wide: list[_Wide]
    mask: int


class StackWalk:
    """The walks of one vocabulary's trie with the stacks of one language, which are kept from one walk to the next."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self._automaton, self._vocabulary, self._trie = automaton, vocabulary, vocabulary.trie
        self._forget()

    def _forget(self) -> None:
        self._stacks: list[tuple[Node, int]] = [(EPSILON, _END)]
        self._numbers: dict[tuple[Node, int], int] = {}
        self._wholes: list[Node] = [EPSILON]
        self._tables: dict[int, _Table] = {}
        self._atoms: dict[Node, _Table] = {}
        self._free: dict[Node, bool] = {}
        self._rests: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def mask(self, term: Node) -> NDArray[np.int32] | None:
        """The packed mask of a term that has a text; None where the walk takes too many steps.

        Cost: some us for each place of the trie and stack there, and 50 to 200 us for each stack that is new.
        """
        if len(self._stacks) > MAX_STACKS:
            self._forget()
        words = np.zeros(self._vocabulary.num_words, np.int32)
        found = list[int]()
        if not self._walk(self._trie, self.push(term, _END), found, words):
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
            factor, rest = nodes.first_and_rest(rest)
            factors.append(factor)
        number = stack
        for factor in reversed(factors):
            number = self._push_factor(factor, number)
        self._numbers[term, stack] = number
        return number

    def _push_factor(self, factor: Node, stack: int) -> int:
        if stack == _DEAD:
            return _DEAD
        number = self._numbers.get((factor, stack))
        if number is None:
            whole = nodes.concat(factor, self._wholes[stack])
            number = _DEAD
            if self._is_free(factor) or self._automaton.is_alive(whole):
                number = len(self._stacks)
                self._stacks.append((factor, stack))
                self._wholes.append(whole)
            self._numbers[factor, stack] = number
        return number

    def _is_free(self, factor: Node) -> bool:
        """True where a factor has a text that any other may follow, so that it has one before any stack."""
        known = self._free.get(factor)
        if known is None:
            known = self._seems_free(factor, MAX_DEPTH) or self._automaton.derivatives.leaves_no_rival(factor)
            self._free[factor] = known
        return known

    def _seems_free(self, term: Node, depth: int) -> bool:
        """The same by the parts of a term down to a depth; False where these do not tell."""
        kind, args = term.kind, term.args
        if term.nullable:
            return not term.is_guarded
        if not term.has_munch:
            return term.is_plain or (term.is_regular and self._automaton.is_alive(term))
        known = self._free.get(term)
        if known is not None or not depth:
            return known is True
        if kind is Kind.RULE:
            found = self._free[term] = self._seems_free(args[0].body, depth - 1)
            if not found:
                del self._free[term]
            return found
        if kind is Kind.CONCAT or kind is Kind.ALTERNATION:
            test = all if kind is Kind.CONCAT else any
            return test(self._seems_free(part, depth - 1) for part in args)
        if kind is Kind.MUNCH and args[0] is EPSILON:
            first_bytes = self._automaton.derivatives.first_bytes
            return not args[1].nullable and not first_bytes(args[1]) & first_bytes(args[2]) and self._seems_free(args[1], depth - 1)
        return kind is Kind.REPEAT and self._seems_free(args[0], depth - 1)

    def _heads(self, stack: int) -> Iterator[_Head]:
        """The terms with which a stack may begin, each not empty."""
        factor, rest = self._stacks[stack]
        waiting, seen = [(factor, rest, EMPTY)], set[_Head]()
        while waiting:
            item = term, rest, rival = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            kind = term.kind
            if kind is Kind.CONCAT:
                head, tail = nodes.first_and_rest(term)
                self._then(waiting, head, self.push(tail, rest), rival)
            elif kind is Kind.ALTERNATION:
                waiting += [(member, rest, rival) for member in term.args]
            elif kind is Kind.RULE:
                waiting.append((term.args[0].body, rest, rival))
            elif kind is Kind.EPSILON:
                if rest != _END:
                    waiting.append((*self._stacks[rest], rival))
            elif kind is Kind.MUNCH and term.args[0] is EPSILON:
                _, tail, other = term.args
                waiting.append((tail, rest, nodes.alternation((rival, other))))
            elif kind is Kind.REPEAT and not self._is_atom(term):
                body, least, _ = term.args
                if not least:
                    waiting.append((EPSILON, rest, rival))
                self._then(waiting, body, self.push(nodes.fewer(term), rest), rival)
            elif kind is Kind.REPEAT or (kind in _REGULAR_ATOMS and term.is_regular and not term.has_munch):
                if term.nullable:
                    waiting.append((EPSILON, rest, rival))
                yield self._with_loop(term, rest, rival)
            else:
                yield nodes.concat(term, self._wholes[rest]), _END, rival

    def _then(self, waiting: list[_Head], head: Node, stack: int, rival: Node) -> None:
        if stack != _DEAD:
            waiting.append((head, stack, rival))

    def _is_atom(self, loop: Node) -> bool:
        """True for a loop that is read byte by byte, and not round by round: over one byte, or with many first bytes."""
        body = loop.args[0]
        if body.kind is Kind.BYTES or body.kind is Kind.LITERAL:
            return True
        return body.is_regular and not body.has_munch and self._is_wide(body)

    def _is_wide(self, term: Node) -> bool:
        return self._automaton.derivatives.first_bytes(term).bit_count() > FEW_BYTES

    def _with_loop(self, term: Node, stack: int, rival: Node) -> _Head:
        """A term that may begin with many bytes with the loop after it, or what must come after its loop; any other as it is.

        A name, or the inside of a string or comment with its end, is one term then, and has one product.
        """
        if term.kind is not Kind.BYTES and term.kind is not Kind.REPEAT:
            return term, stack, rival
        if not self._is_wide(term):
            return term, stack, rival
        parts = [term]
        while stack != _END:
            after, rest = self._stacks[stack]
            is_loop = after.kind is Kind.REPEAT
            if not (is_loop or after.kind in (Kind.BYTES, Kind.LITERAL)) or not after.is_regular or after.has_munch:
                break
            if after.nullable and (len(parts) > 1 or term.kind is not Kind.BYTES or not self._is_wide(after)):
                break
            parts.append(after)
            stack = rest
        return nodes.sequence(parts), stack, rival

    # -- tables ------------------------------------------------------------------------------------------------------------------

    def _table(self, stack: int) -> _Table:
        known = self._tables.get(stack)
        if known is None:
            known = self._tables[stack] = self._make_table(self._heads(stack))
            work.add(2 + (len(known.moves) + len(known.wide)) // _VISITS_PER_WORK)
            work.check()
        return known

    def _atom_table(self, atom: Node) -> _Table:
        """The table of a term alone."""
        known = self._atoms.get(atom)
        if known is None:
            known = self._atoms[atom] = self._make_table([(atom, _END, EMPTY)])
        return known

    def _make_table(self, heads: Iterable[_Head]) -> _Table:
        moves: dict[int, list[_Move]] = {}
        wide, mask = list[_Wide](), 0
        derivatives = self._automaton.derivatives
        for atom, stack, rival in dict.fromkeys(heads):
            if atom.kind is Kind.LITERAL and rival is EMPTY:
                text: bytes = atom.args[0]
                moves.setdefault(text[0], []).append((nodes.literal(text[1:]), stack))
                mask |= 1 << text[0]
                continue
            arcs, own = derivatives.live_arcs(atom), 0
            all_bytes = sum(some for some, _ in arcs)
            if rival is not EMPTY:
                arcs, others = self._beside(arcs, stack, rival)
                for some, move in others:
                    mask |= some
                    for byte in bytes_in(some):
                        moves.setdefault(byte, []).append(move)
            own = sum(some for some, _ in arcs)
            mask |= own
            if own.bit_count() > FEW_BYTES and atom.kind is not Kind.MUNCH:
                wide.append(_Wide(atom, stack, arcs, own == all_bytes))
                continue
            for some, target in arcs:
                for byte in bytes_in(some):
                    moves.setdefault(byte, []).append((target, stack))
        return _Table({byte: [*dict.fromkeys(found)] for byte, found in moves.items()}, wide, mask)

    def _beside(
        self, arcs: tuple[tuple[int, Node], ...], stack: int, rival: Node
    ) -> tuple[tuple[tuple[int, Node], ...], list[tuple[int, _Move]]]:
        """The transitions after which a rival is out of reach, and those after which it may still come to a text, as moves."""
        others, steps = list[tuple[int, _Move]](), self._automaton.derivatives.arcs(rival)
        near = sum(mask for mask, _ in steps)
        for mask, target in arcs:
            for some, still in steps:
                if mask & some and not still.nullable:
                    rest = nodes.munch(EPSILON, nodes.concat(target, self._wholes[stack]), still)
                    number = self.push(rest, _END)
                    if number != _DEAD:
                        others.append((mask & some, (EPSILON, number)))
        return tuple((mask & ~near, target) for mask, target in arcs if mask & ~near), others

    # -- walks -------------------------------------------------------------------------------------------------------------------

    def _walk(self, trie: Trie, stack: int, found: list[int], words: NDArray[np.int32] | None) -> bool:
        """Add the labels of the tokens that a stack reads to `found`; with `words`, those inside of products there; False if given up."""
        waiting, seen = [(Trie.root, EPSILON, stack)], set[tuple[int, Node, int]]()
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
                table = self._table(stack)
            elif atom.kind is Kind.LITERAL and len(atom.args[0]) > 1:
                labels, node = trie.follow(node, atom.args[0])
                found += labels
                if node >= 0 and trie.below(node):
                    waiting.append((node, EPSILON, stack))
                continue
            else:
                table = self._atom_table(atom)
            branches, moves = trie.branches(node), table.moves
            for byte in moves if len(moves) < len(branches) else branches:
                step, targets = branches.get(byte), moves.get(byte)
                if step is None or targets is None:
                    continue
                child, labels, below = step
                found += labels
                if below:
                    for target, after in targets:
                        waiting.append((child, target, stack if atom is not EPSILON else after))
            is_over = False
            for wide in table.wide:
                after = stack if atom is not EPSILON else wide.stack
                if words is not None and wide.is_whole and trie.below(node) >= MIN_PRODUCT_TEXTS:
                    is_over |= wide.atom is atom
                    product = self._product(wide.atom, node)
                    bitmask.add_ids(words, product.token_ids)
                    waiting += self._left(product, after, words)
                    continue
                for mask, target in wide.arcs:
                    for byte, (child, labels, below) in branches.items():
                        if mask >> byte & 1:
                            found += labels
                            if below:
                                waiting.append((child, target, after))
            if atom is not EPSILON and atom.nullable and not is_over:
                waiting.append((node, EPSILON, stack))
        return True

    def _product(self, term: Node, node: int) -> LexemeProduct:
        return self._vocabulary.lexeme_product(term, node)

    def _left(self, product: LexemeProduct, stack: int, words: NDArray[np.int32]) -> list[tuple[int, Node, int]]:
        """The places at which a product is left before a stack; where one byte has many, their tokens are added to `words`."""
        places = list[int]()
        if stack == _END:
            return []
        for byte, steps in product.exits(self._table(stack).mask):
            exits = self._vocabulary.exits(byte, True) if len(steps) > MAX_PLACES else None
            if exits is None:
                places += self._trie.parent[steps].tolist()
                continue
            is_exit = np.zeros(len(self._trie), bool)
            is_exit[steps] = True
            alive = self._rests_after(byte, stack, exits.trie)
            kept = is_exit[exits.nodes][exits.which] & alive[exits.texts]
            bitmask.add_ids(words, exits.token_ids[kept])
        return [(node, EPSILON, stack) for node in dict.fromkeys(places)]

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
