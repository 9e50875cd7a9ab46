"""`Alternatives`: where a policy has a text written otherwise, some ways to go on are tried, and the most probable one is kept.

Going back and taking the next token is the nearest way, but often a bad one: a model that may not write `Leila` begins with `St`, and
goes on as if it had not. So from the place where something was refused each of the most probable other tokens is followed to the end of
its word, and the one whose whole text is the most probable stays. That is for rows that take the most probable token; a row that draws
at random keeps what it has drawn, as its law says.
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
"""So many tokens of an alternative are looked at, where its word is longer."""

_WHOLE = re.compile(r"\w\W")


@dataclass(frozen=True, slots=True)
class Search:
    """A place from which several ways are tried.

    Attributes:
        tried: for each way its first token and its score.
        num_tokens: how many tokens of the present way were written.
        text: their bytes.
        is_whole: whether it is to be compared now.
        chosen: the first token of the way that was chosen; None while ways are tried.
    """

    tried: tuple[tuple[int, float], ...] = ()
    num_tokens: int = 0
    text: bytes = b""
    is_whole: bool = False
    chosen: int | None = None

    def advanced(self, data: bytes) -> Search | None:
        """Return the search after one more token; None where it is over."""
        if self.is_whole or self.chosen is not None:
            return None
        text, num_tokens = self.text + data, self.num_tokens + 1
        is_whole = num_tokens >= _MAX_TOKENS or _WHOLE.search(text.decode(errors="ignore")) is not None
        return replace(self, num_tokens=num_tokens, text=text, is_whole=is_whole)


@dataclass(frozen=True, slots=True, eq=False)
class AlternativesState:
    """The state of the policy, and the search; None where nothing is compared."""

    inner: Any
    search: Search | None = None


class Alternatives(Policy[AlternativesState]):
    """A policy, and the most probable of some ways to go on where it has refused something."""

    def __init__(self, policy: Policy[Any], count: int, tokenizer: Tokenizer) -> None:
        """Compare `count` ways, two or more, from each place that `policy` goes back to."""
        self.policy = policy
        self.count = count
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return repr(self.policy)

    @property
    def finish_reason(self) -> str:
        """That of the policy."""
        return self.policy.finish_reason

    @property
    def horizon(self) -> int:
        """Those of the policy, and the tokens of a way."""
        return self.policy.horizon + _MAX_TOKENS

    @property
    def max_retries(self) -> int | None:
        """Those of the policy; a way that was tried counts."""
        return self.policy.max_retries

    @property
    def max_retries_per_place(self) -> int | None:
        """Those of the policy."""
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
        """Return what the policy wants; where that is nothing in particular, what the search wants."""
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
        """Return the state to go on with: one more way was tried, or one chosen, or the search begins."""
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
        """Return what the policy asks for."""
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
