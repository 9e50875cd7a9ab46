"""`CallRows`: the rows of one call of a generator and their results. The call is checked, its prompt becomes one engine row per prompt and
sample (None where it cannot run), and rows that end get their values, or the parser's error. A snapshot is the state of all rows between
two steps; there spans that have not ended count as cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fsm import FSMError
from outlines_cont.drafts.opening import open_draft
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import Piece
from outlines_cont.engine.row import Row
from outlines_cont.engine.row_limits import RowLimits
from outlines_cont.errors import MissingEOS, OptionError, ResumeError, UnsupportedModel, shortened
from outlines_cont.generation.lengths import warn_of_lengths
from outlines_cont.generation.negative_prompt import open_guidance
from outlines_cont.generation.options import Options, check_ids
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.prompt import Opened, open_prompt
from outlines_cont.interfaces import JobRunner
from outlines_cont.meter import Meter
from outlines_cont.samplers import BeamSearch, BestOf, greedy
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.user_code import shielded


class CallRows:
    """The rows of one call. Everything but the prompt of a single row is checked here, before anything runs.

    Attributes:
        maker, options: those of the call.
        rows: the running rows; None for one that cannot run, or that `Run.take_ended` has returned.
        results: the result of each row, as far as it is known.
        batch_size, num_samples: B and S.
        eos_token_ids: the ids that end a text.
        counts: the work of the rows since the last step.
        job: the rows as the engine runs them; None before they are submitted.
    """

    def __init__(
        self, maker: PieceMaker, prompt: Any, options: Options, rng: Rng, *, resume: bool, score_last: bool
    ) -> None:
        policies = maker.policies(options)
        self.maker, self.options = maker, options
        self.eos_token_ids = _checked_eos(maker, options)
        _check_search(maker, options)
        opened = _opened(maker, prompt, options, rng, resume)
        self._seed = opened.seed
        self.batch_size = len(opened.rows)
        self.num_samples = max(map(len, opened.rows), default=0)
        self.counts = Meter(reused_tokens=opened.reused)
        self.results: list[StateRow] = []
        self.rows: list[Row | None] = []
        self.job: Job | None = None
        self._values: dict[int, StateRow] = {}  # rows that have ended, with their values
        is_search = isinstance(maker.sampler, BeamSearch)
        piece = Piece(
            policies=policies,
            sampler=greedy() if isinstance(maker.sampler, BeamSearch) else maker.sampler,
            limits=RowLimits.of(maker.model, options.stop_token_ids),
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            drafter=None
            if is_search
            else open_draft(maker.draft_of(options), maker.model),  # beam search uses no draft
            source=maker.source,
            # Hypotheses are compared by all of their tokens.
            scores_end=score_last or isinstance(maker.sampler, BeamSearch | BestOf),
        )
        negatives = open_guidance(maker.model, options.guidance, (self.batch_size, self.num_samples))
        negative_of = [negatives[b] for b, group in enumerate(opened.rows) for _ in group]
        entries = chain.from_iterable(opened.rows), chain.from_iterable(opened.healing), negative_of
        for source, healing, negative in zip(*entries, strict=True):
            begun = _begun(source, maker, resume, None if negative is None else negative[0].error)
            self.results.append(begun)
            given: dict[str, Any] = {"resume": resume, "healing": healing, "guidance": negative}
            runs = _can_run(begun, resume)
            self.rows.append(Row(begun, maker.model, piece, counts=self.counts, **given) if runs else None)
        if resume:
            self._check_resumed()

    @property
    def engine(self) -> JobRunner:
        """The engine of the model, which all calls share."""
        return self.maker.model.engine

    @property
    def entries(self) -> list[range]:
        """The indices of the rows of each batch entry."""
        samples = self.num_samples
        return [range(b * samples, (b + 1) * samples) for b in range(self.batch_size)]

    def ended_row(self, row: Row) -> StateRow | None:
        """Return the result of a row, with its value; None if it still runs."""
        done = None if self.job is None else self.job.done.get(row.index)
        return None if done is None else self.finished(row.index, done)

    def finish(self, row: StateRow) -> StateRow:
        """Return a row that has ended with its value, or with the error of making it."""
        if row.error is not None:
            return row
        try:
            return shielded(self.maker.finish, row)
        except Exception as error:
            # A parser of the user, such as a pydantic validator, may reject one row; the others keep their values.
            return replace(row, error=error, finish_reason="error")

    def finished(self, at: int, row: StateRow) -> StateRow:
        """Return `finish` of row number `at` of the job, called once: it may call a parser of the user."""
        if at not in self._values:
            self._values[at] = self.finish(row)
        return self._values[at]

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row is complete, not cut."""
        return self.maker.is_whole(row)

    def release(self, number: int, at: int) -> None:
        """Drop a row that has ended, row number `at` of the job, and its value."""
        self.rows[number] = None
        self._values.pop(at, None)

    def state(self, results: Sequence[StateRow] | None = None) -> SequenceState:
        """Return a state of the given results, by default the known ones."""
        found = self.results if results is None else results
        rows = tuple(tuple(found[entry.start : entry.stop]) for entry in self.entries)
        return SequenceState(self.maker.model, rows, self._seed)

    def snapshot(self) -> SequenceState:
        """Return the state between two steps; unfinished spans count as cut, and can be resumed."""
        with self.engine.lock:
            results = [*self.results]
            done = {} if self.job is None else self.job.done
            running = [(i, row) for i, row in enumerate(self.rows) if row is not None]
            for at, (i, _) in enumerate(running):
                if at in done:
                    results[i] = self.finished(at, done[at])
            left = [(i, row) for at, (i, row) in enumerate(running) if at not in done]
            for (i, _), cut in zip(left, self.engine.snapshots([row for _, row in left]), strict=True):
                results[i] = cut
            return self.state(results)

    def _check_resumed(self) -> None:
        if self.results and not any(row.piece for row in self.results):
            raise ResumeError(
                "expected a state whose last piece was cut, got one in which nothing was generated, or text was appended since. "
                "Begin a new piece with `continuous(generator)(state)`."
            )
        source = self.maker.source
        for result in self.results:
            if result.piece and result.piece.source not in ("", source):
                raise ResumeError(
                    f"expected a state that this generator has cut ({shortened(source, 120)}), but its last piece is one of "
                    f"{shortened(result.piece.source, 120)}. Resume with the generator that made it."
                )
        for row in filter(None, self.rows):
            if isinstance(row.error, FSMError):
                raise ResumeError(
                    "expected a state that this generator has cut, but its last piece is not a prefix of what the generator "
                    f"writes ({row.error}). Resume with the generator that made it."
                ) from row.error


