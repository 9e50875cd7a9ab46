"""`Rivals`: whether a term that contains a MUNCH (maximal munch, see `node.munch`) has a text. A MUNCH forbids what follows it to begin
with some texts, in whatever rule it stands; so the emptiness of its parts alone does not decide.

A *rival* is a term of which no prefix of the rest, but the empty one, may be a text; EMPTY forbids nothing. The rivals that the texts of a
term may leave to what follows them, given the one that they are read with, are the least fixed point of equations over such pairs: a
concatenation is read with what its head leaves, a MUNCH adds its own rival, and a term has a text if it leaves any rival. Pairs are
added as others ask for them, and computed again when one that they asked for grows (chaotic iteration with a worklist).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.byte_classes import completed, covered, product
from fsm.terms.node import EMPTY, EPSILON, Kind, Node

_MAX_STATES = 500  # of a product with a rival; beyond them a term counts as one that may leave none
_MAX_STEPS = 20_000  # of the iteration; beyond them a term counts as one that has a text

Pair = tuple[Node, Node]
"""A term, and the rival that it is read with."""
Left = frozenset[Node]
"""The rivals that the texts of a term leave; none if it has no text."""
_NOTHING = frozenset({EMPTY})
_NONE = Left()
_OF_PARTS = frozenset({Kind.CONCAT, Kind.ALTERNATION, Kind.REPEAT, Kind.RULE, Kind.CHECK})


class Steps(Protocol):
    """What is needed of `Derivatives`."""

    def live_arcs(self, node: Node) -> tuple[tuple[int, Node], ...]:
        """See `Derivatives`."""

    def first_bytes(self, node: Node) -> int:
        """See `Derivatives`."""

    def is_inhabited(self, node: Node, alphabet: int) -> bool:
        """See `Derivatives`; asked for terms without a MUNCH."""


class Rivals:
    """The rivals that the texts over an alphabet leave, of one term and of all terms that it asks for.

    Args:
        steps: derivatives.
        alphabet: a 256-bit mask of bytes.
        known: the memo, which `has_text` fills.
    """

    def __init__(self, steps: Steps, alphabet: int, known: dict[Pair, Left]) -> None:
        self._steps, self._alphabet, self._known = steps, alphabet, known
        self._left: dict[Pair, Left] = {}
        self._users: dict[Pair, dict[Pair, None]] = {}
        self._waiting: dict[Pair, None] = {}

    def has_text(self, node: Node) -> bool:
        """Whether a term has a text; True, too, where that takes too many steps."""
        root = self._current = node, EMPTY
        self._ask(root)
        for _ in range(_MAX_STEPS):
            if not self._waiting:
                self._known.update(self._left)
                return bool(self._known[root])
            work.add(1)
            self._current, _ = self._waiting.popitem()
            found = self._left[self._current] | self._of(*self._current)
            if found != self._left[self._current]:
                self._left[self._current] = found
                self._waiting.update(self._users[self._current])
        return True

    def _pair(self, node: Node, rival: Node) -> Pair:
        """A term with a rival, or with none if the rival forbids none of its texts."""
        if rival is not EMPTY and not node.nullable:
            first = self._steps.first_bytes
            rival = rival if first(rival) & first(node) else EMPTY
        return node, rival

    def _ask(self, pair: Pair) -> Left:
        """What is known to be left of a pair; the one that is computed now is computed again when there is more."""
        known = self._known.get(pair)
        if known is not None:
            return known
        if pair not in self._left:
            self._left[pair], self._users[pair], self._waiting[pair] = _NONE, {}, None
        self._users[pair][self._current] = None
        return self._left[pair]

    def _after(self, node: Node, rivals: Iterable[Node]) -> Left:
        """What a term leaves after any of some rivals."""
        left = _NONE.union(*(self._ask(self._pair(node, rival)) for rival in rivals))
        return _NOTHING if EMPTY in left else left

    def _of(self, node: Node, rival: Node) -> Left:
        """What a term leaves after a rival, by what is known of its parts."""
        kind, args = node.kind, node.args
        if rival is EMPTY and not node.has_munch:
            return _NOTHING if self._steps.is_inhabited(node, self._alphabet) else _NONE
        if kind is Kind.MUNCH:
            head, tail, own = args
            return self._after(tail, self._ends(head, own, rival))
        if kind not in _OF_PARTS or (node.is_regular and not node.has_munch):
            return self._ends(node, None, rival)
        if kind is Kind.CONCAT:
            head, tail = args
            return self._after(tail, self._after(head, (rival,)))
        if kind is Kind.ALTERNATION:
            return _NONE.union(*(self._after(member, (rival,)) for member in args))
        if kind is Kind.REPEAT:
            return self._after_loop(args[0], args[1], args[2], rival)
        (body, *_) = nodes.children(node)
        return self._after(body, (rival,)) | (Left({rival}) if node.nullable else _NONE)

    def _after_loop(self, body: Node, least: int, most: int | None, rival: Node) -> Left:
        left, here, count = _NONE, Left({rival}), 0
        while here and (most is None or count <= most):
            if count >= least:
                if here <= left:
                    break
                left |= here
            before, here, count = here, self._after(body, here), count + 1
            if here == before:
                count = max(count, least)
        return left

    def _ends(self, head: Node, own: Node | None, rival: Node) -> Left:
        """What the texts of a head leave that is read byte by byte: what is left of the rival; and, where it is the head of a MUNCH, of
        its own rival, or the bytes that can continue it.
        """
        left, is_munched = set[Node](), own is not None

        def steps(state: tuple[Node, ...]) -> list[tuple[Node, ...]]:
            arcs = self._steps.live_arcs
            first, *others = map(arcs, state)
            found = product((first, *(completed(other, EMPTY) for other in others)))
            return [targets for mask, targets in found if mask & self._alphabet and not targets[2].nullable]

        start: tuple[Node, ...] = (head, own or EMPTY, rival)
        for count, (text, other, rest) in enumerate(nodes.reached(start, steps)):
            if is_munched:
                if text.nullable:
                    left.add(_union(rest, other if text is EPSILON else self._continuing(text, other)))
            elif text.nullable:
                left.add(rest)
            elif rest is EMPTY and self._steps.is_inhabited(text, self._alphabet):
                left.add(EMPTY)
            if EMPTY in left or count > _MAX_STATES:
                return _NOTHING
        return Left(left)

    def _continuing(self, text: Node, other: Node) -> Node:
        """The bytes that can continue a text of the head of a MUNCH, or one of its rival."""
        return nodes.byte_set(covered((*self._steps.live_arcs(text), *self._steps.live_arcs(other))))


def _union(rest: Node, other: Node) -> Node:
    return nodes.alternation(part for part in (rest, other) if part is not EPSILON)
