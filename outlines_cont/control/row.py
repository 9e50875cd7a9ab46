"""`ControlledRow`: a row of the engine that executes the plans of a `ForkDriver`: rewind, append, sample under a mask, generate a span
under policies, wait. Every token counts in the budget, also one that is rewound; errors of the policies of a span are passed to the driver,
all others, and those of the budget, end the row.
"""

from __future__ import annotations

import math
from dataclasses import replace

from outlines_cont.control.event import Append, Retract
from outlines_cont.control.fork_driver import End, ForkDriver, ForkPiece, ForkPlan, PieceOutcome, Read, Wait
from outlines_cont.engine.drafting.row_draft import RowDraft
from outlines_cont.engine.row import Row
from outlines_cont.engine.row_record import RowStatus
from outlines_cont.errors import BudgetError, DeadEnd, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.exclusions import NO_EXCLUSIONS
from outlines_cont.state.row import APPENDED, FORCED, StateRow

# At how many of the last positions a row keeps logits, so that a controller may rewind to these without a forward.
_LOOK_BACK = 2

_NO_FORK = (
    "expected policies that return one branch or none in `control.gen`, got several, which fork. Fork the script: `await fork(n)` before "
    "`gen`, or return several branches from a `Controller`."
)


class ControlledRow(Row):
    """One fork of a program.

    Outside of a generated span ends of text are ordinary tokens, and log-probabilities of forced text are computed when it is fed.

    Attributes:
        fork_index: its number in the program.
        start: how many of its tokens are the prompt; those are never rewound.
        waits_for: the shared variables that it waits for.
        backtracked: how many tokens the last branch has removed.
        outcome: of the generated span that has ended since the driver was called last.
        driver_error: the error that its driver gets instead.
        is_idle: whether its last branch was to wait.
        feeds_before_call: whether all pending tokens are fed before its driver is called again.
        trace: the traceback of its driver if it has failed.
    """

    def __init__(
        self, source: StateRow, driver: ForkDriver, model: LanguageModel, counts: Meter, source_text: str
    ) -> None:
        super().__init__(source, [], model, counts=counts, source_text=source_text)
        self.driver = driver
        self.fork_index = 0
        self.start = len(self.token_ids)
        self.waits_for: tuple[str, ...] = ()
        self.backtracked = 0
        self.outcome: PieceOutcome | None = None
        self.driver_error: Exception | None = None
        self.is_idle = False
        self.feeds_before_call = False
        self.trace = ""
        self._base = self.start
        self._piece: ForkPiece | None = None
        self._piece_error: Exception | None = None
        self._own_limits = self.limits
        self._leave_piece()

    @property
    def appended(self) -> list[int]:
        """The tokens that were appended since the rewind of the last branch."""
        return self.token_ids[self._base :]

    @property
    def feeds_all(self) -> bool:
        """Whether all pending tokens may be fed, also while its driver is called."""
        reads_ahead = self.driver.speculates or self.feeds_before_call
        return super().feeds_all or (self.status is RowStatus.CALLING and not self.is_idle and reads_ahead)

    @property
    def needs_call(self) -> bool:
        """Whether its driver is to be called now."""
        return self.status is RowStatus.CALLING and not (self.feeds_before_call and self.num_pending)

    def plan(self) -> None:
        """Plan by the policies of a generated span; outside of one, have the driver called."""
        if self.awaits_forward:
            return
        if self.has_ended and self._piece is None:
            self.leave_when_scored()
            return
        if self._piece is not None:
            super().plan()
            if self.status is RowStatus.FORKING:
                self.refuse(UnsupportedBranch(_NO_FORK))
            if self.has_ended and self._piece is not None:  # the row itself continues
                self.outcome = PieceOutcome(self.piece_start, self.finish_reason, self._piece_error)
                self.finish_reason = ""
                self._leave_piece()
        if self._piece is None and self.status is RowStatus.WAITING and not self.has_ended and not self.waits_for:
            self.status = RowStatus.CALLING

    def act(self, plan: ForkPlan) -> None:
        """Execute a plan, whose driver is called from now on."""
        self.driver = plan.driver
        self.status, self.outcome, self.driver_error = RowStatus.WAITING, None, None
        self.is_idle = self.feeds_before_call = False
        self.guarded(lambda: self._act(plan))

    def fail(self, error: Exception) -> None:
        """End the row with its own error."""
        self._piece = None
        super().fail(error)

    def _act(self, plan: ForkPlan) -> None:
        count = 0 if plan.keep is None else len(self.token_ids) - plan.keep
        if count > 0:
            self.rewind(count)
        if plan.token_ids:
            self.append_all([*plan.token_ids], APPENDED if count > 0 else FORCED)
        if self.has_ended:
            return
        match plan.then:
            case End(error, trace):
                self.trace = trace
                if error is not None:
                    raise error
                self.end("stop")
            case Wait(names):
                self.waits_for = names
            case Read():
                self.feeds_before_call = True
            case ForkPiece() as piece:
                self._begin_piece(piece)
            case branch:
                self.backtracked, self._base = branch.backtrack, len(self.token_ids) - branch.backtrack
                self.is_idle = not (branch.backtrack or branch.ff_tokens) and branch.sample_mask is None
                self.follow(branch)

    def _begin_piece(self, piece: ForkPiece) -> None:
        self._piece, self._piece_error = piece, None
        self._score_last = False
        self.policies.exclusions = NO_EXCLUSIONS
        self.text = replace(self.text, start=len(self.token_ids))
        self.limits = self._own_limits.up_to(None if piece.max_tokens is None else self.piece_start + piece.max_tokens)
        self.draft = None if piece.draft is None else RowDraft(piece.draft)
        self.begin_policies(piece.policies)

    def _leave_piece(self) -> None:
        self._piece, self.draft = None, None
        self._owed = []
        self.policies.states, self.policies.decider = [], None
        self.text = replace(self.text, start=self.start)
        self.feed.kept.num_places = _LOOK_BACK if self.driver.speculates else 0
        # Ends of text are ordinary tokens.
        self.limits = replace(self._own_limits.up_to(None), eos=TokenSet.none, not_eos=TokenSet.all)
        self._score_last = True
        self.status = RowStatus.WAITING

    def end(self, reason: str) -> None:
        """End the row, or only the generated span that it is in."""
        super().end(reason)
        if self._piece is not None:
            self.status = RowStatus.WAITING

    def leave_when_scored(self) -> None:
        """Leave, unless only a generated span has ended."""
        if self._piece is None:
            super().leave_when_scored()

    def refuse(self, error: Exception) -> None:
        """Pass an error in the policies of a generated span to the driver; any other ends the row."""
        if self._piece is None or isinstance(error, BudgetError):
            self.fail(error)
        else:
            self._piece_error = error
            self.end("error")

    def request_sample(self, mask: TokenSet, sequences: list[list[int]], temperature: float | None) -> bool:
        """Request a sampled token, in a generated span at its temperature."""
        if self._piece is None and not mask:
            raise DeadEnd(
                f"expected a token in the `sample_mask` of the controller after {self.excerpt}, got an empty `TokenSet`. Return no "
                "branch to stop; `TokenSet.all` is free sampling."
            )
        if temperature is None and self._piece is not None:
            temperature = self._piece.temperature
        return super().request_sample(mask, sequences, temperature)

    def append_all(self, token_ids: list[int], kind: bytes) -> None:
        """Append tokens; the row ends where they exceed the context."""
        room = math.inf if self.limits.context_length is None else self.limits.context_length - len(self.token_ids)
        super().append_all(token_ids if kind == FORCED else token_ids[: int(min(room, len(token_ids)))], kind)
        if self._piece is None and not self.has_ended and len(token_ids) > room:
            self._owed = []
            self.end("length")

    def append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        """Append one token, which counts in the budget of the program."""
        self.job.used.spend_token()
        super().append(token_id, kind, logprob, sampling_logprob)
        self.job.events.append(Append(self.fork_index, token_id, self._tokenizer.text_bytes([token_id])))

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens, and record the event."""
        removed = self._tokenizer.text_bytes(self.token_ids[len(self.token_ids) - count :])
        super().rewind(count)
        self.job.events.append(Retract(self.fork_index, count, len(removed)))
