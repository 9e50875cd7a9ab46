"""`ForkDriver`: who steers one fork of a program. It is called in a thread, and says what the fork does next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlines_cont.engine.guessing.row_draft import Drafter
from outlines_cont.policies.branch import Branch
from outlines_cont.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class ForkPiece:
    """A piece that policies steer until it ends.

    Attributes:
        policies: see `engine.policy`.
        max_tokens: the most tokens of it; None is up to the context.
        temperature: see `Branch`.
        draft: what guesses its tokens; None where nothing does.
    """

    policies: Sequence[Policy[Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    draft: Drafter | None = None


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Wait until all of some shared variables were written."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Feed all that is pending, so that forks have it in common, and ask again."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Stop the fork; `error` is what it has failed with, `trace` where."""

    error: Exception | None = None
    trace: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """What a fork does next: keep its first tokens, append some, then one thing.

    Attributes:
        then: what comes after that.
        keep: how many of all its tokens stay, None for all.
        token_ids: what is appended to them.
        captures: names and texts that were captured since the last action.
        log: what was logged since then.
    """

    then: Branch | ForkPiece | WaitFor | Read | End
    keep: int | None = None
    token_ids: tuple[int, ...] = ()
    captures: tuple[tuple[str, str], ...] = ()
    log: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PieceOutcome:
    """How a piece has ended.

    Attributes:
        start: index of its first token.
        reason: see `StateRow.finish_reason`.
        error: what has gone wrong in its policies.
    """

    start: int
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ForkView:
    """Where a fork stands when its pilot is called.

    Attributes:
        token_ids: all of its tokens, prompt included; not to be changed. They stay as they are during the call.
        start: how many of them are the prompt.
        cached: how many of them were fed.
        backtracked: how many tokens the last branch has taken back.
        appended: the tokens that were appended since then.
        outcome: of the piece that has ended since the last call.
        error: what a wait has ended with.
        reserve: ask for room for some more forks; raises `ForkBudgetError`.
    """

    token_ids: Sequence[int]
    start: int
    cached: int
    backtracked: int
    appended: list[int]
    reserve: Callable[[int], None]
    outcome: PieceOutcome | None = None
    error: Exception | None = field(default=None)


class ForkDriver(ABC):
    """Steers one fork."""

    speculates: bool
    """Whether tokens are to be fed while the pilot is being asked what comes after them."""

    @abstractmethod
    def call(self, situation: ForkView) -> list[ForkPlan]:
        """Return how the fork goes on: several courses to fork, the first of which is its own, none to stop."""

    @property
    def is_open(self) -> bool:
        """Whether it has to be closed when its fork ends."""
        return False

    def close(self) -> None:
        """Let go of what it holds; called in a thread, as `call` is, once its fork has ended. Nothing, where it is never open."""
        return


@dataclass(frozen=True, slots=True, eq=False)
class ForkPlan:
    """How one of several forks goes on.

    Attributes:
        pilot: who steers it from here on.
        action: what it does next.
        parent: the index of the course that it has left.
    """

    pilot: ForkDriver
    action: Action
    parent: int = 0
