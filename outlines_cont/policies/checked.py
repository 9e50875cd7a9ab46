"""A constraint with checks: what the automaton lets pass is asked again when a value closes, and rewritten where it fails.

Where a value fails its check, the row gives tokens back to a place inside the value where there was a choice, and the token that it
took there is excluded. The first failure of a value goes back to its last choice, the next ones 2, 4, 8, ... choices back, up to the
first one of the value: so a small mistake at the end costs little, and a value that is wrong from its beginning is begun anew. A token
is excluded for good only where nothing else could have followed it, else it is avoided while there are others. Where the value leaves
no other choice, what stands before it is changed. All of that holds for the text before it only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fsm import Expression
from fsm.checker import Checker, Failure, Reading
from outlines_cont.engine.branch import Branch, TokenSet
from outlines_cont.engine.policy import Policy, RowView
from outlines_cont.errors import CheckFailed
from outlines_cont.interfaces import TokenFSM
from outlines_cont.policies.constraint import Constraint
from outlines_cont.user_code import shielded

MAX_RETRIES = 50
"""How often a piece may go back before it fails."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckedState:
    """Where a row stands.

    Attributes:
        inner: the state of the constraint.
        reading: how the text so far can be read.
        before: the state one token ago.
        token_id: the token since then.
        excluded: tokens that may not come next: whatever follows them fails.
        avoided: tokens that are not to come next while there are others: what followed them has failed.
        retries: how often the piece has gone back.
        streak: how often the value that begins at `streak_start` has failed.
        streak_start: see `streak`.
        failure: the value that has failed here.
    """

    inner: int
    reading: Reading
    before: CheckedState | None = None
    token_id: int = -1
    excluded: frozenset[int] = frozenset()
    avoided: frozenset[int] = frozenset()
    retries: int = 0
    streak: int = 0
    streak_start: int = -1
    failure: Failure | None = None


