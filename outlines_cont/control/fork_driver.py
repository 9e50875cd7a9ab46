"""`ForkDriver`: the interface by which a controller or a script decides what a fork does next: it is called with a `ForkView`, and answers
with `ForkPlan`s: tokens to keep and to append, then a `Branch`, a generated span (`ForkPiece`), a wait, or the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outlines_cont.engine.drafting.row_draft import Drafter
from outlines_cont.policies.branch import Branch
from outlines_cont.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class ForkPiece:
    """A span that is generated under policies.

    Attributes:
        policies: see `policies.policy`.
        max_tokens: the most tokens of it; None is up to the context.
        temperature: see `Branch`.
        draft: its draft for speculative decoding, or None.
    """

    policies: Sequence[Policy[Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    draft: Drafter | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until all of some shared variables were written."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Feed all pending tokens, so that forks share their keys and values, then call the driver again."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Stop the fork; `error` is what it has failed with, `trace` where."""

    error: Exception | None = None
    trace: str = ""


Then = Branch | ForkPiece | Wait | Read | End
"""What a fork does after it has cut and appended tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceOutcome:
    """How a generated span has ended.

    Attributes:
        start: index of its first token.
        reason: see `StateRow.finish_reason`.
        error: the error of its policies.
    """

    start: int
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ForkView:
    """The state of a fork when its driver is called.

    Attributes:
        token_ids: all of its tokens, prompt included; not to be changed. They stay as they are during the call.
        start: how many of them are the prompt.
        cached: how many of them were fed.
        backtracked: how many tokens the last branch has taken back.
        appended: the tokens that were appended since then.
        outcome: of the generated span that has ended since the last call.
        error: what a wait has ended with.
        reserve: reserve room for more forks; raises `ForkBudgetError`.
        spend_step: count a step; raises `StepBudgetError`.
    """

    token_ids: Sequence[int]
    start: int
    cached: int
    backtracked: int
    appended: list[int]
    reserve: Callable[[int], None]
    spend_step: Callable[[], None]
    outcome: PieceOutcome | None = None
    error: Exception | None = None


class ForkDriver(ABC):
    """Decides what one fork does next; implemented by controllers and scripts."""

    speculates: bool
    """Whether tokens are fed while the driver is called for what comes after them."""

    @abstractmethod
    def call(self, view: ForkView) -> list[ForkPlan]:
        """Return how the fork continues: several plans to fork, the first of which is its own, none to stop."""

    @property
    def is_open(self) -> bool:
        """Whether it has to be closed when its fork ends."""
        return False

    def close(self) -> None:
        """Release resources; called in a thread, as `call` is, once its fork has ended. By default nothing."""
        return


@dataclass(frozen=True, slots=True, eq=False)
class ForkPlan:
    """What a fork does next: keep its first tokens, append some, then one `Then`.

    Attributes:
        driver: decides what it does from here on.
        then: what comes after that.
        keep: how many of all its tokens stay, None for all.
        token_ids: what is appended to them.
        captures: names and texts that were captured since the last plan.
        log: what was logged since then.
        parent: of several forks, the index of the plan that it has left.
    """

    driver: ForkDriver
    then: Then
    keep: int | None = None
    token_ids: tuple[int, ...] = ()
    captures: tuple[tuple[str, str], ...] = ()
    log: str = ""
    parent: int = 0
