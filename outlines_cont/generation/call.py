"""`Call`: one call of a generator. The call is checked, its prompt becomes one engine row per prompt and sample (None if it cannot run).
The rows are one job of the engine, whose steps its task awaits (with `on_progress`); those that end get their values, or the parser's
error. A snapshot is the state of all rows between two steps, where spans that have not ended count
as cut. The best of n samples is chosen here, beams are ranked by the engine's `BeamJob`. A cut without a `max_tokens` warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from fsm import FSMError
from fsm.errors import stacklevel_of_user
from outlines_cont.chats.message import is_conversation, with_schema
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.engine.beam import BeamJob
from outlines_cont.engine.job import Job, Step, Task
from outlines_cont.engine.piece import Piece
from outlines_cont.engine.row import Row
from outlines_cont.errors import (
    ContextLengthError,
    LengthWarning,
    MissingEOS,
    NoHypothesis,
    OptionError,
    ResumeError,
    UnsupportedModel,
    shortened,
)
from outlines_cont.generation.choice_rows import ChoiceRows
from outlines_cont.generation.choices.field_prior import FieldPrior
from outlines_cont.generation.choices.field_rows import FieldRows
from outlines_cont.generation.choices.particles import Particles
from outlines_cont.generation.exact_choice import temperature_of
from outlines_cont.generation.option_prior import OptionPrior, opened_prompts, warn_of_shares
from outlines_cont.generation.options import Options, warn_of_lengths
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.prompt import Opened, open_guidance, open_prompt
from outlines_cont.generation.tasks.progress import ProgressReporter
from outlines_cont.generation.thoughts import Answer, OpenThinking
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.healing import healing_of
from outlines_cont.samplers import BeamSearch, BestOf, Conditional
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.user_code import shielded


class Call:
    """One call of a generator, from its checks to the resulting state.

    Everything but the prompt of a single row is checked here, before anything runs. Then exhaust `task()`, and take `state`; or call
    `finished_state` for both.

    Attributes:
        maker, options, resumes: those of the call.
        rows: the running rows; None for one that cannot run.
        results: the result of each row, as far as it is known.
        batch_size, num_samples: B and S.
        counts: the work of the rows since the last step.
        job: the rows as the engine runs them; None before they are submitted.
    """

    def __init__(
        self,
        maker: PieceMaker,
        prompt: Any,
        options: Options,
        *,
        rng: Rng = None,
        resume: bool = False,
        score_last: bool = True,
    ) -> None:
        """Check a call.

        Args:
            maker, prompt, options, rng: see `Generator`.
            resume: continue the last piece of a state, with its options but for those that are given.
            score_last: feed forced tokens at the end, for their log-probabilities.
        """
        self.maker, self.options, self.resumes = maker, options, resume
        # What rows write, by the options of the pieces that they resume; these live as long as the rows of the prompt.
        written: dict[int, _Written] = {} if resume else {0: _Written.of(maker, options, scores_end=score_last)}
        opened = _opened(maker, prompt, options, rng, resume)
        for one in (row.piece for group in opened.rows for row in group if resume and _can_run(row, resume)):
            if one is not None and id(one.options) not in written:
                written[id(one.options)] = _Written.of(maker, options.resuming(one), scores_end=score_last)
        self._eos_token_ids = frozenset[int]().union(*(one.eos_token_ids for one in written.values()))
        self._seed = opened.seed
        self.batch_size = len(opened.rows)
        self.num_samples = max(map(len, opened.rows), default=0)
        self.counts = Meter(reused_tokens=opened.reused)
        self.results: list[StateRow] = []
        self.rows: list[Row | None] = []
        self.job: Job | None = None
        self._texts: ChoiceRows | None = None  # the rows that choose one of some texts as a whole
        self._fields: FieldRows | None = None  # those that choose the values of fields as wholes
        self._ended: dict[int, StateRow] = {}  # rows that have ended, with their values, by number
        self._is_collected = False
        self._begun: list[float] = []  # the importance of the rows before they write
        sources = [*chain.from_iterable(opened.rows)]
        ways = [_way_of(source, written, resume) for source in sources]
        negatives = self._negatives(sources, ways)
        healings = chain.from_iterable(opened.healing)
        for number, (source, healing, negative) in enumerate(zip(sources, healings, negatives, strict=True)):
            begun = _begun(source, maker, resume, None if negative is None else negative[0].error)
            self.results.append(begun)
            self._begun.append(begun.importance)
            way = ways[number]
            if not _can_run(begun, resume) or way is None:
                self.rows.append(None)
                continue
            heals_again = resume and way.options.heal
            given: dict[str, Any] = {
                "resume": resume and not heals_again,
                "healing": healing_of(maker.model, begun.token_ids, begun.num_seen) if heals_again else healing,
                "guidance": negative,
            }
            piece = way.piece_in(number // max(self.num_samples, 1))
            if maker.chooses:
                answer = Answer.choosing_by(maker.constraint, piece, negative)
            else:
                answer = Answer(piece, texts=self._texts_of(begun, way.options))
            if way.thinking is not None and (not resume or _is_thinking(begun)):
                self.rows.append(self._thinking_row(way.thinking, begun, answer, given))
            else:
                self.rows.append(self._answer_row(begun, answer, given))
        if resume:
            _check_resumed(self.results, self.rows, ways, maker.source)

    # -- run -----------------------------------------------------------------------------------------------------------

    def finished_state(self) -> SequenceState:
        """Run to the end, and return the final state."""
        for _ in self.engine.items(self.task()):
            pass
        return self.state()

    async def async_finished_state(self) -> SequenceState:
        """The asynchronous form, which does not block the event loop; a cancelled task releases its rows."""
        async for _ in self.engine.async_items(self.task()):
            pass
        return self.state()

    def task(self, read: Callable[[], Sequence[Any]] | None = None) -> Task:
        """Return the call as a task, whose items are what `read` returns after each step, if that is not empty.

        After the last one the results are complete, even if other calls took the steps. Closing the task earlier releases the rows.
        """
        job, report = self._make_job(), self._report
        step = Step(job, read)
        try:
            if self._texts is not None:
                yield from self._texts.task()
            self.engine.submit(job)
            while not step.is_over:
                yield step
                report()
                if step.found:
                    yield step.found
        finally:  # an interrupt may come between any two instructions, also before the first step
            self.engine.cancel(job)
            report(is_over=True)
            for chosen in (self._texts, self._fields):
                if chosen is not None:
                    chosen.close()
        self.collect()

    def _negatives(self, sources: Sequence[StateRow], ways: Sequence[_Written | None]) -> Sequence[_Negative]:
        """Return the negative prompt and the scale of each row; None without guidance."""
        model, guidance = self.maker.model, self.options.guidance
        if not self.resumes or "guidance" in self.options.given:
            shape = (self.batch_size, self.num_samples)
            found = [None] * self.batch_size if guidance is None else open_guidance(model, guidance, shape)
            return [found[number // self.num_samples] for number in range(len(sources))]
        kept: list[Any] = [None if way is None else way.options.guidance for way in ways]
        return open_guidance(model, kept, (len(kept), 1)) if any(kept) else kept

    def _answer_row(self, source: StateRow, answer: Answer, given: dict[str, Any]) -> Row:
        """Return the row that continues `source` with an answer."""
        written = source.piece if given["resume"] else None
        first = answer.first(source.token_ids, len(source.token_ids) if written is None else written.start)
        row = Row(source, self.maker.model, first, counts=self.counts, **given)
        row.program = answer.program_of(first)
        if answer.texts is not None:
            answer.texts.prepare(row)
        return row

    def _texts_of(self, source: StateRow, options: Options) -> ChoiceRows | FieldRows | None:
        """Return the rows that choose one of some texts as a whole, or fields, if this one is to do so; None if it draws token by token."""
        maker, written = self.maker, source.piece if self.resumes else None
        has_begun = written is not None and not written.is_thinking and written.start < len(source.token_ids)
        temperature = temperature_of(maker.sampler) or 0.0
        if maker.chooses_exactly(options) and not has_begun and maker.exact is not None:
            if self._texts is None:
                prior = None if options.against is None else OptionPrior(maker.exact, maker.model, options.against)
                self._texts = ChoiceRows(maker.exact, maker.model, temperature, prior)
            return self._texts
        if maker.fields is None or not maker.chooses_fields(options):
            return None
        if self._fields is None:
            against = options.against
            of_fields = None if against is None else FieldPrior(maker.model, opened_prompts(maker.model, against))
            self._fields = FieldRows(maker.model, maker.fields, temperature, of_fields)
        return self._fields

    def _thinking_row(
        self, thinking: OpenThinking, source: StateRow, answer: Answer, given: dict[str, Any]
    ) -> Row | None:
        """Return the row that thinks before an answer; None if that cannot begin, which is the error of the row."""
        written = source.piece if given["resume"] else None
        try:
            opened = source if written is not None else thinking.opened(source)
        except ContextLengthError as error:
            self.results[-1] = replace(source, error=error, finish_reason="error")
            return None
        piece = thinking.piece_before(answer, 0 if written is None else len(source.token_ids) - written.start)
        row = Row(opened, self.maker.model, piece, counts=self.counts, **given)
        thinking.think(row, written)
        return row

    def score_ended(self) -> None:
        """Compute the log-probabilities of the forced tokens that were not fed at the end of rows that do not run."""
        numbers = [number for number, row in enumerate(self.results) if self.rows[number] is None and row.unscored]
        if numbers:
            fed = self.maker.model.prefilled([replace(self.results[number], error=None) for number in numbers])
            for number, row in zip(numbers, fed, strict=True):
                self.results[number] = self.results[number].scored_by(row)

    def cancel(self) -> None:
        """Cancel the submitted rows that still run."""
        if self.job is not None:
            self.engine.cancel(self.job)

    def leave(self) -> SequenceState:
        """Cancel the rows, and return the present state."""
        if self.job is None or self._is_collected:
            return self.state()
        with self.engine.lock:
            state = self.snapshot()
            self.engine.cancel(self.job)
            self._report(is_over=True)
            return state

    def _make_job(self) -> Job:
        if isinstance(self.maker.sampler, BeamSearch):
            entries = [[row for i in entry if (row := self.rows[i]) is not None] for entry in self.entries]
            ended = [[self.results[i] for i in entry if self.rows[i] is None] for entry in self.entries]
            token_bytes = self.maker.model.tokenizer.token_bytes
            search, counts = self.maker.sampler, self.counts
            self.job = BeamJob(entries, ended, search, self._eos_token_ids, counts, self, token_bytes)
        else:
            self.job = Job(self.rows, self.counts)
        return self.job

    @cached_property
    def _report(self) -> Callable[..., None]:
        report = self.options.on_progress
        return (lambda **_: None) if report is None else ProgressReporter(report, self._progress)

    def _progress(self) -> tuple[int, int, int, int]:
        """Return the numbers of texts, of those that have ended and that have failed, and of their tokens."""
        with self.engine.lock:
            rows = [*filter(None, self.rows)]
            if isinstance(self.job, BeamJob):  # hypotheses move between rows
                rows = [] if self.job.is_over else self.job.rows
            ended = [row.error for row in rows if row.is_over]
            tokens = sum(len(row.token_ids) - row.piece_start for row in rows)
            running = len(rows) - len(ended)
            failed = sum(error is not None for error in [*ended, *(row.error for row in self.results)])
            return len(self.results), len(self.results) - running, failed, tokens

    # -- results -------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Any:
        """The engine of the model, which all calls share."""
        return self.maker.model.engine

    @property
    def entries(self) -> list[range]:
        """The indices of the rows of each batch entry."""
        samples = self.num_samples
        return [range(b * samples, (b + 1) * samples) for b in range(self.batch_size)]

    def finish(self, row: StateRow) -> StateRow:
        """Return a row that has ended with its value, or with the error of making it."""
        if row.error is not None:
            return row
        try:
            return shielded(self.maker.finish, row)
        except Exception as error:
            # A parser of the user, such as a pydantic validator, may reject one row; the others keep their values.
            return replace(row, error=error, finish_reason="error")

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row is complete, not cut."""
        return self.maker.is_whole(row)

    def ended_row(self, number: int) -> StateRow | None:
        """Return the result of row `number`, with its value, made once, as it may call a parser of the user; None if it still runs."""
        done = None if self.job is None else self.job.done.get(number)
        if done is not None and number not in self._ended:
            self._ended[number] = self.finish(done)
        return self._ended.get(number)

    def collect(self) -> None:
        """Collect the results of the rows, for `state`; valid once their `job` is over."""
        assert self.job is not None
        self._is_collected = True
        if isinstance(self.job, BeamJob):
            self._collect_hypotheses(self.job.ended)
        else:
            self.results = [self.ended_row(number) or begun for number, begun in enumerate(self.results)]
        self._warn_of_cuts()
        if self._texts is not None:
            self._texts.warn()
        if self._fields is not None and self._fields.prior is not None:
            warn_of_shares(self._fields.prior.shares)

    def state(self) -> SequenceState:
        """Return the final state, with the samples that `best_of` or `conditional` keeps; valid after `task`."""
        state = self._state_of(self.results)
        sampler = self.maker.sampler
        if not isinstance(sampler, BestOf):
            return state
        particles = Particles(sampler, self.is_whole, resumes=self.resumes)
        entries = zip(state.rows, self.entries, strict=True)
        rows = tuple(particles.kept(group, [self._begun[i] for i in entry]) for group, entry in entries)
        particles.warn()
        return replace(state, rows=rows)

    def snapshot(self) -> SequenceState:
        """Return the state between two steps; unfinished spans count as cut, and can be resumed."""
        with self.engine.lock:
            running = [(i, row) for i, row in enumerate(self.rows) if row is not None and self.ended_row(i) is None]
            results = [self.ended_row(i) or begun for i, begun in enumerate(self.results)]
            for (i, row), cut in zip(running, self.engine.snapshots([row for _, row in running]), strict=True):
                # A row that has ended leaves with the next step.
                results[i] = self.finish(cut) if row.has_ended and row.piece.ends_row else cut
            return self._state_of(results)

    def _state_of(self, results: Sequence[StateRow]) -> SequenceState:
        rows = tuple(tuple(results[entry.start : entry.stop]) for entry in self.entries)
        return SequenceState(self.maker.model, rows, self._seed)

    def _collect_hypotheses(self, found: list[list[StateRow]]) -> None:
        streams = [[self.results[i].stream for i in entry] for entry in self.entries]
        count = self.num_samples = max(map(len, found), default=0)
        padded = [rows + [_missing_hypothesis(rows)] * (count - len(rows)) if rows else [] for rows in found]
        # A search draws nothing, so streams belong to the index of a sample: two rows of a state never have the same.
        self.results = [
            replace(row, stream=own[i] if i < len(own) else own[0].fork(i))
            for rows, own in zip(padded, streams, strict=True)
            for i, row in enumerate(rows)
        ]

    def _warn_of_cuts(self) -> None:
        if self.options.has_max_tokens:
            return
        limit = self.options.max_tokens
        cut = [row for row in self.results if row.finish_reason == "length" and row.piece and not _is_thinking(row)]
        if any(len(row.token_ids) - row.piece.start >= (limit or 0) for row in cut if row.piece):
            warnings.warn(
                f"{len(cut)} of {len(self.results)} texts were cut after {limit} tokens, the most tokens of a piece if `max_tokens` is "
                "not given. Pass `max_tokens=...` (None is up to the context), or bound the text: strings by `maxLength`, arrays by "
                "`maxItems`. `continuous(generator).resume(state)` continues it.",
                LengthWarning,
                stacklevel=stacklevel_of_user(),
            )


