"""`Row`: one running sequence. It appends, rewinds and ends; the loop feeds it and samples for it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from time import perf_counter
from typing import Any, Self

import torch

from outlines_cont.engine.drawing.draw_place import Draw, DrawPlace
from outlines_cont.engine.drawing.kept_logits import KeptLogits
from outlines_cont.engine.guessing.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.guessing.lookahead import MAX_GUESSED, Asked, Lookahead
from outlines_cont.engine.guessing.row_draft import RowDraft
from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, LateTokenSet, TokenSet, check_mask
from outlines_cont.policies.certain import Certain
from outlines_cont.policies.compose import Track, compose, goes_back
from outlines_cont.policies.healing import NO_HEALING, Healing
from outlines_cont.policies.policy import Policy
from outlines_cont.sampling import TokenCounts
from outlines_cont.state.exclusions import Exclusion
from outlines_cont.state.row import (
    APPENDED,
    FORCED,
    GENERATED,
    HEALED,
    WRITTEN,
    Piece,
    StateRow,
    counts_of,
    num_written,
)
from outlines_cont.user_code import user_code_error

_TAIL_TOKENS = 8
# How many branches the policies of a row may want in one step before one of them asks for a sample.
_MAX_ASKED = 10_000
# How often policies may take back what a row has written, and exclude nothing, while it grows no longer than it ever was.
_MAX_TAKEN_BACK = 10_000


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
        attributes: all of them; lists may have grown since then.
        length: how many tokens there were.
        drawn: how many random numbers were taken.
        tracks: each with its list of states, how many there were, and its retries.
    """

    attributes: dict[str, Any]
    length: int
    drawn: int
    tracks: list[tuple[Track, list[Any], int, int]]


