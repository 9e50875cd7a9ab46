"""`Row`: one running sequence. It refers to values, each replaced by its next one: the tokens, the running piece, the policies with their
states, the next sample, the random stream; and it owns what is fed of them: keys and values, logits, a draft, a negative prompt. `append`
and `rewind` keep these parts consistent; policies read it as a `RowView`; `chunk` and `wanted` are what it feeds. A checkpoint and a fork
take the values as they are; `leave` and `snapshot` return the row as an immutable `StateRow`.

When its piece has ended, the row leaves, or begins what follows the piece (`Piece.then`), in the same batch. A row with a program
(`RowProgram`) is planned by that, in place of its policies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.engine.drafting.expected import Expected
from outlines_cont.engine.drafting.lookahead import MAX_TOKENS, Lookahead
from outlines_cont.engine.drafting.row_draft import RowDraft
from outlines_cont.engine.drawing.drawing import Draw, DrawInput
from outlines_cont.engine.fed_tokens import FedSequence, FedTokens
from outlines_cont.engine.guidance import NegativeSequence, guided_logits
from outlines_cont.engine.piece import Piece, RowStatus, RunningPiece, Sample
from outlines_cont.engine.track import Top, Track
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.immutable import changed
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import LazyTokenSet, TokenSet
from outlines_cont.policies.healing import NO_HEALING, Healing, PieceText, TextPosition
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.policy_states import PolicyStates
from outlines_cont.policies.slow_work import SlowWork, TooLong, bounded
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.state.image_span import Images, floor, keyed, until
from outlines_cont.state.row import FORCED, GENERATED, HEALED, WRITTEN, StateRow, WrittenPiece
from outlines_cont.user_code import user_code_error

_TAIL_TOKENS = 8
_FIRST = (0,)


class RowProgram(ABC):
    """What plans a row in place of its policies: such as one that waits for code outside of the engine. Each fork has a copy."""

    reads_ahead = False
    """Whether pending tokens are fed while the program is called."""

    @abstractmethod
    def plan(self, row: Row) -> None:
        """Plan the next step of the row.

        Afterwards the row samples, is scored, waits to be called (`RowStatus.CALLING`), or has ended; see `follow_policies`. An error is
        that of the row.
        """

    def appending(self, row: Row) -> None:
        """Note that a token is about to be appended; an error refuses it."""
        return

    def appended(self, row: Row, token_id: int) -> None:
        """Note that a token was appended."""
        return

    def rewinding(self, row: Row, count: int) -> None:
        """Note that the last `count` tokens are about to be removed."""
        return

    def takes(self, row: Row, error: Exception) -> bool:
        """Return whether the program is told of an error in the piece; else the row fails with it."""
        return False


class Row(FedSequence):
    """One running sequence, as the engine loop uses it.

    Attributes:
        model: the model that runs it.
        job: the `Job` that it belongs to.
        index: its number in the job.
        counts: where it counts its work; the rows of a loop share one.
        num_reused: how many tokens it has not fed, as their keys and values were known.
        stream: its random numbers.
        tokens: its tokens.
        piece: what it is writing.
        policies: what steers it, with the states after the last token.
        decider: the index of the policy whose branch was taken last; None if none was.
        sample: how the next token is drawn.
        draft: its speculative decoding, if there is any.
        negative: its negative prompt, if it is guided.
        program: what plans it; None for its policies.
        status: what it does in this step.
        slow: what a thread computes for it outside of steps, for which it waits; None for nothing.
        error: what it has failed with.
    """

    piece: RunningPiece
    policies: PolicyStates
    decider: int | None
    sample: Sample
    draft: RowDraft | None
    negative: NegativeSequence | None
    draws_next = True
    """Whether all that it wants of a forward is the next token."""

    def __init__(
        self,
        source: StateRow,
        model: LanguageModel,
        piece: Piece,
        *,
        counts: Meter,
        **given: Any,
    ) -> None:
        """Continue `source`, which is not changed, with a piece; for the other arguments see `begin`."""
        super().__init__(source, FedTokens(source.cached, source.logits, counts))
        self.model = model
        self.job: Any = None
        self.index = 0
        self.counts = counts
        self.num_reused = source.cached
        self.stream = source.stream.open()
        self.tokens = Track(source)
        self.program: RowProgram | None = None
        self.status = RowStatus.WAITING
        self.slow: SlowWork | None = None
        self.error: Exception | None = None
        self._num_forks = 0
        self.begin(piece, **given)
        if source.pinned > min(self.tokens.num_common, self.cached):
            self.guarded(source.check_pinned, min(self.tokens.num_common, self.cached), "its last tokens are removed")
        if source.images:
            self.guarded(source.check_images)

    def begin(
        self,
        piece: Piece,
        *,
        resume: bool = False,
        healing: Healing = NO_HEALING,
        guidance: tuple[StateRow, float] | None = None,
        start: int | None = None,
    ) -> None:
        """Begin a piece at the end of the row.

        Args:
            piece: what is to be written.
            resume: resume the last piece of the source instead.
            healing: the tokens that are removed from the end of the row first. A row that ends before their text is respelled leaves
                with the tokens that it was given.
            guidance: the negative prompt, a row, and the scale; the piece ends where one of both sequences has reached the end of the
                context.
            start: index of the first token of the piece, if that is not at the end: the piece may rewind to it.

        Raises the error of the row if it has failed.
        """
        if self.error is not None:
            raise self.error
        given = self._as_given(piece, resume=resume) if healing.count or resume else None
        removed = self._remove(healing)
        first = self.length if start is None else start
        written = (self.source.piece if resume else None) or WrittenPiece(first)
        text_bytes = self.model.tokenizer.text_bytes
        healed = text_bytes(self.tokens.ids[written.start :])[: written.healed] if resume else text_bytes(removed)
        text = PieceText(healed, written.start, self.model.tokenizer)
        begun = RunningPiece(piece, written, text, self.length)
        self.piece = changed(begun, given=given, reused=self.cached)
        self.status, self.sample, self.decider = RowStatus.WAITING, Sample(), None
        self.draft = None if piece.drafter is None else RowDraft(piece.drafter)
        self.negative = None
        self.feed.kept.num_places = self.piece.horizon
        self.policies = PolicyStates(written)
        self.guarded(self._begin_policies, piece.policies)
        if guidance is not None:
            prompt, scale = guidance
            self.negative = NegativeSequence(prompt, self, self.piece.horizon, scale)
            self.piece = self.piece.guided_by(prompt)

    def _begin_policies(self, policies: Sequence[Policy[Any]]) -> None:
        self.policies = self.policies.begun(policies, self)

    def _as_given(self, piece: Piece, *, resume: bool) -> StateRow:
        """Return the row as it is before a piece that is healed, or resumed, without keys and values if it was written to."""
        if resume:
            return self.source
        row = self.source
        if self.tokens.ids != list(row.token_ids):
            row = replace(self.tokens.written_to(row, has_failed=False), kv=None, logits=None)
        options = None if piece.options is None else replace(piece.options, heal=True)
        begun = WrittenPiece(len(row.token_ids), source=piece.source, options=options)
        return replace(row, stream=self.stream.close(), piece=begun)

    def _remove(self, healing: Healing) -> list[int]:
        """Remove the tokens that healing respells; they are expected again. Return them."""
        if not healing.count:
            return []
        first = self.length - healing.count
        removed = self.tokens.ids[first:]
        # A cache that cannot be cut would have to be recomputed if another token followed.
        behind = () if self.model.is_recurrent else tuple(removed)
        num_fed = max(self.cached - first, 0) if behind else 0
        expected = Expected(behind, num_fed, healing.logits)
        self.feed = FedTokens(min(self.cached, first), healing.logits.get(first), self.counts, expected)
        self.tokens = self.tokens.reopened(first)
        return removed

    # -- what policies, programs and searches read ---------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included. Not to be changed."""
        return self.tokens.ids

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.tokens.length

    @property
    def healed(self) -> bytes:
        """The bytes of the end of the prompt that the beginning of the piece respells; see `healing`."""
        return self.piece.text.healed

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece."""
        return self.piece.text.start

    @property
    def piece_ids(self) -> list[int]:
        """The ids of the piece so far."""
        return self.tokens.ids[self.piece_start :]

    @property
    def first_open(self) -> int:
        """Index of the first token that may be rewound: that of the piece, or the first whose text was not shown."""
        return self.piece.text.first_open(self.tokens.ids)

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was drawn."""
        return index >= self.piece_start and self.tokens.was_drawn(index)

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was appended by a policy as given text, or respells it."""
        return index >= self.piece_start and self.tokens.was_given(index)

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn; 0 if it was not drawn."""
        return self.tokens.sampling_logprob(index)

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that a retry may give another token by itself."""
        return (self.sample.drawing or self.piece.spec.drawing()).needs_random

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that may not be drawn again at `index`."""
        exclusion = self.policies.exclusions.at(index)
        return exclusion.excluded | exclusion.avoided if exclusion is not None else frozenset()

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, guided if the row is; None if they are not kept."""
        own, guide = self.feed.kept.whole(index), self.negative
        if own is None or guide is None:
            return own
        negative = guide.logits_before(index)
        return None if negative is None else guided_logits(own, negative, guide.scale)

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) for a decision, which is a function of `key` and of the stream of the row."""
        return self.stream.decision(*key)

    @property
    def deciding_policy(self) -> Policy[Any] | None:
        """The policy whose branch was taken last."""
        return None if self.decider is None else self.policies.policies[self.decider]

    @property
    def retries(self) -> int:
        """How often the piece was rewound because a policy refused its tokens."""
        return self.policies.retries

    @property
    def rejections(self) -> int:
        """How often of these no token was excluded."""
        return self.policies.rejections

    def counts_for(self, *, follows_surprise: bool) -> TokenCounts:
        """Return the token counts of the row; `follows_surprise`: for a warper that depends on the surprisal of drawn tokens."""
        if follows_surprise:
            self.tokens = self.tokens.following_surprise()
        return self.tokens.counts

    def search_score(self, draw: Draw | None = None) -> float:
        """Return the score of the row in a search, with one more token or end; forced tokens that were not fed yet count 0."""
        if draw is None:
            return self.tokens.search_score(0.0, 0)
        exits = self.sample.exits
        is_end = draw.token_id in self.piece.limits.end_ids or (
            exits is not None and exits.of(draw.token_id) is not None
        )
        return self.tokens.search_score(draw.logprob, int(not is_end))

    def end_logprob(self, token_ids: NDArray[np.int32]) -> float:
        """Return the log-probability, by the model, that one of some tokens is next."""
        assert self.logits is not None
        return float(self.logits.log_softmax(0)[upload(token_ids, self.logits.device).long()].logsumexp(0))

    @property
    def excerpt(self) -> str:
        """The end of the row, for errors: the number of its tokens, its last characters, and what its policies require next."""
        tail = self.model.tokenizer.decode(self.tokens.ids[-_TAIL_TOKENS:])
        wishes = "".join(f"; next: {wish}" for wish in self.policies.wishes(self))
        return f"{self.length} tokens (...{tail!r}{wishes})"

    # -- what streams read ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stream the row: text that is final after a step is never rewound from now on."""
        self._hold_until(self.piece.text.begin)

    def hold_final(self) -> None:
        """Note what a stream may have shown since the last step."""
        self._hold_until(self.final_until)

    def _hold_until(self, position: TextPosition) -> None:
        self.piece = changed(self.piece, text=self.piece.text.with_final(position))

    @property
    def final_until(self) -> TextPosition:
        """The position up to which the text is final."""
        return self.piece.text.final_until(self.tokens.ids, 0 if self.has_ended else self.policies.held_bytes)

    def mark_length(self, length: int) -> None:
        """Forget how short the row was before now; `Track.low_water` is `length`."""
        self.tokens = self.tokens.changed(low_water=length)

    @property
    def num_scored(self) -> int:
        """The index of the first token whose log-probability is not known yet; the number of tokens, if all are."""
        return self.length if self.is_over else self.tokens.num_scored

    @property
    def has_ended(self) -> bool:
        """Whether the piece has ended."""
        return self.piece.has_ended

    @property
    def is_over(self) -> bool:
        """Whether the piece has ended, and its tokens are scored."""
        return self.has_ended and self.status is RowStatus.LEAVING

    # -- errors -----------------------------------------------------------------------------------------------------

    def guarded(self, act: Callable[..., object], *args: object) -> None:
        """Call a function that calls policies; an error ends this row, or its piece, and not the step of all rows."""
        try:
            act(*args)
        except Exception as error:
            self.refuse(error)
        except SystemExit as error:
            self.refuse(user_code_error(error))

    def refuse(self, error: Exception) -> None:
        """Tell the program of an error in the piece, or fail with it."""
        if self.program is not None and self.program.takes(self, error):
            self.piece = changed(self.piece, error=error)
            self.end("error")
        else:
            self.fail(error)

    # -- feed ----------------------------------------------------------------------------------------------------------

    @property
    def feeds_all(self) -> bool:
        """Whether all pending tokens are to be fed, for the logits after them."""
        if self.status is RowStatus.CALLING:
            return self.program is not None and self.program.reads_ahead
        return self.status is RowStatus.SAMPLING

    @property
    def awaits_forward(self) -> bool:
        """Whether the row is sampling or scoring, and has tokens to feed for it."""
        if self.status is RowStatus.SAMPLING:
            return self.num_pending > 0 or (self.negative is not None and self.negative.num_pending > 0)
        return self.status is RowStatus.SCORING and self.num_pending > 0

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed in this step, expected ones included."""
        if self.feeds_all:
            pending = self.tokens.length - self.feed.cached
            return pending and pending + self.feed.expected.num_pending
        last = self.tokens.unscored[-1] if self.status is RowStatus.SCORING and self.tokens.unscored else 0
        return max(last - self.cached, 0)

    def chunk(self) -> list[int]:
        """Return the pending ids, then the expected ones."""
        if self.status is RowStatus.SAMPLING and not self.feed.expected.token_ids:
            return self.tokens.ids[self.feed.cached :]
        num, cached = self.num_pending, self.feed.cached
        pending = self.tokens.ids[cached : cached + num]
        return pending if num == len(pending) else [*pending, *self.feed.expected.token_ids[: num - len(pending)]]

    def wanted(self, chunk_size: int) -> Sequence[int]:
        """Return the indices into the first `chunk_size` pending tokens after which the row needs logits, ascending."""
        last: Sequence[int] = ()
        if self.status is RowStatus.SAMPLING or self.feeds_all:
            # With kept logits a rewind by a policy needs no forward.
            cached = self.feed.cached
            end = self.tokens.length - 1 - cached
            first = end and max(self.piece.text.start - 1 - cached, end - self.feed.kept.num_places, 0)
            last = _FIRST if chunk_size == 1 and not first else range(first, chunk_size)
        return self._scoring(chunk_size, last) if self.tokens.unscored else last

    def _scoring(self, chunk_size: int, others: Iterable[int]) -> list[int]:
        """Return the indices after which forced tokens are scored, and others."""
        indices = (index - 1 - self.cached for index in self.tokens.unscored)
        return sorted({index for index in indices if 0 <= index < chunk_size}.union(others))

    def score(self, logprobs: Sequence[float]) -> None:
        """Set the log-probabilities of the first unscored tokens."""
        self.tokens = self.tokens.scored(logprobs)
        if not all(map(math.isfinite, logprobs)):
            self.guarded(lambda: self.fail(invalid_logits(self.excerpt)))  # policies describe the excerpt

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens other rows may have fed: all before the first after which the row needs logits."""
        if self.source.images and self._knows_logits:
            return self.length
        return min([self.length - 1, *(index - 1 for index in self.tokens.unscored[:1])])

    @property
    def _knows_logits(self) -> bool:
        """Whether the logits after the tokens of its source are known, though keys and values may be gone, and it has no others."""
        source, is_given = self.source, self.length == len(self.source.token_ids) == self.tokens.num_common
        return is_given and source.logits is not None and not self.tokens.unscored

    @property
    def images(self) -> Images:
        """The images among its tokens: those of its source, but where it was rewound to before them."""
        return until(self.source.images, self.tokens.num_common)

    @property
    def key_ids(self) -> list[int]:
        """The ids as a key of keys and values: those of images stand for their pixels. Not to be changed."""
        return keyed(self.images, self.tokens.ids) if self.source.images else self.tokens.ids

    @property
    def source_cached(self) -> int:
        """How many tokens of the row are in the KV cache that it began with."""
        return min(len(self.base_kv) if self.base_kv is not None else 0, self.tokens.num_common)

    def begin_with(self, kv: RowKV) -> None:
        """Take the keys and values of the first tokens, more of them than the row has."""
        count = len(kv) - self.cached
        self.base_kv = kv
        self.feed.cached += count
        if self.cached == self.length:  # only if the logits after them are known, see `num_reusable`
            self.feed.logits = self.source.logits
        self.piece = changed(self.piece, reused=self.cached)
        self.num_reused += count
        self.counts.reused_tokens += count

    def _check_pinned(self) -> None:
        """Raise `NotRecomputable` if a token that is pinned would be fed again."""
        pinned = min(self.source.pinned, self.tokens.num_common)
        if self.cached < pinned:
            self.source.check_pinned(self.cached, "the last of them would be fed again, for the logits after it")

    # -- draw ----------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: all pending tokens are fed, those of the negative prompt included."""
        feed = self.feed
        if self.status is not RowStatus.SAMPLING or feed.logits is None or feed.cached != self.tokens.length:
            return False
        if self.slow is not None:
            return False
        return self.negative is None or self.negative.is_ready

    def make_masks(self) -> None:
        """Compute lazy masks that were not computed during the forward; an error of a policy is that of the row.

        The row waits for one that takes too long for a step.
        """
        if isinstance(self.sample.mask, LazyTokenSet) and self.is_ready:
            started = perf_counter()
            self.guarded(self._make_masks)
            self.counts.mask_seconds += perf_counter() - started
        if self.draft is not None:
            self.draft.masks = []

    def _make_masks(self) -> None:
        act = partial(_make_masks, self.sample.mask, self.draft)
        try:
            with bounded():
                act()
        except TooLong:
            self.slow = SlowWork(act, self.job)

    @property
    def next_masks(self) -> list[TokenSet]:
        """The masks of the draws after the next forward: that of the row, and those behind draft tokens."""
        if self.status is not RowStatus.SAMPLING:
            return []
        return [self.sample.mask] if self.draft is None else [self.sample.mask, *self.draft.masks]

    @property
    def draw_input(self) -> DrawInput:
        """The input of the next draw. A greedy row takes no random number from its stream."""
        drawing = self.sample.drawing
        assert self.feed.logits is not None
        assert drawing is not None
        uniform = self.stream.peek() if drawing.needs_random else None
        return DrawInput(self.length, self.feed.logits, self.sample.mask, drawing, uniform)

    def fails(self, logprob: float, sampling_logprob: float) -> bool:
        """Fail the row if its draw is not finite; return whether it has failed."""
        if not math.isfinite(logprob) or not math.isfinite(sampling_logprob):
            error = _draw_error(self.excerpt, self.logits, self.negative is not None, sampling_logprob)
            if error is not None:
                self.fail(error)
        return self.error is not None

    # -- drafts --------------------------------------------------------------------------------------------------------

    @property
    def can_draft(self) -> bool:
        """Whether draft tokens can be fed behind the pending tokens."""
        if self.draft is None or self.draft.is_off or self.feed.expected.token_ids:
            return False
        return self.status is RowStatus.SAMPLING and self.cached < self.length

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the next token; see `Policy.hint`."""
        return bool(self.policies.hints(self))

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a draft that has only the hints of policies. It leaves room for the token that is drawn after it."""
        sample, room = self.sample, self.room()
        return Lookahead(
            self,
            self.policies,
            sample.mask,
            sample.sequences,
            eos=self.piece.limits.eos,
            room=MAX_TOKENS if room is None else room - 1,
            vocab_size=self.model.vocab_size,
            temperature=sample.temperature,
            takes_hints=takes_hints,
        )

    def count_draft(self, name: str, number: int = 1) -> None:
        """Add to a counter of speculative decoding, that of the row and that of the model."""
        for counts in (self.counts,) if self.draft is None else (self.counts, self.draft.counts):
            setattr(counts, name, getattr(counts, name) + number)

    # -- append and rewind ---------------------------------------------------------------------------------------------

    def room(self, following: Sequence[int] = ()) -> int | None:
        """Return how many tokens may be appended, `following` first; None for any number."""
        return self.piece.room(self.tokens.ids, self.tokens.kinds, following)

    @property
    def is_full(self) -> bool:
        """Whether no token may be appended."""
        limits = self.piece.limits
        if limits.max_written is not None:
            return self.room() == 0
        return limits.max_length is not None and self.tokens.length >= limits.max_length

    @property
    def is_short(self) -> bool:
        """Whether the piece has fewer tokens than it must have before it ends; healed ones do not count."""
        num_healed = self.tokens.kinds.count(HEALED, self.piece_start)
        return self.length - num_healed < self.piece.limits.min_length

    def need_logits(self, mask: TokenSet) -> None:
        """Ensure that tokens are pending, or the logits at the end are known for a mask."""
        if self.feed.cached >= self.length:
            self.feed.need_logits(self.length, mask)
            self._check_pinned()
        if self.negative is not None:
            self.negative.need_logits(mask)

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float, top: Top = ()) -> None:
        """Append a token; `logprob` is NaN if it is to be scored."""
        text, is_drawn = self.piece.text, kind == GENERATED
        if self.program is not None:
            self.program.appending(self)
        if text.healed and kind in WRITTEN and text.num_healing(self.tokens.ids, [token_id]):
            kind = HEALED
        self.policies = self.policies.advanced(token_id)
        self.tokens = self.tokens.append(token_id, kind, logprob, sampling_logprob, top)
        is_fed = self.feed.expected.token_ids and self._append_expected(token_id, is_drawn=is_drawn)
        if self.draft is not None and not is_fed:
            self.draft.forget_draws()
        if self.negative is not None:
            self.negative.append(token_id)
        if self.program is not None:
            self.program.appended(self, token_id)

    def _append_expected(self, token_id: int, *, is_drawn: bool) -> bool:
        """Note that a token was appended where others are expected; return whether it is fed."""
        before = self.feed.expected
        is_fed = self.feed.append(token_id, is_drawn=is_drawn)
        if before.is_draft and is_drawn and before.num_fed:
            if self.draft is not None:
                self.draft.note(before.kinds[0], is_fed)
            if is_fed:
                place = 1 << self.length - 1 - self.piece_start
                self.piece = changed(self.piece, drafted=self.piece.drafted | place)
                self.count_draft("accepted_tokens")
        return is_fed

    def append_known(self, token_ids: Sequence[int], kind: bytes) -> None:
        """Append tokens that were not sampled: forced ones, which are scored, or given ones. The caller looks to the context."""
        logprobs = [0.0] * len(token_ids)
        if kind == FORCED:
            self.feed.need_logits(self.length, TokenSet.of(token_ids[:1]))
            self._check_pinned()
            self.counts.forced_tokens += len(token_ids)
            logprobs = self._forced_logprobs(token_ids)
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            self.append(token_id, kind, logprob, 0.0)

    def _forced_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probabilities of tokens that are known before they are fed; NaN, to be scored, for the others."""
        start, logits = self.length, []
        if self.cached == start and self.logits is not None:
            logits = [self.logits, *self.feed.expected.logits_behind(start, token_ids[:-1])]
        known = [float(one.log_softmax(0)[token_id]) for token_id, one in zip(token_ids, logits, strict=False)]
        if len(known) < len(token_ids):
            unscored = (*self.tokens.unscored, *range(start + len(known), start + len(token_ids)))
            self.tokens = self.tokens.changed(unscored=unscored)
        if not all(map(math.isfinite, known if self.feed.is_drafted else known[1:])):
            self.fail(invalid_logits(self.excerpt))
        return known + [math.nan] * (len(token_ids) - len(known))

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""
        length = self.length - count
        if length < self.piece_start:
            raise ValueError(
                f"expected a policy to rewind at most {self.length - self.piece_start} tokens, those of the piece, got {count}"
            )
        if self.source.images and (start := floor(self.images, length)) < length:
            raise UnsupportedBranch(
                f"expected a rewind that keeps an image or removes it, got one of {count} tokens, to token {length}, into an image that "
                f"begins at token {start}. Rewind {count + length - start} tokens."
            )
        self.policies = self.policies.rewound(count, self, self.decider)
        if self.program is not None:
            self.program.rewinding(self, count)
        self.piece = changed(self.piece, owed=(), drafted=self.piece.drafted & (1 << length - self.piece_start) - 1)
        self.tokens = self.tokens.cut(length)
        self.feed.rewind(length)
        if self.draft is not None:
            self.draft.cut(length)
        if self.negative is not None:
            self.negative.rewind()
        self.counts.rewound_tokens += count

    # -- ends ----------------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the row with an error."""
        self.error, self.piece = error, changed(self.piece, ends_row=True)
        self.end("error")

    def end(self, reason: str, stop: str | int | None = None) -> None:
        """End the piece, and the row if it is the last; `stop` is the stop text or stop token that has ended it."""
        self.piece = changed(self.piece, finish_reason=reason, stop=self.piece.stop if stop is None else stop)
        self.status = RowStatus.LEAVING if self.piece.ends_row else RowStatus.WAITING

    def owe(self, token_ids: Sequence[int]) -> None:
        """Note the forced tokens that a limit has cut off, which are first when the piece is resumed."""
        if token_ids or self.piece.owed:
            self.piece = changed(self.piece, owed=tuple(token_ids))

    def leave_when_scored(self) -> None:
        """Let a row that has ended leave, if its forced tokens are scored, or need not be."""
        if self.has_ended and self.piece.ends_row:
            scores = self.tokens.unscored and self.piece.spec.scores_end and self.error is None
            self.status = RowStatus.SCORING if scores else RowStatus.LEAVING

    # -- checkpoints and forks -----------------------------------------------------------------------------------------

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the row, any number of times; see `Checkpoint`.

        Only the keys and values of the source are restored; the others are fed again. Cost: 1 us, at any length.
        """
        return partial(self._restore, vars(self).copy(), self.program and copy(self.program))

    def _restore(self, values: dict[str, Any], program: RowProgram | None) -> None:
        num_held = self.feed.held
        vars(self).update(values)
        self.program, self.slow = copy(program), None
        is_given = self.length == self.tokens.num_common == len(self.source.token_ids)
        cached = min(self.source_cached, self.length)
        self.counts.recomputed_tokens += max(num_held - cached, 0)
        self.feed = FedTokens(cached, self.source.logits if is_given and cached == self.length else None, self.counts)
        self.feed.kept.num_places = self.piece.horizon
        if self.draft is not None:
            self.draft.forget()
        if self.negative is not None:
            self.negative.restore()
        if self.status is RowStatus.SAMPLING:
            self.need_logits(self.sample.mask)

    def fork(self) -> Self:
        """Return a second row that continues independently from here; its random numbers are the same."""
        fork = copy(self)
        fork.feed, fork.program, fork.slow = self.feed.fork(), copy(self.program), None
        fork.draft = None if self.draft is None else self.draft.fork()
        fork.negative = None if self.negative is None else self.negative.fork(fork)
        return fork

    def split(self, count: int) -> list[Self]:
        """Return this row and `count - 1` forks, each with random numbers of its own."""
        rows = [self]
        for _ in range(count - 1):
            self._num_forks += 1  # which distinguishes forks that begin at one position of the stream
            fork = self.fork()
            fork.stream = self.stream.close().fork(self._num_forks).open()
            fork._num_forks = 0
            rows.append(fork)
        return rows

    # -- as a value ----------------------------------------------------------------------------------------------------

    def pinned_kv(self, kv: RowKV | None) -> RowKV | None:
        """Return keys and values of the row, with those of its source for the tokens that are pinned: others may be evicted."""
        pinned, own = min(self.source.pinned, self.tokens.num_common), self.source.kv
        if not pinned or own is None:
            return kv
        return own[:pinned] if kv is None else kv.beginning_with(own, pinned)

    def snapshot(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value while it runs, as if it had reached its maximal length."""
        row, piece = self.leave(kv), self.piece
        if not self.has_ended:
            return replace(row, finish_reason="length")
        if row.piece is None or not piece.is_thinking or self.error is not None:
            return row
        return replace(row, finish_reason="length", piece=replace(row.piece, ended=piece.finish_reason))

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value, with the keys and values of its first `cached` tokens."""
        given, feed, kv = self.piece.given, self.feed, self.pinned_kv(kv)
        if given is not None and self.piece.text.num_unspelled(self.tokens.ids):  # the healed end of the prompt
            row, logits = given, given.logits
            kv = given.kv if given.kv is not None or kv is None else kv[: self.piece_start]
            piece, stream = given.piece, given.stream  # what has tried to respell it begins again
        else:
            piece, stream = self.piece.record(self.policies), self.stream.close()
            is_known = feed.is_ready(self.length) and not feed.is_partial
            # A copy, to release the logits of the other rows of the step.
            logits = feed.logits.clone() if is_known and feed.logits is not None else None
            row = self.tokens.written_to(self.source, has_failed=self.error is not None)
        return replace(
            row,
            kv=kv,
            logits=logits,
            stream=stream,
            piece=piece,
            finish_reason=self.piece.finish_reason,
            value=None,
            error=self.error,
        )


_INVALID = (
    "expected finite logits from the model after {}, got NaN, an infinity, or minus infinity for every token or for a forced one. "
    "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
)
_INVALID_GUIDANCE = (
    "expected finite logits from the model after the negative prompt and the generated part of {}, got NaN or an infinity. "
    "Try another negative prompt, a smaller scale, or `dtype='float32'`."
)
_DEAD_END = (
    "every token that the constraint allows after {} has probability zero in the model. "
    "The model itself masks tokens that the text needs; loosen the constraint, or use another model."
)


def _make_masks(mask: TokenSet, draft: RowDraft | None) -> None:
    """Compute the masks of the next draws, those behind draft tokens included."""
    _ = mask.words
    if draft is not None:
        draft.make_masks()


def invalid_logits(excerpt: str) -> InvalidLogits:
    """Return the error of a row with non-finite logits, after `excerpt` of it."""
    return InvalidLogits(_INVALID.format(excerpt))


def _draw_error(
    excerpt: str, logits: torch.Tensor | None, is_guided: bool, sampling_logprob: float
) -> Exception | None:
    """Return the error of a row for which a draw from its (V,) logits gave a log-probability that is not finite."""
    if logits is None or not logits.logsumexp(0).isfinite():
        return invalid_logits(excerpt)
    if is_guided and math.isnan(sampling_logprob):
        return InvalidLogits(_INVALID_GUIDANCE.format(excerpt))
    return None if math.isfinite(sampling_logprob) else DeadEnd(_DEAD_END.format(excerpt))
