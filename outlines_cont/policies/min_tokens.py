"""A least number of tokens: until then the piece does not come to its end by a token."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from outlines_cont.engine.branch import Branch, TokenSet
from outlines_cont.engine.policy import Policy, RowView
from outlines_cont.interfaces import LanguageModel
from outlines_cont.sampling.check import check, is_int

_FREE = [Branch(sample_mask=TokenSet.all)]


class MinTokens(Policy[int]):
    """Sample no end of text before the piece has a number of tokens, forced ones included. The state counts them up to that.

    Stop texts are not held off, nor is a constraint that asks for an end: where nothing but an end may follow, the row fails
    with `DeadEnd`.
    """

    def __init__(self, min_tokens: int, stop_token_ids: Iterable[int] = ()) -> None:
        """Keep out the model's ends of text and `stop_token_ids` until there are `min_tokens`.

        Raises:
            OptionError: `min_tokens` is not an int of 0 or more.
            ValueError, TypeError: the stop tokens are no token ids.
        """
        check("min_tokens", min_tokens, is_int(min_tokens) and min_tokens >= 0, "an int, 0 or more,")
        self.min_tokens = min_tokens
        self._ends = TokenSet.of(stop_token_ids)
        self._early = [Branch(sample_mask=~self._ends)]

    def for_model(self, model: LanguageModel) -> MinTokens:
        """Return the policy that keeps out the model's ends of text, too."""
        bound = copy(self)
        bound._early = [Branch(sample_mask=~(self._ends | TokenSet.of(model.eos_token_ids)))]
        return bound

    def initial(self, row: RowView) -> int:
        """Return 0."""
        return 0

    def branches(self, state: int, row: RowView) -> list[Branch]:
        """Return sampling without the ends, or free sampling where there are enough tokens."""
        return self._early if state < self.min_tokens else _FREE

    def advance(self, state: int, token_id: int) -> int:
        """Return one more, at most `min_tokens`."""
        return min(state + 1, self.min_tokens)
