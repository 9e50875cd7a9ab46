"""`RowMasks`: the tokens that a token FSM allows after the ids of a row. The FSM is simulated from a known prefix of the ids on, with a
cache (16 MiB) from ids to states, so that a step usually costs a few look-ups and one transition. Prefixes shorter by 0, 1, 2, 4, 8 ...
tokens are looked up, then the text is read from its start. After an end or a disallowed id only an end may follow (`OVER`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm import TokenFSM, TokenNotAllowed
from fsm.tokens.cache import ByteCache
from outlines_cont.policies.branch import TokenSet

OVER = -1
"""The state of a text that has ended, or that is not in the language: only an end of text may follow."""

_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 150


class RowMasks:
    """The states and masks of rows under one constraint; they depend on the ids of a row alone. Several threads may use one object.

    Args:
        token_fsm: the constraint.
        num_needed: the least width of logits with a column for each token.
        max_bytes: most memory for the states after known ids.
    """

    def __init__(self, token_fsm: TokenFSM, num_needed: int, max_bytes: int = _MAX_BYTES) -> None:
        self.token_fsm = token_fsm
        self.num_needed = num_needed
        self.eos_token_ids = token_fsm.vocabulary.eos_token_ids
        self._ends = TokenSet.of(self.eos_token_ids)
        self._known: ByteCache[bytes, int] = ByteCache(max_bytes)

    def __repr__(self) -> str:
        return f"{self.token_fsm.expression!r} over {len(self.token_fsm.vocabulary):,} tokens"

    def state_after(self, token_ids: NDArray[np.int64]) -> int:
        """Return the state after (T,) int64 ids, the first of which begins the text; `OVER` after an end, or a token that is not allowed.

        Cost: a look-up and a step where the text without its last token is known, else a step for each token after the longest known
        prefix that was looked up: all but 0, 1, 2, 4, 8 ... tokens.
        """
        token_ids = np.ascontiguousarray(token_ids, np.int64)
        data = token_ids.tobytes()
        start, state = self._longest_known(data)
        for token_id in token_ids[start:].tolist():
            state = self._step(state, token_id)
        if data not in self._known:
            self._known.put(data, state, len(data) + _ENTRY_BYTES)
        return state

    def allowed(self, state: int) -> TokenSet:
        """Return the tokens that may follow a text in a state; a text that has ended ends again."""
        return self._ends if state == OVER else TokenSet.of_bitmask(self.token_fsm.bitmask(state))

    def is_refused(self, token_ids: NDArray[np.int64]) -> bool:
        """Return whether the last token of a text is refused: it neither continues the text nor ends it."""
        return self.state_after(token_ids) == OVER and int(token_ids[-1]) not in self.eos_token_ids

    def _longest_known(self, data: bytes) -> tuple[int, int]:
        """Return how many tokens of a text are known, and the state after them."""
        num_tokens, num_left_out = len(data) // 8, 0
        while num_tokens > num_left_out:
            state = self._known.get(data[: (num_tokens - num_left_out) * 8])
            if state is not None:
                return num_tokens - num_left_out, state
            num_left_out = 2 * num_left_out or 1
        return 0, self.token_fsm.initial_state

    def _step(self, state: int, token_id: int) -> int:
        if state == OVER or token_id in self.eos_token_ids:
            return OVER
        try:
            return self.token_fsm.next_state(state, token_id)
        except TokenNotAllowed:
            return OVER
