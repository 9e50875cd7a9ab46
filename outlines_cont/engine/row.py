"""`Row`: one running sequence with the methods that the engine loop calls. `plan` follows the merged branches of its policies (rewind,
append, exclude tokens) until it samples under a mask, waits, forks or ends; `chunk` and `wanted` are what it feeds; `take` appends the
token that was drawn. It ends where its policies stop it, or only end tokens are allowed, or one is drawn (unless a policy rewinds there),
at its length limits, which may cut forced tokens, and by an error, as in a policy, which ends this row alone.

It also begins drafts, and takes keys and values from other rows. Policies that neither sample, wait nor stop fail after 10,000 branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

from outlines_cont.engine.drafting.lookahead import MAX_TOKENS, Lookahead
from outlines_cont.engine.drafting.row_draft import RowDraft
from outlines_cont.engine.drawing.drawing import Draw, DrawInput
from outlines_cont.engine.guided.negative import NegativeSequence
from outlines_cont.engine.parts.logits_error import draw_error, invalid_logits
from outlines_cont.engine.parts.row_limits import RowLimits
from outlines_cont.engine.row_record import RowRecord, RowStatus
from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet, check_mask
from outlines_cont.policies.healing import NO_HEALING, Healing
from outlines_cont.policies.policy import Policy
from outlines_cont.state.row import APPENDED, FORCED, GENERATED, HEALED, Piece, StateRow
from outlines_cont.user_code import user_code_error

# The most branches of the policies of a row in one step.
_MAX_BRANCHES = 10_000


class Row(RowRecord):
    """One running sequence, as the engine loop uses it.

    A kind of row may override its public methods, such as `decide`, `refuse`, `end`, `request_sample`, `append` and `rewind`.

    Attributes:
        index: the number of the row in its job.
        forks: the branches to fork into, while it is forking.
    """

    draft: RowDraft | None
    negative: NegativeSequence | None

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
        """Begin a piece at the end of `source`, or resume its last one.

        Args:
            source: the state row to continue; it is not changed.
            policies: those of the row, at least one.
            model: defines the context and the ends of text.
            counts: where the row counts its work; the rows of a loop share one.
            max_tokens: the most tokens to append, forced ones included; None for the rest of the context.
            resume: resume the piece of `source` instead of beginning one.
            score_last: feed the forced tokens at the very end of the piece for their log-probabilities.
            source_text: the constraint of the piece, as JSON; see `Piece`.
            healing: the tokens that are removed from the end of `source` before the piece begins. A row that ends before their
                text is respelled leaves with the tokens of `source`.
            min_tokens: until the piece has this many tokens, no end is drawn unless nothing else is allowed.
            stop_token_ids: tokens that end the text, in addition to those of the model.
            negative, scale: the negative prompt and the scale of guidance; see `Guidance`. The piece ends where one of both
                sequences has reached the end of the context.
        """
        first = len(source.token_ids) - healing.count
        piece = source.piece if resume and source.piece is not None else Piece(first)
        super().__init__(source, piece, model, healing, is_resumed=resume, counts=counts, score_last=score_last)
        longest = None if max_tokens is None else len(self.tokens) + max_tokens
        limits = RowLimits.of(model, stop_token_ids).up_to(None if self.healed else longest)
        min_length = (piece.start if resume else first) + min_tokens
        # The tokens that respell a healed end do not count.
        self.limits = replace(limits, min_length=min_length, max_written=longest if self.healed else None)
        self.index = 0
        self.forks: list[Branch] = []
        self._source_text = source_text or self._source_text
        self._vocab_size = model.vocab_size
        self._sequences: list[list[int]] = []  # what is appended after some samples; see `Branch`
        self.guarded(lambda: self.begin_policies([*policies]))
        if negative is not None:
            self.negative = NegativeSequence(negative, self, self.feed.kept.num_places, scale)
            if self.limits.context_length is not None:
                room = self.limits.context_length - len(negative.token_ids)
                most = self.limits.max_length or self.limits.context_length
                self.limits = replace(self.limits, max_length=min(self.piece_start + room, most))

    # -- plan: follow the branches of the policies ---------------------------------------------------------------------

    def begin_policies(self, policies: Sequence[Policy[Any]]) -> None:
        """Set the policies of the piece, which advance over the tokens that it has already."""
        self.feed.kept.num_places = max((policy.horizon for policy in policies), default=0)
        self.policies.start(policies, self)

    def plan(self) -> None:
        """Follow branches until the row samples, waits, forks or has ended; does nothing while it waits for a forward."""
        if self.text.final is not None:
            self.text = self.text.with_final(self.final_until())  # a stream may have shown it since the last step
        if not self.awaits_forward:
            self.guarded(self.decide)

    def decide(self) -> None:
        """Follow branches until the row samples, waits, forks or has ended."""
        for _ in range(_MAX_BRANCHES):
            if self.has_ended:
                break
            branches = self._next_branches()
            if len(branches) > 1:
                self.forks, self.status = branches, RowStatus.FORKING
                return
            if branches and not self.follow(branches[0]):
                break
        else:
            decider = self.policies.decider.policy if self.policies.decider is not None else None
            raise UnsupportedBranch(
                f"expected policies that sample, wait or stop, but after {_MAX_BRANCHES:,} branches at {self.excerpt} none of them did; "
                f"{decider!r} has decided last. A policy that appends or backtracks must end after some steps."
            )
        self.leave_when_scored()

    def _next_branches(self) -> list[Branch]:
        """Return the branches to take; none where the policies stop the row, or one of them has rewound it at its end."""
        started = perf_counter()
        branches = self.policies.branches(self)
        self.counts.mask_seconds += perf_counter() - started
        if not branches:
            decider = self.policies.decider
            assert decider is not None
            self._end_text(decider.policy.finish_reason)
            if self.has_ended:  # no other policy has rewound
                self.stop = decider.policy.stop(decider.stack[-1])
        elif self._owed and not any(branch.is_rewind for branch in branches):
            # The rest of a forced text that a limit has cut, in place of what would be forced now.
            return [Branch(ff_tokens=[self._owed])]
        return branches

    def follow(self, branch: Branch) -> bool:
        """Execute a branch; return whether the policies are to be called again."""
        cuts = self._cut_by_stop(branch)
        if not self.policies.backtrack(branch, self, self._vocab_size):
            return True
        self.tokens.cuts += cuts
        if branch.sample_mask is not None:
            return self.request_sample(branch.sample_mask, branch.ff_tokens, branch.temperature)
        if branch.ff_tokens:
            self._append_forced(branch.ff_tokens[0], APPENDED if branch.backtrack else FORCED)
        elif not branch.is_rewind:
            self.status = RowStatus.WAITING
            return False
        return True

    def _cut_by_stop(self, branch: Branch) -> tuple[tuple[int, float, int], ...]:
        """Return what a branch removes because of a stop text: it was drawn, and counts in the score."""
        decider = self.policies.decider
        if not branch.backtrack or decider is None or decider.policy.stop(decider.stack[-1]) is None:
            return ()
        return self.tokens.drawn_from(len(self.token_ids) - branch.backtrack)

    def branched(self, branches: Sequence[Branch]) -> list[Self]:
        """Return this row and a fork for every other branch, each of which has followed its branch, or failed in it."""
        rows = self.split(len(branches))
        for row, branch in zip(rows, branches, strict=True):
            row.status, row.forks = RowStatus.WAITING, []
            row._follow_guarded(branch)
        return rows

    def _follow_guarded(self, branch: Branch) -> None:
        self.guarded(lambda: self.decide() if self.follow(branch) else self.leave_when_scored())

    def request_sample(self, mask: TokenSet, sequences: list[list[int]], temperature: float | None) -> bool:
        """Sample under a mask in this step; return True if the row was rewound instead, so that the policies are called again."""
        check_mask(mask, self._vocab_size, "sample_mask")
        mask = self.limits.with_ends(mask, len(self.token_ids) - self.tokens.kinds.count(HEALED, self.piece_start))
        left = self.policies.left(mask, len(self.token_ids))
        if not isinstance(mask, LazyTokenSet) and not (mask & self.limits.not_eos):
            if not (mask & self.limits.eos):
                raise DeadEnd(
                    f"no token is allowed after {self.excerpt}. "
                    "The policies of this row exclude each other; give the generator fewer of them."
                )
            if left:
                return self._end_text("constraint")
        if left is not mask and not left:
            self.policies.retry_earlier(self, "no other token is allowed")
            return True
        if self._room() == 0:
            self.end("length")
        else:
            self._need_logits(left)
            self.mask, self._sequences, self.temperature, self.status = left, sequences, temperature, RowStatus.SAMPLING
        return False

    def _append_forced(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, unless the first of them is excluded here."""
        exclusion = self.policies.exclusions.at(len(self.token_ids)) if kind == FORCED else None
        if exclusion is not None and token_ids[0] in exclusion.excluded:
            self.policies.retry_earlier(self, "the text that follows is forced")
        else:
            self.append_all(token_ids, kind)

    def append_all(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens without sampling, as many as the limits allow; the rest is appended if the piece is resumed."""
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
        """Return the log-probabilities of tokens that are known before they are fed; NaN, to be scored, for the others."""
        start, logits = len(self.token_ids), []
        if self.cached == start and self.logits is not None:
            logits = [self.logits, *self.feed.expected.logits_behind(start, token_ids[:-1])]
        known = [float(one.log_softmax(0)[token_id]) for token_id, one in zip(token_ids, logits, strict=False)]
        self.tokens.unscored = [*self.tokens.unscored, *range(start + len(known), start + len(token_ids))]
        if not all(map(math.isfinite, known if self.feed.is_drafted else known[1:])):
            self.fail(invalid_logits(self.excerpt))
        return known + [math.nan] * (len(token_ids) - len(known))

    def _room(self, token_ids: Sequence[int] = ()) -> int | None:
        """Return how many tokens may be appended, these first, of which healed ones do not count; None for any number."""
        if self.limits.max_written is None:
            return self.limits.room(len(self.token_ids), 0)
        healed = self.tokens.kinds.count(HEALED, self.tokens.first)
        return self.limits.room(len(self.token_ids), healed + self.text.num_healing(self.token_ids, token_ids))

    # -- ends and errors -----------------------------------------------------------------------------------------------

    def guarded(self, act: Callable[[], object]) -> None:
        """Call a function that calls policies; an error ends this row, and not the step of all rows."""
        try:
            act()
        except Exception as error:
            self.refuse(error)
        except SystemExit as error:
            self.refuse(user_code_error(error))

    def refuse(self, error: Exception) -> None:
        """Handle an error of a policy: the row fails with it."""
        self.fail(error)

    def _end_text(self, reason: str) -> bool:
        """End the piece unless a policy rewinds; return whether the policies are to be called again."""
        objection = self.policies.at_end(self)
        if objection is not None:
            return self.follow(objection)
        self.end(reason)
        return False

    # -- feed ----------------------------------------------------------------------------------------------------------

    @property
    def feeds_all(self) -> bool:
        """Whether all pending tokens are to be fed, for the logits after them."""
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
            return self.feed.num_pending(len(self.token_ids))
        last = self.tokens.unscored[-1] if self.status is RowStatus.SCORING and self.tokens.unscored else 0
        return max(last - self.cached, 0)

    def chunk(self) -> list[int]:
        """Return the pending ids, then the expected ones."""
        num, cached = self.num_pending, self.cached
        pending = self.token_ids[cached : cached + num]
        return [*pending, *self.feed.expected.token_ids[: num - len(pending)]]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which the row needs logits, ascending."""
        cached = self.cached
        indices = {index - 1 - cached for index in self.tokens.unscored if 0 <= index - 1 - cached < chunk_size}
        if self.feeds_all:
            # With kept logits a rewind by a policy needs no forward.
            last = len(self.token_ids) - 1 - cached
            first = max(self.piece_start - 1 - cached, last - self.feed.kept.num_places, 0)
            indices.update(range(first, chunk_size))
        return sorted(indices)

    def score(self, logprobs: Sequence[float]) -> None:
        """Set the log-probabilities of the first unscored tokens."""
        if not self.tokens.score(logprobs):
            self.guarded(lambda: self.fail(invalid_logits(self.excerpt)))  # policies describe the excerpt

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens other rows may have fed: all before the first after which the row needs logits."""
        return min([len(self.token_ids) - 1, *(index - 1 for index in self.tokens.unscored[:1])])

    def begin_with(self, kv: RowKV) -> None:
        """Take the keys and values of the first tokens, more of them than the row has."""
        count = len(kv) - self.cached
        self.base_kv = kv
        self.feed.cached += count
        self.counts.reused_tokens += count

    # -- draw ----------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: all pending tokens are fed, those of the negative prompt included."""
        if self.status is not RowStatus.SAMPLING or not self.feed.is_ready(len(self.token_ids)):
            return False
        return self.negative is None or self.negative.is_ready

    def make_masks(self) -> None:
        """Compute lazy masks that were not computed during the forward; an error of a policy is that of the row."""
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
        """The masks of the draws after the next forward: that of the row, and those behind draft tokens."""
        if self.status is not RowStatus.SAMPLING:
            return []
        return [self.mask] if self.draft is None else [self.mask, *self.draft.masks]

    @property
    def draw_input(self) -> DrawInput:
        """The input of the next draw. A greedy row takes no random number from its stream."""
        assert self.logits is not None
        drawing = self.job.drawing(self.temperature)
        uniform = self.stream.peek() if drawing.needs_random else None
        return DrawInput(len(self.token_ids), self.logits, self.mask, drawing, uniform)

    def fails(self, logprob: float, sampling_logprob: float) -> bool:
        """Return whether the row has failed, or fails now as the log-probabilities of its draw are not finite."""
        if not math.isfinite(logprob) or not math.isfinite(sampling_logprob):
            error = draw_error(self.excerpt, self.logits, self.negative is not None, sampling_logprob)
            if error is not None:
                self.fail(error)
        return self.error is not None

    def take(self, draw: Draw) -> None:
        """Append a sampled token, or end on it, and advance the stream of random numbers."""
        self.status = RowStatus.WAITING
        self.stream.take()
        if self.feed.is_drafted:
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
            if self.policies.states and self._room(follow[1:]) == 0:
                self._owed = follow[1:]  # policies may rewind or stop before the limit ends the piece
            else:
                self.append_all(follow[1:], FORCED)

    def _end_on(self, draw: Draw) -> None:
        """End the piece on an end token that was drawn, unless a policy rewinds."""
        ends = self.tokens.ends
        self.tokens.ends = (*ends, (len(self.token_ids), draw.logprob))
        self._end_text("stop")
        if not self.has_ended:
            self.tokens.ends = ends
        elif draw.token_id in self.limits.stop_tokens:
            self.stop = draw.token_id

    # -- drafts --------------------------------------------------------------------------------------------------------

    @property
    def can_draft(self) -> bool:
        """Whether draft tokens can be fed behind the pending tokens."""
        if self.draft is None or self.draft.is_off or self.feed.expected.token_ids:
            return False
        return self.status is RowStatus.SAMPLING and self.cached < len(self.token_ids)

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the next token; see `Policy.hint`."""
        return self.policies.has_hint(self)

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a draft that has only the hints of policies. It leaves room for the token that is drawn after it."""
        room = self._room()
        return Lookahead(
            self,
            self.policies.states,
            self.mask,
            self._sequences,
            eos=self.limits.eos,
            room=MAX_TOKENS if room is None else room - 1,
            vocab_size=self._vocab_size,
            temperature=self.temperature,
            takes_hints=takes_hints,
        )

    def plan_if_drafted(self) -> bool:
        """Plan if the last token was an accepted draft token; return whether the next can be drawn without a forward."""
        if not self.feed.is_drafted or self.status is not RowStatus.WAITING or self.cached < len(self.token_ids):
            return False
        self.plan()
        self.make_masks()
        return self.is_ready
