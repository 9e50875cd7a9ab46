"""`Proposer`, what a user may write to guess tokens, and `Proposed`, which asks one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

from outlines_cont.engine.branch import shortened
from outlines_cont.engine.row_draft import Memory, Wish
from outlines_cont.errors import DraftWarning
from outlines_cont.user_code import shielded

_EXPECTED = 0.5


@runtime_checkable
class Proposer(Protocol):
    """What guesses tokens.

    It may guess anything: a guess changes how fast a text is written, and never what is written. It is asked in the steps of the
    engine, one call at a time, by any thread.
    """

    def propose(self, token_ids: Sequence[int]) -> Iterable[int]:
        """Return the ids that may come next, as many as come to mind.

        Args:
            token_ids: all ids of a row so far, prompt included; its own copy.

        Returns:
            Ids; none where nothing comes to mind. Of an iterator no more are taken than are worth it.
        """


class Proposed:
    """Guesses by a proposer of the user. One that fails is asked no more for that row, and a warning says why.

    Args:
        proposer: what is asked.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self._has_warned = False

    def __repr__(self) -> str:
        return f"Proposed({self.proposer!r})"

    def memory(self) -> Asked:
        """Return that a row may be asked about."""
        return Asked()

    def keep(self, memories: Sequence[Memory]) -> None:
        """Nothing is held."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Ask about each row, and push what was proposed as far as it may come."""
        for wish in wishes:
            memory = wish.draft.memory
            assert isinstance(memory, Asked)
            longest = 0 if memory.has_failed else wish.length("proposed", _EXPECTED)
            if longest:
                try:
                    shielded(self._ask, wish, longest)
                except Exception as error:
                    memory.has_failed = True
                    self._warn(error)

    def _ask(self, wish: Wish, longest: int) -> None:
        walk = wish.walk
        for token_id in islice(self._proposed(wish, longest), longest):
            if walk.num_drafted >= longest or not walk.push(token_id):
                return

    def _proposed(self, wish: Wish, longest: int) -> list[int]:
        proposed = self.proposer.propose([*wish.row.token_ids])
        if isinstance(proposed, str | bytes) or not isinstance(proposed, Iterable):
            raise TypeError(f"expected token ids from `propose` of {self.proposer!r}, got {shortened(proposed)}")
        found = [*islice(proposed, longest)]
        odd = [token_id for token_id in found if isinstance(token_id, bool) or not hasattr(token_id, "__index__")]
        if odd:
            raise TypeError(
                f"expected token ids from `propose` of {self.proposer!r}, got {shortened(odd[0])} among them"
            )
        return [int(token_id) for token_id in found]

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the draft {self.proposer!r} has failed, so the text is written without it: {type(error).__name__}: {error}",
                DraftWarning,
                stacklevel=2,
            )


class Asked:
    """Whether the proposer has failed on a row.

    Attributes:
        has_failed: then it is asked no more.
    """

    def __init__(self, *, has_failed: bool = False) -> None:
        self.has_failed = has_failed

    def cut(self, length: int) -> None:
        """Nothing is remembered of tokens."""

    def fork(self) -> Asked:
        """Return the same."""
        return Asked(has_failed=self.has_failed)
