"""`ForkProgram`: what one fork of a program does, as the program of its row: it executes the plans of a `ForkDriver` (rewind, append,
sample under a mask, write a span, wait), and requests the next when the row waits. Every token counts in the budget, also if it is rewound;
errors of the policies of a span are passed to the driver, all others, and those of the budget, end the row.
"""

from __future__ import annotations

from outlines_cont.engine.piece import Piece, RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.row_limits import RowLimits
from outlines_cont.engine.steering import append_all, follow, follow_policies
from outlines_cont.errors import BudgetError, DeadEnd, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch
from outlines_cont.programs.driver import End, ForkDriver, ForkPiece, ForkPlan, PieceOutcome, Read, Wait
from outlines_cont.programs.event import Append, Retract
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.row import APPENDED, FORCED, StateRow

# At how many of the last positions a row keeps logits, so that a controller may rewind to these without a forward.
_LOOK_BACK = 2

_NO_FORK = (
    "expected policies that return one branch or none in `control.gen`, got several, which fork. Fork the script: `await fork(n)` before "
    "`gen`, or return several branches from a `Controller`."
)


class ForkProgram(RowProgram):
    """What one fork of a program does.

    Between two spans a row is steered branch by branch: ends of text are ordinary tokens, and log-probabilities of forced text are computed
    when it is fed.

    Attributes:
        driver: decides what follows.
        fork_index: its number in the program.
        start: how many of its tokens are the prompt; those are never rewound.
        waits_for: the shared variables that it waits for.
        backtracked: how many tokens the last branch has removed.
        outcome: of the span that has ended since the driver was called last.
        driver_error: the error that its driver gets instead.
        is_idle: whether its last branch was to wait.
        feeds_before_call: whether all pending tokens are fed before its driver is called again.
        trace: the traceback of its driver if it has failed.
    """

    def __init__(self, driver: ForkDriver, between: Piece, start: int) -> None:
        """Begin after a prompt of `start` tokens; `between` is the piece between two spans."""
        self.driver = driver
        self.fork_index = 0
        self.start = start
        self.waits_for: tuple[str, ...] = ()
        self.backtracked = 0
        self.outcome: PieceOutcome | None = None
        self.driver_error: Exception | None = None
        self.is_idle = False
        self.feeds_before_call = False
        self.trace = ""
        self._between = between
        self._base = start

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """Whether pending tokens are fed while the driver is called."""
        return not self.is_idle and (self.driver.speculates or self.feeds_before_call)

    def appended_ids(self, row: Row) -> list[int]:
        """Return the tokens that were appended since the rewind of the last branch."""
        return row.token_ids[self._base :]

    def needs_call(self, row: Row) -> bool:
        """Return whether the driver is to be called now."""
        return row.status is RowStatus.CALLING and not (self.feeds_before_call and row.num_pending)

    def plan(self, row: Row) -> None:
        """Plan by the policies of a span; outside of one, have the driver called."""
        if not row.piece.is_last:
            follow_policies(row)
        if row.status is RowStatus.FORKING and not row.piece.is_last:
            row.refuse(UnsupportedBranch(_NO_FORK))
        if row.has_ended and not row.piece.is_last:  # the row itself continues
            self.outcome = PieceOutcome(row.piece_start, row.piece.finish_reason, row.piece.error)
            row.begin(self._between, start=self.start)
        elif row.piece.is_last and row.piece.owed:  # more than the context has room for
            row.piece.owed = []
            row.end("length")
        if row.has_ended:
            row.leave_when_scored()
        elif row.piece.is_last and row.status is RowStatus.WAITING and not self.waits_for:
            row.status = RowStatus.CALLING

    def act(self, row: Row, plan: ForkPlan) -> None:
        """Execute a plan, whose driver is called from now on."""
        self.driver = plan.driver
        row.status, self.outcome, self.driver_error = RowStatus.WAITING, None, None
        self.is_idle = self.feeds_before_call = False
        row.guarded(lambda: self._act(row, plan))

    def _act(self, row: Row, plan: ForkPlan) -> None:
        count = 0 if plan.keep is None else len(row.token_ids) - plan.keep
        if count > 0:
            row.rewind(count)
        if plan.token_ids:
            append_all(row, [*plan.token_ids], APPENDED if count > 0 else FORCED)
            self._end_beyond_context(row)
        if row.has_ended:
            return
        match plan.then:
            case End(error, trace):
                self.trace = trace
                if error is not None:
                    raise error
                row.end("stop")
            case Wait(names):
                self.waits_for = names
            case Read():
                self.feeds_before_call = True
            case ForkPiece(piece):
                row.begin(piece, is_last=False)
            case branch:
                self._follow(row, branch)

    def _follow(self, row: Row, branch: Branch) -> None:
        if branch.sample_mask is not None and not branch.sample_mask:
            raise DeadEnd(
                f"expected a token in the `sample_mask` of the controller after {row.excerpt}, got an empty `TokenSet`. Return no "
                "branch to stop; `TokenSet.all` is free sampling."
            )
        self.backtracked, self._base = branch.backtrack, len(row.token_ids) - branch.backtrack
        self.is_idle = not (branch.backtrack or branch.ff_tokens) and branch.sample_mask is None
        follow(row, branch)
        self._end_beyond_context(row)

    def _end_beyond_context(self, row: Row) -> None:
        if row.piece.owed and not row.has_ended:
            row.piece.owed = []
            row.end("length")

    def takes(self, row: Row, error: Exception) -> bool:
        """Pass an error in the policies of a span to the driver; any other ends the row."""
        return not row.piece.is_last and not isinstance(error, BudgetError)

    def appending(self, row: Row) -> None:
        """Count a token in the budget of the program."""
        row.job.used.spend_token()

    def appended(self, row: Row, token_id: int) -> None:
        """Record the event."""
        row.job.events.append(Append(self.fork_index, token_id, row.model.tokenizer.text_bytes([token_id])))

    def rewinding(self, row: Row, count: int) -> None:
        """Record the event."""
        removed = row.model.tokenizer.text_bytes(row.token_ids[len(row.token_ids) - count :])
        row.job.events.append(Retract(self.fork_index, count, len(removed)))


def forked_row(
    source: StateRow, driver: ForkDriver, model: LanguageModel, sampler: Sampler, counts: Meter, source_text: str
) -> Row:
    """Return the row of the first fork of a program; `source_text` describes the program, as JSON."""
    horizon = _LOOK_BACK if driver.speculates else 0
    limits = RowLimits.of(model, ()).without_ends()
    between = Piece(sampler=sampler, limits=limits, source=source_text, horizon=horizon)
    row = Row(source, model, between, counts=counts)
    row.program = ForkProgram(driver, between, len(row.token_ids))
    return row