def _checked_eos(maker: PieceMaker, options: Options) -> frozenset[int]:
    """Return the ids that end a text; raise if `stop_token_ids` are invalid, or if nothing limits the text."""
    where = "as `stop_token_ids`, those of the model"
    check_ids(options.stop_token_ids, maker.model.vocab_size, "ids", where, "stop_token_ids")
    found = maker.model.eos_token_ids.union(options.stop_token_ids)
    is_limited = options.has_max_tokens and options.max_tokens is not None
    if not found and not is_limited and not options.stop_at:
        raise MissingEOS(
            "expected a model with an end-of-sequence token, got one without, so the text would never end. "
            "Pass `max_tokens` or `stop_at`, or set `eos_token_id` in the generation config."
        )
    return found


def _check_search(maker: PieceMaker, options: Options) -> None:
    """Raise if beam search is requested of a model without batching, or with guidance."""
    if not isinstance(maker.sampler, BeamSearch):
        return
    if not maker.model.can_stack:
        raise UnsupportedModel(
            f"expected a model whose rows can run in one batch, for beam search, got {maker.model!r}. "
            "Use `samplers.best_of(n)`, whose samples run one by one."
        )
    if options.is_guided:
        raise OptionError(
            f"expected a sampler that draws token by token together with `guidance`, got {maker.sampler!r}: beam search ranks texts by "
            "the log-probabilities of the model, without guidance. Use `samplers.greedy()` or `samplers.best_of(n)`.",
            "guidance",
        )


def _opened(maker: PieceMaker, prompt: Any, options: Options, rng: Rng, resume: bool) -> Opened:
    """Return the rows of the prompt; `best_of` forks the states in it, so the number of samples is then theirs."""
    num_samples = None if resume else maker.sampler.num_samples
    if isinstance(maker.sampler, BestOf) and not resume:
        is_list = isinstance(prompt, list | tuple)
        items = prompt if is_list else [prompt]
        if any(isinstance(item, SequenceState) and item.batch_size for item in items):
            num_samples = None
        forked = [item.fork(maker.sampler.samples) if isinstance(item, SequenceState) else item for item in items]
        prompt = forked if is_list else forked[0]
    opened = open_prompt(maker.model, prompt, num_samples, rng, heal=options.heal and not resume)
    if maker.unbounded and not options.has_max_tokens and not resume:
        warn_of_lengths(maker.model, maker.source, maker.unbounded, options.max_tokens)
    return opened


def _begun(row: StateRow, maker: PieceMaker, resume: bool, error: Exception | None) -> StateRow:
    """Return a row as the start of a search, or of sampling; with the error of its negative prompt, if that has one."""
    sampler = maker.sampler
    if isinstance(sampler, BeamSearch | BestOf):
        row = row.searched(sampler.length_penalty) if isinstance(sampler, BeamSearch) else row.searched()
    return row if error is None or not _can_run(row, resume) else replace(row, error=error, finish_reason="error")


def _can_run(row: StateRow, resume: bool) -> bool:
    if row.error is not None:
        return False
    return not resume or (row.finish_reason == "length" and row.piece is not None)
