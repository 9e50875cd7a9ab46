"""`Alternatives`: local best-of-n search around a policy that backtracks: from the position that it rewound to, up to `count` different
first tokens are each continued to the end of their word (8 tokens at most), and the most probable continuation is kept. Only for rows
that take the most probable token; a row that draws at random keeps what it draws.

Without it a row takes the next most probable token, often a bad choice: a model that may not write `Leila` begins with `St`, and
continues as if nothing had been refused. To try another continuation the row rewinds and avoids the first token of the present one, which
costs forwards; the best is written again, unless it was tried last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont.interfaces import Tokenizer
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.compose import goes_back
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView

_MAX_TOKENS = 8
"""The most tokens of a continuation, where its word is longer."""

_WHOLE = re.compile(r"\w\W")


@dataclass(frozen=True, slots=True)
class Search:
    """The continuations from one position: those that were tried with their scores, and the present one."""

    tried: tuple[tuple[int, float], ...] = ()  # for each way its first token and its score
    num_tokens: int = 0  # how many tokens of the present way were written
    text: bytes = b""  # their bytes
    is_whole: bool = False  # whether it is to be compared now
    chosen: int | None = None  # the first token of the way that was chosen; None while ways are tried

    def advanced(self, data: bytes) -> Search | None:
        """Return the search after one more token; None where it is over."""
        if self.is_whole or self.chosen is not None:
            return None
        text, num_tokens = self.text + data, self.num_tokens + 1
        is_whole = num_tokens >= _MAX_TOKENS or _WHOLE.search(text.decode(errors="ignore")) is not None
        return replace(self, num_tokens=num_tokens, text=text, is_whole=is_whole)


@dataclass(frozen=True, slots=True, eq=False)
class AlternativesState:
    """The state of the inner policy, and the search; None where nothing is compared."""

    inner: Any
    search: Search | None = None


class Alternatives(Policy[AlternativesState]):
    """Wraps a policy: where it has refused something, the most probable of `count` continuations is kept."""

    def __init__(self, policy: Policy[Any], count: int, tokenizer: Tokenizer) -> None:
        """Compare `count` continuations, two or more, from each position that `policy` rewinds to."""
        self.policy = policy
        self.count = count
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return repr(self.policy)

    @property
    def finish_reason(self) -> str:
        """The finish reason of the policy."""
        return self.policy.finish_reason

    @property
    def horizon(self) -> int:
        """The horizon of the policy, and the tokens of a way."""
        return self.policy.horizon + _MAX_TOKENS

    @property
    def max_retries(self) -> int | None:
        """The limit of the policy; each continuation that was tried counts."""
        return self.policy.max_retries

    @property
    def max_retries_per_place(self) -> int | None:
        """The limit of the policy."""
        return self.policy.max_retries_per_place

    def initial(self, row: RowView) -> AlternativesState:
        """Return the state before the piece."""
        return AlternativesState(self.policy.initial(row))

    def advance(self, state: AlternativesState, token_id: int) -> AlternativesState:
        """Return the state after one more token."""
        inner = self.policy.advance(state.inner, token_id)
        search = state.search and state.search.advanced(self._tokenizer.token_bytes[token_id] or b"")
        return AlternativesState(inner, search)

    def branches(self, state: AlternativesState, row: RowView) -> list[Branch]:
        """Return the branches of the policy; where it does not rewind, those of the search if there is one."""
        branches = self.policy.branches(state.inner, row)
        search = state.search
        if search is None or any(map(goes_back, branches)):
            return branches
        if search.chosen is not None:
            return [Branch(sample_mask=TokenSet.of([search.chosen]))]
        back = self._back(search, row) if search.is_whole else None
        return branches if back is None else [back]

    def at_end(self, state: AlternativesState, row: RowView) -> Branch | None:
        """Go back where the policy does not let the text end here, or another way is to be tried or taken."""
        branch = self.policy.at_end(state.inner, row)
        if branch is None and state.search is not None and state.search.num_tokens:
            branch = self._back(state.search, row)
        return branch

    def rewound(self, before: AlternativesState, after: AlternativesState, row: RowView) -> AlternativesState:
        """Return the state to continue with: one more continuation was tried, or one chosen, or the search begins."""
        wanted = any(map(goes_back, self.policy.branches(before.inner, row)))
        if not wanted and before.search is not None and self._back(before.search, row) is not None:
            tried = (*before.search.tried, self._scored(before.search, row))
            is_last = not self._goes_on(before.search, row)
            return AlternativesState(after.inner, Search(tried, chosen=_best(tried) if is_last else None))
        inner = self.policy.rewound(before.inner, after.inner, row)
        begun = None if row.is_random else Search()
        return AlternativesState(inner, after.search or begun)

    def give_up(self, state: AlternativesState, row: RowView, reason: str) -> AlternativesState:
        """Have the policy fail, or let pass what it has refused."""
        return AlternativesState(self.policy.give_up(state.inner, row, reason))

    def wish(self, state: AlternativesState, row: RowView) -> str:
        """Return what the policy requires."""
        return self.policy.wish(state.inner, row)

    def held_bytes(self, state: AlternativesState) -> int:
        """Return what the policy holds, and the way that is tried now."""
        return max(self.policy.held_bytes(state.inner), len(state.search.text) if state.search is not None else 0)

    def _back(self, search: Search, row: RowView) -> Branch | None:
        """Return the branch that tries another way or takes the best one; None where the present one is that."""
        first = len(row.token_ids) - search.num_tokens
        if first < row.first_open or row.logits_before(first) is None:
            return None
        if self._goes_on(search, row):
            return Branch(backtrack=search.num_tokens, avoid=TokenSet.of([row.token_ids[first]]))
        current = self._scored(search, row)
        is_best = _best((*search.tried, current)) == current[0]
        return None if is_best else Branch(backtrack=search.num_tokens)

    def _goes_on(self, search: Search, row: RowView) -> bool:
        """Return whether another way is to be tried: not where there are no others, and the first one comes again."""
        first = row.token_ids[len(row.token_ids) - search.num_tokens]
        return len(search.tried) + 1 < self.count and all(first != token_id for token_id, _ in search.tried)

    def _scored(self, search: Search, row: RowView) -> tuple[int, float]:
        """Return the first token of the present way, and what it is compared by."""
        first = len(row.token_ids) - search.num_tokens
        logits = row.logits_before(first)
        assert logits is not None
        token_id = row.token_ids[first]
        later = sum(row.sampling_logprob(index) for index in range(first + 1, len(row.token_ids)))
        return token_id, float(logits[token_id]) + later


def _best(tried: tuple[tuple[int, float], ...]) -> int:
    return max(tried, key=lambda way: way[1])[0]
