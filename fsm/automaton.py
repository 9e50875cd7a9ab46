"""The lazy automaton of a term: states are small ints, made when first reached, and every state is a term.

Two readings of one state: `moves` (a dict from byte to next state, for walks over few bytes) and `rows`
(arrays of 256 next states, for vectorised walks). Nothing is determinised ahead of its use.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fsm.derivative import Derivatives
from fsm.errors import BudgetExceeded, UnknownState
from fsm.node import EMPTY, Node

DEAD = 0
"""The state from which nothing can be accepted; it stands in rows only."""


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(
        np.flatnonzero(np.unpackbits(np.frombuffer(mask.to_bytes(32, "little"), np.uint8), bitorder="little")).tolist()
    )


class Automaton:
    """States of one term.

    Args:
        root: the language.
        max_states: most states that may be made; `BudgetExceeded` beyond it.
        max_row_bytes: most memory for rows and moves together; at the limit they are dropped and made again when needed.

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
            self._row_index = np.full(1024, -1, np.int32)
            self._rows = np.zeros((16, 256), np.int32)
            self._num_rows = 0

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
        """Raise `UnknownState` unless `state` is a live state of this automaton."""
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

    def moves(self, state: int) -> dict[int, int]:
        """The bytes that keep `state` alive and where they lead; do not change the dict. Cost: the arcs, once."""
        moves = self._moves.get(state)
        if moves is None:
            with self._lock:
                moves = {}
                for mask, target in self.derivatives.live_arcs(self.nodes[state]):
                    moves.update(dict.fromkeys(_bits(mask), self.state_of(target)))
                self._move_count += len(moves) + 8
                if self._move_count * 48 > self.max_row_bytes:
                    self._moves = {}
                    self._move_count = 0
                self._moves[state] = moves
        return moves

    def rows(self, states: NDArray[np.int32], which: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Next states, vectorised: `rows(s, w, b)[i]` is the state after byte `b[i]` in state `s[w[i]]`, or DEAD.

        Args:
            states: live states, int32, 1-D.
            which: positions in `states`, int32, 1-D.
            data: bytes, uint8, as long as `which`.
        """
        with self._lock:
            index = self._index(states)
            return self._rows[index[which], data]

    def _index(self, states: NDArray[np.int32]) -> NDArray[np.int32]:
        if len(self._row_index) < len(self.nodes):
            self._grow_index()
        index = self._row_index[states]
        if (index < 0).any():
            missing = np.unique(states[index < 0])
            if (self._num_rows + len(missing)) * 1024 > self.max_row_bytes:
                self._row_index.fill(-1)
                self._num_rows = 0
                missing = np.unique(states)
            for state in missing.tolist():
                self._fill(state)
            index = self._row_index[states]
        return index

    def _fill(self, state: int) -> None:
        if self._num_rows == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        row = self._rows[self._num_rows]
        row.fill(DEAD)
        moves = self.moves(state)
        row[list(moves)] = list(moves.values())
        if len(self._row_index) < len(self.nodes):
            self._grow_index()
        self._row_index[state] = self._num_rows
        self._num_rows += 1

    def _grow_index(self) -> None:
        grown = np.full(2 * len(self.nodes), -1, np.int32)
        grown[: len(self._row_index)] = self._row_index
        self._row_index = grown

    def next_state(self, state: int, data: bytes) -> int:
        """The state after reading `data`, or DEAD."""
        for byte in data:
            state = self.moves(state).get(byte, DEAD)
            if state == DEAD:
                return DEAD
        return state

    def accepts(self, data: bytes) -> bool:
        """True when `data` belongs to the language."""
        return self.is_accepting(self.next_state(self.initial_state, data))

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
