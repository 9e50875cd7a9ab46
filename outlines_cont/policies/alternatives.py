"""`Alternatives`: local best-of-n search around a ban: from the position that it rewound to, up to `count` different first tokens are each
continued to the end of their word (8 tokens at most), and the most probable continuation is kept. Only for rows that take the most probable
token; a row that draws at random keeps what it draws. Each continuation costs forwards and a retry.

Without it a row takes the next most probable token, often a bad choice: a model that may not write `Leila` begins with `St`, and
continues as if nothing had been refused. To try another continuation the row rewinds and avoids the first token of the present one; the
best one is generated again, unless it was tried last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont.interfaces import Tokenizer
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView

_MAX_TOKENS = 8
_WORD_END = re.compile(r"\w\W")


@dataclass(frozen=True, slots=True)
class Search:
    """The continuations from one position."""

    # the first token and the score of each continuation before the present one
    tried: tuple[tuple[int, float], ...] = ()
    num_tokens: int = 0  # how many tokens the present continuation has
    text: bytes = b""  # their bytes
    is_whole: bool = False  # whether it is long enough to be compared
    chosen: int | None = None  # the first token of the continuation that was chosen; None before the choice

    def advanced(self, data: bytes) -> Search | None:
        """Return the search after one more token; None when it is over."""
        if self.is_whole or self.chosen is not None:
            return None
        text, num_tokens = self.text + data, self.num_tokens + 1
        is_whole = num_tokens >= _MAX_TOKENS or _WORD_END.search(text.decode(errors="ignore")) is not None
        return replace(self, num_tokens=num_tokens, text=text, is_whole=is_whole)


@dataclass(frozen=True, slots=True, eq=False)
class AlternativesState:
    """The state of the inner policy, and the search; None where no continuations are compared."""

    inner: Any
    search: Search | None = None


class Alternatives(Policy[AlternativesState]):
    """Wraps a policy: where it has refused something, the most probable of `count` continuations is kept.

    Its limits of retries are those of the policy; each continuation that was tried counts.
    """

    max_retries: int | None = None
    max_retries_per_place: int | None = None

    def __init__(self, policy: Policy[Any], count: int, tokenizer: Tokenizer) -> None:
        """Compare `count` continuations, two or more, from each position that `policy` rewinds to."""
        self.policy = policy
        self.count = count
        self.max_retries, self.max_retries_per_place = policy.max_retries, policy.max_retries_per_place
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return repr(self.policy)

    @property
    def horizon(self) -> int:
        """The horizon of the policy, and the tokens of a continuation."""
        return self.policy.horizon + _MAX_TOKENS

    def initial(self, row: RowView) -> AlternativesState:
        """Return the state before the piece."""
        return AlternativesState(self.policy.initial(row))

    def advance(self, state: AlternativesState, token_id: int) -> AlternativesState:
        """Return the state after one more token."""
        inner = self.policy.advance(state.inner, token_id)
        search = state.search and state.search.advanced(self._tokenizer.token_bytes[token_id] or b"")
        return AlternativesState(inner, search)

    def branches(self, state: AlternativesState, row: RowView) -> list[Branch]:
        """Return the branches of the policy; unless it rewinds, those of the search if there is one."""
        branches = self.policy.branches(state.inner, row)
        search = state.search
        if search is None or any(branch.is_rewind for branch in branches):
            return branches
        if search.chosen is not None:
            return [Branch(sample_mask=TokenSet.of([search.chosen]))]
        back = self._back(search, row) if search.is_whole else None
        return branches if back is None else [back]

    def at_end(self, state: AlternativesState, row: RowView) -> Branch | None:
        """Rewind where the policy does not let the text end, or another continuation is to be tried or chosen."""
        branch = self.policy.at_end(state.inner, row)
        if branch is None and state.search is not None and state.search.num_tokens:
            branch = self._back(state.search, row)
        return branch

    def rewound(self, before: AlternativesState, after: AlternativesState, row: RowView) -> AlternativesState:
        """Return the state after a rewind: of the search, which has tried one more continuation, or of the policy, which begins one."""
        is_by_policy = any(branch.is_rewind for branch in self.policy.branches(before.inner, row))
        if not is_by_policy and before.search is not None and self._back(before.search, row) is not None:
            tried = (*before.search.tried, self._scored(before.search, row))
            chosen = None if self._tries_more(before.search, row) else _best(tried)
            return AlternativesState(after.inner, Search(tried, chosen=chosen))
        inner = self.policy.rewound(before.inner, after.inner, row)
        return AlternativesState(inner, after.search or (None if row.is_random else Search()))

    def give_up(self, state: AlternativesState, row: RowView, reason: str) -> AlternativesState:
        """Let the policy raise its error, or accept the text."""
        return AlternativesState(self.policy.give_up(state.inner, row, reason))

    def held_bytes(self, state: AlternativesState) -> int:
        """Return the bytes that the policy may rewind, or those of the present continuation if these are more."""
        return max(self.policy.held_bytes(state.inner), len(state.search.text) if state.search is not None else 0)

    def _back(self, search: Search, row: RowView) -> Branch | None:
        """Return the branch that tries another continuation or goes back to the best one; None if that is the present one."""
        first = len(row.token_ids) - search.num_tokens
        if first < row.first_open or row.logits_before(first) is None:
            return None
        if self._tries_more(search, row):
            return Branch(backtrack=search.num_tokens, avoid=TokenSet.of([row.token_ids[first]]))
        current = self._scored(search, row)
        is_best = _best((*search.tried, current)) == current[0]
        return None if is_best else Branch(backtrack=search.num_tokens)

    def _tries_more(self, search: Search, row: RowView) -> bool:
        """Return whether another continuation is to be tried: not after `count`, nor where only tokens that were tried are left."""
        first = row.token_ids[len(row.token_ids) - search.num_tokens]
        return len(search.tried) + 1 < self.count and all(first != token_id for token_id, _ in search.tried)

    def _scored(self, search: Search, row: RowView) -> tuple[int, float]:
        """Return the first token of the present continuation and its score: its logit, and the log-probabilities of the others."""
        first = len(row.token_ids) - search.num_tokens
        logits = row.logits_before(first)
        assert logits is not None
        token_id = row.token_ids[first]
        later = sum(row.sampling_logprob(index) for index in range(first + 1, len(row.token_ids)))
        return token_id, float(logits[token_id]) + later


def _best(tried: tuple[tuple[int, float], ...]) -> int:
    return max(tried, key=lambda continuation: continuation[1])[0]
