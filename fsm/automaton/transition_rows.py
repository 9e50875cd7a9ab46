"""Rows: the next states of an automaton as one table, for walks over many bytes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from fsm.bitmask import to_ids

Codes = NDArray[np.int32]
"""States as places in a table: 256 times the number of their row; 0 for the dead state."""

_LATER = 1 << 30


@lru_cache(maxsize=4096)
def bytes_of(mask: int) -> NDArray[np.int32]:
    """The bytes in a 256-bit mask, ascending."""
    return to_ids(np.frombuffer(mask.to_bytes(32, "little"), np.uint8))


class Rows:
    """Rows of 256 next states, filled when first needed.

    An entry whose target has no row yet holds the state itself, marked; it is mended when a walk first meets it.
    So nothing is determinised ahead, and one look-up per byte is all that a walk does.

    Args:
        arcs: a method that tells the disjoint byte masks on which a state goes on, and where each leads. Its object is not kept, as it
            keeps the rows: whoever walks holds on to it.
        max_bytes: where `is_full` begins. A walk that fills its rows goes on with a new object.

    Several threads may use one object.
    """

    def __init__(self, arcs: Callable[[int], Iterable[tuple[int, int]]], max_bytes: int) -> None:
        self._arcs = WeakMethod(arcs)
        self._max_rows = max(max_bytes // 1024, 2)
        self._lock = threading.RLock()
        self._flat = np.zeros(16 * 256, np.int32)
        self._states = np.zeros(16, np.int32)
        self._num_rows = 1
        self._codes: dict[int, int] = {0: 0}

    @property
    def is_full(self) -> bool:
        """True when the rows take more memory than they should."""
        return self._num_rows > self._max_rows

    def code(self, state: int) -> int:
        """The code of a state; its row is filled if need be."""
        code = self._codes.get(state)
        return self._fill(state) if code is None else code

    def codes(self, states: NDArray[np.int32]) -> Codes:
        """The codes of many states."""
        distinct, which = np.unique(states, return_inverse=True)
        codes: Codes = np.array([self.code(state) for state in distinct.tolist()], np.int32)[which]
        return codes

    def states(self, codes: Codes) -> NDArray[np.int32]:
        """The states that codes of this object stand for."""
        states: NDArray[np.int32] = self._states[codes >> 8]
        return states

    def step(self, places: NDArray[np.intp], out: Codes | None = None) -> Codes:
        """The codes after one byte each, given `code + byte` for each; written to `out` where that is given."""
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
                self._flat = np.concatenate([self._flat, np.zeros_like(self._flat)])
                self._states = np.concatenate([self._states, np.zeros_like(self._states)])
            self._states[self._num_rows] = state
            self._num_rows += 1
            for mask, target in arcs:
                self._flat[code + bytes_of(mask)] = (
                    code if target == state else self._codes.get(target, target | _LATER)
                )
            self._codes[state] = code
        return code
