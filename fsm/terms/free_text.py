"""`FreeTexts`: whether a term is seen to have a text that restricts nothing that follows it, though it contains a MUNCH (maximal munch):
such a term has a text before any other one. It looks at the parts of a term, and finds nothing out by a search: False may be True. What it
does not tell is found by `rivals.py`, whose fixed point over the rules of a grammar takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable

from fsm.terms import node as nodes
from fsm.terms.node import EPSILON, Kind, Node

MAX_DEPTH = 100  # of parts that are looked at; deeper ones tell nothing

_Question = tuple[Node, int]
"""A term, and the bytes with which a text of it must not begin; 0 if the text may also be empty."""


class FreeTexts:
    """Answers about terms, kept in this object; `first_bytes` returns a mask of all bytes with which a text of a term may begin."""

    def __init__(self, first_bytes: Callable[[Node], int], max_memo: int) -> None:
        self._first_bytes, self._max_memo = first_bytes, max_memo
        self._found: set[_Question] = set()
        self._open: set[_Question] = set()

    def has(self, term: Node) -> bool:
        """True where a term has a text that any text may follow; False where this is not seen. Cost: 1 us per part, once where it is True."""
        if len(self._found) > self._max_memo:
            self._found.clear()
        self._open = set()
        return self._has(term, 0, MAX_DEPTH)

    def _has(self, term: Node, excluded: int, depth: int) -> bool:
        if not excluded and term.nullable:
            return not term.is_guarded
        if not term.has_munch:
            return self._is_plain(term, excluded)
        question = term, excluded
        if question in self._found:
            return True
        if question in self._open or not depth:
            return False
        self._open.add(question)
        found = self._of_parts(term, excluded, depth - 1)
        if found:
            self._found.add(question)
        return found

    def _is_plain(self, term: Node, excluded: int) -> bool:
        """The answer for a term without a MUNCH."""
        if not term.is_plain or term is EPSILON:
            return False
        return not excluded or not self._first_bytes(term) & excluded

    def _of_parts(self, term: Node, excluded: int, depth: int) -> bool:
        kind, args = term.kind, term.args
        if kind is Kind.RULE:
            return self._has(args[0].body, excluded, depth)
        if kind is Kind.ALTERNATION:
            return any(self._has(part, excluded, depth) for part in args)
        if kind is Kind.REPEAT:
            return self._has(args[0], excluded, depth) and (not excluded or self._has(args[0], 0, depth))
        if kind is Kind.MUNCH and args[0] is EPSILON:
            return self._has(args[1], excluded | self._first_bytes(args[2]), depth)
        return kind is Kind.CONCAT and self._of_factors(term, excluded, depth)

    def _of_factors(self, term: Node, excluded: int, depth: int) -> bool:
        """The answer for a concatenation: the first factors may be empty, one begins the text, and those after it are free."""
        for factor in nodes.factors(term):
            if excluded and self._has(factor, excluded, depth):
                excluded = 0
            elif excluded and (not factor.nullable or factor.is_guarded):
                return False
            elif not excluded and not self._has(factor, 0, depth):
                return False
        return not excluded