class CheckedConstraint(Policy[CheckedState]):
    """Keep one piece of a row inside a language with checks.

    Args:
        constraint: what the automaton allows.
        expression: the language.
        eos: the tokens that end a text.
        max_retries: how often a piece may go back; beyond it the row fails with `CheckFailed`.
    """

    def __init__(
        self, constraint: Constraint, expression: Expression, eos: TokenSet, max_retries: int = MAX_RETRIES
    ) -> None:
        self.constraint = constraint
        self.max_retries = max_retries
        self._checker = _ShieldedChecker(Checker(expression.node))
        self._eos = eos

    @property
    def token_fsm(self) -> TokenFSM:
        """The automaton, which allows what is checked whether it passes or not."""
        return self.constraint.token_fsm

    @property
    def finish_reason(self) -> str:
        """`constraint`: nothing may follow."""
        return self.constraint.finish_reason

    def initial(self, row: RowView) -> CheckedState:
        """Return the state before the first token."""
        return CheckedState(self.constraint.initial(row), self._checker.initial)

    def advance(self, state: CheckedState, token_id: int) -> CheckedState:
        """Return the state after one more token; where a value has failed, it says which."""
        reading = self._checker.read(state.reading, self.constraint.token_bytes(token_id))
        return CheckedState(
            self.constraint.advance(state.inner, token_id),
            reading,
            state,
            token_id,
            retries=state.retries,
            streak=state.streak,
            streak_start=state.streak_start,
            failure=reading.failure,
        )

    def branches(self, state: CheckedState, row: RowView) -> list[Branch]:
        """Go back where a value has failed; else what the constraint wants, without what was excluded."""
        if state.failure is not None:
            return [self._back(state, state.failure)]
        branches = self.constraint.branches(state.inner, row)
        if len(branches) != 1 or branches[0].sample_mask is None:
            return branches
        mask = branches[0].sample_mask
        at_end = self._checker.end(state.reading) if mask & self._eos else True
        if at_end is not True:
            mask = mask & ~self._eos
        if state.excluded:
            mask = mask & ~TokenSet.of(state.excluded)
        if state.avoided:
            mask = mask & ~TokenSet.of(state.avoided) or mask
        if not mask and (isinstance(at_end, Failure) or state.excluded):
            end = len(state.reading.data)
            return [self._back(state, at_end if isinstance(at_end, Failure) else Failure(end, end, _Excluded()))]
        return [Branch(sample_mask=mask)]

    def rewound(self, before: CheckedState, after: CheckedState) -> CheckedState:
        """Return the state to go on with: the token that was taken from there is excluded."""
        step, start = before, _start_of(before, self._checker)
        while step.before is not None and step.before is not after:
            step = step.before
        is_same = start == before.streak_start
        is_proven = self._is_proven(before, after)
        return replace(
            after,
            excluded=after.excluded | {step.token_id} if is_proven else after.excluded,
            avoided=after.avoided if is_proven else after.avoided | {step.token_id},
            retries=before.retries + 1,
            streak=before.streak + 1 if is_same else 1,
            streak_start=start,
        )

    def wish(self, state: CheckedState, row: RowView) -> str:
        """Return what the language asks for here."""
        return self.constraint.wish(state.inner, row)

    def held_bytes(self, state: CheckedState) -> int:
        """Return how many bytes at the end have yet to pass a check."""
        if state.failure is not None:
            return len(state.reading.data)
        return len(state.reading.data) - state.reading.open_since

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Return whether a whole text is of the language and passes its checks."""
        data = b"".join(map(self.constraint.token_bytes, token_ids))
        return self._checker.accepts(data)

    def retries(self, state: CheckedState) -> int:
        """Return how often the piece has gone back."""
        return state.retries

    def _back(self, state: CheckedState, failure: Failure) -> Branch:
        if state.retries >= self.max_retries:
            raise CheckFailed(_message(state, failure, f"{state.retries} retries are spent (`max_retries`)"))
        streak = state.streak if failure.start == state.streak_start else 0
        wanted, chosen, count = 1 << streak, 0, 0
        for distance, place in _places(state):
            if chosen and len(place.reading.data) < failure.start:
                break
            if self._has_choice(place):
                chosen, count = distance, count + 1
                if count >= wanted:
                    break
        if not chosen:
            raise CheckFailed(_message(state, failure, "the constraint leaves nothing else to write"))
        return Branch(backtrack=chosen)

    def _is_proven(self, before: CheckedState, after: CheckedState) -> bool:
        """True when there was no other choice since `after`."""
        place = before.before
        while place is not None and place is not after:
            if self._has_choice(place):
                return False
            place = place.before
        return True

    def _has_choice(self, place: CheckedState) -> bool:
        """True when another token could be taken at a place."""
        allowed = self.token_fsm.allowed_token_ids(place.inner)
        return len(allowed) > len(place.excluded) + 1


@dataclass(frozen=True, slots=True, eq=False)
class _ShieldedChecker:
    """A `Checker` whose checks may be code of users."""

    checker: Checker

    @property
    def initial(self) -> Reading:
        """See `Checker`."""
        return self.checker.initial

    def read(self, reading: Reading, data: bytes) -> Reading:
        """See `Checker.read`."""
        return shielded(self.checker.read, reading, data)

    def end(self, reading: Reading) -> Failure | bool | None:
        """See `Checker.end`."""
        return shielded(self.checker.end, reading)

    def accepts(self, data: bytes) -> bool:
        """See `Checker.accepts`."""
        return shielded(self.checker.accepts, data)


@dataclass(frozen=True, slots=True)
class _Excluded:
    """What stands for a check where every token is excluded."""

    def holds(self, data: bytes) -> bool:
        """Never."""
        return False

    def fault(self, data: bytes) -> int | None:
        """At once."""
        return 0

    def __str__(self) -> str:
        return "every way to go on has led to a value that failed"


def _places(state: CheckedState) -> Iterator[tuple[int, CheckedState]]:
    """The states before, nearest first, each with its distance in tokens."""
    distance, place = 1, state.before
    while place is not None:
        yield distance, place
        distance, place = distance + 1, place.before


def _start_of(state: CheckedState, checker: _ShieldedChecker) -> int:
    if state.failure is not None:
        return state.failure.start
    at_end = checker.end(state.reading)
    return at_end.start if isinstance(at_end, Failure) else len(state.reading.data)


def _message(state: CheckedState, failure: Failure, reason: str) -> str:
    text = state.reading.data[failure.start : failure.stop].decode(errors="replace")
    shown = text if len(text) <= 80 else f"{text[:60]}...{text[-17:]}"
    return (
        f"expected that {failure.check}; what was written, {shown!r}, fails, and {reason}. Raise `max_retries`, use a sampler that "
        "draws, say in the prompt what is wanted, or write the schema so that the keyword is exact (`expression.report`)."
    )