_Negative = tuple[StateRow, float] | None


@dataclass(frozen=True, slots=True)
class _Written:
    """What rows write that have the same options."""

    options: Options
    eos_token_ids: frozenset[int]
    piece: Piece
    thinking: OpenThinking | None

    @classmethod
    def of(cls, maker: PieceMaker, options: Options, *, scores_end: bool) -> _Written:
        """Return what a generator writes by some options, which are checked."""
        eos_token_ids = _checked_eos(maker, options)
        _check_search(maker, options)
        piece = maker.piece(options, scores_end=scores_end)
        return cls(options, eos_token_ids, piece, _opened_thinking(maker, options))

    def piece_in(self, batch: int) -> Piece:
        """Return the piece in a batch entry, which keeps its own guidance."""
        if not isinstance(self.options.guidance, tuple):
            return self.piece
        return replace(self.piece, options=self.options.kept(batch))


def _way_of(row: StateRow, written: dict[int, _Written], resume: bool) -> _Written | None:
    """Return what a row writes; None for one that does not go on."""
    if not resume:
        return written[0]
    return written.get(id(row.piece.options)) if row.piece is not None and _can_run(row, resume) else None


def _check_resumed(
    results: Sequence[StateRow], rows: Sequence[Row | None], ways: Sequence[_Written | None], source: str
) -> None:
    """Raise if a state that is to be resumed was not cut by the generator with this constraint."""
    if any(way and not way.thinking and _is_thinking(row) for way, row in zip(ways, results, strict=True)):
        raise ResumeError(
            "expected `thinking` for a state that was cut while the model thought, before its answer, got none. Pass it again: "
            "`continuous(generator).resume(state, thinking=True)`."
        )
    if results and not any(row.piece for row in results):
        raise ResumeError(
            "expected a state whose last piece was cut, got one in which nothing was generated, or text was appended since. "
            "Begin a new piece with `continuous(generator)(state)`."
        )
    for result in results:
        if result.piece and result.piece.source not in ("", source):
            raise ResumeError(
                f"expected a state that this generator has cut ({shortened(source, 120)}), but its last piece is one of "
                f"{shortened(result.piece.source, 120)}. Resume with the generator that made it."
            )
    for row in filter(None, rows):
        if isinstance(row.error, FSMError):
            raise ResumeError(
                "expected a state that this generator has cut, but its last piece is not a prefix of what the generator "
                f"writes ({row.error}). Resume with the generator that made it."
            ) from row.error


