"""Estimates of the length of the shortest text of a term, computed from its parts: the heuristic of the emptiness search.

An estimate may be too small or too large: rules are not expanded, and a complement or a machine counts as one byte.
"""

from __future__ import annotations

from fsm.terms.node import Kind, Node

_SUMS = frozenset({Kind.CONCAT, Kind.MUNCH, Kind.INTERSECTION})
"""What one member of an intersection asks for is seldom what another one does."""


class Distances:
    """Guesses for terms, remembered for as long as this object lives.

    Args:
        max_memo: most remembered terms; at the limit the memory starts anew.
    """

    def __init__(self, *, max_memo: int = 200_000) -> None:
        self.max_memo = max_memo
        self._known: dict[Node, int] = {}

    def of(self, node: Node) -> int:
        """A number of bytes; 0 for what accepts the empty text. Cost: 2 us per part that was not met before."""
        known = self._known
        if node not in known:
            if len(known) > self.max_memo:
                known.clear()
            stack = [node]
            while stack:
                missing = [part for part in _parts(stack[-1]) if part not in known]
                stack += missing
                if not missing:
                    top = stack.pop()
                    known[top] = _guess(top, [known[part] for part in _parts(top)])
        return known[node]


def _parts(node: Node) -> tuple[Node, ...]:
    kind, args = node.kind, node.args
    if node.nullable:
        return ()
    if kind in (Kind.ALTERNATION, Kind.INTERSECTION, Kind.CONCAT):
        return args
    if kind is Kind.MUNCH:
        return args[:2]
    return args[:1] if kind in (Kind.REPEAT, Kind.CHECK, Kind.CONTINUATION) else ()


def _guess(node: Node, parts: list[int]) -> int:
    if node.nullable:
        return 0
    if node.kind is Kind.LITERAL:
        return len(node.args[0])
    if node.kind is Kind.REPEAT:
        lo: int = node.args[1]
        return lo * parts[0]
    if node.kind is Kind.ALTERNATION:
        return min(parts)
    return sum(parts) if node.kind in _SUMS else max([1, *parts])
