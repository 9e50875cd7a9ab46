"""`Rows`: the transition table of a DFA as one numpy array, filled on demand, so that one gather advances many states by a byte each. A
state has a row of 256 next states, filled when a walk first reaches it, and a code, the offset of its row; code 0 is the dead state. There
is no eviction: a walk whose table is full continues with a new one. `bytes_of` lists the bytes of a 256-bit mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from fsm.process_fork import rlock

Codes = NDArray[np.int32]
"""States as offsets into the table: 256 times the number of their row; 0 for the dead state."""

_LATER = 1 << 30


@lru_cache(maxsize=4096)
def bytes_of(mask: int) -> NDArray[np.int32]:
    """The bytes in a 256-bit mask, ascending."""
    bits = np.unpackbits(np.frombuffer(mask.to_bytes(32, "little"), np.uint8), bitorder="little")
    return np.flatnonzero(bits).astype(np.int32)


class Rows:
    """A transition table with a row of 256 next states per state, filled when first needed (lazy determinisation).

    An entry whose target has no row yet holds the state itself with a mark bit; `step` replaces it when a walk first reads it.

    Args:
        arcs: a method that returns the disjoint byte masks of a state's transitions, each with its target. Only a weak reference is kept,
            since its object keeps the rows; the caller of a walk must keep that object alive.
        max_bytes: the size at which `is_full` becomes true. A walk whose rows are full continues with a new object.

    Several threads may use one object.
    """

    def __init__(self, arcs: Callable[[int], Iterable[tuple[int, int]]], max_bytes: int) -> None:
        self._arcs = WeakMethod(arcs)
        self._max_rows = max(max_bytes // 1024, 2)
        self._lock = rlock()
        self._flat = np.zeros(16 * 256, np.int32)
        self._states = np.zeros(16, np.int32)
        self._num_rows = 1
        self._codes: dict[int, int] = {0: 0}

    @property
    def is_full(self) -> bool:
        """True when the rows take more than `max_bytes`."""
        return self._num_rows > self._max_rows

    def code(self, state: int) -> int:
        """The code of a state; fills its row if needed."""
        code = self._codes.get(state)
        return self._fill(state) if code is None else code

    def codes(self, states: NDArray[np.int32]) -> Codes:
        """The codes of many states."""
        distinct, which = np.unique(states, return_inverse=True)
        codes: Codes = np.array([self.code(state) for state in distinct.tolist()], np.int32)[which]
        return codes

    def states(self, codes: Codes) -> NDArray[np.int32]:
        """The states of some codes of this object."""
        states: NDArray[np.int32] = self._states[codes >> 8]
        return states

    def step(self, places: NDArray[np.intp], out: Codes | None = None) -> Codes:
        """The codes after one byte each, given `code + byte` for each; written to `out` if given."""
        codes: Codes = self._flat.take(places, out=out, mode="clip")
        if len(codes) and int(codes.max()) >= _LATER:
            late = np.flatnonzero(codes >= _LATER)
            found = self.codes(codes[late] & (_LATER - 1))
            codes[late] = found
            self._flat[places[late]] = found
        return codes

    def _fill(self, state: int) -> int:
        find = self._arcs()
        assert find is not None, "the automaton of these rows is gone"
        arcs = find(state)
        with self._lock:
            code = self._codes.get(state)
            if code is not None:
                return code
            code = self._num_rows << 8
            if code == len(self._flat):
                self._states = np.concatenate([self._states, np.zeros_like(self._states)])
                self._flat = np.concatenate(
                    [self._flat, np.zeros_like(self._flat)]
                )  # last: an interrupt may come between
            self._states[self._num_rows] = state
            self._num_rows += 1
            for mask, target in arcs:
                self._flat[code + bytes_of(mask)] = (
                    code if target == state else self._codes.get(target, target | _LATER)
                )
            self._codes[state] = code
        return code
