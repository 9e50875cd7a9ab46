"""`CheckedConstraint`: a constraint whose automaton accepts too much, with checks on values when they end. A value that fails is generated
again: in rows that draw at random by rejection sampling of the whole value (the first 4 retries of the generated span), else by
backtracking to one of its tokens, which is excluded or avoided there. After 50 retries (by default) the row fails with `CheckFailed`.

What passes after rejection sampling has the distribution of the values that pass. Backtracking rewinds to the token where the most probable
other value begins: of all positions where another token may be drawn, the one where the probability of what precedes it times that of
any other token is the largest. A token is excluded only where nothing else could have followed it, else it is avoided as long as there are
others. Where the value has no other choice, what comes before it is generated again. Exclusions apply only as long as the text before
them stays the same, and are stored by the engine (`Branch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fsm import Expression, TokenFSM
from fsm.automaton.checker import CheckedReading, Checker, CheckFailure
from outlines_cont.errors import CheckFailed, shortened
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.user_code import shielded

MAX_RETRIES = 50
"""How often a generated span may backtrack before it fails."""

NUM_RESAMPLED = 4
"""How often a row that draws at random draws a whole value again before it excludes tokens."""

_NUM_READINGS = 256


@dataclass(frozen=True, slots=True, eq=False)
class CheckedState:
    """The state of the automaton and of the checks after some tokens, linked to the state one token before."""

    inner: int  # the state of the constraint
    reading: CheckedReading  # the parses of the text so far
    before: CheckedState | None = None  # the state one token before; None at the beginning
    failure: CheckFailure | None = None  # the value that has failed with the last token, if one has
    num_healed: int = 0  # how many of the next bytes respell the prompt


class CheckedConstraint(Policy[CheckedState]):
    """Keeps one generated span (piece) of a row inside a language with checks.

    Args:
        constraint: what the automaton allows.
        expression: the language.
        eos: the tokens that end a text.
        max_retries: how often a piece may be rewound; beyond it the row fails with `CheckFailed`.
    """

    finish_reason = "constraint"
    horizon = 128  # positions, enough for most values; to rewind further costs a forward
    max_retries: int = MAX_RETRIES

    def __init__(
        self, constraint: Constraint, expression: Expression, eos: TokenSet, max_retries: int = MAX_RETRIES
    ) -> None:
        self.constraint = constraint
        self.max_retries = max_retries
        self._checker = Checker(expression.node)  # may call code of users
        self._eos = eos
        self._read = lru_cache(_NUM_READINGS)(self._checker.read)  # guessed tokens are read twice

    @property
    def token_fsm(self) -> TokenFSM:
        """The automaton, without the checks."""
        return self.constraint.token_fsm

    def initial(self, row: RowView) -> CheckedState:
        """Return the state before the first token."""
        return CheckedState(self.constraint.initial(row), self._checker.initial, num_healed=len(row.healed))

    def advance(self, state: CheckedState, token_id: int) -> CheckedState:
        """Return the state after one more token, with the value that has failed there, if one has."""
        data = self.constraint.token_bytes(token_id)
        reading: CheckedReading = shielded(self._read, state.reading, data[state.num_healed :])
        inner = self.constraint.advance(state.inner, token_id)
        return CheckedState(inner, reading, state, reading.failure, max(state.num_healed - len(data), 0))

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
        """Raise `CheckFailed`."""
        raise _error(state, state.failure, reason)

    def hint(self, state: CheckedState, row: RowView) -> int | None:
        """Return the hint of the constraint."""
        return self.constraint.hint(state.inner, row)

    def wish(self, state: CheckedState, row: RowView) -> str:
        """Return what the language requires here."""
        return self.constraint.wish(state.inner, row)

    def held_bytes(self, state: CheckedState) -> int:
        """Return how many trailing bytes have yet to pass a check."""
        start = state.reading.open_since if state.failure is None else 0
        return len(state.reading.data) - start

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is in the language and passes its checks; its tokens begin with `healed`, no part of it."""
        data = b"".join(map(self.constraint.token_bytes, token_ids))
        return shielded(self._checker.accepts, data[len(healed) :])

    def _back(self, state: CheckedState, failure: CheckFailure, row: RowView) -> Branch:
        """Return the branch that rewinds to where another value is generated, else to the last choice before the value."""
        choices = self._choices(state, failure.start, row)
        if not choices:
            raise _error(state, failure, "the constraint leaves nothing else to write")
        if row.is_random and row.retries < NUM_RESAMPLED:
            return Branch(backtrack=len(row.token_ids) - choices[0], exclude=TokenSet.none)
        chosen = _most_probable(choices, row)
        refused = TokenSet.of([row.token_ids[chosen]])
        is_proven = chosen == choices[-1]
        return Branch(
            backtrack=len(row.token_ids) - chosen,
            exclude=refused if is_proven else None,
            avoid=None if is_proven else refused,
        )

    def _choices(self, state: CheckedState, start: int, row: RowView) -> list[int]:
        """Return the indices of the tokens of a value that could be drawn otherwise, ascending; without any, the last one before it."""
        found: list[int] = []
        index, after, before = len(row.token_ids), state, state.before
        while before is not None:
            index -= 1
            is_before = len(after.reading.data) <= start  # the token ends before the value begins
            if index < row.first_open or (is_before and found):
                break
            if row.was_drawn(index) and self._has_choice(before, index, row):
                found.append(index)
            after, before = before, before.before
        return found[::-1]

    def _has_choice(self, before: CheckedState, index: int, row: RowView) -> bool:
        """Return whether another token than the one at `index`, after the state `before`, may be drawn there."""
        refused = row.excluded(index) | {row.token_ids[index]}
        allowed = self.token_fsm.allowed_token_ids(before.inner)
        return len(allowed) > len(refused) or bool(set(allowed.tolist()) - refused)


def _most_probable(choices: list[int], row: RowView) -> int:
    """Return the index where the most probable other value begins.

    It is the one with the largest product of the probabilities of the value before it and of any other token there. These are those with
    which tokens were drawn, so a piece rewinds to the same index whether it is generated whole or in parts.
    """
    best, best_score, before = choices[0], -math.inf, 0.0
    for index in choices:
        taken = min(row.sampling_logprob(index), 0.0)
        other = math.log(-math.expm1(taken)) if taken < 0 else -math.inf
        if before + other > best_score:
            best, best_score = index, before + other
        before += taken
    return best


def _error(state: CheckedState, failure: CheckFailure | None, reason: str) -> CheckFailed:
    told = "expected a value that passes its check, but every continuation has led to one that fails"
    if failure is not None:
        text = state.reading.data[failure.start : failure.stop].decode(errors="replace")
        told = f"expected that {failure.check}; what was written, {shortened(text, 80)!r}, fails"
    return CheckFailed(
        f"{told}, and {reason}. Raise `max_retries`, use a sampler that draws at random, say in the prompt what is wanted, or write "
        "the schema so that the keyword is exact (`expression.report`)."
    )
