"""`Automaton`: the lazy DFA of a term over bytes; a state is a Brzozowski derivative of the term, numbered when it is first reached. Bytes
after which no text is accepted lead to `DEAD`; more than `max_states` are an error. A state has its transitions in three forms, each made
on demand: `moves` (a dict from byte to next state), `rows` (a transition table for vectorised walks), and `next_state` (simulation over a
string of bytes, which reads literals, words and byte loops in one step).

Walks of the token trie also divide terms, into a prefix of variable length and the rest (`as_prefix`), or alternatives (`opened`).
`shortest_text` finds an example text for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.transition_rows import Rows, bytes_of
from fsm.errors import UnknownState, exceeded
from fsm.process_fork import rlock
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, EMPTY, PREFIX_KINDS, Kind, Node

DEAD = 0
"""The state from which nothing is accepted; used in rows and as a result, and not a valid argument."""

MAX_FORCED = 65_536  # bytes of a forced text
MAX_OPENED = 64
"""Most alternatives, nested ones included, that are expanded one by one."""
_PREFERRED = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")


def as_loop(node: Node) -> tuple[Node, int, int | None, Node] | None:
    """Read a term as `body{lo,hi} rest`, or return None."""
    head, rest = nodes.first_and_rest(node)
    return (*head.args, rest) if head.kind is Kind.REPEAT else None


def as_prefix(node: Node) -> tuple[Node, Node] | None:
    """Split a term into a prefix of variable length and the rest; None if it has no such prefix.

    The prefix ends before the first required factor (the comma after the rest of a number), and before a list of more such values.
    """
    heads: list[Node] = []
    while node.kind is Kind.CONCAT:
        head, tail = nodes.first_and_rest(node)
        is_list = head.kind is Kind.REPEAT and head.args[0].kind is Kind.CONCAT
        if head.kind not in PREFIX_KINDS or (heads and (not head.nullable or is_list)):
            break
        heads.append(head)
        node = tail
    if not heads or not (heads[-1].nullable or heads[0].kind is Kind.ALTERNATION):
        return None
    return nodes.sequence(heads), node


def begins_with_byte_loop(node: Node) -> bool:
    """True for a loop over a class of many bytes, also where the first byte is of a smaller class, as in a name."""
    loop, first = as_loop(node), ALL_BYTES
    head, rest = nodes.first_and_rest(node)
    if loop is None and head.kind is Kind.BYTES:
        loop, first = as_loop(rest), head.args[0]
    if loop is None or loop[0].kind is not Kind.BYTES:
        return False
    mask: int = loop[0].args[0]
    return mask.bit_count() > FEW_BYTES and (first == ALL_BYTES or not first & ~mask)


def opened(node: Node) -> list[Node]:
    """Expand the rules and alternatives with which a term begins, to terms whose union it is; empty if there are none or too many."""
    found: dict[Node, None] = {}
    queue = [node]
    for way in queue:
        first, rest = nodes.first_and_rest(way)
        if first.kind is Kind.RULE:
            queue.append(nodes.concat(first.args[0].body, rest))
        elif first.kind is Kind.ALTERNATION:
            queue += [nodes.concat(part, rest) for part in first.args]
        else:
            found[way] = None
        if len(queue) > MAX_OPENED:
            return []
    return [] if node in found else list(found)


def _literal_head(node: Node, most: int) -> tuple[bytes, Node]:
    """The literal with which a term begins, or the iterations of one, up to about `most` bytes, and the rest; no text if it has none."""
    head, rest = nodes.first_and_rest(node)
    if head.kind is Kind.LITERAL:
        return head.args[0], rest
    if head.kind is Kind.REPEAT and head.args[0].kind is Kind.LITERAL and head.args[1]:
        text: bytes = head.args[0].args[0]
        count = min(head.args[1], max(most // len(text), 1))
        return text * count, nodes.concat(nodes.fewer(head, count), rest)
    return b"", node


class Automaton:
    """The lazy DFA of one term, over bytes.

    Args:
        root: the language.
        max_states: the most states that may be made; more raise `BudgetExceeded`.
        max_row_bytes: the most memory for rows, and the most for moves; at the limit they are dropped and made again when needed. Other
            data, some hundred bytes for a state, has no bound but `max_states`.
        derivatives: those of terms with common parts; by default new ones.

    A state stays valid for the life of the automaton. Several threads may use one automaton.
    """

    initial_state = 1

    def __init__(
        self,
        root: Node,
        *,
        max_states: int = 500_000,
        max_row_bytes: int = 64 << 20,
        derivatives: Derivatives | None = None,
    ) -> None:
        self.max_states = max_states
        self.max_row_bytes = max_row_bytes
        self.derivatives = derivatives or Derivatives()
        self.nodes: list[Node] = [EMPTY, root]
        self._ids: dict[Node, int] = {root: self.initial_state, EMPTY: DEAD}
        self._lock = rlock()
        self.forget_rows()

    def __len__(self) -> int:
        """The number of states made so far, the dead one included."""
        return len(self.nodes)

    def forget_rows(self) -> None:
        """Drop moves and rows; states stay."""
        with self._lock:
            self._moves: dict[int, dict[int, int]] = {}
            self._move_count = 0
            self._rows: Rows | None = None

    def state_of(self, node: Node) -> int:
        """The state of a term, made if need be.

        Raises:
            BudgetExceeded: there are `max_states` states already.
        """
        state = self._ids.get(node)
        if state is None:
            with self._lock:
                state = self._ids.get(node) or self._add(nodes.opened(node))
                self._ids[node] = state
        return state

    def _add(self, node: Node) -> int:
        if node in self._ids:
            return self._ids[node]
        if len(self.nodes) >= self.max_states:
            problem, advice = (
                f"the automaton has reached {self.max_states} states",
                "Simplify the expression (nested counts multiply)",
            )
            raise exceeded("max_states", self.max_states, problem, advice)
        self.nodes.append(node)
        self._ids[node] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def check(self, state: int) -> None:
        """Raise `UnknownState` unless `state` is a live state of this automaton, `TypeError` if it is not an integer."""
        if type(state) is not int and not isinstance(state, int | np.integer):
            raise TypeError(
                f"expected one state, an int, received {state!r}. States come from `initial_state` and `next_state`; rows of a batch have "
                "one each."
            )
        if not 0 < state < len(self.nodes):
            raise UnknownState(
                f"expected a state of this automaton (1 <= state < {len(self.nodes)}), received {state!r}. "
                "States come from `initial_state` and `next_state` of the same object."
            )

    def is_accepting(self, state: int) -> bool:
        """True when the text read so far belongs to the language."""
        return self.nodes[state].nullable

    def is_empty(self) -> bool:
        """True when no text at all belongs to the language."""
        return not self.derivatives.is_inhabited(self.nodes[self.initial_state])

    def arcs(self, state: int) -> list[tuple[int, int]]:
        """The disjoint 256-bit masks of bytes that keep `state` alive, each with the state that they lead to."""
        return [(mask, self.state_of(target)) for mask, target in self.derivatives.live_arcs(self.nodes[state])]

    def moves(self, state: int) -> dict[int, int]:
        """The bytes that keep `state` alive and where they lead; do not change the dict. Cost: the arcs, once."""
        moves = self._moves.get(state)
        if moves is None:
            moves = {}
            for mask, target in self.arcs(state):
                moves.update(dict.fromkeys(bytes_of(mask).tolist(), target))
            with self._lock:
                self._move_count += len(moves) + 8
                if self._move_count * 48 > self.max_row_bytes:
                    self._moves = {}
                    self._move_count = 0
                self._moves[state] = moves
        return moves

    def is_alive(self, node: Node) -> bool:
        """True when some text belongs to a term."""
        return node.is_plain or self.derivatives.is_inhabited(node)

    def rows(self) -> Rows:
        """The table of next states; a new one where the last is full, so use one object for a whole walk."""
        rows = self._rows
        if rows is None or rows.is_full:
            rows = self._rows = Rows(self.arcs, self.max_row_bytes)
        return rows

    def next_state(self, state: int, data: bytes) -> int:
        """The state after reading `data`, or DEAD. Cost: some microseconds per byte at first, then a look-up."""
        position, size, node = 0, len(data), self.nodes[state]
        all_moves, ids, read = self._moves, self._ids, self.derivatives.read
        while position < size and node is not EMPTY:
            moves = all_moves.get(ids.get(node, DEAD))
            if moves is None:
                node, count = read(node, data[position:] if position else data)
                position += count
            else:
                node = self.nodes[moves.get(data[position], DEAD)]
                position += 1
        return self.state_of(node) if node.is_plain or self.is_alive(node) else DEAD

    def accepts(self, data: bytes) -> bool:
        """True when `data` belongs to the language."""
        return self.is_accepting(self.next_state(self.initial_state, data))

    def accepted(self, texts: Iterable[bytes]) -> Iterator[bytes]:
        """The texts that belong to the language, in their order. Cost: a look-up per byte, and the arcs of each state on the way, once."""
        for text in texts:
            state = self.initial_state
            for byte in text:
                state = self.moves(state).get(byte, DEAD)
            if self.is_accepting(state):
                yield text

    def forced_text(self, state: int, max_bytes: int = MAX_FORCED) -> bytes:
        """The bytes with which every accepted continuation begins; empty if `state` accepts or has several next bytes.

        Cost: one step per byte, but one for a literal and one for a loop over one; at most `max_bytes`.
        """
        return self.forced(state, max_bytes)[0]

    def forced(self, state: int, max_bytes: int = MAX_FORCED) -> tuple[bytes, int]:
        """The forced text, and the state after it."""
        out = bytearray()
        while not self.is_accepting(state) and len(out) < max_bytes:
            text, rest = _literal_head(self.nodes[state], max_bytes - len(out))
            if text:
                out += text
                state = self.state_of(rest)
                continue
            moves = self.moves(state)
            if len(moves) != 1:
                break
            ((byte, state),) = moves.items()
            out.append(byte)
        return bytes(out), state


def shortest_text(root: Node, *, max_states: int = 50_000) -> bytes | None:
    """A shortest text of `root`, checks ignored, by breadth-first search; None if the first `max_states` states accept none.

    Of several, one of small letters and digits is chosen if that is possible. Cost: some 20 us per visited state.
    """
    automaton = Automaton(root, max_states=2 * max_states)
    start = automaton.initial_state
    came: dict[int, tuple[int, int]] = {}
    queue, seen = [start], {start}
    for state in queue:
        if automaton.is_accepting(state):
            out = bytearray()
            while state != start:
                state, byte = came[state]
                out.append(byte)
            return bytes(reversed(out))
        if len(queue) > max_states:
            return None
        for mask, target in automaton.arcs(state):
            if target not in seen:
                seen.add(target)
                choices = bytes_of(mask).tolist()
                came[target] = state, next((b for b in choices if b in _PREFERRED), choices[0])
                queue.append(target)
    return None
