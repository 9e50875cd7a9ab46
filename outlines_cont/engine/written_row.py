"""`WrittenRow`: the record of a running row: its tokens with kinds and log-probabilities, its policies, and how much of it is in the KV
cache. Append and rewind keep these parts consistent; it is what policies read (`RowView`), and becomes an immutable `StateRow` when it
leaves or is snapshotted. How it continues is decided in `SteeredRow`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from outlines_cont.engine.drawing.drawing import Draw
from outlines_cont.engine.guessing.expected import Expected
from outlines_cont.engine.guided.guidance import guided_logits
from outlines_cont.engine.parts.fed_tokens import FedSequence, FedTokens
from outlines_cont.engine.parts.policy_tracks import PolicyTracks
from outlines_cont.engine.parts.row_limits import RowLimits
from outlines_cont.engine.parts.row_tokens import RowTokens
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.healing import Healing
from outlines_cont.policies.piece_text import PieceText, TextPosition
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.state.row import GENERATED, HEALED, WRITTEN, Piece, StateRow

_TAIL_TOKENS = 8


class WrittenRow(FedSequence):
    """The tokens of one running sequence, and all that is known of them.

    Attributes:
        tokens: what it has written.
        policies: what steers it.
        limits: how long it may become.
        text: that of its piece.
        draft: the `RowDraft` that guesses its next tokens; None where nothing does.
        shadow: the `Shadow`: the negative prompt, and behind it the tokens of the piece, where the row is guided; see `Guidance`.
        stream: its random numbers.
        temperature: for the next sample in place of the sampler's; None leaves it to the sampler.
        stop: the stop text or stop token that has ended the piece; None where none has.
        finish_reason: why the piece has ended; empty until then.
        error: what the row has failed with.
        counts: where the row counts its work.
        job: the call that the row belongs to; see `Job`.
    """

    limits: RowLimits

    def __init__(
        self, source: StateRow, piece: Piece, model: LanguageModel, healing: Healing, *, is_resumed: bool, counts: Meter
    ) -> None:
        """Begin a piece at the end of `source`, or go on with its last one; see `SteeredRow`."""
        first = len(source.token_ids) - healing.count
        super().__init__(source, _fed(source, healing, counts, first, is_recurrent=model.is_recurrent))
        self.job: Any = None
        self.counts = counts
        self.stream = source.stream.open()
        self.tokens = RowTokens(source, first)
        self.policies = PolicyTracks(piece.retries, piece.exclusions)
        self.draft: Any = None
        self._tokenizer = model.tokenizer
        spelled = self._tokenizer.text_bytes(source.token_ids[piece.start :])[: piece.healed if is_resumed else None]
        self.text = PieceText(spelled, piece.start, self._tokenizer)
        self.temperature: float | None = None
        self.finish_reason = ""
        self.stop: str | int | None = None
        self.error: Exception | None = None
        self.shadow: Any = None
        self._source_text = piece.source
        self._owed = list(piece.owed)  # forced tokens that a limit has cut off

    # -- what is known of it -------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included."""
        return self.tokens.ids

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self.tokens.ids)

    @property
    def healed(self) -> bytes:
        """The bytes at the beginning of the piece that stood in the row before, and are spelled anew; mostly none."""
        return self.text.healed

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece."""
        return self.text.start

    @property
    def place(self) -> str:
        """Where the row stands, for errors: the number of its tokens, its last characters, and what its policies ask for."""
        tail = self._tokenizer.decode(self.token_ids[-_TAIL_TOKENS:])
        wishes = "".join(f"; next: {wish}" for wish in self.policies.wishes(self))
        return f"{len(self.token_ids)} tokens (...{tail!r}{wishes})"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is appended."""
        return bool(self.finish_reason)

    @property
    def piece_ids(self) -> list[int]:
        """The ids of the piece so far."""
        return self.token_ids[self.piece_start :]

    @property
    def source_cached(self) -> int:
        """How many tokens of the row have keys and values in what it began with."""
        return min(len(self.base_kv) if self.base_kv is not None else 0, self.tokens.num_common)

    # -- what policies and searches read -------------------------------------------------------------------------------

    @property
    def first_open(self) -> int:
        """Index of the first token that may yet be rewound: that of the piece, or the first whose text was not shown yet."""
        return self.text.first_open(self.token_ids)

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was drawn, so that another might have been."""
        return index >= self.piece_start and self.tokens.was_drawn(index)

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was put there by a policy as given text, or spelled anew."""
        return index >= self.piece_start and self.tokens.was_given(index)

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn; 0 where it was not drawn."""
        return self.tokens.sampling_logprobs[index]

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that another try may go otherwise by itself."""
        return bool(self.job.drawing(self.temperature).needs_random)

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that may not be drawn again at `index`."""
        place = self.policies.exclusions.at(index)
        return place.excluded | place.avoided if place is not None else frozenset()

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, guided ones where the row is guided; None where they are not kept."""
        own = self.feed.kept.whole(index)
        if own is None or self.shadow is None:
            return own
        negative = self.shadow.logits_before(index)
        return None if negative is None else guided_logits(own, negative, self.shadow.scale)

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) for a decision; the same for the same `key`, whatever is drawn or refused."""
        return self.stream.decision(*key)

    @property
    def retries(self) -> int:
        """How often the piece has gone back because a policy refused what it had written."""
        return self.policies.retries

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return how often each token stands in the row; see `RowTokens.counts`."""
        return self.tokens.counts(mirostat=mirostat)

    def search_score(self, draw: Draw | None = None) -> float:
        """Return what a search ranks the row by, with one more token or end; forced tokens that were not fed yet count 0."""
        is_token = draw is not None and draw.token_id not in self.limits.eos
        return self.tokens.search_score(draw.logprob if draw is not None else 0.0, int(is_token))

    # -- what a stream reads -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on rewind no text that was certain after a step, as it is streamed."""
        self.text = self.text.with_final(self.text.begin)

    def certain_until(self) -> TextPosition:
        """Return how far the text of the piece is certain now."""
        return self.text.final_until(self.token_ids, self.held_bytes)

    @property
    def held_bytes(self) -> int:
        """How many trailing bytes of the piece may yet be rewound."""
        return 0 if self.has_ended else self.policies.held_bytes

    # -- append and rewind ---------------------------------------------------------------------------------------------

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        """Append one token, and tell all parts of the row."""
        is_drawn = kind == GENERATED
        if self.healed and kind in WRITTEN and self.text.num_healing(self.token_ids, [token_id]):
            kind = HEALED
        self.policies.append(token_id)
        self.tokens.append(token_id, kind, logprob, sampling_logprob)
        is_met = bool(self.feed.expected.token_ids) and self._meet(token_id, is_drawn=is_drawn)
        if self.draft is not None and not is_met:
            self.draft.forget_draws()
        if self.shadow is not None:
            self.shadow.meet(token_id)

    def _meet(self, token_id: int, *, is_drawn: bool) -> bool:
        """Go on with the tokens that were expected; return whether this one was, and was fed."""
        before = self.feed.expected
        is_met = self.feed.meet(token_id, is_drawn=is_drawn)
        if before.is_guess and is_drawn and before.num_fed:
            if self.draft is not None:
                self.draft.note(before.kinds[0], is_met)
            if is_met:
                self.count_draft("accepted_tokens")
        return is_met

    def count_draft(self, name: str, number: int = 1) -> None:
        """Count what the draft has done, for the row and for the model."""
        for counts in (self.counts,) if self.draft is None else (self.counts, self.draft.counts):
            setattr(counts, name, getattr(counts, name) + number)

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens, and everything that is known because of them."""
        length = len(self.token_ids) - count
        if length < self.piece_start:
            raise ValueError(
                f"expected a policy to give back at most {len(self.token_ids) - self.piece_start} tokens, those of the piece, "
                f"got {count}"
            )
        self.policies.rewind(count, self)
        self.tokens.rewind(length)
        self.feed.rewind(length)
        if self.draft is not None:
            self.draft.forget_draws()
            self.draft.cut(length)
        if self.shadow is not None:
            self.shadow.rewind()
        self._owed = []
        self.counts.rewound_tokens += count

    # -- as a value ----------------------------------------------------------------------------------------------------

    def snapshot(self, kv: RowKV | None) -> StateRow:
        """Return the row as it is now as a value; where it has not ended, as one that was cut here."""
        state_row = self.leave(kv)
        if self.has_ended:
            return state_row
        if self._num_unspelled:  # it is as it came
            return replace(state_row, finish_reason="length")
        assert state_row.piece is not None
        piece = replace(state_row.piece, unscored=tuple(self.tokens.unscored))
        return replace(state_row, finish_reason="length", piece=piece)

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value, with the keys and values of its first `cached` tokens."""
        if self._num_unspelled:
            return self._leave_unhealed(kv)
        tokens, feed = self.tokens, self.feed
        is_known = feed.is_ready(len(tokens)) and not feed.is_partial
        return replace(
            self.source,
            token_ids=tuple(tokens.ids),
            kinds=bytes(tokens.kinds),
            # A row that ended before all of it was fed has tokens of which nothing is known.
            logprobs=tuple(x if math.isfinite(x) else 0.0 for x in tokens.logprobs),
            sampling_logprobs=tuple(tokens.sampling_logprobs),
            weight_start=min(self.source.weight_start, tokens.first),
            mirostat_start=tokens.mirostat_start,
            ends=self.source.ends + sum(logprob for _, logprob in tokens.ends),
            kv=kv,
            # A copy, so that the logits of the other rows of the step are let go.
            logits=feed.logits.clone() if is_known and feed.logits is not None else None,
            stream=self.stream.close(),
            piece=Piece(
                self.piece_start,
                tuple(self._owed),
                self._source_text,
                self.retries,
                self.policies.exclusions,
                self.stop,
                healed=len(self.healed),
            ),
            finish_reason=self.finish_reason,
            value=None,
            error=self.error,
            search=tokens.search,
        )

    def _leave_unhealed(self, kv: RowKV | None) -> StateRow:
        """Return a row that ended before the healed end of its prompt was respelled: with the tokens that it came with."""
        if self.source.kv is not None:
            kv = self.source.kv
        return replace(
            self.source,
            kv=kv[: self.tokens.num_common] if kv is not None and self.source.kv is None else kv,
            stream=self.stream.close(),
            piece=Piece(len(self.source.token_ids), (), self._source_text, self.retries),
            finish_reason=self.finish_reason,
            value=None,
            error=self.error,
        )

    @property
    def _num_unspelled(self) -> int:
        """How many bytes of the healed end of the prompt are not respelled yet."""
        return self.text.num_unspelled(self.token_ids)


def _fed(source: StateRow, healing: Healing, counts: Meter, first: int, *, is_recurrent: bool) -> FedTokens:
    """Return what of a row's first tokens was fed, and what is expected behind them: what was given back may come again."""
    logits = healing.logits.get(first) if healing.count else source.logits
    # A cache that cannot be cut would have to be filled again, should another token come.
    behind = () if is_recurrent else source.token_ids[first:]
    num_fed = max(source.cached - first, 0) if behind else 0
    return FedTokens(min(source.cached, first), logits, counts, Expected(behind, num_fed, healing.logits))