def _checked_eos(maker: PieceMaker, options: Options) -> frozenset[int]:
    """Return the ids that end a text; raise if nothing limits the text."""
    found = maker.model.eos_token_ids.union(options.stop_token_ids)
    is_limited = options.has_max_tokens and options.max_tokens is not None
    if not found and not is_limited and not options.stop_at:
        raise MissingEOS(
            "expected a model with an end-of-sequence token, got one without, so the text would never end. "
            "Pass `max_tokens` or `stop_at`, or set `eos_token_id` in the generation config."
        )
    return found


def _check_search(maker: PieceMaker, options: Options) -> None:
    """Raise if beam search is requested of a model without batching, with guidance, or of a reply that begins with a choice."""
    if not isinstance(maker.sampler, BeamSearch):
        return
    if maker.chooses:
        raise OptionError(
            f"expected a sampler that draws token by token for a reply that is a text behind {maker.head!r}, or calls, got "
            f"{maker.sampler!r}. Use `samplers.best_of(n)`, or `tool_choice='none'` or `'required'`.",
            "sampler",
        )
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
    if maker.shown_schema:
        prompt = _showing(prompt, maker.shown_schema, maker.model)
    if isinstance(maker.sampler, BestOf) and not resume:
        is_list = isinstance(prompt, list | tuple)
        items = prompt if is_list else [prompt]
        if any(isinstance(item, SequenceState) and item.batch_size for item in items):
            num_samples = None
        forked = [item.fork(maker.sampler.samples) if isinstance(item, SequenceState) else item for item in items]
        prompt = forked if is_list else forked[0]
    thinks = maker.thinking_of(options) is not None
    opened = open_prompt(maker.model, prompt, num_samples, rng, heal=options.heal and not resume, thinks=thinks)
    if maker.unbounded and not options.has_max_tokens and not resume:
        warn_of_lengths(maker.model, maker.source, maker.unbounded, options.max_tokens)
    return opened


