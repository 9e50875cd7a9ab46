"""`Row`: one running sequence with all that the engine loop calls: plan (by its policies), feed, take a drawn token, take a guess for
speculative decoding, share keys and values, fork, and a checkpoint for roll-back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from copy import copy
from time import perf_counter
from typing import Self

from outlines_cont.engine.drawing.drawing import Draw, DrawPlace
from outlines_cont.engine.guessing.expected import NOTHING_EXPECTED
from outlines_cont.engine.guessing.lookahead import MAX_GUESSED, Lookahead
from outlines_cont.engine.guessing.row_draft import RowDraft
from outlines_cont.engine.steered_row import SteeredRow, Want, invalid_logits
from outlines_cont.errors import DeadEnd, InvalidLogits
from outlines_cont.kv.row import RowKV
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet
from outlines_cont.state.row import FORCED, GENERATED

_INVALID = (
    "expected finite logits from the model after {}, got NaN, an infinity, or minus infinity for every token. "
    "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
)
_INVALID_GUIDANCE = (
    "expected finite logits from the model after the negative prompt and what was written behind {}, got NaN or an infinity. "
    "Try another negative prompt, a smaller scale, or `dtype='float32'`."
)
_DEAD_END = (
    "every token that the constraint allows after {} has probability zero in the model. "
    "The model itself masks tokens that the text needs; loosen the constraint, or use another model."
)


class Row(SteeredRow):
    """One running sequence, as the engine loop uses it.

    A kind of row may override what is public, such as `decide`, `refuse`, `end`, `want_sample`, `append` and `rewind`.

    Attributes:
        index: the number of the row in its job.
    """

    index: int
    draft: RowDraft | None

    # -- what the loop calls: plan, feed, draw -------------------------------------------------------------------------

    def plan(self) -> None:
        """Execute branches of the policies until the row has to sample, waits, or has ended; not where a decision is still open."""
        if self.text.final is not None:
            self.text = self.text.with_final(self.certain_until())  # what somebody may have shown since the last step
        if not self.awaits_forward:
            self.guarded(self.decide)

    @property
    def awaits_forward(self) -> bool:
        """Whether the row has decided what it wants, and tokens of it are to be fed before it has that."""
        if self.want is Want.SAMPLE:
            return self.num_pending > 0 or (self.shadow is not None and self.shadow.num_pending > 0)
        return self.want is Want.SCORE and self.num_pending > 0

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row has what it wants."""
        if self.feeds_all:
            return self.feed.num_pending(len(self.token_ids))
        last = self.tokens.unscored[-1] if self.want is Want.SCORE and self.tokens.unscored else 0
        return max(last - self.cached, 0)

    def chunk(self) -> list[int]:
        """Return the pending ids, and behind them those that are expected next."""
        num, cached = self.num_pending, self.cached
        pending = self.token_ids[cached : cached + num]
        return [*pending, *self.feed.expected.token_ids[: num - len(pending)]]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which the row needs logits, ascending."""
        cached = self.cached
        indices = {index - 1 - cached for index in self.tokens.unscored if 0 <= index - 1 - cached < chunk_size}
        if self.feeds_all:
            # What a policy may take back leaves logits to go on from, so nothing needs feeding again.
            last = len(self.token_ids) - 1 - cached
            first = max(self.piece_start - 1 - cached, last - self.feed.kept.num_places, 0)
            indices.update(range(first, chunk_size))
        return sorted(indices)

    def unscored(self, fed: Container[int]) -> list[tuple[int, int]]:
        """Return (index into the chunk, token id that follows there) of forced tokens that are scored by what was fed."""
        found = [(index - 1 - self.cached, self.token_ids[index]) for index in self.tokens.unscored]
        return [(index, token_id) for index, token_id in found if index in fed]

    def score(self, logprobs: Sequence[float]) -> None:
        """Take the log-probabilities of the first tokens in `unscored`."""
        if not self.tokens.score(logprobs):
            self.fail(invalid_logits(len(self.token_ids)))

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: all that is pending was fed, of the shadow, too."""
        if self.want is not Want.SAMPLE or not self.feed.is_ready(len(self.token_ids)):
            return False
        return self.shadow is None or self.shadow.is_ready

    def make_masks(self) -> None:
        """Have a lazy mask made, if it is not yet; its errors are the row's."""
        if isinstance(self.mask, LazyTokenSet) and self.is_ready:
            started = perf_counter()
            self.guarded(lambda: self.mask.words)
            if self.draft is not None:
                self.draft.make_masks()
            self.counts.mask_seconds += perf_counter() - started
        if self.draft is not None:
            self.draft.masks = []

    @property
    def next_masks(self) -> list[TokenSet]:
        """The masks under which tokens will be drawn after the next forward: one, and those behind tokens that were guessed."""
        if self.want is not Want.SAMPLE:
            return []
        return [self.mask] if self.draft is None else [self.mask, *self.draft.masks]

    @property
    def next_place(self) -> DrawPlace:
        """Where the next token is drawn. Greedy rows take no random number, so that their streams do not depend on their neighbours."""
        assert self.logits is not None
        drawing = self.job.drawing(self.temperature)
        uniform = self.stream.peek() if drawing.needs_random else None
        return DrawPlace(len(self.token_ids), self.logits, self.mask, drawing, uniform)

    def fails(self, logprob: float, sampling_logprob: float) -> bool:
        """Return whether no token can be drawn, as log-probabilities of a draw tell, and end the row with the reason."""
        if math.isfinite(logprob) and math.isfinite(sampling_logprob):
            return self.error is not None
        if self.logits is None or not self.logits.logsumexp(0).isfinite():
            self.fail(InvalidLogits(_INVALID.format(self.place)))
        elif self.shadow is not None and math.isnan(sampling_logprob):
            self.fail(InvalidLogits(_INVALID_GUIDANCE.format(self.place)))
        elif not math.isfinite(sampling_logprob):
            self.fail(DeadEnd(_DEAD_END.format(self.place)))
        return self.error is not None

    def take(self, draw: Draw) -> None:
        """Append a sampled token, or end on it; the random number that it was drawn with is spent."""
        self.want = Want.WAIT
        self.stream.take()
        if self.feed.is_guessed:
            self.count_draft("saved_forwards")
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
            if self.policies.tracks and self._room(follow[1:]) == 0:
                self._owed = follow[1:]  # policies that go back or stop do so before the limit ends the piece
            else:
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
        if self.draft is None or self.draft.is_off or self.want is not Want.SAMPLE or self.feed.expected.token_ids:
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
        assert self.draft is not None
        self.feed.expected = self.draft.begin(found)
        self.count_draft("proposed_tokens", found.num_drawn)
        found.lend_states(self.policies.tracks)
        if self.shadow is not None:
            self.shadow.expect(found.token_ids)

    def places_ahead(self) -> list[DrawPlace]:
        """Return where tokens are drawn next if what was guessed comes true; none where both sequences of guidance decide it."""
        if self.shadow is not None or self.draft is None:
            return []
        return self.draft.places(len(self.token_ids), self.feed.expected, self.job.drawing, self.stream)

    def foreseen(self) -> Draw | None:
        """Return the draw that was made ahead for the present end of the row, if all that decides it is the same now."""
        return None if self.draft is None else self.draft.foreseen(self.next_place)

    def plan_if_guessed(self) -> bool:
        """Plan on where what was drawn last is what was guessed; return whether the next token can be drawn, without a forward."""
        if not self.feed.is_guessed or self.want is not Want.WAIT or self.cached < len(self.token_ids):
            return False
        self.plan()
        self.make_masks()
        return self.is_ready

    # -- keys and values -----------------------------------------------------------------------------------------------

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
        """Return the keys and values taken from others, to feed these tokens itself; return whether there were such."""
        if self.base_kv is self.source.kv:
            return False
        self.base_kv = self.source.kv
        self.counts.reused_tokens -= max(self.cached - self.source_cached, 0)
        self.feed.cached = min(self.cached, self.source_cached)
        self.feed.expected = self.feed.expected.unfed()
        return True

    # -- checkpoints and forks -----------------------------------------------------------------------------------------

    def checkpoint(self) -> Callable[[], None]:
        """Return what brings the row back to what it is now; see `Checkpoint`. It may be called several times.

        Of keys and values only those of the source are left then; the others are fed again.

        Cost: 3 us and more for every policy, whatever the length.
        """
        attributes, length, drawn = vars(self).copy(), len(self.token_ids), self.stream.drawn
        tokens, feed = self.tokens.checkpoint(), self.feed.checkpoint(self.source.logits)
        policies = self.policies.checkpoint()

        def undo() -> None:
            vars(self).update(attributes)
            self.tokens, self.feed, self.policies = tokens.at(length), feed.restored(), policies()
            self.stream = self.stream.at(drawn)
            if self.feed.expected.is_guess:
                self.feed.expected = NOTHING_EXPECTED
            if self.draft is not None:
                self.draft.cut(length)
                self.draft.forget()
            self.lose(self.source_cached)
            if self.shadow is not None:
                self.shadow.restore()
            if self.cached < length:
                self.feed.logits = None
            if self.want is Want.SAMPLE:
                self._need_logits(self.mask)

        return undo

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
        """Return a second row that continues independently from here; its random numbers are the same."""
        fork = copy(self)
        fork.stream = self.stream.close().open()
        fork.tokens, fork.feed = self.tokens.fork(), self.feed.fork()
        fork.policies, fork.draft = self.policies.fork(), None if self.draft is None else self.draft.fork()
        fork._owed, fork._sequences = [*self._owed], [*self._sequences]
        fork.shadow = None if self.shadow is None else self.shadow.fork(fork)
        return fork

    @property
    def num_scored(self) -> int:
        """The index of the first token whose log-probability is not known yet; their number, where all are."""
        return len(self.token_ids) if self.is_over else self.tokens.num_scored
