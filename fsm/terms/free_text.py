"""`FreeTexts`: whether a term is seen to have a text that restricts nothing that follows it, though it contains a MUNCH (maximal munch):
such a term has a text before any other one. It looks for one text, part by part, and follows the bytes with which what comes next must not
begin; of several ways it takes the few that exclude fewest bytes. So it may miss a text, and finds none that is not there. What it does
not tell is found by `rivals.py`, whose fixed point over the rules of a grammar takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable

from fsm.terms import node as nodes
from fsm.terms.node import EPSILON, Kind, Node

MAX_DEPTH = 100  # of parts that are looked at; deeper ones tell nothing
MAX_MASKS = 4  # that are followed; a text is not seen where another one is needed

Masks = tuple[int, ...]
"""256-bit masks of bytes, none a part of another: what follows must begin with no byte of one of them. Empty: nothing is seen to follow."""
ANY_TEXT: Masks = (0,)

_Question = tuple[Node, int]
"""A term, and a 256-bit mask of bytes with which a text of it must not begin."""


class FreeTexts:
    """Answers about terms, kept in this object.

    Args:
        first_bytes: returns a mask of all bytes with which a text of a term may begin, and perhaps others.
        begun_with: returns the mask of the bytes with which a text of a regular term begins.
        is_inhabited: whether a term without rules and MUNCH has a text.
        max_memo: the most answers that are kept.
    """

    def __init__(
        self,
        first_bytes: Callable[[Node], int],
        begun_with: Callable[[Node], int],
        is_inhabited: Callable[[Node], bool],
        max_memo: int,
    ) -> None:
        self._first_bytes, self._begun_with = first_bytes, begun_with
        self._is_inhabited, self._max_memo = is_inhabited, max_memo
        self._left: dict[_Question, Masks] = {}
        self._open: set[_Question] = set()
        self._num_cuts = 0  # questions that were asked inside themselves, or too deep, and so not answered

    def has(self, term: Node) -> bool:
        """True if a term has a text that any text may follow; False if this is not seen. Cost: 2 us per part, once if it is True."""
        return self.left(term, ANY_TEXT) == ANY_TEXT

    def left(self, term: Node, excluded: Masks) -> Masks:
        """For some texts of a term, each of which begins with no byte of one of the masks, the bytes that must not begin what follows.

        Of what follows, one that begins with no byte of one of the masks is enough. Empty if no such text is seen.
        """
        if len(self._left) > self._max_memo:
            self._left.clear()
        self._open = set()
        return _least([mask for one in excluded for mask in self._of(term, one, MAX_DEPTH)])

    def _of(self, term: Node, excluded: int, depth: int) -> Masks:
        """The bytes that texts of a term exclude after them, where they must not begin with some bytes."""
        is_skipped = term.nullable and not term.is_guarded  # with the empty text
        if is_skipped and not excluded:
            return ANY_TEXT
        found: Masks | None
        if not term.has_munch and (term.is_regular or not self._first_bytes(term) & excluded):
            found = self._of_plain(term, excluded)
        else:
            question = term, excluded
            found = self._left.get(question)
            if found is None:
                found = ()
                if question in self._open or not depth:
                    self._num_cuts += 1
                else:
                    self._open.add(question)
                    num_cuts = self._num_cuts
                    found = self._of_parts(term, excluded, depth - 1)
                    if found or num_cuts == self._num_cuts:
                        self._left[question] = found
        return _least([*found, excluded]) if is_skipped else found

    def _of_plain(self, term: Node, excluded: int) -> Masks:
        """The answer for a term without a MUNCH that is regular, or begins with no byte of `excluded`."""
        if term is EPSILON or not (
            term.is_plain or (term.is_regular and not term.nullable and self._is_inhabited(term))
        ):
            return ()
        return ANY_TEXT if not excluded or not term.is_regular or self._begun_with(term) & ~excluded else ()

    def _of_parts(self, term: Node, excluded: int, depth: int) -> Masks:
        kind, args = term.kind, term.args
        if kind is Kind.RULE:
            return self._of(args[0].body, excluded, depth)
        if kind is Kind.ALTERNATION:
            found = list[int]()
            for part in args:
                found += self._of(part, excluded, depth)
                if 0 in found:
                    return ANY_TEXT
            return _least(found)
        if kind is Kind.MUNCH and args[0] is EPSILON:
            more = excluded | self._first_bytes(args[2])
            return (more,) if args[1] is EPSILON else self._of(args[1], more, depth)
        if kind is Kind.REPEAT:
            return self._of(args[0], excluded, depth) if args[1] <= 1 else ()
        return self._of_factors(term, excluded, depth) if kind is Kind.CONCAT else ()

    def _of_factors(self, term: Node, excluded: int, depth: int) -> Masks:
        left: Masks = (excluded,)
        for factor in nodes.factors(term):
            left = _least([mask for one in left for mask in self._of(factor, one, depth)])
            if not left:
                break
        return left


def _least(masks: list[int]) -> Masks:
    """The masks of which no other one is a part; of many those with the fewest bits."""
    if len(masks) < 2:
        return tuple(masks)
    found = list[int]()
    for mask in sorted(set(masks), key=int.bit_count):
        if all(one & ~mask for one in found):
            found.append(mask)
    return tuple(found[:MAX_MASKS])
