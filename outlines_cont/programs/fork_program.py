"""Events of a program (append, retract, capture, fork, finish), and `Replay`, which folds them into the tokens, texts and captures of all
forks. It needs all of them from the first on: an event about an unknown fork, or a retraction beyond its tokens, is an `OptionError`.

`ForkDriver`: the interface by which a controller or a script decides what a fork does next: it is called with a `ForkView`, and returns
`ForkPlan`s (several fork): tokens to keep and append, then a `Branch`, a span to generate (`ForkPiece`), a forward, a wait, or the end.

`ForkProgram`: what one fork of a program does, as the program of its row: it executes the plans of a `ForkDriver` (rewind, append,
sample under a mask, write a span, wait), and requests the next when the row waits. Every token counts in the budget, also if it is rewound;
errors of the policies of a span are passed to the driver, all others, and those of the budget, end the row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from outlines_cont.engine.piece import Next, Piece, RowLimits, RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.steering import append_all, follow, follow_policies
from outlines_cont.errors import BudgetError, DeadEnd, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import APPENDED, StateRow


@dataclass(frozen=True, slots=True)
class Append:
    """A token that was appended to a fork; `data` are its bytes, none for a special token."""

    fork: int
    token_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Retract:
    """The number of tokens that were rewound at the end of a fork, and of their bytes; of the prompt `num_prompt_tokens` more."""

    fork: int
    num_tokens: int
    num_bytes: int
    num_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Capture:
    """A text that a fork has generated under a name."""

    fork: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A new fork, `child`, which continues the present text of `fork`."""

    fork: int
    child: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a fork; `reason` as in `Fork.finish_reason`."""

    fork: int
    reason: str
    error: Exception | None = None


Event = Append | Retract | Capture | Forked | Finish


class Replay:
    """Tokens, texts and captures of all forks after some events.

    Attributes:
        token_ids: of each fork, by its index: what the program has appended.
        data: the same as bytes.
        captures: of each fork, by name; a child has those of its parent.
        finished: the reason of each fork that has finished.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.token_ids: dict[int, list[int]] = {0: []}
        self.data: dict[int, bytes] = {0: b""}
        self.captures: dict[int, dict[str, str]] = {0: {}}
        self.finished: dict[int, str] = {}
        for event in events:
            self.push(event)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Replay:
        """Return the state after some events, such as `result.events`."""
        return cls(events)

    @property
    def texts(self) -> dict[int, str]:
        """The text of each fork, by its index."""
        return {fork: data.decode(errors="replace") for fork, data in self.data.items()}

    def push(self, event: Event) -> None:
        """Apply one event.

        Raises:
            OptionError: it is not an event, or an earlier one is missing.
        """
        if not isinstance(event, Event):
            raise OptionError(f"expected an event, such as `program.events()` yields, got {event!r}", "event")
        missing = event.fork not in self.token_ids
        if missing or (isinstance(event, Retract) and event.num_tokens > len(self.token_ids[event.fork])):
            what = f"fork {event.fork}, which no `Forked` has begun" if missing else "tokens that were never appended"
            raise OptionError(
                f"expected all events of a program, from its first on, got one about {what}: {event!r}. "
                "`result.events` has them all.",
                "event",
            )
        match event:
            case Append(fork, token_id, data):
                self.token_ids[fork].append(token_id)
                self.data[fork] += data
            case Retract(fork, num_tokens, num_bytes):
                del self.token_ids[fork][len(self.token_ids[fork]) - num_tokens :]
                self.data[fork] = self.data[fork][: len(self.data[fork]) - num_bytes]
            case Capture(fork, name, text):
                self.captures[fork][name] = text
            case Forked(fork, child):
                self.token_ids[child] = [*self.token_ids[fork]]
                self.data[child] = self.data[fork]
                self.captures[child] = {**self.captures[fork]}
            case Finish(fork, reason):
                self.finished[fork] = reason

    def __repr__(self) -> str:
        return f"Replay({self.texts!r}, finished={self.finished!r})"


class SpanPlanner(Protocol):
    """What plans the beginning of a span in place of its policies, such as a choice of whole texts."""

    def plan(self, row: Row) -> bool:
        """Write the span, or leave it to the policies; return False while the row waits, with `RowStatus.CALLING`."""

    def close(self, row: Row) -> None:
        """Release what the row waits for; called when it ends before the span has begun."""


