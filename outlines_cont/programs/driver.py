"""`ForkDriver`: the interface by which a controller or a script decides what a fork does next: it is called with a `ForkView`, and returns
`ForkPlan`s (several fork): tokens to keep and append, then a `Branch`, a span to generate (`ForkPiece`), a forward, a wait, or the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outlines_cont.engine.piece import Piece
from outlines_cont.policies.branch import Branch


@dataclass(frozen=True, slots=True)
class ForkPiece:
    """Write a span."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until all of some shared variables were written."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Feed all pending tokens, so that forks share their keys and values, then call the driver again."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Stop the fork, with an error and its traceback if it has failed."""

    error: Exception | None = None
    trace: str = ""


Then = Branch | ForkPiece | Wait | Read | End
"""What a fork does after it has removed and appended tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceOutcome:
    """How a generated span has ended."""

    start: int  # index of its first token
    reason: str  # see `StateRow.finish_reason`
    error: Exception | None = None  # the error of its policies


@dataclass(frozen=True, slots=True, eq=False)
class ForkView:
    """The state of a fork when its driver is called."""

    token_ids: Sequence[int]  # all of its tokens, prompt included; not changed during the call, nor by the driver
    start: int  # how many of them are the prompt
    cached: int  # how many of them were fed
    backtracked: int  # how many tokens the last branch has removed
    appended: list[int]  # the tokens that were appended since then
    reserve: Callable[[int], None]  # counts forks; raises `ForkBudgetError`
    spend_step: Callable[[], None]  # counts a step; raises `StepBudgetError`
    outcome: PieceOutcome | None = None  # of the generated span that has ended since the last call
    error: Exception | None = None  # with which a wait has ended


class ForkDriver(ABC):
    """Decides what one fork does next; implemented for controllers and scripts."""

    speculates: bool
    """Whether tokens are fed while the driver is called for what follows them."""

    @abstractmethod
    def call(self, view: ForkView) -> list[ForkPlan]:
        """Return how the fork continues: several plans to fork, the first of which is its own, none to stop."""

    @property
    def is_open(self) -> bool:
        """Whether `close` must be called when its fork ends."""
        return False

    def close(self) -> None:
        """Release resources; called in a thread, as `call` is, after its fork has ended."""
        return


@dataclass(frozen=True, slots=True, eq=False)
class ForkPlan:
    """What a fork does next: keep its first tokens, append some, then one `Then`."""

    driver: ForkDriver  # decides what it does after that
    then: Then  # what it does after appending
    keep: int | None = None  # how many of its first tokens it keeps, None for all
    token_ids: tuple[int, ...] = ()  # the tokens to append to them
    captures: tuple[tuple[str, str], ...] = ()  # names and texts that were captured since the last plan
    log: str = ""  # what was logged since then
    parent: int = 0  # of several forks, the index of the plan that it is forked from