def _showing(prompt: Any, schema: str, model: LanguageModel) -> Any:
    """Return a prompt whose conversations show the text of a schema; a state is as it is. Raise for anything else."""
    if is_conversation(prompt):
        return with_schema(prompt, schema, has_system=ChatTemplate.of(model, None, {}).has_system)
    if isinstance(prompt, list) and prompt:
        return [_showing(item, schema, model) for item in prompt]
    if not isinstance(prompt, SequenceState):
        raise OptionError(
            f"expected a conversation with `show_schema`, which has a message of the system, got {shortened(repr(prompt))}. "
            "Write `fsm.schema_text(schema)` into the prompt yourself (`{{ schema_text }}` in a template of an extractor).",
            "show_schema",
        )
    return prompt


def _opened_thinking(maker: PieceMaker, options: Options) -> OpenThinking | None:
    """Return how a call thinks; raise for what does not go together with it."""
    thinking = maker.thinking_of(options)
    if thinking is None:
        return None
    given = {"sampler": isinstance(maker.sampler, BeamSearch), "guidance": options.is_guided, "heal": options.heal}
    name = next((name for name, is_given in given.items() if is_given), None)
    if name is not None:
        advice = {
            "sampler": "Let the model think by another generator, and search from its state; or take `samplers.best_of(n)`.",
            "guidance": "The negative prompt would not have the thoughts: let the model think by another generator, and pass its state.",
            "heal": "Thoughts begin after a mark, so there is nothing to heal: omit it.",
        }
        raise OptionError(f"expected no such `{name}` together with `thinking`. {advice[name]}", name)
    return OpenThinking.of(thinking, maker.model, maker.head)


def _is_thinking(row: StateRow) -> bool:
    return row.piece is not None and row.piece.is_thinking


def _begun(row: StateRow, maker: PieceMaker, resume: bool, error: Exception | None) -> StateRow:
    """Return a row as the start of a search, or of sampling; with the error of its negative prompt, if that has one."""
    sampler = maker.sampler
    if isinstance(sampler, BeamSearch | BestOf) and not isinstance(sampler, Conditional):
        row = row.searched(sampler.length_penalty) if isinstance(sampler, BeamSearch) else row.searched()
    return row if error is None or not _can_run(row, resume) else replace(row, error=error, finish_reason="error")


def _can_run(row: StateRow, resume: bool) -> bool:
    if row.error is not None:
        return False
    return not resume or (row.finish_reason == "length" and row.piece is not None)


def _missing_hypothesis(rows: Sequence[StateRow]) -> StateRow:
    """Return an empty row for a batch entry with fewer hypotheses than others."""
    if rows[-1].error is not None:
        return rows[-1]
    error = NoHypothesis(
        f"expected as many hypotheses as the other batch entries have, but there are only {len(rows)}: no other text is possible"
    )
    return replace(rows[-1], error=error, finish_reason="error", value=None, kv=None, logits=None)
