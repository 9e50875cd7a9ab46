"""`Track`: the tokens of a running row as a value: append-only columns (ids, kinds, log-probabilities by the model and as sampled, most
probable tokens), and how many of their entries are its own; with the ends that were drawn, and the sums of weight and score. `append`,
`cut` and the other methods return another track. An append is in place where the columns end with this track, else it copies them; so a
fork, a rewind and a checkpoint are references.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Self

from outlines_cont.immutable import shallow_copy
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.state.image_span import until
from outlines_cont.state.row import APPENDED, GENERATED, HEALED, NOTHING_SKIPPED, WRITTEN, StateRow, counts_of

Top = tuple[tuple[int, float], ...]
"""The most probable tokens at a position, with their log-probabilities."""


class _Columns:
    """Parallel lists with an entry for each token; they only grow. A log-probability that is NaN is replaced once, when it is known."""

    __slots__ = ("ids", "kinds", "logprobs", "sampling_logprobs", "tops")

    def __init__(
        self,
        ids: list[int],
        kinds: bytearray,
        logprobs: list[float],
        sampling_logprobs: list[float],
        tops: list[Top],
    ) -> None:
        self.ids, self.kinds, self.tops = ids, kinds, tops
        self.logprobs, self.sampling_logprobs = logprobs, sampling_logprobs

    def first(self, length: int) -> _Columns:
        """Return a copy of the first `length` entries."""
        return _Columns(
            self.ids[:length],
            self.kinds[:length],
            self.logprobs[:length],
            self.sampling_logprobs[:length],
            self.tops[:length],
        )


class Track:
    """The tokens of a row. Immutable.

    Attributes:
        length: the number of tokens.
        unscored: the indices of forced tokens that are not scored yet, ascending.
        ends, cuts, end_ratios: the ends of text that were drawn, and what was drawn and cut by a stop; see `LogprobSum`.
        first: index of the first token that this run has generated.
        num_common: how many of the first tokens are still those of the source.
        num_top: how many of the most probable tokens are recorded at each draw.
        low_water: the smallest number of tokens since a stream has looked.
    """

    def __init__(self, source: StateRow) -> None:
        self.length = self.first = self.num_common = len(source.token_ids)
        self._columns = _Columns(
            [*source.token_ids],
            bytearray(source.kinds),
            [*source.logprobs],
            [*source.sampling_logprobs],
            [],
        )
        self.unscored: tuple[int, ...] = tuple([index for index in source.unscored if index > source.cached])
        self.ends: tuple[tuple[int, float], ...] = ()
        self.cuts: tuple[tuple[int, float, int], ...] = ()
        self.end_ratios: tuple[tuple[int, float], ...] = ()
        self.num_top = self.low_water = 0
        self._counted, self._search = source.counted, source.search
        self._surprise_start = source.surprise_start
        self._follows_surprise = False  # whether a warper of this run does
        self._counts: TokenCounts | None = None  # of these tokens; the next track takes them over

    # -- columns -------------------------------------------------------------------------------------------------------

    @property
    def _own(self) -> _Columns:
        """The columns, without what was appended to others that share them."""
        if len(self._columns.ids) != self.length:
            self._columns = self._columns.first(self.length)
        return self._columns

    @property
    def ids(self) -> list[int]:
        """All ids, prompt included. Not to be changed."""
        ids = self._columns.ids
        return ids if len(ids) == self.length else self._own.ids

    @property
    def kinds(self) -> bytearray:
        """One byte for each token: `p` prompt, `a` appended, `g` generated, `f` forced, `h` healed; see `StateRow`."""
        return self._own.kinds

    @property
    def logprobs(self) -> list[float]:
        """The log-probabilities by the model; NaN for forced tokens that are not scored yet."""
        return self._own.logprobs

    @property
    def tops(self) -> list[Top]:
        """The most probable tokens in place of each; empty for tokens that were not drawn. There are none without `num_top`."""
        return self._own.tops

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` was drawn."""
        return index < self.length and self._columns.kinds[index : index + 1] == GENERATED

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` was appended as given text, or respells it."""
        return index < self.length and self._columns.kinds[index : index + 1] == APPENDED

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn; 0 if it was not drawn."""
        return self._own.sampling_logprobs[index]

    # -- other tracks --------------------------------------------------------------------------------------------------

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float, top: Top = ()) -> Self:
        """Return the track with one more token; its `logprob` is NaN if it is to be scored."""
        columns = self._columns if len(self._columns.ids) == self.length else self._own
        # The ids first: if an interrupt comes before the others, their length tells that these columns are no longer our own.
        columns.ids.append(token_id)
        columns.kinds += kind
        columns.logprobs.append(logprob)
        columns.sampling_logprobs.append(sampling_logprob)
        if self.num_top:
            columns.tops.append(top)
        other = shallow_copy(self)
        other.length += 1
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.add(token_id, kind in WRITTEN, sampling_logprob if kind == GENERATED else None)
        return other

    def cut(self, length: int) -> Self:
        """Return the track of the first `length` tokens, and of what was drawn up to there."""
        other = self._shortened(length)
        counts, self._counts = self._counts, None
        if counts is not None:
            for index in range(length, self.length):
                counts.remove(self.ids[index], self.kinds[index] in WRITTEN)
            other._counts = counts
        if length < self.first:  # into what the run was given
            other._counted = self._counted.cut(length)
            other._search = None if self._search is None else self._search.cut(length)
        other.ends = tuple(end for end in self.ends if end[0] <= length)
        other.end_ratios = tuple(end for end in self.end_ratios if end[0] <= length)
        other.cuts = tuple(cut for cut in self.cuts if cut[0] < length)  # others are drawn anew
        return other

    def reopened(self, length: int) -> Self:
        """Return the same as token healing writes the other tokens anew; ends that were drawn after them count as before."""
        other = self._shortened(length)
        both = NOTHING_SKIPPED.adding(self.ends, self.cuts, end_ratios=self.end_ratios).reopened(length)
        other.ends, other.cuts, other.end_ratios = both.ends, both.cuts, both.end_ratios
        other._counted = self._counted.reopened(length)
        other._search = None if self._search is None else self._search.reopened(length)
        return other

    def _shortened(self, length: int) -> Self:
        other = shallow_copy(self)
        other._counts, other.length = None, length
        other.first, other.num_common = min(self.first, length), min(self.num_common, length)
        other.low_water = min(self.low_water, length)
        other.unscored = tuple([index for index in self.unscored if index < length])
        other._surprise_start = None if self._surprise_start is None else min(self._surprise_start, length)
        return other

    def changed(self, **attributes: object) -> Self:
        """Return the track with other `unscored`, `ends`, `cuts`, `low_water` or `num_common`."""
        other = shallow_copy(self)
        vars(other).update(attributes)
        other._counts, self._counts = self._counts, None
        return other

    def with_tops(self, count: int) -> Self:
        """Return the track with the `count` most probable tokens at each draw from now on."""
        other = self.changed(num_top=count)
        other._columns = self._own.first(self.length)
        other._columns.tops = [()] * self.length
        return other

    # -- counts --------------------------------------------------------------------------------------------------------

    def following_surprise(self) -> Self:
        """Return the track for a warper of the next token that depends on the surprisal of drawn tokens; from here on if none did yet."""
        if self._follows_surprise:
            return self
        start = self.length if self._surprise_start is None else self._surprise_start
        other = self.changed(_follows_surprise=True, _surprise_start=start)
        other._counts = None
        return other

    @property
    def counts(self) -> TokenCounts:
        """The token counts of the row, made when they are first asked for, and then updated with every token."""
        if self._counts is None:
            own = self._own
            self._counts = counts_of(own.ids, own.kinds, own.sampling_logprobs, self._surprise_start)
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
        return self.unscored[0] if self.unscored else self.length

    def scored_by(self, start: int, fed: Container[int]) -> list[tuple[int, int]]:
        """Return (index into the chunk, id of the token after it) for each unscored token that a chunk scores.

        The chunk begins with token `start`, and has logits after its tokens at the indices `fed`.
        """
        ids = self.ids
        found = [(index - 1 - start, ids[index]) for index in self.unscored]
        return [(index, token_id) for index, token_id in found if index in fed]

    def scored(self, logprobs: Sequence[float]) -> Self:
        """Return the track in which the first unscored tokens have these log-probabilities."""
        known = self._own.logprobs
        for index, logprob in zip(self.unscored, logprobs, strict=False):
            known[index] = logprob
        return self.changed(unscored=self.unscored[len(logprobs) :])

    def search_score(self, logprob: float, num_new: int) -> float:
        """Return the score of the row with `num_new` more tokens, or an end, of log-probability `logprob`; unscored tokens count 0."""
        search = self._search
        assert search is not None
        unscored = set(self.unscored)
        known = [0.0 if i in unscored else x for i, x in enumerate(self.logprobs)] if unscored else self.logprobs
        search = search.adding(self.ends, self.cuts)
        return search.ranked(search.total(known) + logprob, search.num_written(self.kinds) + num_new)

    def drawn_from(self, length: int) -> tuple[tuple[int, float, int], ...]:
        """Return the tokens after the first `length` that were drawn as a cut, see `LogprobSum`."""
        kinds, logprobs = self.kinds, self.logprobs
        drawn = [i for i in range(length, self.length) if kinds[i] in GENERATED + HEALED and i not in self.unscored]
        return ((length, sum(logprobs[i] for i in drawn), kinds.count(GENERATED, length)),)

    # -- as a state ----------------------------------------------------------------------------------------------------

    def written_to(self, source: StateRow, *, has_failed: bool) -> StateRow:
        """Return the state row that the run began with, with these tokens and their log-probabilities.

        A row that has failed has none after the last token that was drawn: whether they are known would depend on what was cached.
        """
        own, counted, search = self._own, self._counted, self._search
        end = max(own.kinds.rfind(GENERATED) + 1, self.first) if has_failed else self.length
        logprobs = own.logprobs[:end] + [0.0] * (self.length - end)
        if not math.isfinite(sum(logprobs)):  # a quicker test than one for each token
            logprobs = [x if math.isfinite(x) else 0.0 for x in logprobs]
        return replace(
            source,
            token_ids=tuple(own.ids),
            kinds=bytes(own.kinds),
            logprobs=tuple(logprobs),
            sampling_logprobs=tuple(own.sampling_logprobs),
            surprise_start=self._last_surprise_start,
            counted=counted.adding(self.ends, self.cuts, end_ratios=self.end_ratios),
            search=None if search is None else search.adding(self.ends, self.cuts),
            unscored=tuple([index for index in self.unscored if index < end]),
            pinned=min(source.pinned, self.num_common),
            images=until(source.images, self.num_common),
        )
