"""`RowRecord`: the state of a running row: its tokens, how many of them are fed, the states of its policies, its text, limits, random
stream, draft and negative prompt. `append` and `rewind` keep these parts consistent; policies read it as a `RowView`; it can be forked, and
restored from a checkpoint; `leave` and `snapshot` return it as an immutable `StateRow`. `Row` (`row.py`) is the subclass that determines
how it continues. `RowStatus`: what it does in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from enum import Enum
from typing import Any, Self

import torch

from outlines_cont.engine.drafting.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.drawing.drawing import Draw
from outlines_cont.engine.guided.guidance import guided_logits
from outlines_cont.engine.parts.fed_tokens import FedSequence, FedTokens
from outlines_cont.engine.parts.policy_states import PolicyStates
from outlines_cont.engine.parts.row_limits import RowLimits
from outlines_cont.engine.parts.row_tokens import RowTokens
from outlines_cont.immutable import shallow_copy
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.healing import Healing
from outlines_cont.policies.piece_text import PieceText, TextPosition
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.state.row import GENERATED, HEALED, WRITTEN, Piece, StateRow

_TAIL_TOKENS = 8


class RowStatus(Enum):
    """What a row does in this step of the engine."""

    SAMPLING = "sampling"
    SCORING = "scoring"  # its forced tokens are fed for their log-probabilities
    WAITING = "waiting"
    CALLING = "calling"  # its controller is to be called; see `Job.start_calls`
    FORKING = "forking"
    LEAVING = "leaving"


class RowRecord(FedSequence):
    """The state of one running row.

    Attributes:
        mask, temperature: of the next sample; a temperature of None is that of the sampler.
        draft: its `RowDraft`; None without speculative decoding.
        negative: its `NegativeSequence`; None without guidance.
        stop: the stop text or stop token that has ended the piece, if one did.
        finish_reason: why the piece has ended; empty until then.
        job: the `Job` that it belongs to.
    """

    limits: RowLimits

    def __init__(
        self,
        source: StateRow,
        piece: Piece,
        model: LanguageModel,
        healing: Healing,
        *,
        is_resumed: bool,
        counts: Meter,
        score_last: bool,
    ) -> None:
        """Begin a piece at the end of `source`, or resume its last one; see `Row`."""
        first = len(source.token_ids) - healing.count
        super().__init__(source, _fed(source, healing, counts, first, is_recurrent=model.is_recurrent))
        self.job: Any = None
        self.counts = counts
        self.stream = source.stream.open()
        self.tokens = RowTokens(source, first)
        self.policies = PolicyStates(piece.retries, piece.exclusions)
        self.draft: Any = None
        self._tokenizer = model.tokenizer
        healed = self._tokenizer.text_bytes(source.token_ids[piece.start :])[: piece.healed if is_resumed else None]
        self.text = PieceText(healed, piece.start, self._tokenizer)
        self.status = RowStatus.WAITING
        self.mask = TokenSet.all
        self.temperature: float | None = None
        self.finish_reason = ""
        self.stop: str | int | None = None
        self.error: Exception | None = None
        self.negative: Any = None
        self._num_forks = 0
        self._source_text = piece.source
        self._score_last = score_last
        self._owed = list(piece.owed)  # forced tokens that a limit has cut off

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included."""
        return self.tokens.ids

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens.ids)

    @property
    def healed(self) -> bytes:
        """The bytes of the end of the prompt that the beginning of the piece respells; see `healing`."""
        return self.text.healed

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece."""
        return self.text.start

    @property
    def piece_ids(self) -> list[int]:
        """The ids of the piece so far."""
        return self.token_ids[self.piece_start :]

    @property
    def excerpt(self) -> str:
        """The end of the row, for errors: the number of its tokens, its last characters, and what its policies require next."""
        tail = self._tokenizer.decode(self.token_ids[-_TAIL_TOKENS:])
        wishes = "".join(f"; next: {wish}" for wish in self.policies.wishes(self))
        return f"{len(self.token_ids)} tokens (...{tail!r}{wishes})"

    @property
    def has_ended(self) -> bool:
        """Whether the piece has ended."""
        return bool(self.finish_reason)

    @property
    def is_over(self) -> bool:
        """Whether the piece has ended, and its tokens are scored."""
        return self.has_ended and self.status is RowStatus.LEAVING

    @property
    def source_cached(self) -> int:
        """How many tokens of the row are in the KV cache that it began with."""
        return min(len(self.base_kv) if self.base_kv is not None else 0, self.tokens.num_common)

    # -- what policies and searches read, see `RowView` ------------------------------------------------------------------

    @property
    def first_open(self) -> int:
        """Index of the first token that may be rewound: that of the piece, or the first whose text was not shown."""
        return self.text.first_open(self.token_ids)

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was drawn."""
        return index >= self.piece_start and self.tokens.was_drawn(index)

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was appended by a policy as given text, or respells it."""
        return index >= self.piece_start and self.tokens.was_given(index)

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn; 0 if it was not drawn."""
        return self.tokens.sampling_logprobs[index]

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that a retry may give another token by itself."""
        return bool(self.job.drawing(self.temperature).needs_random)

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that may not be drawn again at `index`."""
        exclusion = self.policies.exclusions.at(index)
        return exclusion.excluded | exclusion.avoided if exclusion is not None else frozenset()

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, guided if the row is; None if they are not kept."""
        own = self.feed.kept.whole(index)
        if own is None or self.negative is None:
            return own
        negative = self.negative.logits_before(index)
        return None if negative is None else guided_logits(own, negative, self.negative.scale)

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) for a decision, which is a function of `key` and of the stream of the row."""
        return self.stream.decision(*key)

    @property
    def retries(self) -> int:
        """How often the piece was rewound because a policy refused its tokens."""
        return self.policies.retries

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return the token counts of the row; see `RowTokens.counts`."""
        return self.tokens.counts(mirostat=mirostat)

    def search_score(self, draw: Draw | None = None) -> float:
        """Return the score of the row in a search, with one more token or end; forced tokens that were not fed yet count 0."""
        if draw is None:
            return self.tokens.search_score(0.0, 0)
        return self.tokens.search_score(draw.logprob, int(draw.token_id not in self.limits.eos))

    # -- what streams read ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stream the row: text that is final after a step is never rewound from now on."""
        self.text = self.text.with_final(self.text.begin)

    def final_until(self) -> TextPosition:
        """Return the position up to which the text of the piece is final."""
        return self.text.final_until(self.token_ids, 0 if self.has_ended else self.policies.held_bytes)

    @property
    def num_scored(self) -> int:
        """The index of the first token whose log-probability is not known yet; the number of tokens, if all are."""
        return len(self.token_ids) if self.is_over else self.tokens.num_scored

    # -- append and rewind ---------------------------------------------------------------------------------------------

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        """Append a token; `logprob` is NaN if it is to be scored."""
        is_drawn = kind == GENERATED
        if self.healed and kind in WRITTEN and self.text.num_healing(self.token_ids, [token_id]):
            kind = HEALED
        self.policies.append(token_id)
        self.tokens.append(token_id, kind, logprob, sampling_logprob)
        is_fed = bool(self.feed.expected.token_ids) and self._append_expected(token_id, is_drawn=is_drawn)
        if self.draft is not None and not is_fed:
            self.draft.forget_draws()
        if self.negative is not None:
            self.negative.append(token_id)

    def _append_expected(self, token_id: int, *, is_drawn: bool) -> bool:
        """Note that a token was appended where others are expected; return whether it is fed."""
        before = self.feed.expected
        is_fed = self.feed.append(token_id, is_drawn=is_drawn)
        if before.is_draft and is_drawn and before.num_fed:
            if self.draft is not None:
                self.draft.note(before.kinds[0], is_fed)
            if is_fed:
                self.count_draft("accepted_tokens")
        return is_fed

    def count_draft(self, name: str, number: int = 1) -> None:
        """Add to a counter of speculative decoding, that of the row and that of the model."""
        for counts in (self.counts,) if self.draft is None else (self.counts, self.draft.counts):
            setattr(counts, name, getattr(counts, name) + number)

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""
        length = len(self.token_ids) - count
        if length < self.piece_start:
            raise ValueError(
                f"expected a policy to rewind at most {len(self.token_ids) - self.piece_start} tokens, those of the piece, "
                f"got {count}"
            )
        self.policies.rewind(count, self)
        self.tokens.rewind(length)
        self.feed.rewind(length)
        if self.draft is not None:
            self.draft.cut(length)
        if self.negative is not None:
            self.negative.rewind()
        self._owed = []
        self.counts.rewound_tokens += count

    def _need_logits(self, mask: TokenSet) -> None:
        """Ensure that tokens are pending, or the logits at the end are known for a mask."""
        self.feed.need_logits(len(self.token_ids), mask)
        if self.negative is not None:
            self.negative.need_logits(mask)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the row with an error."""
        self.error = error
        self.end("error")

    def end(self, reason: str) -> None:
        """End the piece."""
        self.finish_reason = reason
        self.status = RowStatus.LEAVING

    def leave_when_scored(self) -> None:
        """Let a row that has ended leave, if its forced tokens are scored, or need not be."""
        if self.has_ended:
            scores = self.tokens.unscored and self._score_last and self.error is None
            self.status = RowStatus.SCORING if scores else RowStatus.LEAVING

    # -- checkpoints and forks -----------------------------------------------------------------------------------------

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the row, any number of times; see `Checkpoint`.

        Only the keys and values of the source are restored; the others are fed again.

        Cost: 3 us and more for every policy, at any length.
        """
        attributes, length, drawn = vars(self).copy(), len(self.token_ids), self.stream.drawn
        tokens, feed, policies = shallow_copy(self.tokens), self.feed.without_kept(), self.policies.checkpoint()
        if feed.logits is not self.source.logits:
            feed.logits = None  # released with the next ones

        def undo() -> None:
            vars(self).update(attributes)
            self.tokens, self.feed, self.policies = tokens.at(length), feed.without_kept(), policies()
            self.stream = self.stream.at(drawn)
            if self.feed.expected.is_draft:
                self.feed.expected = NOTHING_EXPECTED
            if self.draft is not None:
                self.draft.forget()
            self.lose(self.source_cached)
            if self.negative is not None:
                self.negative.restore()
            if self.cached < length:
                self.feed.logits = None
            if self.status is RowStatus.SAMPLING:
                self._need_logits(self.mask)

        return undo

    def fork(self) -> Self:
        """Return a second row that continues independently from here; its random numbers are the same."""
        fork = copy(self)
        fork.stream = self.stream.close().open()
        fork.tokens, fork.feed, fork.policies = self.tokens.fork(), self.feed.fork(), self.policies.fork()
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

    def snapshot(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value while it runs, as if it had reached its maximal length."""
        state_row = self.leave(kv)
        if self.has_ended:
            return state_row
        if state_row.piece is not None and not self._is_unhealed:
            piece = replace(state_row.piece, unscored=tuple(self.tokens.unscored))
            state_row = replace(state_row, piece=piece)
        return replace(state_row, finish_reason="length")

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value, with the keys and values of its first `cached` tokens."""
        feed, start = self.feed, len(self.source.token_ids) if self._is_unhealed else self.piece_start
        piece = Piece(start, source=self._source_text, retries=self.retries)
        if self._is_unhealed:  # the row as it was given
            row, logits = self.source, self.source.logits
            kv = row.kv if row.kv is not None or kv is None else kv[: self.tokens.num_common]
        else:
            owed, exclusions = tuple(self._owed), self.policies.exclusions
            piece = replace(piece, owed=owed, exclusions=exclusions, stop=self.stop, healed=len(self.healed))
            is_known = feed.is_ready(len(self.tokens)) and not feed.is_partial
            # A copy, to release the logits of the other rows of the step.
            logits = feed.logits.clone() if is_known and feed.logits is not None else None
            row = self.tokens.written_to(self.source, has_failed=self.error is not None)
        return replace(
            row,
            kv=kv,
            logits=logits,
            stream=self.stream.close(),
            piece=piece,
            finish_reason=self.finish_reason,
            value=None,
            error=self.error,
        )

    @property
    def _is_unhealed(self) -> bool:
        """Whether the healed end of the prompt is not respelled yet."""
        return self.text.num_unspelled(self.token_ids) > 0


def _fed(source: StateRow, healing: Healing, counts: Meter, first: int, *, is_recurrent: bool) -> FedTokens:
    """Return how much of a row is fed at the beginning; the tokens that healing removes are expected again."""
    logits = healing.logits.get(first) if healing.count else source.logits
    # A cache that cannot be cut would have to be recomputed if another token followed.
    behind = () if is_recurrent else source.token_ids[first:]
    num_fed = max(source.cached - first, 0) if behind else 0
    return FedTokens(min(source.cached, first), logits, counts, Expected(behind, num_fed, healing.logits))
