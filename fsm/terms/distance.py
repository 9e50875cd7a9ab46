"""`Distances`: estimates of the length of a shortest text of a term, by structural recursion, as heuristic of best-first searches. They
may be too small or too large: rules and complements count as one byte, word lists as their first word, and members of an intersection are
summed.
Also here: `is_unbounded`, whether texts may be of any length; it takes machines and rules as bounded, and approximates intersections.
"""

from __future__ import annotations

from fsm.terms import work
from fsm.terms.node import Kind, Node, folded

_WHOLE = frozenset({Kind.ALTERNATION, Kind.INTERSECTION, Kind.CONCAT})
_FIRST = frozenset({Kind.REPEAT, Kind.CHECK, Kind.CONTINUATION})
_SUMS = frozenset({Kind.CONCAT, Kind.MUNCH, Kind.INTERSECTION})
"""Members of an intersection are summed, since they seldom require the same bytes."""
_PARTS_PER_WORK = 2  # parts are estimated at 2 us each


class Distances:
    """Estimates of the length of a shortest text of terms, cached in this object.

    Args:
        max_memo: most cached terms; beyond them the cache is cleared.
    """

    def __init__(self, *, max_memo: int = 200_000) -> None:
        self.max_memo = max_memo
        self._known: dict[Node, int] = {}

    def of(self, node: Node) -> int:
        """A number of bytes; 0 for a term that accepts the empty text. Cost: 2 us per part that is not cached."""
        known = self._known.get(node)
        if known is None:
            if len(self._known) > self.max_memo:
                self._known.clear()
            before = len(self._known)
            known = folded(node, lambda part: () if part.nullable else _parts(part), _estimate, self._known)
            work.add((len(self._known) - before) // _PARTS_PER_WORK)
        return known


def is_unbounded(root: Node, known: dict[Node, bool]) -> bool:
    """Return whether some part of a term repeats without a bound, so that its texts may be of any length.

    An intersection counts as unbounded where all of its members are, such as `a* & b*`. Machines and rules count as
    bounded.

    Args:
        root: a term that is not empty.
        known: the memo, by term.

    Cost: 0.3 us per part that is not in the memo.
    """
    return folded(root, lambda node: node.args if node.kind is Kind.COMPLEMENT else _parts(node), _is_unbounded, known)


def _parts(node: Node) -> tuple[Node, ...]:
    if node.kind in _WHOLE:
        return node.args
    if node.kind is Kind.MEMBERS:
        return tuple(node.args[0].parts)
    return node.args[:2] if node.kind is Kind.MUNCH else node.args[:1] if node.kind in _FIRST else ()


def _estimate(node: Node, parts: list[int]) -> int:
    if node.nullable:
        return 0
    if node.kind is Kind.LITERAL:
        return len(node.args[0])
    if node.kind is Kind.MACHINE:
        return int(node.args[0].distance(node.args[1]))
    if node.kind is Kind.MEMBERS:
        return int(node.args[0].distance(node.args[1], parts))
    if node.kind is Kind.WORDS:
        words, lo, _, depth = node.args
        return len(words.words[lo]) - int(depth)
    if node.kind is Kind.REPEAT:
        return int(node.args[1]) * parts[0]
    if node.kind is Kind.ALTERNATION:
        return min(parts)
    return sum(parts) if node.kind in _SUMS else max([1, *parts])


def _is_unbounded(node: Node, parts: list[bool]) -> bool:
    if node.kind is Kind.REPEAT:
        return node.args[2] is None or parts[0]
    if node.kind is Kind.INTERSECTION:
        return all(parts)
    return not parts[0] if node.kind is Kind.COMPLEMENT else any(parts)
