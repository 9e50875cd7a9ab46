"""`follow`: a guess that is a copy of a text, which may have the text in it that the constraint puts in by itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from outlines_cont.engine.guessing.lookahead import Lookahead


def follow(walk: Lookahead, token_ids: Iterable[int], longest: int, kind: Hashable) -> bool:
    """Push tokens one after the other, up to where one may not come, or the text has to go on otherwise.

    Args:
        walk: the guess.
        token_ids: what is guessed; no more is taken than fits.
        longest: the most tokens that the guess has by a drafter.
        kind: how they are guessed; see `RowDraft.share`.

    Returns:
        Whether any was pushed.
    """
    pushed, rest = False, iter(token_ids)
    while walk.mask is not None and walk.num_drafted < longest:
        token_id = next(rest, None)
        length = len(walk.context)
        if token_id is None or not walk.push(token_id, kind):
            return pushed
        pushed = True
        if any(added != next(rest, None) for added in walk.context[length + 1 :]):
            return pushed
    return pushed