@dataclass(frozen=True, slots=True, eq=False)
class ForkPiece:
    """Write a span, by its policies unless there is a `planner`."""

    piece: Piece
    planner: SpanPlanner | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until all of some shared variables were written."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Feed all pending tokens, so that forks share their keys and values, then call the driver again."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Stop the fork, with an error and its traceback if it has failed."""

    error: Exception | None = None
    trace: str = ""


Then = Branch | ForkPiece | Wait | Read | End
"""What a fork does after it has removed and appended tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceOutcome:
    """How a generated span has ended."""

    start: int  # index of its first token
    reason: str  # see `StateRow.finish_reason`
    stop: str | int | None = None  # the stop text that has ended it
    error: Exception | None = None  # the error of its policies


@dataclass(frozen=True, slots=True, eq=False)
class ForkView:
    """The state of a fork when its driver is called."""

    token_ids: Sequence[int]  # all of its tokens, prompt included; not changed during the call, nor by the driver
    cached: int  # how many of them were fed
    backtracked: int  # how many tokens the last branch has removed
    appended: list[int]  # the tokens that were appended since then
    reserve: Callable[[int], None]  # counts forks; raises `ForkBudgetError`
    spend_step: Callable[[], None]  # counts a step; raises `StepBudgetError`
    outcome: PieceOutcome | None = None  # of the generated span that has ended since the last call
    error: Exception | None = None  # with which a wait has ended


class ForkDriver(ABC):
    """Decides what one fork does next; implemented for controllers and scripts."""

    speculates: bool
    """Whether tokens are fed while the driver is called for what follows them."""

    @abstractmethod
    def call(self, view: ForkView) -> list[ForkPlan]:
        """Return how the fork continues: several plans to fork, the first of which is its own, none to stop."""

    @property
    def is_open(self) -> bool:
        """Whether `close` must be called when its fork ends."""
        return False

    def close(self) -> None:
        """Release resources; called in a thread, as `call` is, after its fork has ended."""
        return


@dataclass(frozen=True, slots=True, eq=False)
class ForkPlan:
    """What a fork does next: keep its first tokens, append some, then one `Then`."""

    driver: ForkDriver  # decides what it does after that
    then: Then  # what it does after appending
    keep: int | None = None  # how many of its first tokens it keeps, None for all
    token_ids: tuple[int, ...] = ()  # the tokens to append to them
    captures: tuple[tuple[str, str], ...] = ()  # names and texts that were captured since the last plan
    log: str = ""  # what was logged since then
    parent: int = 0  # of several forks, the index of the plan that it is forked from


# At how many of the last positions a row keeps logits, so that a controller may rewind to these without a forward.
_LOOK_BACK = 2


