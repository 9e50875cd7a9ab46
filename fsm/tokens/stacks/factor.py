"""`Factors`: how the factors of terms begin. A factor is divided into heads, terms that are read byte by byte, each with the terms that are
left of the factor after it and with a rival, beside which all of this is read (maximal munch). Rules are expanded, but not where a factor
may begin with one in several ways, as rules that begin with rules twice would double what is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.errors import exceeded
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives, bytes_in
from fsm.terms.node import EMPTY, EPSILON, Kind, Node

MAX_HEADS = 5_000  # with which one factor may begin; with more the walk is given up
_HEADS_PER_WORK = 4
_REGULAR_ATOMS = frozenset(
    {Kind.LITERAL, Kind.BYTES, Kind.WORDS, Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION}
)

_Links = tuple[Node, "_Links"] | None
"""Terms that are left of a factor while it is expanded: the first, and those after it."""
_Item = tuple[Node, _Links, Node]
"""A term with which a factor may begin, what is left of the factor, and a rival."""
Path = tuple[Node, ...]
"""Terms that are left of a factor, the last one first, as they are pushed on a stack."""


class Head(NamedTuple):
    """A term with which a factor may begin, what is left of the factor, and a rival: no prefix of what follows is a text of it."""

    atom: Node
    path: Path
    rival: Node


class Factor(NamedTuple):
    """How a factor begins, whatever is below it on the stack.

    Attributes:
        heads: terms that are read byte by byte.
        opaque: heads that depend on all that follows.
        calls: rules with which the factor may begin in several ways: the rule, the rival, and the paths after it.
        ends: the rivals with which it may be empty.
    """

    heads: list[Head]
    opaque: list[Head]
    calls: dict[tuple[Node, Node], list[Path]]
    ends: list[Node]


class Atom(NamedTuple):
    """How what is left of a head begins.

    Attributes:
        moves: what is left of it after a byte; for one that may begin with many bytes those that were looked for, None if it has none.
        arcs: the transitions of one that may begin with many bytes, else none.
    """

    moves: dict[int, Node | None]
    arcs: tuple[tuple[int, Node], ...]


class Factors:
    """The factors of one language, each divided once."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self._known: dict[Node, Factor] = {}
        self._atoms: dict[Node, Atom] = {}

    def divided(self, term: Node) -> tuple[Node, Node]:
        """The first factor of a term, and the rest.

        Classes of bytes and texts in a row are one factor, such as a keyword of any case, and a class or a loop of many bytes is one with
        its loop and with what must follow: a name, or the inside of a comment with its end. What restricts the text after it is one, too:
        so all states with the same rest of a text have the same stack below it.
        """
        first, rest = nodes.first_and_rest(term)
        if first.kind is Kind.MUNCH and first.args[0] is EPSILON:
            _, tail, rival = first.args
            return guard(rival), nodes.concat(tail, rest)
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

    def factor(self, term: Node) -> Factor:
        """How a term begins. Cost: 5 us and more for each head, once for a term."""
        known = self._known.get(term)
        if known is not None:
            return known
        found, ends = self._heads(term)
        made = self._known[term] = Factor([], [], {}, [*dict.fromkeys(ends)])
        for atom, links, rival in found:
            head = Head(atom, _path(links), rival)
            if atom.kind is Kind.RULE:
                made.calls.setdefault((atom, rival), []).append(head.path)
            else:
                (made.heads if self._is_atom(atom) else made.opaque).append(head)
        work.add(2 + len(found) // _HEADS_PER_WORK)
        work.check()
        return made

    def atom(self, term: Node) -> Atom:
        """How what is left of a head begins."""
        known = self._atoms.get(term)
        if known is None:
            arcs = self._derivatives.live_arcs(term)
            if sum(mask for mask, _ in arcs).bit_count() > FEW_BYTES:
                known = Atom({}, arcs)
            else:
                known = Atom({byte: target for mask, target in arcs for byte in bytes_in(mask)}, ())
            self._atoms[term] = known
        return known

    def _is_atom(self, term: Node) -> bool:
        """True for a term that is read byte by byte; a loop only over one byte, or with many first bytes, as others are read by rounds."""
        kind = term.kind
        if not term.is_regular or term.has_munch:
            return False
        if kind is Kind.CONCAT:
            return self.divided(term)[1] is EPSILON
        if kind is Kind.REPEAT:
            return term.args[0].kind in (Kind.BYTES, Kind.LITERAL) or self._is_wide(term.args[0])
        return kind in _REGULAR_ATOMS

    def _is_wide(self, term: Node) -> bool:
        return self._derivatives.first_bytes(term).bit_count() > FEW_BYTES

    def _heads(self, factor: Node) -> tuple[list[_Item], list[Node]]:
        """The terms with which a factor may begin, and the rivals with which it may be empty."""
        several = set[Node]()
        while True:
            met, heads, ends = Counter[Node](), list[_Item](), list[Node]()
            for head in self._expanded(factor, several, ends):
                atom = head[0]
                if atom.kind is Kind.RULE and atom not in several:
                    met[atom] += 1
                    if met[atom] > 1:
                        break
                heads.append(head)
            else:
                return [head for head in heads if head[0].kind is not Kind.RULE or head[0] in several], ends
            several.add(atom)

    def _expanded(self, factor: Node, several: Collection[Node], ends: list[Node]) -> Iterator[_Item]:
        """The terms with which a factor may begin, rules included; those in `several` are not expanded."""
        waiting, seen = list[_Item]([(factor, None, EMPTY)]), set[_Item]()
        while waiting:
            item = term, links, rival = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            if len(seen) > MAX_HEADS:
                raise exceeded("max_heads", MAX_HEADS, "a term begins in too many ways")
            kind = term.kind
            if kind is Kind.EPSILON:
                if links is None:
                    ends.append(rival)
                else:
                    waiting.append((*links, rival))
            elif self._is_atom(term):
                if term.nullable:
                    waiting.append((EPSILON, links, rival))
                yield item
            elif kind is Kind.CONCAT:
                head, tail = self.divided(term)
                waiting.append((head, (tail, links), rival))
            elif kind is Kind.ALTERNATION:
                waiting += [(member, links, rival) for member in term.args]
            elif kind is Kind.RULE:
                if links is not None or term is not factor:
                    yield item
                if term not in several or term is factor:
                    waiting.append((term.args[0].body, links, rival))
            elif kind is Kind.MUNCH and term.args[0] is EPSILON:
                _, tail, other = term.args
                waiting.append((tail, links, nodes.alternation((rival, other))))
            elif kind is Kind.REPEAT:
                body, least, _ = term.args
                if not least:
                    waiting.append((EPSILON, links, rival))
                waiting.append((body, (nodes.fewer(term), links), rival))
            else:
                yield item


def guard(rival: Node) -> Node:
    """The empty text, of which what follows has no prefix that is a text of the rival."""
    return nodes.munch(EPSILON, EPSILON, rival)


def guarded(term: Node, rival: Node) -> Node:
    """A term of which no prefix is a text of the rival; EMPTY: none is."""
    return term if rival is EMPTY else nodes.munch(EPSILON, term, rival)


def _path(links: _Links) -> Path:
    terms = list[Node]()
    while links is not None:
        term, links = links
        terms.append(term)
    return tuple(reversed(terms))
