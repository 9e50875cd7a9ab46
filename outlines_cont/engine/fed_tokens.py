"""`FedTokens`: how many tokens of a sequence are in the KV cache (not the keys and values), the logits at its end, tokens fed ahead
(`Expected`) and kept logits of earlier positions. Tokens whose keys and values were lost are fed again, as is the last after a rewind, if
the logits after it are not kept. `FedSequence`: the base class of rows and negative prompts, which have the tokens themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch

from outlines_cont.engine.drafting.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.drawing.kept_logits import KeptLogits
from outlines_cont.immutable import shallow_copy
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import StateRow


class FedTokens:
    """How much of a sequence is in the KV cache, and the logits that are known of it.

    Attributes:
        cached: how many tokens were fed; the rest is pending.
        logits: (V,) after the last token, once that is fed.
        is_partial: whether they are exact only for the tokens of a mask; see `KeptLogits.for_mask`.
        is_drafted: whether they are known because the tokens before them were accepted draft tokens.
        expected: tokens fed, or to be fed, behind those of the sequence.
        kept: the logits before earlier tokens.
        counts: where the work is counted.
    """

    def __init__(
        self, cached: int, logits: torch.Tensor | None, counts: Meter, expected: Expected = NOTHING_EXPECTED
    ) -> None:
        self.cached = cached
        self.logits = logits
        self.is_partial = self.is_drafted = False
        self.expected = expected
        self.kept = KeptLogits(0)
        self.counts = counts

    def fork(self) -> Self:
        """Return the same for a fork of the sequence; tensors are shared."""
        other = shallow_copy(self)
        other.kept = self.kept.fork()
        return other

    @property
    def held(self) -> int:
        """How many tokens are in the KV cache, expected ones included."""
        return self.cached + self.expected.num_fed

    def num_pending(self, length: int) -> int:
        """Return how many tokens of a sequence of `length` are to be fed, expected ones included; 0 if only expected ones are."""
        pending = length - self.cached
        return pending and pending + self.expected.num_pending

    def is_ready(self, length: int) -> bool:
        """Return whether the logits after all tokens are known; those of an earlier position remain if a forward fails."""
        return self.logits is not None and self.cached == length

    def lose(self, cached: int) -> None:
        """Note that only the first `cached` tokens are in the KV cache; the others will be fed again."""
        if cached >= self.held:
            return
        self.counts.recomputed_tokens += self.held - min(cached, self.cached)
        self.cached, self.expected = min(self.cached, cached), self.expected.unfed()

    def feed(self, count: int, length: int, logits: dict[int, torch.Tensor]) -> None:
        """Note that `count` pending tokens of a sequence of `length` were fed; `logits` has the wanted ones by index into the chunk."""
        known = {self.cached + index + 1: after for index, after in logits.items()}
        for index in sorted(known) if self.kept.num_places else ():
            if index <= length:
                self.kept.put(index, known[index])
        self.counts.fed_tokens += count
        own = min(count, length - self.cached)
        self.cached += own
        if count > own:
            self.expected = self.expected.fed(count - own, known)
        if own:
            self.logits = known.get(self.cached) if self.cached == length else None
            self.is_partial = self.is_drafted = False

    def feed_last(self, logits: torch.Tensor) -> None:
        """Record that only the last token was fed."""
        self.counts.fed_tokens += 1
        self.cached += 1
        self.logits, self.is_partial, self.is_drafted = logits, False, False
        if self.kept.num_places:
            self.kept.put(self.cached, logits)

    def append(self, token_id: int, *, is_drawn: bool = True) -> bool:
        """Note that a token was appended; return whether it was expected and is fed, so that the logits after it may be known."""
        before, known = self.expected, self.expected.logits.get(self.cached + 1)
        # A forced token without known logits after it is fed again, so that the tokens after it can be scored.
        can_follow = is_drawn or known is not None
        self.expected = before.after(token_id) if can_follow else NOTHING_EXPECTED
        if not before.num_fed or before.token_ids[0] != token_id or not can_follow:
            return False
        self.cached += 1
        self.logits, self.is_partial, self.is_drafted = known, False, before.is_draft
        if known is not None:
            self.kept.put(self.cached, known)
        return True

    def rewind(self, length: int) -> None:
        """Note that only the first `length` tokens remain; the logits after them are restored if they are kept."""
        self.expected = NOTHING_EXPECTED
        self.cached = min(self.cached, length)
        self.kept.forget_after(length)
        self.logits = self.kept.whole(length) if self.cached == length else None
        self.is_partial = self.is_drafted = False

    def settle(self) -> None:
        """Forget the tokens that were fed ahead."""
        self.expected, self.is_drafted = NOTHING_EXPECTED, False

    def need_logits(self, length: int, mask: TokenSet) -> None:
        """Ensure that tokens are pending, or the logits at the end are known for a mask; else the last token is fed again."""
        if self.cached < length or (self.logits is not None and not self.is_partial):
            return
        self.logits = self.kept.for_mask(self.cached, mask)
        self.is_partial = self.logits is not None
        if self.logits is None:
            self.lose(self.cached - 1)


class FedSequence(ABC):
    """Base of the sequences that a batch feeds: rows and negative prompts.

    Attributes:
        source: the state row that it continues.
        base_kv: the keys and values that it begins with: those of its source, or more, taken from other rows.
        feed: how much of it is fed.
    """

    def __init__(self, source: StateRow, feed: FedTokens) -> None:
        self.source, self.base_kv, self.feed = source, source.kv, feed

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of tokens."""

    @property
    def cached(self) -> int:
        """How many tokens were fed; the rest is pending."""
        return self.feed.cached

    @property
    def logits(self) -> torch.Tensor | None:
        """(V,) after the last token, once that is fed."""
        return self.feed.logits

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Note that `count` pending tokens were fed; `logits` has the wanted ones by index into the chunk."""
        self.feed.feed(count, self.length, logits)

    def lose(self, cached: int) -> None:
        """Note that only the first `cached` tokens are in the KV cache; the others will be fed again."""
        self.feed.lose(cached)
