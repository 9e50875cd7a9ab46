"""`SteeredRow`: a row steered by its policies: it executes their merged branches (rewind, append, exclude tokens, stop) until it has to
sample under a mask, wait or fork. It ends where only end tokens are allowed, and at its length limits, which may cut forced tokens. An
error in a policy ends its row alone; policies that never come to a sample fail after 10,000 branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from time import perf_counter
from typing import Any

from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.engine.parts.row_limits import RowLimits
from outlines_cont.engine.written_row import WrittenRow
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet, check_mask
from outlines_cont.policies.healing import NO_HEALING, Healing
from outlines_cont.policies.policy import Policy
from outlines_cont.state.row import APPENDED, FORCED, HEALED, Piece, StateRow
from outlines_cont.user_code import user_code_error

# How many branches the policies of a row may want in one step before one of them asks for a sample.
_MAX_ASKED = 10_000


class Want(Enum):
    """What a row needs from this step of the engine."""

    SAMPLE = "sample"
    SCORE = "score"
    WAIT = "wait"
    ASK = "ask"  # somebody else has to say what comes next; see `Job.ask`
    FORK = "fork"
    LEAVE = "leave"


class SteeredRow(WrittenRow):
    """A row whose next tokens its policies decide.

    Attributes:
        want: what the row needs from this step.
        mask: the tokens that may be sampled, where it wants a sample.
        forks: the branches to fork into, where it wants to fork.
    """

    shadow: Shadow | None

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
        piece = source.piece if resume and source.piece is not None else Piece(first)
        super().__init__(source, piece, model, healing, is_resumed=resume, counts=counts)
        self.limits = RowLimits.of(model, stop_token_ids)
        self._limit_piece((piece.start if resume else first) + min_tokens, max_tokens)
        self.index = self._num_forks = 0
        self.want = Want.WAIT
        self.mask = TokenSet.all
        self.forks: list[Branch] = []
        self._source_text = source_text or self._source_text
        self._score_last = score_last
        self._vocab_size = model.vocab_size
        self._sequences: list[list[int]] = []  # what is appended at once behind some samples
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

    @property
    def is_over(self) -> bool:
        """Whether the piece has ended and all that will be known of it is."""
        return self.has_ended and self.want is Want.LEAVE

    @property
    def feeds_all(self) -> bool:
        """Whether all that is pending is to be fed, for the logits after it."""
        return self.want is Want.SAMPLE

    # -- policies decide -----------------------------------------------------------------------------------------------

    def begin_policies(self, policies: Sequence[Policy[Any]]) -> None:
        """Have policies steer the piece from its beginning, the tokens included that it has already."""
        self.feed.kept.num_places = max((policy.horizon for policy in policies), default=0)
        self.policies.start(policies, self)

    def decide(self) -> None:
        """Execute the branches of the policies until the row has to sample, waits, forks, or has ended."""
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
        elif self._owed and not any(branch.is_rewind for branch in branches):
            # A limit has cut a forced chunk. Going on, it is that chunk's rest, whatever would be forced from here.
            return [Branch(ff_tokens=[self._owed])]
        return branches

    def follow(self, branch: Branch) -> bool:
        """Execute a branch; return whether the policies are to be called again at once."""
        if branch.is_retry and not self.policies.begin_retry(self):
            return True
        if branch.is_rewind and self.policies.tracks:
            self.policies.check_progress(branch, self)
        if branch.backtrack:
            self.rewind(branch.backtrack)
        if branch.is_retry and not self.policies.exclude(branch, self, self._vocab_size):
            return True
        if branch.sample_mask is not None:
            return self.want_sample(branch.sample_mask, branch.ff_tokens, branch.temperature)
        if branch.ff_tokens:
            self._append_forced(branch.ff_tokens[0], APPENDED if branch.backtrack else FORCED)
        elif not branch.is_rewind:
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

    # -- forced text and limits ----------------------------------------------------------------------------------------

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
            self.fail(invalid_logits(start))
        return known + [math.nan] * (len(token_ids) - len(known))

    def _room(self, token_ids: Sequence[int] = ()) -> int | None:
        """Return how many tokens may come, these first; of those that only spell what was given back any number that the context takes."""
        if self.limits.max_written is None:
            return self.limits.room(len(self.token_ids), 0)
        healed = self.tokens.kinds.count(HEALED, self.tokens.first)
        return self.limits.room(len(self.token_ids), healed + self.text.num_healing(self.token_ids, token_ids))

    # -- ends and errors -----------------------------------------------------------------------------------------------

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
        """End the row with its own error; the others continue."""
        self.error = error
        self.end("error")

    def end(self, reason: str) -> None:
        """End the piece."""
        self.finish_reason = reason
        self.want = Want.LEAVE

    def leave_when_scored(self) -> None:
        """Have a row that has ended leave, or first the log-probabilities of its forced tokens scored."""
        if self.has_ended:
            is_owed = self.tokens.unscored and self._score_last and self.error is None
            self.want = Want.SCORE if is_owed else Want.LEAVE


def invalid_logits(length: int) -> InvalidLogits:
    """Return the error of a row of so many tokens behind which the logits are not finite."""
    return InvalidLogits(
        f"expected finite logits from the model after {length} tokens, got NaN or an infinity. "
        "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
    )
