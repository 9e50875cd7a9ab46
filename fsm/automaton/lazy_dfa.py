"""The lazy DFA of a term (`Automaton`): a state is a Brzozowski derivative of the term, numbered when it is first reached.

States are small ints; nothing is determinised ahead of its use. A state can be read in several forms, each made when first asked for:
`moves` (a dict from byte to next state), `rows` (a transition table for vectorised walks) and `next_state` (bytes one after the other).
For longer strides there is also what the term begins with: a text or a list of words (`head`), optional fields (`fields`), a few
alternative texts (`split`), other alternatives (`ways`), a loop (`loop`), or a prefix that may end at many places (`prefix`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.transition_rows import Rows, bytes_of
from fsm.errors import BudgetExceeded, UnknownState
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node
from fsm.terms.optional_fields import read_fields

DEAD = 0
"""The state from which nothing can be accepted; it stands in rows only."""

Head = tuple[Node, int]
"""A term of the kind LITERAL or WORDS, and the state after it."""

Fields = tuple[Node, Node]
"""A term of the kind FIELDS, and the term after it."""

MAX_WAYS = 4
"""With more alternatives they are united instead of being followed one by one."""

PREFIX_KINDS = frozenset({Kind.EPSILON, Kind.BYTES, Kind.LITERAL, Kind.CONCAT, Kind.ALTERNATION, Kind.REPEAT})
"""The kinds of terms that a prefix consists of."""

MAX_OPENED = 64
"""Most alternatives, nested ones included, that are looked at one by one."""

Loop = tuple[Node, int, int | None, int]
"""The body of a loop with which every continuation begins, its least and most rounds, and the state after it."""


def as_loop(node: Node) -> tuple[Node, int, int | None, Node] | None:
    """Read a term as `body{lo,hi} rest`, or return None."""
    head, rest = nodes.first_and_rest(node)
    return (*head.args, rest) if head.kind is Kind.REPEAT else None


def as_prefix(node: Node) -> tuple[Node, Node] | None:
    """Split a term into a prefix that may end at several places and the rest; None where it has no such prefix.

    The prefix ends before what must come next (the rest of a number before a comma), and before a list of more such values.
    """
    heads: list[Node] = []
    while node.kind is Kind.CONCAT:
        head, tail = node.args
        if head.kind not in PREFIX_KINDS or (heads and (not head.nullable or _is_list(head))):
            break
        heads.append(head)
        node = tail
    if not heads or not (heads[-1].nullable or heads[0].kind is Kind.ALTERNATION):
        return None
    return nodes.sequence(heads), node


def _is_list(node: Node) -> bool:
    return node.kind is Kind.REPEAT and node.args[0].kind is Kind.CONCAT


def begins_with_byte_loop(node: Node) -> bool:
    """True for a loop over one of many bytes, also where the first has less to choose from, as in a name without a digit there."""
    loop, first = as_loop(node), ALL_BYTES
    if loop is None and node.kind is Kind.CONCAT and node.args[0].kind is Kind.BYTES:
        loop, first = as_loop(node.args[1]), node.args[0].args[0]
    if loop is None or loop[0].kind is not Kind.BYTES:
        return False
    mask: int = loop[0].args[0]
    return mask.bit_count() > FEW_BYTES and (first == ALL_BYTES or not first & ~mask)


def opened(node: Node) -> list[Node]:
    """Expand the rules and alternatives with which a term begins: terms whose union it is; empty where there are none or too many."""
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


class Automaton:
    """States of one term.

    Args:
        root: the language.
        max_states: most states that may be made; `BudgetExceeded` beyond it.
        max_row_bytes: most memory for rows and moves together; at the limit they are dropped and made again when needed. What is kept
            beside them, some hundred bytes for a state, has no bound but `max_states`.

    A state stays valid for the life of the automaton. Several threads may use one automaton.
    """

    initial_state = 1

    def __init__(self, root: Node, *, max_states: int = 500_000, max_row_bytes: int = 64 << 20) -> None:
        self.max_states = max_states
        self.max_row_bytes = max_row_bytes
        self.derivatives = Derivatives()
        self.nodes: list[Node] = [EMPTY, root]
        self._ids: dict[Node, int] = {root: self.initial_state, EMPTY: DEAD}
        self._lock = threading.RLock()
        self.forget_rows()

    def __len__(self) -> int:
        """The number of states made so far, the dead one included."""
        return len(self.nodes)

    def forget_rows(self) -> None:
        """Drop moves and rows; states stay."""
        with self._lock:
            self._moves: dict[int, dict[int, int]] = {}
            self._move_count = 0
            self._heads: dict[int, Head | None] = {}
            self._fields: dict[int, Fields | None] = {}
            self._loops: dict[int, Loop | None] = {}
            self._plain: dict[tuple[Node, int], bytes] = {}
            self._prefixes: dict[int, tuple[Node, int] | None] = {}
            self._splits: dict[int, tuple[int, ...] | None] = {}
            self._ways: dict[int, tuple[int, ...]] = {}
            self._widths: dict[int, int] = {}
            self._rows: Rows | None = None

    def state_of(self, node: Node) -> int:
        """The state that is this term, made if need be.

        Raises:
            BudgetExceeded: there are `max_states` states already.
        """
        state = self._ids.get(node)
        if state is None:
            with self._lock:
                state = self._ids.get(node)
                if state is None:
                    state = self._add(node)
        return state

    def _add(self, node: Node) -> int:
        if len(self.nodes) >= self.max_states:
            raise BudgetExceeded(
                f"the automaton has reached {self.max_states} states. Simplify the expression "
                "(nested counts and alternatives multiply), or raise `max_states`.",
                "max_states",
                self.max_states,
            )
        self.nodes.append(node)
        self._ids[node] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def check(self, state: int) -> None:
        """Raise `UnknownState` unless `state` is a live state of this automaton, `TypeError` where it is not an integer."""
        if not isinstance(state, int | np.integer):
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

    def num_first_bytes(self, state: int) -> int:
        """How many bytes a continuation of `state` may begin with, or a few more; cheaper than its moves."""
        count = self._widths.get(state)
        if count is None:
            moves = self._moves.get(state)
            count = len(moves) if moves is not None else self.derivatives.first_bytes(self.nodes[state]).bit_count()
            self._widths[state] = count
        return count

    def head(self, state: int) -> Head | None:
        """The literal or the words with which every continuation of `state` begins, and the state after; else None."""
        try:
            return self._heads[state]
        except KeyError:
            head = self._heads[state] = self._head(self.nodes[state])
            return head

    def _head(self, node: Node) -> Head | None:
        first, rest = nodes.first_and_rest(node)
        if first.kind not in (Kind.LITERAL, Kind.WORDS) or not self._is_alive(rest):
            return None
        return first, self.state_of(rest)

    def fields(self, state: int) -> Fields | None:
        """The fields with which every continuation of `state` begins, where each of them may follow, and the term after; else None."""
        try:
            return self._fields[state]
        except KeyError:
            first, rest = nodes.first_and_rest(self.nodes[state])
            is_plain = first.kind is Kind.FIELDS and first.is_plain and self._is_alive(rest)
            fields = self._fields[state] = (first, rest) if is_plain else None
            return fields

    def after_field(self, fields: Fields, rank: int) -> int:
        """The state after the word of one of the fields."""
        term, rest = fields
        return self.state_of(nodes.concat(term.args[0].after(rank), rest))

    def split(self, state: int) -> tuple[int, ...] | None:
        """The states of the ways in which `state` may begin, where these are a few texts and nothing at all; else None.

        Cheaper than moves for an optional space, as no alternatives have to be united.
        """
        try:
            return self._splits[state]
        except KeyError:
            ways = self._splits[state] = self._split(self.nodes[state])
            return ways

    def _split(self, node: Node) -> tuple[int, ...] | None:
        first, rest = nodes.first_and_rest(node)
        if first.kind is not Kind.ALTERNATION or len(first.args) > MAX_WAYS or not self._is_alive(rest):
            return None
        if any(way.kind is not Kind.LITERAL and way is not EPSILON for way in first.args):
            return None
        return tuple(self.state_of(nodes.concat(way, rest)) for way in first.args)

    def ways(self, state: int) -> tuple[int, ...]:
        """The states of terms that together are `state`, where it begins with a rule or with alternatives; else none.

        A state that may begin with many bytes, and in several ways, is easier to walk way by way: each may be a loop.
        """
        try:
            return self._ways[state]
        except KeyError:
            ways = tuple(self.state_of(way) for way in opened(self.nodes[state]) if self._is_alive(way))
            self._ways[state] = ways
            return ways

    def loop(self, state: int) -> Loop | None:
        """The loop with which every continuation of `state` begins, and the state after it; else None."""
        try:
            return self._loops[state]
        except KeyError:
            parts = as_loop(self.nodes[state])
            loop = None
            if parts is not None and self._is_alive(parts[3]):
                loop = (*parts[:3], self.state_of(parts[3]))
            self._loops[state] = loop
            return loop

    def prefix(self, state: int) -> tuple[Node, int] | None:
        """The prefix with which every continuation of `state` begins, and the state after it; else None."""
        try:
            return self._prefixes[state]
        except KeyError:
            found = as_prefix(self.nodes[state])
            alive = None if found is None or not self._is_alive(found[1]) else found
            prefix = self._prefixes[state] = None if alive is None else (alive[0], self.state_of(alive[1]))
            return prefix

    def _is_alive(self, node: Node) -> bool:
        return node.is_plain or self.derivatives.is_inhabited(node)

    def rows(self) -> Rows:
        """The table of next states; a new one where the last is full, so hold on to it for one walk."""
        rows = self._rows
        if rows is None or rows.is_full:
            rows = self._rows = Rows(self.arcs, self.max_row_bytes)
        return rows

    def next_state(self, state: int, data: bytes) -> int:
        """The state after reading `data`, or DEAD. Cost: some microseconds per byte at first, then a look-up."""
        position, size = 0, len(data)
        while position < size and state != DEAD:
            moves = self._moves.get(state)
            if moves is not None:
                state = moves.get(data[position], DEAD)
                position += 1
                continue
            head = self.head(state)
            if head is not None and not head[0].nullable:
                read = self._read_literal if head[0].kind is Kind.LITERAL else self._read_words
                state, position = read(head, data, position)
                continue
            fields = self.fields(state)
            if fields is not None:
                left, position = read_fields(data, position, *fields[0].args)
                state = self.state_of(nodes.concat(left, fields[1]))
                continue
            loop = self.loop(state)
            rounds = 0 if loop is None else self._num_plain(loop, data, position)
            if loop is not None and rounds:
                state, position = self._after_rounds(state, loop, rounds), position + rounds
            else:
                state = self._after(state, data[position])
                position += 1
        return state

    def _read_literal(self, head: Head, data: bytes, position: int) -> tuple[int, int]:
        text: bytes = head[0].args[0]
        if data.startswith(text, position):
            return head[1], position + len(text)
        rest = data[position:]
        if not text.startswith(rest):
            return DEAD, position
        left = nodes.concat(nodes.literal(text[len(rest) :]), self.nodes[head[1]])
        return self.state_of(left), len(data)

    def _read_words(self, head: Head, data: bytes, position: int) -> tuple[int, int]:
        left, position = nodes.read_words(data, position, *head[0].args)
        return self.state_of(nodes.concat(left, self.nodes[head[1]])), position

    def _num_plain(self, loop: Loop, data: bytes, position: int) -> int:
        """How many bytes from `position` on are a round of `loop` each, and nothing else."""
        body, _, hi, rest = loop
        plain = self._plain.get((body, rest))
        if plain is None:
            single = 0
            for mask, target in self.derivatives.arcs(body):
                single |= mask if target is EPSILON else 0
            others = self.derivatives.first_bytes(self.nodes[rest])
            plain = self._plain[body, rest] = bytes(bytes_of(single & ~others).astype("u1"))
        most = len(data) - position if hi is None else min(len(data) - position, hi)
        left = data[position : position + most].lstrip(plain)
        return most - len(left)

    def _after_rounds(self, state: int, loop: Loop, rounds: int) -> int:
        body, lo, hi, rest = loop
        if lo == 0 and hi is None:
            return state
        left = nodes.repeat(body, max(lo - rounds, 0), None if hi is None else hi - rounds)
        return self.state_of(nodes.concat(left, self.nodes[rest]))

    def _after(self, state: int, byte: int) -> int:
        target = self.derivatives.after(self.nodes[state], byte)
        return self.state_of(target) if target is not EMPTY and self._is_alive(target) else DEAD

    def accepts(self, data: bytes) -> bool:
        """True when `data` belongs to the language."""
        return self.is_accepting(self.next_state(self.initial_state, data))

    def accepted(self, texts: Sequence[bytes]) -> list[bytes]:
        """Those of many texts that belong to the language, in their order: what `accepts` says of each, some 0.2 us per byte."""
        lengths = np.fromiter(map(len, texts), np.intp, len(texts))
        order = np.argsort(-lengths, kind="stable")
        starts, left = (np.cumsum(lengths) - lengths)[order], lengths[order]
        data = np.frombuffer(b"".join(texts), np.uint8)
        rows = self.rows()
        codes = np.full(len(texts), rows.code(self.initial_state), np.int32)
        for position in range(int(lengths.max(initial=0))):
            if rows.is_full:
                return [text for text in texts if self.accepts(text)]
            num_open = int(np.searchsorted(-left, -position))
            codes[:num_open] = rows.step(codes[:num_open] + data[starts[:num_open] + position].astype(np.intp))
        ends, which = np.unique(rows.states(codes), return_inverse=True)
        accepting = np.array([self.is_accepting(state) for state in ends.tolist()], bool)[which]
        found = np.zeros(len(texts), bool)
        found[order] = accepting
        return [texts[number] for number in np.flatnonzero(found).tolist()]

    def forced_text(self, state: int) -> bytes:
        """The bytes with which every accepted continuation begins; empty where `state` accepts or has a choice.

        Cost: one step per byte; ends at the first choice, at an accepting state, or after 65,536 bytes.
        """
        out = bytearray()
        while not self.is_accepting(state) and len(out) < 65_536:
            moves = self.moves(state)
            if len(moves) != 1:
                break
            ((byte, state),) = moves.items()
            out.append(byte)
        return bytes(out)
