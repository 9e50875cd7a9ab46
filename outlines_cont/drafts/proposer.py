"""`Proposer`: the protocol of a user's own draft, `propose(token_ids)`; `Proposed`: the drafter that calls it for one row after the other
and checks the ids. If it raises, that row gets no more drafts, and a warning is issued once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from outlines_cont.engine.guessing.row_draft import Wish
from outlines_cont.errors import shortened
from outlines_cont.user_code import shielded

_KIND, _EXPECTED = "proposed", 0.5


@runtime_checkable
class Proposer(Protocol):
    """A user's own draft: proposes the tokens that may come next.

    It may propose anything: a draft changes how fast a text is written, and never what is written. It is called in the steps of the
    engine, one call at a time, by any thread.
    """

    def propose(self, token_ids: Sequence[int]) -> Iterable[int]:
        """Return the ids that may come next, as many as come to mind.

        Args:
            token_ids: all ids of a row so far, prompt included, and any that surely follow; a copy.

        Returns:
            Ids; none where nothing comes to mind. Of an iterator no more are taken than are worth it.
        """


class Proposed:
    """A drafter that calls a user's proposer. If it fails, it is not called again for that row, and a warning gives the reason."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.has_warned = False

    def __repr__(self) -> str:
        return shortened(repr(self.proposer))

    def memory(self) -> _NoMemory:
        """Return that nothing is remembered."""
        return _NoMemory()

    def keep(self, memories: Sequence[Any]) -> None:
        """Nothing is held."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Call the proposer for each row, and push what it proposes as far as the policies allow."""
        for wish in wishes:
            longest = wish.length(_KIND, _EXPECTED)
            if longest:
                try:
                    shielded(self._ask, wish, longest)
                except Exception as error:
                    wish.draft.fail(error)

    def _ask(self, wish: Wish, longest: int) -> None:
        proposed = self.proposer.propose([*wish.walk.context])
        if isinstance(proposed, str | bytes) or not isinstance(proposed, Iterable):
            raise TypeError(f"expected token ids from `propose` of {self.proposer!r}, got {shortened(repr(proposed))}")
        wish.walk.push_all(map(self._checked, proposed), longest, _KIND)

    def _checked(self, token_id: object) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, SupportsIndex):
            raise TypeError(
                f"expected token ids from `propose` of {self.proposer!r}, got {shortened(repr(token_id))} among them"
            )
        return token_id.__index__()


class _NoMemory:
    def cut(self, length: int) -> None:
        pass

    def fork(self) -> _NoMemory:
        return self
