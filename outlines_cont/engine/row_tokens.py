"""`FedTokens`: how many tokens of a sequence are in the KV cache (not the keys and values), the logits at its end, tokens fed ahead
(`Expected`) and kept logits of earlier positions. Tokens whose keys and values were lost are fed again, as is the last after a rewind, if
the logits after it are not kept. `FedSequence`: the base class of rows and negative prompts, which have the tokens themselves.

`RowTokens`: the tokens of a running row in parallel lists: ids, kinds (prompt, appended, generated, forced, healed), log-probabilities
by the model (NaN for forced tokens until they are scored) and as sampled, top tokens; with incremental `TokenCounts`, the ends that were
drawn, and search scores. Lists only grow: a rewind replaces them, so that checkpoints need no copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Self

import torch

from outlines_cont.engine.drafting.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.drawing.kept_logits import KeptLogits
from outlines_cont.immutable import shallow_copy
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.state.row import APPENDED, GENERATED, HEALED, WRITTEN, StateRow, counts_of


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

    def without_kept(self) -> Self:
        """Return a copy without kept logits."""
        other = shallow_copy(self)
        other.kept = self.kept.emptied()
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


Top = tuple[tuple[int, float], ...]
"""The most probable tokens at a position, with their log-probabilities."""


class RowTokens:
    """The tokens of a row. Lists only grow; a rewind replaces them by new lists, see `Checkpoint`.

    Attributes:
        ids: all ids, prompt included.
        kinds: one byte for each: `p` prompt, `a` appended, `g` generated, `f` forced, `h` healed; see `StateRow`.
        logprobs: by the model; NaN for forced tokens that are not scored yet.
        sampling_logprobs: those of the distribution that was sampled from.
        unscored: the indices of forced tokens that are not scored yet, ascending.
        ends, cuts: the ends of text that were drawn, and what was drawn and cut by a stop; see `LogprobSum`.
        first: index of the first token that this run has generated.
        num_common: how many of the first tokens are still those of the source.
        num_top: how many of the most probable tokens are recorded at each draw.
        tops: these, for each token; empty tuples for tokens that were not drawn.
        low_water: the smallest number of tokens since this was last set.
    """

    def __init__(self, source: StateRow) -> None:
        self.first = self.num_common = len(source.token_ids)
        self.ids = list(source.token_ids)
        self.kinds = bytearray(source.kinds)
        self.logprobs = list(source.logprobs)
        self.sampling_logprobs = list(source.sampling_logprobs)
        self.unscored = [index for index in source.unscored if index > source.cached]
        self.ends: tuple[tuple[int, float], ...] = ()
        self.cuts: tuple[tuple[int, float, int], ...] = ()
        self.num_top = 0
        self.tops: list[Top] = []
        self.low_water = 0
        self._counted, self._search = source.counted, source.search
        self._surprise_start = source.surprise_start
        self._follows_surprise = False  # whether a warper of this run does
        self._counts: TokenCounts | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def fork(self) -> Self:
        """Return the same for a fork of the row."""
        other = self.at(len(self.ids))
        other._counts = None if self._counts is None else self._counts.fork()
        return other

    def at(self, length: int) -> Self:
        """Return a copy with the first `length` tokens in lists of its own, not counted yet."""
        other = shallow_copy(self)
        other._counts = None
        other._shorten(length)
        return other

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        """Append a token; its `logprob` is NaN if it is to be scored."""
        self.ids.append(token_id)
        self.kinds += kind
        if self._counts is not None:
            self._counts.add(token_id, kind in WRITTEN, sampling_logprob if kind == GENERATED else None)
        self.logprobs.append(logprob)
        self.sampling_logprobs.append(sampling_logprob)
        if self.num_top:
            self.tops.append(())

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if self._counts is not None:
            for index in range(length, len(self.ids)):
                self._counts.remove(self.ids[index], self.kinds[index] in WRITTEN)
        self._shorten(length)
        self.num_common = min(self.num_common, length)
        if length < self.first:  # into what the run was given
            self.first, self._counted = length, self._counted.cut(length)
            self._search = None if self._search is None else self._search.cut(length)
        self.ends = tuple(end for end in self.ends if end[0] <= length)
        self.cuts = tuple(cut for cut in self.cuts if cut[0] < length)  # others are drawn anew
        self.unscored = [index for index in self.unscored if index < length]

    def reopen(self, first: int) -> None:
        """Keep the first `first` tokens, as token healing writes the others anew; ends that were drawn after them count as before."""
        self._shorten(first)
        self._counts = None
        self.first, self.num_common = min(self.first, first), min(self.num_common, first)
        self.ends = tuple((min(position, first), logprob) for position, logprob in self.ends)
        self.cuts = tuple((min(position, first), logprob, count) for position, logprob, count in self.cuts)
        self.unscored = [index for index in self.unscored if index < first]
        self._counted = self._counted.reopened(first)
        self._search = None if self._search is None else self._search.reopened(first)

    def _shorten(self, length: int) -> None:
        self.ids, self.kinds = self.ids[:length], self.kinds[:length]
        self.logprobs, self.sampling_logprobs = self.logprobs[:length], self.sampling_logprobs[:length]
        self.tops, self.low_water = self.tops[:length], min(self.low_water, length)
        self._surprise_start = None if self._surprise_start is None else min(self._surprise_start, length)

    def drawn_from(self, length: int) -> tuple[tuple[int, float, int], ...]:
        """Return the tokens after the first `length` that were drawn as a cut, see `LogprobSum`."""
        drawn = [
            i for i in range(length, len(self.ids)) if self.kinds[i] in GENERATED + HEALED and i not in self.unscored
        ]
        return ((length, sum(self.logprobs[i] for i in drawn), self.kinds.count(GENERATED, length)),)

    def note_tops(self, count: int) -> None:
        """Record the `count` most probable tokens at each draw from now on."""
        self.num_top, self.tops = count, [()] * len(self.ids)

    def written_to(self, source: StateRow, *, has_failed: bool) -> StateRow:
        """Return the state row that the run began with, with these tokens and their log-probabilities.

        A row that has failed has none after the last token that was drawn: whether they are known would depend on what was cached.
        """
        logprobs, counted, search = self.logprobs, self._counted, self._search
        end = max(self.kinds.rfind(GENERATED) + 1, self.first) if has_failed else len(logprobs)
        logprobs = logprobs[:end] + [0.0] * (len(logprobs) - end)
        return replace(
            source,
            token_ids=tuple(self.ids),
            kinds=bytes(self.kinds),
            logprobs=tuple([x if math.isfinite(x) else 0.0 for x in logprobs]),
            sampling_logprobs=tuple(self.sampling_logprobs),
            surprise_start=self._last_surprise_start,
            counted=counted.adding(self.ends, self.cuts),
            search=None if search is None else search.adding(self.ends, self.cuts),
            unscored=tuple([index for index in self.unscored if index < end]),
            pinned=min(source.pinned, self.num_common),
        )

    # -- kinds and counts ----------------------------------------------------------------------------------------------

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` was drawn."""
        return self.kinds[index : index + 1] == GENERATED

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` was appended as given text, or respells it."""
        return self.kinds[index : index + 1] == APPENDED

    def counts(self, *, follows_surprise: bool) -> TokenCounts:
        """Return the token counts of the row, made at the first call, and then updated incrementally.

        With `follows_surprise` a warper of the next token depends on the surprisal of drawn tokens, from here on if none did before.
        """
        if follows_surprise and not self._follows_surprise:
            self._follows_surprise = True
            if self._surprise_start is None:
                self._surprise_start = len(self.ids)
            self._counts = None
        if self._counts is None:
            self._counts = counts_of(self.ids, self.kinds, self.sampling_logprobs, self._surprise_start)
        return self._counts

    @property
    def _last_surprise_start(self) -> int | None:
        """The `surprise_start` of a `StateRow`: None if this run has drawn without a warper that follows it."""
        has_drawn = GENERATED in self.kinds[self.first :]
        return self._surprise_start if self._follows_surprise or not has_drawn else None

    # -- log-probabilities ---------------------------------------------------------------------------------------------

    @property
    def num_scored(self) -> int:
        """The index of the first token that is not scored; the number of tokens, if all are."""
        return self.unscored[0] if self.unscored else len(self.ids)

    def scored_by(self, start: int, fed: Container[int]) -> list[tuple[int, int]]:
        """Return (index into the chunk, id of the token after it) for each unscored token that a chunk scores.

        The chunk begins with token `start`, and has logits after its tokens at the indices `fed`.
        """
        found = [(index - 1 - start, self.ids[index]) for index in self.unscored]
        return [(index, token_id) for index, token_id in found if index in fed]

    def score(self, logprobs: Sequence[float]) -> bool:
        """Set the log-probabilities of the first unscored tokens; return whether all of them are finite."""
        for index, logprob in zip(self.unscored, logprobs, strict=False):
            self.logprobs[index] = logprob
        self.unscored = self.unscored[len(logprobs) :]
        return all(map(math.isfinite, logprobs))

    def search_score(self, logprob: float, num_new: int) -> float:
        """Return the score of the row with `num_new` more tokens, or an end, of log-probability `logprob`; unscored tokens count 0."""
        search = self._search
        assert search is not None
        unscored = set(self.unscored)
        known = [0.0 if i in unscored else x for i, x in enumerate(self.logprobs)] if unscored else self.logprobs
        search = search.adding(self.ends, self.cuts)
        return search.ranked(search.total(known) + logprob, search.num_written(self.kinds) + num_new)