class ForkProgram(RowProgram):
    """What one fork of a program does.

    Between two spans a row is steered branch by branch: ends of text are ordinary tokens, and log-probabilities of forced text are computed
    when it is fed.

    Attributes:
        driver: decides what follows.
        fork_index, parent: its number in the program, and that of the fork that it was forked from, if it was.
        captures, log: what it has captured and logged.
        start: how many of its first tokens are those of the prompt.
        waits_for: the shared variables that it waits for.
        backtracked: how many tokens the last branch has removed.
        outcome: of the span that has ended since the driver was called last.
        driver_error: the error that its driver gets instead.
        is_idle: whether its last branch was to wait.
        planner: what plans the span that has begun, in place of its policies; None for these.
        feeds_before_call: whether all pending tokens are fed before its driver is called again.
        trace: the traceback of its driver if it has failed.
    """

    def __init__(self, driver: ForkDriver, between: Piece, start: int) -> None:
        """Begin after a prompt of `start` tokens; `between` is the piece between two spans."""
        self.driver = driver
        self.fork_index = 0
        self.parent: int | None = None
        self.captures: dict[str, str] = {}  # replaced, never changed, as a copy is restored if a step is undone
        self.log = ""
        self.start = start
        self.waits_for: tuple[str, ...] = ()
        self.backtracked = 0
        self.outcome: PieceOutcome | None = None
        self.driver_error: Exception | None = None
        self.is_idle = False
        self.feeds_before_call = False
        self.planner: SpanPlanner | None = None
        self.trace = ""
        self._between = between
        self._base = start

    def become(self, fork_index: int, parent: ForkProgram) -> None:
        """Be the program of a new fork, number `fork_index`, which has what its parent has captured."""
        self.fork_index, self.parent = fork_index, parent.fork_index
        self.captures, self.log = parent.captures, ""

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """Whether pending tokens are fed while the driver is called, or the planner of a span waits."""
        return self.planner is not None or (not self.is_idle and (self.driver.speculates or self.feeds_before_call))

    def appended_ids(self, row: Row) -> list[int]:
        """Return the tokens that were appended since the rewind of the last branch."""
        return row.token_ids[self._base :]

    def needs_call(self, row: Row) -> bool:
        """Return whether the driver is to be called now."""
        if self.planner is not None:
            return False
        return row.status is RowStatus.CALLING and not (self.feeds_before_call and row.num_pending)

    def plan(self, row: Row) -> None:
        """Plan by the planner or the policies of a span; outside of one, have the driver called."""
        if row.piece.spec.then is not None:
            if self.planner is None:
                follow_policies(row)
            else:
                self._plan_by(self.planner, row)
            return
        self._end_beyond_context(row)
        if row.has_ended:
            row.leave_when_scored()
        elif row.status is RowStatus.WAITING and not self.waits_for:
            row.status = RowStatus.CALLING

    def _plan_by(self, planner: SpanPlanner, row: Row) -> None:
        # It may begin what follows the span, so what plans the span must not be there any more.
        self.planner = None
        if not planner.plan(row):
            self.planner = planner

    def end_span(self, row: Row) -> Next:
        """Note how a span of the row has ended; return the piece between it and the next."""
        self.planner = None
        self.outcome = PieceOutcome(row.piece_start, row.piece.finish_reason, row.piece.stop, row.piece.error)
        return Next(self._between, start=self.start)

    def close_span(self, row: Row) -> None:
        """Release what a span waits for that has not begun."""
        if self.planner is not None:
            self.planner.close(row)
            self.planner = None

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
            append_all(row, [*plan.token_ids], APPENDED)
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
            case ForkPiece(piece, planner):
                row.begin(replace(piece, then=_end_span))
                self.planner = planner
            case branch:
                self._follow(row, branch)

    def _follow(self, row: Row, branch: Branch) -> None:
        if branch.sample_mask is not None and not branch.sample_mask:
            raise DeadEnd(
                f"expected a token in the `sample_mask` of the controller after {row.excerpt}, got an empty `TokenSet`. Return no "
                "branch to stop; `TokenSet.all` is free sampling."
            )
        self.backtracked, self._base = branch.backtrack, len(row.token_ids) - branch.backtrack
        if self._base < row.piece_start:  # into the prompt
            row.begin(self._between, start=self._base)
        self.is_idle = not (branch.backtrack or branch.ff_tokens) and branch.sample_mask is None
        follow(row, branch)

    def _end_beyond_context(self, row: Row) -> None:
        if row.piece.owed and not row.has_ended:
            row.owe(())
            row.end("length")

    def takes(self, row: Row, error: Exception) -> bool:
        """Pass an error in the policies of a span to the driver; any other ends the row."""
        return row.piece.spec.then is not None and not isinstance(error, BudgetError)

    def appending(self, row: Row) -> None:
        """Count a token in the budget of the program."""
        row.job.used.token()

    def appended(self, row: Row, token_id: int) -> None:
        """Record the event."""
        row.job.events.append(Append(self.fork_index, token_id, row.model.tokenizer.text_bytes([token_id])))

    def rewinding(self, row: Row, count: int) -> None:
        """Record the event."""
        own = min(count, len(row.token_ids) - self.start)
        removed = row.model.tokenizer.text_bytes(row.token_ids[len(row.token_ids) - own :])
        row.job.events.append(Retract(self.fork_index, own, len(removed), count - own))
        self.start -= count - own


def _end_span(row: Row) -> Next:
    """Return what follows a span by the program of the row, which is another one in a fork, or after an undone step."""
    assert isinstance(row.program, ForkProgram)
    return row.program.end_span(row)


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
