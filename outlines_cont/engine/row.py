"""`Row`: one running sequence. It appends, rewinds and ends; the loop feeds it and samples for it.

Its parts: `tokens` (what it has written), `feed` (what of it was fed, and the logits), `policies` (what steers it), `limits` (how long it
may become), `text` (that of its piece), `guess` (tokens that may come next), `shadow` (the negative prompt of guidance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from time import perf_counter
from typing import Any, Self

import torch

from outlines_cont.engine.drawing.draw_place import Draw, DrawPlace
from outlines_cont.engine.guessing.expected import Expected
from outlines_cont.engine.guessing.lookahead import MAX_GUESSED, Lookahead
from outlines_cont.engine.guessing.row_draft import RowDraft
from outlines_cont.engine.guided.guidance import guided_logits
from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.engine.parts.fed_tokens import FedSequence, FedTokens
from outlines_cont.engine.parts.policy_tracks import PolicyTracks, PolicyTracksCheckpoint
from outlines_cont.engine.parts.row_guess import RowGuess
from outlines_cont.engine.parts.row_limits import RowLimits
from outlines_cont.engine.parts.row_tokens import RowTokens
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet, check_mask
from outlines_cont.policies.certain import Certain, PieceText
from outlines_cont.policies.compose import goes_back
from outlines_cont.policies.healing import NO_HEALING, Healing
from outlines_cont.policies.policy import Policy
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.state.row import APPENDED, FORCED, GENERATED, HEALED, WRITTEN, Piece, StateRow
from outlines_cont.user_code import user_code_error

_TAIL_TOKENS = 8
# How many branches the policies of a row may want in one step before one of them asks for a sample.
_MAX_ASKED = 10_000


class Want(Enum):
    """What a row wants from this step."""

    SAMPLE = "sample"
    SCORE = "score"
    WAIT = "wait"
    ASK = "ask"  # somebody else has to say what comes next; see `Job.ask`
    FORK = "fork"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, eq=False)
class RowCheckpoint:
    """What a row was between two steps.

    Attributes:
        attributes: all of them, its parts aside.
        tokens, feed, policies, guess: what its parts were; lists may have grown since then.
        length: how many tokens there were.
        drawn: how many random numbers were taken.
    """

    attributes: dict[str, Any]
    tokens: RowTokens
    feed: FedTokens
    policies: PolicyTracksCheckpoint
    guess: RowGuess
    length: int
    drawn: int


class Row(FedSequence):
    """One running sequence.

    A kind of row may override what is public, such as `decide`, `refuse`, `end`, `want_sample`, `append` and `rewind`.

    Attributes:
        source: what it began as.
        base_kv: the keys and values of its first tokens that it begins with: those of its source, or more of others; see `begin_with`.
        want: what the row wants from this step, set by `plan`.
        mask: the tokens that may be sampled, where it wants a sample.
        temperature: for this sample in place of the sampler's; None leaves it to the sampler.
        forks: the branches to fork into, where it wants to fork.
        stream: the row's random numbers.
        stop: the stop text or stop token that has ended the piece; None where none has.
        finish_reason: why the piece has ended; empty while it goes on.
        error: what the row has failed with.
        shadow: the negative prompt, and behind it the tokens of the piece, where the row is guided; see `Guidance`.
        counts: where the row counts its work.
        job: the call that the row belongs to; see `Job`.
        index: the number of the row in its job.
    """

    def __init__(
        self,
        source: StateRow,
        policies: Iterable[Policy[Any]],
        model: LanguageModel,
        *,
        counts: Meter,
        max_tokens: int | None = None,
        resume: bool = False,
        score_last: bool = True,
        source_text: str = "",
        healing: Healing = NO_HEALING,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        negative: StateRow | None = None,
        scale: float = 1.0,
    ) -> None:
        """Begin a piece at the end of `source`, or go on with its last one.

        Args:
            source: where to start; it is not changed.
            policies: what steers the row, at least one.
            model: whose context and ends of text count.
            counts: where the row counts its work; the rows of a loop share one.
            max_tokens: the most tokens to append, forced ones included; None is up to the context.
            resume: go on with the piece of `source` instead of beginning one.
            score_last: feed what is needed to know the log-probabilities of forced tokens at the very end of the piece.
            source_text: what the piece is to be, as JSON; see `Piece`.
            healing: what is given back at the end of `source` before the piece begins. A row that ends before that text is spelled
                anew leaves with the tokens that it came with.
            min_tokens: until the piece has so many tokens, no end is drawn where something else may follow.
            stop_token_ids: tokens that end the text, besides those of the model.
            negative, scale: the negative prompt that guides the row, and how strongly; see `Guidance`. Both sequences fit into the
                context: the piece ends where the first of them has no room left.
        """
        first = len(source.token_ids) - healing.count
        self.source = source
        self.base_kv = source.kv
        self.job: Any = None
        self.index = 0
        self.counts = counts
        self.stream = source.stream.open()
        self.tokens = RowTokens(source, first)
        self.feed = _fed(source, healing, counts, first, is_recurrent=model.is_recurrent)
        piece = source.piece if resume and source.piece is not None else Piece(first)
        self.policies = PolicyTracks(piece.retries, piece.exclusions)
        self.guess = RowGuess(counts)
        self._tokenizer = model.tokenizer
        spelled = self._tokenizer.text_bytes(source.token_ids[piece.start :])[: piece.healed if resume else None]
        self.text = PieceText(spelled, piece.start, self._tokenizer)
        self.limits = RowLimits.of(model, stop_token_ids)
        self._limit_piece((piece.start if resume else first) + min_tokens, max_tokens)
        self.want = Want.WAIT
        self.mask = TokenSet.all
        self.temperature: float | None = None
        self.forks: list[Branch] = []
        self.finish_reason = ""
        self.stop: str | int | None = None
        self.error: Exception | None = None
        self._source_text = source_text or piece.source
        self._score_last = score_last
        self._vocab_size = model.vocab_size
        self._owed = list(piece.owed)  # forced tokens that a limit has cut off
        self._sequences: list[list[int]] = []  # what is appended at once behind some samples
        self._num_forks = 0
        self.shadow: Shadow | None = None
        self.guarded(lambda: self.begin_policies([*policies]))
        if negative is not None:
            self.shadow = Shadow(negative, self, self.feed.kept.num_places, scale)
            if self.limits.context_length is not None:
                room = self.limits.context_length - len(negative.token_ids)
                longest = self.limits.max_length or self.limits.context_length
                self.limits = replace(self.limits, max_length=min(self.piece_start + room, longest))

    def _limit_piece(self, min_length: int, max_tokens: int | None) -> None:
        longest = None if max_tokens is None else len(self.tokens) + max_tokens
        # Of a piece that is healed, the tokens of its own text count.
        limits = self.limits.up_to(None if self.healed else longest)
        self.limits = replace(limits, min_length=min_length, max_written=longest if self.healed else None)

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
    def draft(self) -> RowDraft | None:
        """What guesses the next tokens of the row; None where nothing does."""
        return self.guess.draft

    @draft.setter
    def draft(self, draft: RowDraft | None) -> None:
        self.guess.draft = draft

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
    def is_over(self) -> bool:
        """Whether the piece has ended and all that will be known of it is."""
        return self.has_ended and self.want is Want.LEAVE

    @property
    def piece_ids(self) -> list[int]:
        """The ids of the piece so far."""
        return self.token_ids[self.piece_start :]

    # -- what the loop calls: plan, feed, draw -------------------------------------------------------------------------

    def plan(self) -> None:
        """Ask the policies until the row wants a sample, waits, or has ended; nothing where a decision stands."""
        if self.text.certain is not None:
            self.text = self.text.shown(self.certain_until())  # what somebody may have shown since the last step
        if not self.awaits_forward:
            self.guarded(self.decide)

    @property
    def awaits_forward(self) -> bool:
        """Whether the row has decided what it wants, and tokens of it are to be fed before it has that."""
        if self.want is Want.SAMPLE:
            return self.num_pending > 0 or (self.shadow is not None and self.shadow.num_pending > 0)
        return self.want is Want.SCORE and self.num_pending > 0

    @property
    def feeds_all(self) -> bool:
        """Whether all that is pending is to be fed, for the logits after it."""
        return self.want is Want.SAMPLE

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row has what it wants."""
        if self.feeds_all:
            return self.feed.num_pending(len(self.token_ids))
        last = self.tokens.unscored[-1] if self.want is Want.SCORE and self.tokens.unscored else 0
        return max(last - self.cached, 0)

    def chunk(self) -> list[int]:
        """Return the pending ids, and behind them those that are expected next."""
        pending = self.token_ids[self.cached : self.cached + self.num_pending]
        return [*pending, *self.feed.expected.token_ids[: self.num_pending - len(pending)]]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which the row needs logits, ascending."""
        if not chunk_size:
            return []
        indices = {index - 1 - self.cached for index in self.tokens.unscored}
        if self.feeds_all:
            # What a policy may take back leaves logits to go on from, so nothing needs feeding again.
            last = len(self.token_ids) - 1 - self.cached
            first = max(self.piece_start - 1 - self.cached, last - self.feed.kept.num_places, 0)
            indices.update(range(first, self.num_pending))
        return sorted(index for index in indices if 0 <= index < chunk_size)

    def unscored(self, fed: Container[int]) -> list[tuple[int, int]]:
        """Return (index into the chunk, token id that follows there) of forced tokens that are scored by what was fed."""
        found = [(index - 1 - self.cached, self.token_ids[index]) for index in self.tokens.unscored]
        return [(index, token_id) for index, token_id in found if index in fed]

    def score(self, logprobs: Sequence[float]) -> None:
        """Take the log-probabilities of the first tokens in `unscored`."""
        if not self.tokens.score(logprobs):
            self.fail(_invalid_logits(len(self.token_ids)))

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: all that is pending was fed, of the shadow, too."""
        if self.want is not Want.SAMPLE or not self.feed.is_ready(len(self.token_ids)):
            return False
        return self.shadow is None or self.shadow.is_ready

    def make_masks(self) -> None:
        """Have a lazy mask made, if it is not yet; its errors are the row's."""
        if self.is_ready and isinstance(self.mask, LazyTokenSet):
            started = perf_counter()
            self.guarded(lambda: self.mask.words)
            self.guess.make_masks()
            self.counts.mask_seconds += perf_counter() - started
        self.guess.masks = []

    @property
    def next_masks(self) -> list[TokenSet]:
        """The masks under which tokens will be drawn after the next forward: one, and those behind tokens that were guessed."""
        return [self.mask, *self.guess.masks] if self.want is Want.SAMPLE else []

    @property
    def next_place(self) -> DrawPlace:
        """Where the next token is drawn. Greedy rows take no random number, so that their streams do not depend on their neighbours."""
        assert self.logits is not None
        drawing = self.job.drawing(self.temperature)
        uniform = self.stream.peek() if drawing.needs_random else None
        return DrawPlace(len(self.token_ids), self.logits, self.mask, drawing, uniform)

    def take(self, draw: Draw) -> None:
        """Append a sampled token, or end on it; the random number that it was drawn with is spent."""
        self.want = Want.WAIT
        self.stream.take()
        if self.feed.is_guessed:
            self.guess.count("saved_forwards")
        self.guarded(lambda: self._take(draw))

    def _take(self, draw: Draw) -> None:
        self.counts.sampled_tokens += 1
        if draw.token_id in self.limits.eos:
            self._end_on(draw)
            return
        self.append(draw.token_id, GENERATED, draw.logprob, draw.sampling_logprob)
        if self.tokens.num_top:
            self.tokens.tops[-1] = draw.top
        follow = next((ids for ids in self._sequences if ids[0] == draw.token_id), None)
        if follow is not None and len(follow) > 1:
            self.append_all(follow[1:], FORCED)

    def _end_on(self, draw: Draw) -> None:
        """End the piece as its end was drawn, unless a policy objects."""
        ends = self.tokens.ends
        self.tokens.ends = (*ends, (len(self.token_ids), draw.logprob))
        self._end_text("stop")
        if not self.has_ended:
            self.tokens.ends = ends
        elif draw.token_id in self.limits.stop_tokens:
            self.stop = draw.token_id

    # -- what comes next may be guessed --------------------------------------------------------------------------------

    @property
    def can_guess(self) -> bool:
        """Whether tokens may be guessed, to be fed behind those that are pending."""
        if not self.guess.is_on or self.want is not Want.SAMPLE or self.feed.expected.token_ids:
            return False
        return self.cached < len(self.token_ids)

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the token that comes next; see `Policy.hint`."""
        return self.policies.has_hint(self)

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a guess with no more than hints in it. The last token that there is room for is not guessed, as nothing follows it."""
        room = self._room()
        return Lookahead(
            self,
            self.policies.tracks,
            self.mask,
            self._sequences,
            eos=self.limits.eos,
            room=MAX_GUESSED if room is None else room - 1,
            vocab_size=self._vocab_size,
            temperature=self.temperature,
            takes_hints=takes_hints,
        )

    def feed_guess(self, found: Lookahead) -> None:
        """Feed what was guessed behind what is pending."""
        self.feed.expected = self.guess.begin(found)
        found.lend_states(self.policies.tracks)
        if self.shadow is not None:
            self.shadow.expect(found.token_ids)

    def places_ahead(self) -> list[DrawPlace]:
        """Return where tokens are drawn next if what was guessed comes true; none where both sequences of guidance decide it."""
        if self.shadow is not None:
            return []
        return self.guess.places(len(self.token_ids), self.feed.expected, self.job.drawing, self.stream)

    def foreseen(self) -> Draw | None:
        """Return the draw that was made ahead for the present end of the row, where that asks for what was asked for then."""
        found = self.guess.foreseen(len(self.token_ids))
        return None if found is None or not found[0].asks_like(self.next_place) else found[1]

    def plan_if_guessed(self) -> bool:
        """Plan on where what was drawn last is what was guessed; return whether the next token can be drawn, without a forward."""
        if not self.feed.is_guessed or self.want is not Want.WAIT or self.cached < len(self.token_ids):
            return False
        self.plan()
        self.make_masks()
        return self.is_ready

    # -- keys and values -----------------------------------------------------------------------------------------------

    @property
    def source_cached(self) -> int:
        """How many tokens of the row have keys and values in what it began with."""
        return min(len(self.base_kv) if self.base_kv is not None else 0, self.tokens.num_common)

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens may have been fed by others: all before the first after which the row needs logits."""
        return min([len(self.token_ids) - 1, *(index - 1 for index in self.tokens.unscored[:1])])

    def begin_with(self, kv: RowKV) -> None:
        """Take the keys and values of the first tokens from others, more of them than the row has."""
        count = len(kv) - self.cached
        self.base_kv = kv
        self.feed.cached += count
        self.counts.reused_tokens += count

    def begin_alone(self) -> bool:
        """Give back what was taken from others, and feed it; return whether there was something."""
        if self.base_kv is self.source.kv:
            return False
        self.base_kv = self.source.kv
        self.counts.reused_tokens -= max(self.cached - self.source_cached, 0)
        self.feed.cached = min(self.cached, self.source_cached)
        self.feed.expected = self.feed.expected.unfed()
        return True

    # -- checkpoints, forks, values ------------------------------------------------------------------------------------

    def checkpoint(self) -> RowCheckpoint:
        """Return what the row is now; see `Checkpoint`. Cost: 3 us and more for every policy, whatever the length."""
        return RowCheckpoint(
            vars(self).copy(),
            self.tokens.checkpoint(),
            self.feed.checkpoint(self.source.logits),
            self.policies.checkpoint(),
            self.guess.checkpoint(),
            len(self.token_ids),
            self.stream.drawn,
        )

    def restore(self, before: RowCheckpoint) -> None:
        """Become what the row was then. Of keys and values only those of the source are left; the others are fed again."""
        vars(self).update(before.attributes)
        self.tokens, self.feed = before.tokens.at(before.length), before.feed.restored()
        self.policies, self.guess = before.policies.restored(), before.guess.checkpoint()
        self.stream = self.stream.at(before.drawn)
        if self.draft is not None:
            self.draft.cut(before.length)
            self.draft.forget()
        self.lose(self.source_cached)
        if self.shadow is not None:
            self.shadow.restore()
        if self.cached < len(self.token_ids):
            self.feed.logits = None
        if self.want is Want.SAMPLE:
            self._need_logits(self.mask)

    def branched(self, branches: Sequence[Branch]) -> list[Self]:
        """Follow the first branch, and return this row and, for every other branch, a fork that follows it.

        What goes wrong in one of the rows is its own error.
        """
        rows = self.split(len(branches))
        for row, branch in zip(rows, branches, strict=True):
            row.want, row.forks = Want.WAIT, []
            row._guard_following(branch)
        return rows

    def _guard_following(self, branch: Branch) -> None:
        self.guarded(lambda: self.decide() if self.follow(branch) else self.leave_when_scored())

    def split(self, count: int) -> list[Self]:
        """Return this row and `count - 1` forks, each of which draws random numbers of its own."""
        rows = [self]
        for _ in range(count - 1):
            # Forks that leave at one place of the stream differ by their number.
            self._num_forks += 1
            fork = self.fork()
            fork.stream = self.stream.close().fork(self._num_forks).open()
            fork._num_forks = 0
            rows.append(fork)
        return rows

    def fork(self) -> Self:
        """Return a second row that goes on from here by itself; its random numbers are the same."""
        fork = copy(self)
        fork.stream = self.stream.close().open()
        fork.tokens, fork.feed = self.tokens.fork(), self.feed.fork()
        fork.policies, fork.guess = self.policies.fork(), self.guess.fork()
        fork._owed, fork._sequences = [*self._owed], [*self._sequences]
        fork.shadow = None if self.shadow is None else self.shadow.fork(fork)
        return fork

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
        """Return a row that has ended before what it had given back was spelled anew: with the tokens that it came with."""
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

    # -- what policies and searches read -------------------------------------------------------------------------------

    @property
    def first_open(self) -> int:
        """Index of the first token that may yet be taken back: that of the piece, or the first whose text was not shown yet."""
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

    @property
    def num_scored(self) -> int:
        """The index of the first token whose log-probability is not known yet; their number, where all are."""
        return len(self.token_ids) if self.is_over else self.tokens.num_scored

    def hold(self) -> None:
        """Take nothing back from now on that was certain after a step, as somebody shows it."""
        self.text = self.text.shown(self.text.begin)

    def certain_until(self) -> Certain:
        """Return how far the text of the piece is certain now."""
        return self.text.certain_until(self.token_ids, self.held_bytes)

    @property
    def held_bytes(self) -> int:
        """How many bytes at the end of the piece may yet be taken back."""
        return 0 if self.has_ended else self.policies.held_bytes

    # -- policies decide -----------------------------------------------------------------------------------------------

    def guarded(self, act: Callable[[], object]) -> None:
        """Do something in which policies are asked: what goes wrong in one row must not take the other rows of the batch with it."""
        try:
            act()
        except Exception as error:
            self.refuse(error)
        except SystemExit as error:
            self.refuse(user_code_error(error))

    def refuse(self, error: Exception) -> None:
        """Deal with what went wrong in a policy: the row fails with it."""
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the row with its own error; the others go on."""
        self.error = error
        self.end("error")

    def begin_policies(self, policies: Sequence[Policy[Any]]) -> None:
        """Have policies steer the piece from its beginning, the tokens included that it has already."""
        self.feed.kept.num_places = max((policy.horizon for policy in policies), default=0)
        self.policies.start(policies, self)

    def decide(self) -> None:
        """Do what the policies want until that is a sample, to wait, or an end."""
        for _ in range(_MAX_ASKED):
            if self.has_ended:
                break
            branches = self._next_branches()
            if len(branches) > 1:
                self.forks, self.want = branches, Want.FORK
                return
            if branches and not self.follow(branches[0]):
                break
        else:
            decider = self.policies.decider.policy if self.policies.decider is not None else None
            raise UnsupportedBranch(
                f"expected policies that want a sample, wait or stop after some steps, but after {_MAX_ASKED:,} branches at {self.place} "
                f"none of them did; {decider!r} has decided last. A policy that appends or gives tokens back must come to an end."
            )
        self.leave_when_scored()

    def _next_branches(self) -> list[Branch]:
        """Return the branches to take; none where the policies stop the row, or one of them has gone back at its end."""
        started = perf_counter()
        branches = self.policies.branches(self)
        self.counts.mask_seconds += perf_counter() - started
        if not branches:
            decider = self.policies.decider
            assert decider is not None
            self._end_text(decider.policy.finish_reason)  # unless another policy does not let the text end here
            if self.has_ended:
                self.stop = decider.policy.stop(decider.states[-1])
        elif self._owed and not any(map(goes_back, branches)):
            # A limit has cut a forced chunk. Going on, it is that chunk's rest, whatever would be forced from here.
            return [Branch(ff_tokens=[self._owed])]
        return branches

    def follow(self, branch: Branch) -> bool:
        """Do what a branch says; return whether the policies are to be asked again at once."""
        if branch.is_retry and not self.policies.begin_retry(self):
            return True
        if goes_back(branch) and self.policies.tracks:
            self.policies.check_progress(branch, self)
        if branch.backtrack:
            self.rewind(branch.backtrack)
        if branch.is_retry and not self.policies.exclude(branch, self, self._vocab_size):
            return True
        if branch.sample_mask is not None:
            return self.want_sample(branch.sample_mask, branch.ff_tokens, branch.temperature)
        if branch.ff_tokens:
            self._append_forced(branch.ff_tokens[0], APPENDED if branch.backtrack else FORCED)
        elif not goes_back(branch):
            self.want = Want.WAIT
            return False
        return True

    def want_sample(self, mask: TokenSet, sequences: list[list[int]], temperature: float | None) -> bool:
        """Ask for a token; return whether the policies are to be asked again at once, as something else has happened."""
        check_mask(mask, self._vocab_size, "sample_mask")
        mask = self.limits.with_ends(mask, len(self.token_ids) - self.tokens.kinds.count(HEALED, self.piece_start))
        left = self.policies.left(mask, len(self.token_ids))
        if not isinstance(mask, LazyTokenSet) and not (mask & self.limits.not_eos):
            if not (mask & self.limits.eos):
                raise DeadEnd(
                    f"no token is allowed after {self.place}. "
                    "The policies of this row exclude each other; give the generator fewer of them."
                )
            if left:
                return self._end_text("constraint")
        if left is not mask and not left:
            self.policies.leave_place(self, "no other token is allowed")
            return True
        if self._room() == 0:
            self.end("length")
        else:
            self._need_logits(left)
            self.mask, self._sequences, self.temperature, self.want = left, sequences, temperature, Want.SAMPLE
        return False

    def _need_logits(self, mask: TokenSet) -> None:
        """Make sure that the logits under a mask are known, or that something is fed for them."""
        self.feed.need_logits(len(self.token_ids), mask)
        if self.shadow is not None:
            self.shadow.need_logits(mask)

    def _end_text(self, reason: str) -> bool:
        """End the piece where its text ends, unless a policy objects; return whether the policies are to be asked again."""
        objection = self.policies.at_end(self)
        if objection is not None:
            return self.follow(objection)
        self.end(reason)
        return False

    def end(self, reason: str) -> None:
        """End the piece."""
        self.finish_reason = reason
        self.want = Want.LEAVE

    def leave_when_scored(self) -> None:
        """Have a row that has ended leave, or first the log-probabilities of its forced tokens scored."""
        if self.has_ended:
            is_owed = self.tokens.unscored and self._score_last and self.error is None
            self.want = Want.SCORE if is_owed else Want.LEAVE

    # -- append and rewind ---------------------------------------------------------------------------------------------

    def _append_forced(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, unless the first of them was refused here."""
        place = self.policies.exclusions.at(len(self.token_ids)) if kind == FORCED else None
        if place is not None and token_ids[0] in place.excluded:
            self.policies.leave_place(self, "the text that follows is forced")
        else:
            self.append_all(token_ids, kind)

    def append_all(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, as many as there is room for; the rest stays owed.

        Text that is only spelled anew needs no room: it takes the place of what was given back.
        """
        room = self._room(token_ids) if kind == FORCED else None
        now, self._owed = (token_ids, []) if room is None else (token_ids[:room], token_ids[room:])
        if not now:
            self.end("length")
            return
        logprobs = [0.0] * len(now)
        if kind == FORCED:
            self.feed.need_logits(len(self.token_ids), TokenSet.of(now[:1]))
            self.counts.forced_tokens += len(now)
            logprobs = self._forced_logprobs(now)
        for token_id, logprob in zip(now, logprobs, strict=True):
            self.append(token_id, kind, logprob, 0.0)

    def _forced_logprobs(self, token_ids: list[int]) -> list[float]:
        """Return what is known of their log-probabilities before they are fed; NaN, to be scored, for the others."""
        start, lines = len(self.token_ids), []
        if self.cached == start and self.logits is not None:
            lines = [self.logits, *self.feed.expected.lines(start, token_ids[:-1])]
        known = [float(line.log_softmax(0)[token_id]) for token_id, line in zip(token_ids, lines, strict=False)]
        self.tokens.unscored = [*self.tokens.unscored, *range(start + len(known), start + len(token_ids))]
        if not all(map(math.isfinite, known if self.feed.is_guessed else known[1:])):
            self.fail(_invalid_logits(start))
        return known + [math.nan] * (len(token_ids) - len(known))

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        """Append one token, and tell all parts of the row."""
        is_drawn = kind == GENERATED
        if self.healed and kind in WRITTEN and self.text.num_healing(self.token_ids, [token_id]):
            kind = HEALED
        self.policies.append(token_id)
        self.tokens.append(token_id, kind, logprob, sampling_logprob)
        if not self.feed.expected.token_ids or not self._meet(token_id, is_drawn=is_drawn):
            self.guess.forget_draws()
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
                self.guess.count("accepted_tokens")
        return is_met

    def rewind(self, count: int) -> None:
        """Give `count` tokens back, and with them everything that is known because of them."""
        length = len(self.token_ids) - count
        if length < self.piece_start:
            raise ValueError(
                f"expected a policy to give back at most {len(self.token_ids) - self.piece_start} tokens, those of the piece, "
                f"got {count}"
            )
        self.policies.rewind(count, self)
        self.tokens.rewind(length)
        self.feed.rewind(length)
        self.guess.forget_draws()
        if self.draft is not None:
            self.draft.cut(length)
        if self.shadow is not None:
            self.shadow.rewind()
        self._owed = []
        self.counts.rewound_tokens += count

    def _room(self, token_ids: Sequence[int] = ()) -> int | None:
        """Return how many tokens may come, these first; of those that only spell what was given back any number that the context takes."""
        if self.limits.max_written is None:
            return self.limits.room(len(self.token_ids), 0)
        healed = self.tokens.kinds.count(HEALED, self.tokens.first)
        return self.limits.room(len(self.token_ids), healed + self.text.num_healing(self.token_ids, token_ids))

    @property
    def _num_unspelled(self) -> int:
        """How many bytes of what was given back are not spelled yet."""
        return self.text.num_unspelled(self.token_ids)


def _fed(source: StateRow, healing: Healing, counts: Meter, first: int, *, is_recurrent: bool) -> FedTokens:
    """Return what of a row's first tokens was fed, and what is expected behind them: what was given back may come again."""
    logits = healing.logits.get(first) if healing.count else source.logits
    # A cache that cannot be cut would have to be filled again, should another token come.
    behind = () if is_recurrent else source.token_ids[first:]
    num_fed = max(source.cached - first, 0) if behind else 0
    return FedTokens(min(source.cached, first), logits, counts, Expected(behind, num_fed, healing.logits))


def _invalid_logits(length: int) -> InvalidLogits:
    return InvalidLogits(
        f"expected finite logits from the model after {length} tokens, got NaN or an infinity. "
        "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
    )
