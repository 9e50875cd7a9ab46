"""`CheckedConstraint`: a constraint whose automaton accepts too much, with checks on values as they end. A value that fails is written
again: in rows that draw at random first by rejection sampling of the whole value (4 times), else by backtracking to one of its tokens,
which is excluded or avoided there. After 50 retries the row fails with `CheckFailed`.

What passes after rejection sampling has the law of the values that pass. Backtracking, which rows that take the most probable token use
at once, rewinds to the token where the most probable other value begins: of all positions where another token may be drawn, the one where
the probability of what comes before it times that of any other token is the largest. A token is excluded only where nothing else could
have followed it, else it is avoided as long as there are others. Where the value leaves no other choice, what comes before it is
rewritten. Exclusions apply only as long as the text before them stays, and are kept by the loop (`Branch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from fsm import Expression
from fsm.automaton.checker import CheckedReading, Checker, CheckFailure
from outlines_cont.errors import CheckFailed
from outlines_cont.interfaces import TokenFSM
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.user_code import shielded

MAX_RETRIES = 50
"""How often a generated span may backtrack before it fails."""

NUM_RESAMPLED = 4
"""How often a piece that is drawn at random draws a value anew as a whole before it excludes tokens."""

_HORIZON = 128
_NUM_READINGS = 256


@dataclass(frozen=True, slots=True, eq=False)
class CheckedState:
    """The state of the automaton and of the checks after some tokens, linked to the state one token before."""

    inner: int  # the state of the constraint
    reading: CheckedReading  # how the text so far can be read
    before: CheckedState | None = None  # the state one token ago
    failure: CheckFailure | None = None  # the value that has failed here
    num_healed: int = 0  # how many bytes are to come that stand before the text


class CheckedConstraint(Policy[CheckedState]):
    """Keeps one generated span (piece) of a row inside a language with checks.

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
        self._max_retries = max_retries
        self._checker = Checker(expression.node)  # whose checks may be code of users
        self._eos = eos
        # What a guess has read is not read again.
        self._read = lru_cache(_NUM_READINGS)(self._checker.read)

    @property
    def token_fsm(self) -> TokenFSM:
        """The automaton, which allows what is checked whether it passes or not."""
        return self.constraint.token_fsm

    @property
    def finish_reason(self) -> str:
        """`constraint`: nothing may follow."""
        return self.constraint.finish_reason

    @property
    def horizon(self) -> int:
        """128 positions, enough for most values; to rewind further costs a forward."""
        return _HORIZON

    @property
    def max_retries(self) -> int:
        """How often a piece may go back; beyond it the row fails with `CheckFailed`."""
        return self._max_retries

    def initial(self, row: RowView) -> CheckedState:
        """Return the state before the first token."""
        return CheckedState(self.constraint.initial(row), self._checker.initial, num_healed=len(row.healed))

    def advance(self, state: CheckedState, token_id: int) -> CheckedState:
        """Return the state after one more token, with the value that has failed there, if one has."""
        data = self.constraint.token_bytes(token_id)[state.num_healed :]
        reading: CheckedReading = shielded(self._read, state.reading, data)
        inner = self.constraint.advance(state.inner, token_id)
        num_healed = max(state.num_healed - len(self.constraint.token_bytes(token_id)), 0)
        return CheckedState(inner, reading, state, reading.failure, num_healed)

    def branches(self, state: CheckedState, row: RowView) -> list[Branch]:
        """Rewind where a value has failed; else return the branches of the constraint, without an end where that would fail."""
        if state.failure is not None:
            return [self._back(state, state.failure, row)]
        branches = self.constraint.branches(state.inner, row)
        if branches[0].sample_mask is None or not self.token_fsm.is_accepting(state.inner):
            return branches
        at_end = shielded(self._checker.end, state.reading)
        if at_end is True:
            return branches
        mask = branches[0].sample_mask & ~self._eos
        if not mask and isinstance(at_end, CheckFailure):
            return [self._back(state, at_end, row)]
        return [Branch(sample_mask=mask)]

    def give_up(self, state: CheckedState, row: RowView, reason: str) -> CheckedState:
        """Fail.

        Raises:
            CheckFailed: always.
        """
        end = len(state.reading.data)
        raise CheckFailed(_message(state, state.failure or CheckFailure(end, end, _Excluded()), reason))

    def hint(self, state: CheckedState, row: RowView) -> int | None:
        """Return what the constraint expects."""
        return self.constraint.hint(state.inner, row)

    def wish(self, state: CheckedState, row: RowView) -> str:
        """Return what the language requires here."""
        return self.constraint.wish(state.inner, row)

    def held_bytes(self, state: CheckedState) -> int:
        """Return how many bytes at the end have yet to pass a check."""
        if state.failure is not None:
            return len(state.reading.data)
        return len(state.reading.data) - state.reading.open_since

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is of the language and passes its checks; its tokens begin with `healed`, no part of it."""
        data = b"".join(map(self.constraint.token_bytes, token_ids))
        return shielded(self._checker.accepts, data[len(healed) :])

    def _back(self, state: CheckedState, failure: CheckFailure, row: RowView) -> Branch:
        """Return the branch that goes back to where the value is written otherwise, else to the last place before it."""
        places = self._places(state, failure.start, row)
        if not places:
            raise CheckFailed(_message(state, failure, "the constraint leaves nothing else to write"))
        first = places[0]
        if row.is_random and row.retries < NUM_RESAMPLED:
            return Branch(backtrack=len(row.token_ids) - first, exclude=TokenSet.none)
        chosen = _most_probable(places, row)
        refused = TokenSet.of([row.token_ids[chosen]])
        is_proven = chosen == places[-1]
        return Branch(
            backtrack=len(row.token_ids) - chosen,
            exclude=refused if is_proven else None,
            avoid=None if is_proven else refused,
        )

    def _places(self, state: CheckedState, start: int, row: RowView) -> list[int]:
        """Return where in a value another token may be drawn, indices, ascending; where it has none, the last place before it."""
        found: list[int] = []
        index, after, place = len(row.token_ids), state, state.before
        while place is not None:
            index -= 1
            is_before = len(after.reading.data) <= start  # the token ends before the value begins
            if index < row.first_open or (is_before and found):
                break
            if row.was_drawn(index) and self._has_choice(place, index, row):
                found.append(index)
            after, place = place, place.before
        return found[::-1]

    def _has_choice(self, place: CheckedState, index: int, row: RowView) -> bool:
        """Return whether another token might be drawn at a place than the one that was."""
        gone = row.excluded(index) | {row.token_ids[index]}
        allowed = self.token_fsm.allowed_token_ids(place.inner)
        return len(allowed) > len(gone) or bool(set(allowed.tolist()) - gone)


@dataclass(frozen=True, slots=True)
class _Excluded:
    """What stands for a check where every token is excluded."""

    telling_bytes: ClassVar = frozenset(range(256))

    def holds(self, data: bytes) -> bool:
        return False

    def fault(self, data: bytes) -> int | None:
        return 0

    def __str__(self) -> str:
        return "every way to go on has led to a value that failed"


def _most_probable(places: list[int], row: RowView) -> int:
    """Return the place where the most probable other value begins.

    It is the one with the largest product of what the value before it and any other token there have been drawn with. That is known of
    every token of a row, so a piece goes back to the same place whether it is written whole or in parts.
    """
    best, best_score, before = places[0], -math.inf, 0.0
    for place in places:
        taken = min(row.sampling_logprob(place), 0.0)
        other = math.log(-math.expm1(taken)) if taken < 0 else -math.inf
        if before + other > best_score:
            best, best_score = place, before + other
        before += taken
    return best


def _message(state: CheckedState, failure: CheckFailure, reason: str) -> str:
    text = state.reading.data[failure.start : failure.stop].decode(errors="replace")
    shown = text if len(text) <= 80 else f"{text[:60]}...{text[-17:]}"
    return (
        f"expected that {failure.check}; what was written, {shown!r}, fails, and {reason}. Raise `max_retries`, use a sampler that "
        "draws, say in the prompt what is wanted, or write the schema so that the keyword is exact (`expression.report`)."
    )
