"""`TokenTally`: the token counts that penalties, DRY and Mirostat need, cached for the last state of a stream that was counted. For a
later state the tokens since are added; any other is counted from its beginning, prompt included.
"""

from __future__ import annotations

from itertools import takewhile

from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.streams.stream_state import StreamState


class TokenTally:
    """A cache of the token counts of one state of a stream; the next state is usually one token later, which costs one update.

    Threads may share it: `take` gives the counts to one of them, and others count from the beginning.
    """

    __slots__ = ("_last", "_prompt")

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self._prompt = prompt
        self._last: list[tuple[StreamState, TokenCounts]] = []

    def take(self, state: StreamState) -> TokenCounts:
        """Return the counts of the prompt and of all tokens up to `state`; the caller puts them back with `give`.

        Cost: the tokens since the state that was counted last; all tokens if that is not an earlier state of this stream.
        """
        try:
            last, counts = self._last.pop()
        except IndexError:
            return self._count(state)
        since = list(takewhile(lambda at: at is not last and at.num_tokens > last.num_tokens, state.back()))
        if (since[-1].before if since else state) is not last:
            return self._count(state)
        for at in reversed(since):
            assert at.token_id is not None
            counts.add(at.token_id, True, at.logprob)
        return counts

    def give(self, state: StreamState, counts: TokenCounts) -> None:
        """Cache the counts of `state`."""
        self._last[:] = [(state, counts)]

    def _count(self, state: StreamState) -> TokenCounts:
        pushed = [(at.token_id, at.logprob) for at in state.back() if at.token_id is not None][::-1]
        given = len(self._prompt)
        return TokenCounts(
            [*self._prompt, *(token_id for token_id, _ in pushed)],
            [False] * given + [True] * len(pushed),
            [None] * given + [logprob for _, logprob in pushed],
            mirostat_start=0,
        )
