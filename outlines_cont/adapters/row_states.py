"""`RowStates`: the state of a token FSM after given token ids, by simulating it from a known prefix, with an LRU cache (16 MiB) keyed by
the ids, so that a step usually costs one look-up and one transition. Prefixes shorter by 0, 1, 2, 4, 8 ... tokens are tried, then the
start.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from fsm import TokenFSM, TokenNotAllowed

OVER = -1
"""The state of a text that has ended, or that is not in the language: only an end of text may follow."""

_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 150


class RowStates:
    """A bounded LRU cache from the token ids of a text to its state. A text that is not in the cache is read from a known prefix on.

    The state depends on the ids alone, not on the call, on the order of rows, or on whether they were seen before.
    Several threads may use one object.

    Args:
        token_fsm: what the ids are read by.
        max_bytes: most memory for texts that were read.
    """

    def __init__(self, token_fsm: TokenFSM, max_bytes: int = _MAX_BYTES) -> None:
        self._fsm = token_fsm
        self._eos = frozenset(token_fsm.vocabulary.eos_token_ids)
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def after(self, token_ids: NDArray[np.int64]) -> int:
        """Return the state after (T,) int64 ids, the first of which begins the text; `OVER` after an end, or a token that is not allowed.

        Cost: a look-up and a step where the text without its last token is known, else a step for each token after the longest known
        beginning that was tried: all but 0, 1, 2, 4, 8 ... tokens.
        """
        token_ids = np.ascontiguousarray(token_ids, np.int64)
        data = token_ids.tobytes()
        with self._lock:
            start, state = self._longest_known(data)
            for token_id in token_ids[start:].tolist():
                state = self._step(state, token_id)
            self._keep(data, state)
        return state

    def _longest_known(self, data: bytes) -> tuple[int, int]:
        """Return how many tokens of a text are known, and the state after them."""
        left, back = len(data) // 8, 0
        while left > back:
            state = self._known.get(data[: (left - back) * 8])
            if state is not None:
                return left - back, state
            back = 2 * back or 1
        return 0, self._fsm.initial_state

    def _step(self, state: int, token_id: int) -> int:
        if state == OVER or token_id in self._eos:
            return OVER
        try:
            return self._fsm.next_state(state, token_id)
        except TokenNotAllowed:
            return OVER

    def _keep(self, data: bytes, state: int) -> None:
        if data in self._known:
            self._known.move_to_end(data)
            return
        self._known[data] = state
        self._nbytes += len(data) + _ENTRY_BYTES
        while self._nbytes > self._max_bytes and len(self._known) > 1:
            gone, _ = self._known.popitem(last=False)
            self._nbytes -= len(gone) + _ENTRY_BYTES