class Row:
    """One running sequence.

    Attributes:
        base_kv: the keys and values of its first tokens that it begins with: those of its source, or more of others; see `begin_with`.
        token_ids: all ids, prompt included.
        piece_start: index of the first token of the piece.
        healed: the bytes at the beginning of the piece that stood in the row before, and are spelled anew; mostly none.
        cached: how many tokens have been fed; the rest is pending.
        logits: (V,) after the last token, where that was fed.
        want: what the row wants from this step, set by `plan`.
        mask: the tokens that may be sampled, where it wants a sample.
        temperature: for this sample in place of the sampler's; None leaves it to the sampler.
        forks: the branches to fork into, where it wants to fork.
        stream: the row's random numbers.
        num_top: how many of the most probable tokens are noted where one is drawn.
        stop: the stop text or stop token that has ended the piece; None where none has.
        tops: for each token these, with their log-probabilities; empty where none are noted.
        draft: what guesses the next tokens of the row; None where nothing does.
        low_water: the fewest tokens that there have been since somebody has set this to their number.
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
    ) -> None:
        """Begin a piece at the end of `source`, or go on with its last one.

        Args:
            source: where to start; it is not changed.
            policies: what steers the row, at least one.
            model: whose context and ends of text count.
            counts: where the row counts its work; the rows of a loop share one.
            max_tokens: the most tokens to append, forced ones included; None is up to the context.
            resume: go on with the piece of `source` instead of beginning one.
            source_text: what the piece is to be, as JSON; see `Piece`.
            min_tokens: until the piece has so many tokens, no end is drawn where something else may follow.
            stop_token_ids: tokens that end the text, besides those of the model.
            score_last: feed what is needed to know the log-probabilities of forced tokens at the very end of the piece.
            healing: what is given back at the end of `source` before the piece begins. A row that ends before that text is spelled
                anew leaves with the tokens that it came with.
        """
        self.source = source
        self.base_kv = source.kv
        self.job: Any = None
        self.index = 0
        self._first = len(source.token_ids) - healing.count
        self.token_ids: list[int] = list(source.token_ids[: self._first])
        self.logits = healing.logits.get(self._first) if healing.count else source.logits
        self.cached = min(source.cached, self._first)
        # A cache that cannot be cut would have to be filled again, should another token come.
        behind = () if model.is_recurrent else source.token_ids[self._first :]
        num_fed = max(source.cached - self._first, 0) if behind else 0
        self._expected = Expected(behind, num_fed, healing.logits)
        self._num_common = self._first  # how many tokens of the source are surely those of the row
        self.counts = counts
        self.stream = source.stream.open()
        self._tokenizer = model.tokenizer
        piece = source.piece if resume and source.piece is not None else Piece(len(self.token_ids))
        self.piece_start = piece.start
        self._source = source_text or piece.source
        self.healed = self._tokenizer.text_bytes(source.token_ids[self.piece_start :])[
            : piece.healed if resume else None
        ]
        self._search = source.search.reopened(self._first) if source.search is not None else None
        self._retries = piece.retries
        self.want = Want.WAIT
        self.mask = TokenSet.all
        self.temperature: float | None = None
        self.forks: list[Branch] = []
        self.finish_reason = ""
        self.error: Exception | None = None
        self._owed = list(piece.owed)
        self._sequences: list[list[int]] = []
        self._kinds = bytearray(source.kinds[: self._first])
        self._logprobs = list(source.logprobs[: self._first])
        self._sampling_logprobs = list(source.sampling_logprobs[: self._first])
        self._ends: tuple[tuple[int, float], ...] = ()  # see `SearchScore.others`
        self._unscored = [
            i for i in (source.piece.unscored if source.piece is not None else ()) if source.cached < i < self._first
        ]
        self._num_forks = 0
        self._taken_back = (0, 0)  # how often since the row was longer than ever before, and how long it was
        self._kept = KeptLogits(0)
        self._is_partial = False  # the logits are exact for the tokens of the mask only
        self._guessed_masks: list[TokenSet] = []
        self._is_guessed = False  # the logits are known because the tokens before them were guessed
        self._asked: tuple[Asked, ...] = ()  # what the policies want behind guessed tokens
        self._foreseen: dict[int, tuple[DrawPlace, Draw]] = {}  # draws made ahead, by the tokens before them
        self.draft: RowDraft | None = None
        self._exclusions = piece.exclusions
        self._decider: Track | None = None
        self.num_top = 0
        self.tops: list[tuple[tuple[int, float], ...]] = []
        self.low_water = 0
        self._certain: Certain | None = None
        self._score_last = score_last
        self._token_counts: TokenCounts | None = None
        self._mirostat_start = None if source.mirostat_start is None else min(source.mirostat_start, self._first)
        self._has_mirostat = False  # whether a token of this run was drawn with it
        self._vocab_size = model.vocab_size
        self._model_eos = TokenSet.of(model.eos_token_ids)
        self._stop_tokens = TokenSet.of(stop_token_ids)
        self._eos = self._model_eos | self._stop_tokens
        self._min_length = (self.piece_start if resume else len(self.token_ids)) + min_tokens
        self.stop: str | int | None = None
        # As wide as the masks, so that they need no stretching at every step.
        self._not_eos = TokenSet.of_bitmask((~self._eos).bitmask(model.vocab_size))
        # Of a piece that is healed, the tokens of its own text count.
        self._max_written = _plus(max_tokens, len(self.token_ids)) if self.healed else None
        self._context_length = model.context_length
        limits = (model.context_length, None if self.healed else _plus(max_tokens, len(self.token_ids)))
        self._max_length = min((limit for limit in limits if limit is not None), default=None)
        self._tracks: list[Track] = []
        self._guard(self._start, list(policies))

    # -- what the loop calls -------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Ask the policies until the row wants a sample, waits, or has ended; nothing where a decision stands."""
        if self._certain is not None:
            self._certain = self.certain_until()  # what somebody may have shown since the last step
        if not self.is_reading:
            self._guard(self._plan)

    @property
    def place(self) -> str:
        """Where the row stands, for errors: the number of its tokens, its last characters, and what its policies ask for."""
        tail = self._tokenizer.decode(self.token_ids[-_TAIL_TOKENS:])
        wishes = [wish for track in self._tracks if (wish := track.policy.wish(track.states[-1], self))]
        return f"{len(self.token_ids)} tokens (...{tail!r}{''.join(f'; next: {wish}' for wish in wishes)})"

    @property
    def shadow(self) -> Shadow | None:
        """What is fed beside the row, where it is guided; see `GuidedRow`."""
        return None

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row has what it wants."""
        if self.feeds_all:
            pending = len(self.token_ids) - self.cached
            return pending and pending + self._expected.num_pending
        last = self._unscored[-1] if self.want is Want.SCORE and self._unscored else 0
        return max(last - self.cached, 0)

    @property
    def feeds_all(self) -> bool:
        """Whether all that is pending is to be fed, for the logits after it."""
        return self.want is Want.SAMPLE

    @property
    def is_ready(self) -> bool:
        """Whether a token can be sampled."""
        # What is known before a forward that has failed was known of an earlier end.
        return self.want is Want.SAMPLE and self.logits is not None and self.cached == len(self.token_ids)

    @property
    def is_reading(self) -> bool:
        """Whether the row has decided what it wants, and waits for its tokens to be fed."""
        return self.want in (Want.SAMPLE, Want.SCORE) and self.num_pending > 0

    def chunk(self) -> list[int]:
        """Return the pending ids, and behind them those that are expected next."""
        pending = self.token_ids[self.cached : self.cached + self.num_pending]
        return [*pending, *self._expected.token_ids[: self.num_pending - len(pending)]]

    # What comes next may be guessed.

    @property
    def can_guess(self) -> bool:
        """Whether tokens may be guessed, to be fed behind those that are pending."""
        if self.draft is None or self.draft.is_off or self.want is not Want.SAMPLE or self._expected.token_ids:
            return False
        return self.cached < len(self.token_ids)

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the token that comes next; see `Policy.hint`."""
        return any(track.policy.hint(track.states[-1], self) is not None for track in self._tracks)

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a guess with no more than hints in it. The last token that there is room for is not guessed, as nothing follows it."""
        room = self._room()
        return Lookahead(
            self,
            self._tracks,
            self.mask,
            self._sequences,
            eos=self._eos,
            room=MAX_GUESSED if room is None else room - 1,
            vocab_size=self._vocab_size,
            temperature=self.temperature,
            takes_hints=takes_hints,
        )

    @property
    def next_masks(self) -> list[TokenSet]:
        """The masks under which tokens will be drawn after the next forward: one, and those behind tokens that were guessed."""
        return [self.mask, *self._guessed_masks] if self.want is Want.SAMPLE else []

    def guess(self, found: Lookahead) -> None:
        """Feed what was guessed behind what is pending."""
        self._expected = Expected(tuple(found.token_ids), kinds=tuple(found.kinds))
        if self.draft is not None:
            self._guessed_masks = found.late_masks(self.draft.chance)
        self._asked = tuple(found.asked)
        self._note_draft("proposed_tokens", found.num_drawn)

    def _note_draft(self, name: str, count: int = 1) -> None:
        """Count what the draft has done, for the row and for the model."""
        for counts in (self.counts, *(() if self.draft is None else (self.draft.counts,))):
            setattr(counts, name, getattr(counts, name) + count)

    @property
    def next_place(self) -> DrawPlace:
        """Where the next token is drawn. Greedy rows take no random number, so that their streams do not depend on their neighbours."""
        assert self.logits is not None
        drawing = self.job.drawing(self.temperature)
        uniform = self.stream.peek() if drawing.needs_random else None
        return DrawPlace(len(self.token_ids), self.logits, self.mask, drawing, uniform)

    def places_ahead(self) -> list[DrawPlace]:
        """Return where tokens are drawn next if what was guessed comes true, as far as logits and masks are known."""
        length, found = len(self.token_ids), list[DrawPlace]()
        for asked in self._asked if self._expected.is_guess else ():
            logits = self._expected.logits.get(length + asked.offset)
            drawing = self.job.drawing(asked.temperature)
            if logits is None or not asked.mask.is_made or drawing.kind != "standard" or drawing.needs_counts:
                break
            uniform = self.stream.ahead(asked.num_drawn) if drawing.needs_random else None
            found.append(DrawPlace(length + asked.offset, logits, asked.mask, drawing, uniform))
        return found

    def foresee(self, place: DrawPlace, draw: Draw) -> None:
        """Keep a draw that was made ahead."""
        self._foreseen[place.length] = place, draw

    def foreseen(self) -> Draw | None:
        """Return the draw that was made ahead for the present end of the row, where that asks for what was asked for then."""
        found = self._foreseen.get(len(self.token_ids))
        return None if found is None or not found[0].asks_like(self.next_place) else found[1]

    def goes_on(self) -> bool:
        """Plan on where what was drawn last is what was guessed; return whether the next token can be drawn, without a forward."""
        if not self._is_guessed or self.want is not Want.WAIT or self.cached < len(self.token_ids):
            return False
        self.plan()
        self.settle()
        return self.is_ready

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which the row needs logits, ascending."""
        if not chunk_size:
            return []
        indices = {index - 1 - self.cached for index in self._unscored}
        if self.feeds_all:
            # What a policy may take back leaves logits to go on from, so nothing needs feeding again.
            last = len(self.token_ids) - 1 - self.cached
            first = max(self.piece_start - 1 - self.cached, last - self._kept.num_places, 0)
            indices.update(range(first, self.num_pending))
        return sorted(index for index in indices if 0 <= index < chunk_size)

    def lose(self, cached: int) -> None:
        """Note that no more than the first `cached` tokens are held any longer; the others will be fed again."""
        if cached >= self.held:
            return
        self.counts.recomputed_tokens += self.held - min(cached, self.cached)
        self.cached, self._expected = min(self.cached, cached), self._expected.unfed()

    @property
    def held(self) -> int:
        """How many tokens have keys and values, those included that are expected next."""
        return self.cached + self._expected.num_fed

    @property
    def source_cached(self) -> int:
        """How many tokens of the row have keys and values in what it began with."""
        return min(len(self.base_kv) if self.base_kv is not None else 0, self._num_common)

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens may have been fed by others: all before the first after which the row needs logits."""
        return min([len(self.token_ids) - 1, *(index - 1 for index in self._unscored[:1])])

    def begin_with(self, kv: RowKV) -> None:
        """Take the keys and values of the first tokens from others, more of them than the row has."""
        count = len(kv) - self.cached
        self.base_kv = kv
        self.cached += count
        self.counts.reused_tokens += count

    def begin_alone(self) -> bool:
        """Give back what was taken from others, and feed it; return whether there was something."""
        if self.base_kv is self.source.kv:
            return False
        self.base_kv = self.source.kv
        self.counts.reused_tokens -= max(self.cached - self.source_cached, 0)
        self.cached = min(self.cached, self.source_cached)
        self._expected = self._expected.unfed()
        return True

    def unscored(self, fed: Container[int]) -> list[tuple[int, int]]:
        """Return (index into the chunk, token id that follows there) of forced tokens that are scored by what was fed."""
        found = [(index - 1 - self.cached, self.token_ids[index]) for index in self._unscored]
        return [(index, token_id) for index, token_id in found if index in fed]

    def score(self, logprobs: Sequence[float]) -> None:
        """Take the log-probabilities of the first tokens in `unscored`."""
        for index, logprob in zip(self._unscored, logprobs, strict=False):
            self._logprobs[index] = logprob
        self._unscored = self._unscored[len(logprobs) :]
        if not all(map(math.isfinite, logprobs)):
            self.fail(_invalid_logits(len(self.token_ids)))

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Note that `count` pending tokens were fed; `logits` holds the wanted ones by index into the chunk."""
        known = {self.cached + index + 1: tensor for index, tensor in logits.items()}
        for index in sorted(known):
            if index <= len(self.token_ids):
                self._kept.put(index, known[index])
        self.counts.fed_tokens += count
        own = min(count, len(self.token_ids) - self.cached)
        self.cached += own
        if count > own:
            self._expected = self._expected.fed(count - own, known)
        if own:
            self.logits = known.get(self.cached) if self.cached == len(self.token_ids) else None
            self._is_partial = self._is_guessed = False

    def settle(self) -> None:
        """Have the mask made, if it is not yet; its errors are the row's."""
        if self.is_ready and isinstance(self.mask, LateTokenSet):
            started = perf_counter()
            self._guard(lambda: self.mask.words)
            for mask in self._guessed_masks:  # made by now on a CPU; elsewhere the device computes meanwhile
                with suppress(Exception):
                    _ = mask.words
            self.counts.mask_seconds += perf_counter() - started
        self._guessed_masks = []

    def take(self, draw: Draw) -> None:
        """Append a sampled token, or end on it; the random number that it was drawn with is spent."""
        self.want = Want.WAIT
        self.stream.take()
        if self._is_guessed:
            self._note_draft("saved_forwards")
        self._guard(self._take, draw)

    def fail(self, error: Exception) -> None:
        """End the row with its own error; the others go on."""
        self.error = error
        self._end("error")

    def checkpoint(self) -> RowCheckpoint:
        """Return what the row is now; see `Checkpoint`. Cost: 1 us and more for every policy, whatever the length."""
        attributes = vars(self).copy()
        attributes["_kept"] = self._kept.emptied()
        if self.logits is not self.source.logits:
            attributes["logits"] = None  # they are let go as soon as there are new ones
        tracks = [(track, track.states, len(track.states), track.retries) for track in self._tracks]
        return RowCheckpoint(attributes, len(self.token_ids), self.stream.drawn, tracks)

    def restore(self, before: RowCheckpoint) -> None:
        """Become what the row was then. Of keys and values only those of the source are left; the others are fed again."""
        vars(self).update(before.attributes)
        self._shorten(before.length)
        self._tracks = [track.at(states[:length], retries) for track, states, length, retries in before.tracks]
        self._kept, self._foreseen = self._kept.emptied(), {}
        self.stream = self.stream.at(before.drawn)
        self._token_counts = None
        if self.draft is not None:
            self.draft.forget()
        self.lose(self.source_cached)
        if self.cached < len(self.token_ids):
            self.logits = None
        elif self.want is Want.SAMPLE:
            self._need_logits(self.mask)

    def search_score(self, draw: Draw | None = None) -> float:
        """Return what a search ranks the row by, with one more token or end; forced tokens that were not fed yet count 0."""
        search = self._search
        assert search is not None
        unscored = set(self._unscored)
        known = [0.0 if i in unscored else x for i, x in enumerate(self._logprobs)] if unscored else self._logprobs
        longer = draw is not None and draw.token_id not in self._eos
        total = search.total(known) + sum(logprob for _, logprob in self._ends) + (draw.logprob if draw else 0.0)
        return search.ranked(total, num_written(self._kinds, search.start) + longer)

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return what the row holds, counted when first asked for and kept up from then on.

        Args:
            mirostat: the next token is drawn with `Mirostat`, which counts from here on if it did not before.
        """
        if mirostat and not self._has_mirostat:
            self._has_mirostat = True
            if self._mirostat_start is None:
                self._mirostat_start = len(self.token_ids)
            self._token_counts = None
        if self._token_counts is None:
            self._token_counts = counts_of(self.token_ids, self._kinds, self._sampling_logprobs, self._mirostat_start)
        return self._token_counts

    def branched(self, branches: Sequence[Branch]) -> list[Self]:
        """Follow the first branch, and return this row and, for every other branch, a fork that follows it.

        What goes wrong in one of the rows is its own error.
        """
        rows = self.split(len(branches))
        for row, branch in zip(rows, branches, strict=True):
            row.want, row.forks = Want.WAIT, []
            row._guard(row._go_on, branch)
        return rows

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
        fork.token_ids = [*self.token_ids]
        fork.stream = self.stream.close().open()
        fork._owed, fork._sequences, fork._unscored = [*self._owed], [*self._sequences], [*self._unscored]
        fork._kinds, fork._kept, fork._foreseen = bytearray(self._kinds), self._kept.fork(), {}
        fork._logprobs, fork._sampling_logprobs = [*self._logprobs], [*self._sampling_logprobs]
        fork.tops = [*self.tops]
        fork._token_counts = None if self._token_counts is None else self._token_counts.fork()
        fork.draft = None if self.draft is None else self.draft.fork()
        fork._tracks = [track.fork() for track in self._tracks]
        return fork

    def snapshot(self, kv: RowKV | None) -> StateRow:
        """Return the row as it is now as a value; where it has not ended, as one that was cut here."""
        state_row = self.leave(kv)
        if self.has_ended:
            return state_row
        if self._num_unspelled:  # it is as it came
            return replace(state_row, finish_reason="length")
        assert state_row.piece is not None
        piece = replace(state_row.piece, unscored=tuple(self._unscored))
        return replace(state_row, finish_reason="length", piece=piece)

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as a value, with the keys and values of its first `cached` tokens."""
        if self._num_unspelled:
            return self._leave_unhealed(kv)
        ended_fed = self.logits is not None and self.cached == len(self.token_ids) and not self._is_partial
        return replace(
            self.source,
            token_ids=tuple(self.token_ids),
            kinds=bytes(self._kinds),
            # A row that ended before all of it was fed has tokens of which nothing is known.
            logprobs=tuple(x if math.isfinite(x) else 0.0 for x in self._logprobs),
            sampling_logprobs=tuple(self._sampling_logprobs),
            weight_start=min(self.source.weight_start, self._first),
            mirostat_start=self._mirostat_start if self._has_mirostat or not self._has_drawn else None,
            ends=self.source.ends + sum(logprob for _, logprob in self._ends),
            kv=kv,
            # A copy, so that the logits of the other rows of the step are let go.
            logits=self.logits.clone() if ended_fed and self.logits is not None else None,
            stream=self.stream.close(),
            piece=Piece(
                self.piece_start,
                tuple(self._owed),
                self._source,
                self.retries,
                self._exclusions,
                self.stop,
                healed=len(self.healed),
            ),
            finish_reason=self.finish_reason,
            value=None,
            error=self.error,
            search=None if self._search is None else replace(self._search, others=(*self._search.others, *self._ends)),
        )

    def _leave_unhealed(self, kv: RowKV | None) -> StateRow:
        """Return a row that has ended before what it had given back was spelled anew: with the tokens that it came with."""
        if self.source.kv is not None:
            kv = self.source.kv
        return replace(
            self.source,
            kv=kv[: self._num_common] if kv is not None and self.source.kv is None else kv,
            stream=self.stream.close(),
            piece=Piece(len(self.source.token_ids), (), self._source, self.retries),
            finish_reason=self.finish_reason,
            value=None,
            error=self.error,
        )

    # -- what a generator reads ----------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is appended."""
        return bool(self.finish_reason)

    @property
    def piece_ids(self) -> list[int]:
        """The ids of the piece so far."""
        return self.token_ids[self.piece_start :]

    @property
    def first_open(self) -> int:
        """Index of the first token that may yet be taken back: that of the piece, or the first whose text was not shown yet."""
        if self._certain is None or self._num_healed_from(self._certain.token) >= max(self._certain.offset, 1):
            return self.piece_start  # nothing of the new text is certain
        return max(self.piece_start, self._certain.first_open)

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was drawn, so that another might have been."""
        return index >= self.piece_start and self._kinds[index : index + 1] == GENERATED

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was put there by a policy as given text, or spelled anew."""
        return index >= self.piece_start and self._kinds[index : index + 1] == APPENDED

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn; 0 where it was not drawn."""
        return self._sampling_logprobs[index]

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that another try may go otherwise by itself."""
        return bool(self.job.drawing(self.temperature).needs_random)

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that may not be drawn again at `index`."""
        place = self._exclusions.at(index)
        return place.excluded | place.avoided if place is not None else frozenset()

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, as the model returned them; None where they are not kept."""
        return self._kept.whole(index)

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) for a decision; the same for the same `key`, whatever is drawn or refused."""
        return self.stream.decision(*key)

    @property
    def retries(self) -> int:
        """How often the piece has gone back because a policy refused what it had written."""
        return self._retries + sum(track.retries for track in self._tracks)

    @property
    def _has_drawn(self) -> bool:
        """Whether some token of this run was drawn."""
        return GENERATED in self._kinds[self._first :]

    @property
    def is_over(self) -> bool:
        """Whether the piece has ended and all that will be known of it is."""
        return self.has_ended and self.want is Want.LEAVE

    @property
    def num_scored(self) -> int:
        """The index of the first token whose log-probability is not known yet; their number, where all are."""
        return len(self.token_ids) if self.is_over or not self._unscored else self._unscored[0]

    @property
    def text_start(self) -> Certain:
        """Where the text of the piece begins, behind what is healed, whose tokens may be yet to come."""
        return Certain(self.piece_start, len(self.healed))

    def hold(self) -> None:
        """Take nothing back from now on that was certain after a step, as somebody shows it."""
        self._certain = self.text_start

    def certain_until(self) -> Certain:
        """Return how far the text is certain. Cost: the tokens that were not certain when the step began."""
        start = self._certain if self._certain is not None else self.text_start
        return start.advanced(self._tokenizer, self.token_ids, self.held_bytes)

    def text_between(self, start: Certain, stop: Certain) -> bytes:
        """Return the text of the piece from one place to another, without what is healed."""
        offset = max(start.offset, self._num_healed_from(start.token))
        data = self._tokenizer.text_bytes(self.token_ids[start.token : stop.token + 1])
        last = len(self._tokenizer.text_bytes(self.token_ids[stop.token : stop.token + 1]))
        return data[offset : len(data) - last + stop.offset]

    def score_of(self, index: int) -> float:
        """Return the log-probability of a token by the model."""
        return self._logprobs[index]

    @property
    def held_bytes(self) -> int:
        """How many bytes at the end of the piece may yet be taken back."""
        if self.has_ended:
            return 0
        return max((track.policy.held_bytes(track.states[-1]) for track in self._tracks), default=0)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _guard(self, act: Any, *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            # Whatever goes wrong in one row's policies must not take the other rows of the batch with it.
            self._refuse(error)
        except SystemExit as error:
            self._refuse(user_code_error(error))

    def _refuse(self, error: Exception) -> None:
        """Deal with what went wrong in a policy."""
        self.fail(error)

    def _start(self, policies: list[Policy[Any]]) -> None:
        self._kept.num_places = max((policy.horizon for policy in policies), default=0)
        written = self.token_ids
        try:
            # A piece that is resumed is walked again from its start, so that every policy has its whole history.
            self.token_ids = written[: self.piece_start]
            self._tracks = [Track(policy, self) for policy in policies]
            for token_id in written[self.piece_start :]:
                for track in self._tracks:
                    track.append(token_id)
        finally:
            self.token_ids = written

    def _plan(self) -> None:
        for _ in range(_MAX_ASKED):
            if self.has_ended:
                break
            branches = self._next_branches()
            if len(branches) > 1:
                self.forks, self.want = branches, Want.FORK
                return
            if branches and not self._follow(branches[0]):
                break
        else:
            decider = self._decider.policy if self._decider is not None else None
            raise UnsupportedBranch(
                f"expected policies that want a sample, wait or stop after some steps, but after {_MAX_ASKED:,} branches at {self.place} "
                f"none of them did; {decider!r} has decided last. A policy that appends or gives tokens back must come to an end."
            )
        self._settle_end()

    def _go_on(self, branch: Branch) -> None:
        """Follow a branch, and plan on where that has decided nothing."""
        if self._follow(branch):
            self._plan()
        else:
            self._settle_end()

    def _settle_end(self) -> None:
        if self.has_ended:
            self.want = Want.SCORE if self._unscored and self._score_last and self.error is None else Want.LEAVE

    def _follow(self, branch: Branch) -> bool:
        """Do what a branch says; return whether the policies are to be asked again at once."""
        if branch.is_retry and self._decider is not None:
            if self._is_spent(self._decider):
                self._give_up(self._decider, f"its {self._decider.retries} retries are spent")
                return True
            self._decider.retries += 1
        if goes_back(branch) and self._tracks:
            self._check_progress(branch)
        if branch.backtrack:
            self._rewind(branch.backtrack)
        if branch.is_retry and not self._exclude(branch):
            return True
        if branch.sample_mask is not None:
            return self._want_sample(branch.sample_mask, branch.ff_tokens, branch.temperature)
        if branch.ff_tokens:
            self._append_forced(branch.ff_tokens[0], APPENDED if branch.backtrack else FORCED)
        elif not goes_back(branch):
            self.want = Want.WAIT
            return False
        return True

    def _check_progress(self, branch: Branch) -> None:
        """Raise where a policy takes back what was written for ever. One that excludes something comes to an end by itself."""
        count, longest = self._taken_back
        if len(self.token_ids) > longest:
            count, longest = 0, len(self.token_ids)
        if not branch.exclude and not branch.avoid:
            count += 1
        self._taken_back = count, longest
        decider = self._decider.policy if self._decider is not None else None
        has_budget = branch.is_retry and decider is not None and decider.max_retries is not None
        if count > _MAX_TAKEN_BACK and not has_budget:
            raise UnsupportedBranch(
                f"expected policies that come to an end, but they have given tokens back {_MAX_TAKEN_BACK:,} times, and the text "
                f"was never longer than {longest:,} tokens, now at {self.place}; {decider!r} has decided last. Have it exclude "
                "what it refuses (`Branch.exclude`), or say how often it may go back (`max_retries`)."
            )

    # What is refused is drawn otherwise.

    def _exclude(self, branch: Branch) -> bool:
        """Remember what a branch refuses at the present end; return False where the row has gone back further instead."""
        excluded, avoided = (self._ids(tokens) for tokens in (branch.exclude, branch.avoid))
        policy = next((i for i, track in enumerate(self._tracks) if track is self._decider), 0)
        self._exclusions = self._exclusions.adding(len(self.token_ids), excluded, avoided, policy)
        place = self._exclusions.places[-1]
        most = self._tracks[policy].policy.max_retries_per_place if self._tracks else None
        if most is not None and place.retries > most:
            self._leave_place(place, f"{most} retries are spent at one place")
            return False
        return True

    def _ids(self, tokens: TokenSet | None) -> frozenset[int]:
        if tokens is None:
            return frozenset()
        token_ids = tokens.few_ids(self._vocab_size, self._vocab_size)
        assert token_ids is not None  # no set lies in more words than there are tokens
        return frozenset(token_ids.tolist())

    def _leave_place(self, place: Exclusion, reason: str) -> None:
        """Go back to the last token before that was drawn, and draw that otherwise; further where its place has no retries left either.

        Where there is none, the policy that refuses is asked.
        """
        if not self._tracks:
            raise DeadEnd(f"no token is allowed after {self.place}: all of them were excluded. Exclude fewer.")
        track = self._tracks[place.policy % len(self._tracks)]  # a piece may be resumed with fewer policies
        while True:
            earlier = (i for i in range(place.index - 1, self.first_open - 1, -1) if self.was_drawn(i))
            index = next(earlier, None)
            if index is None or self._is_spent(track):
                self._give_up(track, reason if index is None else f"its {track.retries} retries are spent")
                return
            token_id = self.token_ids[index]
            self._decider = None
            self._rewind(len(self.token_ids) - index)
            track.retries += 1
            self._exclusions = self._exclusions.adding(index, frozenset((token_id,)), frozenset(), place.policy)
            place = self._exclusions.places[-1]
            most = track.policy.max_retries_per_place
            if most is None or place.retries <= most:
                return
            reason = f"{most} retries are spent at one place"

    def _give_up(self, track: Track, reason: str) -> None:
        """Have a policy end the row, or let pass what it has refused here."""
        track.give_up(self, reason)
        self._exclusions = self._exclusions.until(len(self.token_ids))

    def _is_spent(self, track: Track) -> bool:
        most = track.policy.max_retries
        return most is not None and track.retries >= most

    def _left(self, mask: TokenSet) -> TokenSet:
        """Return what is left of a mask at the present end."""
        place = self._exclusions.at(len(self.token_ids))
        if place is None:
            return mask
        allowed = mask & ~TokenSet.of(place.excluded)
        return (allowed & ~TokenSet.of(place.avoided)) or allowed

    def _next_branches(self) -> list[Branch]:
        """Return the branches to take; none where the policies stop the row, or one of them has gone back at its end."""
        started = perf_counter()
        branches, self._decider = compose(self._tracks, self)
        self.counts.mask_seconds += perf_counter() - started
        if not branches:
            decider = self._decider
            self._end_text(decider.policy.finish_reason)  # unless another policy does not let the text end here
            if self.has_ended:
                self.stop = decider.policy.stop(decider.states[-1])
        elif self._owed and not any(map(goes_back, branches)):
            # A limit has cut a forced chunk. Going on, it is that chunk's rest, whatever would be forced from here.
            return [Branch(ff_tokens=[self._owed])]
        return branches

    def _want_sample(self, mask: TokenSet, sequences: list[list[int]], temperature: float | None) -> bool:
        """Ask for a token; return whether the policies are to be asked again at once, as something else has happened."""
        check_mask(mask, self._vocab_size, "sample_mask")
        mask = self._with_ends(mask)
        left = self._left(mask)
        if not isinstance(mask, LateTokenSet) and not (mask & self._not_eos):
            if not (mask & self._eos):
                raise DeadEnd(
                    f"no token is allowed after {self.place}. "
                    "The policies of this row exclude each other; give the generator fewer of them."
                )
            if left:
                return self._end_text("constraint")
        if left is not mask and not left:
            self._leave_place(self._exclusions.places[-1], "no other token is allowed")
            return True
        if self._room() == 0:
            self._end("length")
        else:
            self._need_logits(left)
            self.mask, self._sequences, self.temperature, self.want = left, sequences, temperature, Want.SAMPLE
        return False

    def _with_ends(self, mask: TokenSet) -> TokenSet:
        """Return a mask with the stop tokens where the text may end; without ends as long as the piece is too short."""
        if self._stop_tokens and mask & self._model_eos:
            mask = mask | self._stop_tokens
        if len(self.token_ids) - self._kinds.count(HEALED, self.piece_start) < self._min_length:
            mask = mask & ~self._eos or mask
        return mask

    def _end_text(self, reason: str) -> bool:
        """End the piece where its text ends, unless a policy objects; return whether the policies are to be asked again."""
        for track in self._tracks:
            branch = track.policy.at_end(track.states[-1], self)
            if branch is not None:
                if not goes_back(branch):
                    raise UnsupportedBranch(
                        f"expected None or a branch that goes back from `at_end` at {self.place}, got {branch!r} of {track.policy!r}. "
                        "Have it give tokens back, or exclude some."
                    )
                self._decider = track
                return self._follow(branch)
        self._end(reason)
        return False

    def _take(self, draw: Draw) -> None:
        self.counts.sampled_tokens += 1
        if draw.token_id in self._eos:
            ends = self._ends
            self._ends = (*ends, (len(self.token_ids), draw.logprob))
            self._end_text("stop")
            if not self.has_ended:
                self._ends = ends
            elif draw.token_id in self._stop_tokens:
                self.stop = draw.token_id
            return
        self._append(draw.token_id, GENERATED, draw.logprob, draw.sampling_logprob)
        if self.num_top:
            self.tops[-1] = draw.top
        follow = next((ids for ids in self._sequences if ids[0] == draw.token_id), None)
        if follow is not None and len(follow) > 1:
            self._append_all(follow[1:], FORCED)

    def _append_forced(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, unless the first of them was refused here."""
        if kind == FORCED and self._left(TokenSet.all) is not TokenSet.all:
            place = self._exclusions.places[-1]
            if token_ids[0] in place.excluded:
                self._leave_place(place, "the text that follows is forced")
                return
        self._append_all(token_ids, kind)

    def _append_all(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, as many as there is room for; the rest stays owed.

        Text that is only spelled anew needs no room: it takes the place of what was given back.
        """
        room = self._room(token_ids) if kind == FORCED else None
        now, self._owed = (token_ids, []) if room is None else (token_ids[:room], token_ids[room:])
        if not now:
            self._end("length")
            return
        logprobs = [0.0] * len(now)
        if kind == FORCED:
            self._need_logits(TokenSet.of(now[:1]))
            self.counts.forced_tokens += len(now)
            logprobs = self._forced_logprobs(now)
        for token_id, logprob in zip(now, logprobs, strict=True):
            self._append(token_id, kind, logprob, 0.0)

    def _forced_logprobs(self, token_ids: list[int]) -> list[float]:
        """Return what is known of their log-probabilities before they are fed; NaN, to be scored, for the others."""
        start, lines = len(self.token_ids), []
        if self.cached == start and self.logits is not None:
            lines = [self.logits, *self._expected.lines(start, token_ids[:-1])]
        known = [float(line.log_softmax(0)[token_id]) for token_id, line in zip(token_ids, lines, strict=False)]
        self._unscored = [*self._unscored, *range(start + len(known), start + len(token_ids))]
        if not all(map(math.isfinite, known if self._is_guessed else known[1:])):
            self.fail(_invalid_logits(start))
        return known + [math.nan] * (len(token_ids) - len(known))

    def _append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        is_drawn = kind == GENERATED
        if self.healed and kind in WRITTEN and self._num_inside([token_id]):
            kind = HEALED
        for track in self._tracks:
            track.append(token_id)
        self.token_ids.append(token_id)
        self._kinds += kind
        if not self._expected.token_ids or not self._meet(token_id, is_drawn=is_drawn):
            self._foreseen = {}
        if self._token_counts is not None:
            self._token_counts.add(token_id, kind in WRITTEN, sampling_logprob if kind == GENERATED else None)
        self._logprobs.append(logprob)
        self._sampling_logprobs.append(sampling_logprob)
        if self.num_top:
            self.tops.append(())

    def _rewind(self, count: int) -> None:
        """Give `count` tokens back, and with them everything that is known because of them."""
        length = len(self.token_ids) - count
        if length < self.piece_start:
            raise ValueError(
                f"expected a policy to give back at most {len(self.token_ids) - self.piece_start} tokens, those of the piece, "
                f"got {count}"
            )
        for track in self._tracks:
            track.rewind(count, self if track is self._decider else None)
        if self._token_counts is not None:
            for index in range(length, len(self.token_ids)):
                self._token_counts.remove(self.token_ids[index], self._kinds[index] in WRITTEN)
        self._shorten(length)
        self._expected, self._num_common = NOTHING_EXPECTED, min(self._num_common, length)
        self._foreseen = {}
        self._ends = tuple(end for end in self._ends if end[0] <= length)
        self._unscored = [index for index in self._unscored if index < length]
        self._exclusions = self._exclusions.until(length + 1)
        self._owed = []
        self.counts.rewound_tokens += count
        self.cached = min(self.cached, length)
        self._kept.forget_after(length)
        self.logits = self._kept.whole(length) if self.cached == length else None
        self._is_partial = self._is_guessed = False

    def _shorten(self, length: int) -> None:
        """Hold the first `length` tokens in new lists; see `Checkpoint`."""
        self.token_ids, self._kinds = self.token_ids[:length], self._kinds[:length]
        self._logprobs, self._sampling_logprobs = self._logprobs[:length], self._sampling_logprobs[:length]
        if self.draft is not None:
            self.draft.cut(length)
        self.tops, self.low_water = self.tops[:length], min(self.low_water, length)
        self._mirostat_start = None if self._mirostat_start is None else min(self._mirostat_start, length)

    def _need_logits(self, mask: TokenSet) -> None:
        """Make sure that something is pending or that the logits at the end are known for a mask; else feed the last token again."""
        if self.cached < len(self.token_ids) or (self.logits is not None and not self._is_partial):
            return
        self.logits = self._kept.for_mask(self.cached, mask)
        self._is_partial = self.logits is not None
        if self.logits is None:
            self.lose(self.cached - 1)

    def _room(self, token_ids: Sequence[int] = ()) -> int | None:
        """Return how many tokens may come, these first; of those that only spell what was given back any number that the context takes."""
        length = len(self.token_ids)
        room = None if self._max_length is None else max(self._max_length - length, 0)
        if self._max_written is None:
            return room
        healed = self._kinds.count(HEALED, self._first) + self._num_inside(token_ids)
        written = max(self._max_written + healed - length, 0)
        return written if room is None else min(written, room)

    # What was given back is spelled anew.

    @property
    def _num_unspelled(self) -> int:
        """How many bytes of what was given back are not spelled yet."""
        left = len(self.healed)
        for index in range(self.piece_start, len(self.token_ids)):
            if left <= 0:
                break
            left -= len(self._tokenizer.text_bytes(self.token_ids[index : index + 1]))
        return max(left, 0)

    def _num_healed_from(self, index: int) -> int:
        """Return how many bytes of what was given back stand at token `index`, or behind it."""
        if index - self.piece_start >= len(self.healed):  # a token has a byte at least
            return 0
        return max(len(self.healed) - len(self._tokenizer.text_bytes(self.token_ids[self.piece_start : index])), 0)

    def _num_inside(self, token_ids: Sequence[int]) -> int:
        """Return how many of some tokens that come next only spell what was given back."""
        left, count = self._num_unspelled, 0
        while count < len(token_ids) and left > 0:
            left -= len(self._tokenizer.text_bytes(token_ids[count : count + 1]))
            count += left >= 0
        return count

    def _meet(self, token_id: int, *, is_drawn: bool) -> bool:
        """Go on with the tokens that are expected as far as they come, and with what was fed of them; return whether one has come."""
        before = self._expected
        is_met, known = before.token_ids[0] == token_id, before.logits.get(self.cached + 1)
        if before.num_fed and before.is_guess and is_drawn and self.draft is not None:
            self.draft.note(before.kinds[0], is_met)
        # A forced token behind which nothing is known is fed again, so that those behind it can be scored.
        self._expected = before.after(token_id) if is_drawn or known is not None else NOTHING_EXPECTED
        if not before.num_fed or not is_met or not (is_drawn or known is not None):
            return False
        self.cached += 1
        self.logits, self._is_partial, self._is_guessed = known, False, before.is_guess
        if is_drawn and before.is_guess:
            self._note_draft("accepted_tokens")
        if known is not None:
            self._kept.put(self.cached, known)
        return True

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        self.want = Want.LEAVE


def _plus(count: int | None, start: int) -> int | None:
    return None if count is None else start + count


def _invalid_logits(length: int) -> InvalidLogits:
    return InvalidLogits(
        f"expected finite logits from the model after {length} tokens, got NaN or an infinity. "
        "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
    )
