"""`TokenTally`: the token counts that penalties, DRY and Mirostat need, cached for the last state of a stream that was counted. A later
state adds the tokens since; any other is counted anew from its beginning, prompt included.
"""

from __future__ import annotations

from itertools import takewhile

from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.streams.stream_place import StreamPlace


class TokenTally:
    """Caches the token counts of one state of a stream: the next is usually one token later, which costs one update.

    Threads may share it: `take` passes the counts to one of them, and another one counts from the beginning.
    """

    __slots__ = ("_last", "_prompt")

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self._prompt = prompt
        self._last: list[tuple[StreamPlace, TokenCounts]] = []

    def take(self, place: StreamPlace) -> TokenCounts:
        """Return the counts of the prompt and of all tokens up to `place`; the caller returns them with `give`.

        Cost: the tokens since the state that was counted last; all of them where that is not one before this.
        """
        try:
            last, counts = self._last.pop()
        except IndexError:
            return self._count(place)
        since = list(takewhile(lambda at: at is not last and at.num_tokens > last.num_tokens, place.back()))
        if (since[-1].before if since else place) is not last:
            return self._count(place)
        for at in reversed(since):
            assert at.token_id is not None
            counts.add(at.token_id, True, at.logprob)
        return counts

    def give(self, place: StreamPlace, counts: TokenCounts) -> None:
        """Cache the counts of `place`, which were taken before."""
        self._last[:] = [(place, counts)]

    def _count(self, place: StreamPlace) -> TokenCounts:
        pushed = [(at.token_id, at.logprob) for at in place.back() if at.token_id is not None][::-1]
        given = len(self._prompt)
        return TokenCounts(
            [*self._prompt, *(token_id for token_id, _ in pushed)],
            [False] * given + [True] * len(pushed),
            [None] * given + [logprob for _, logprob in pushed],
            mirostat_start=0,
        )
