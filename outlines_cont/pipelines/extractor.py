"""`Extractor`: turns rows into JSON records by constrained generation with one model, at most `batch_size` at once, samples included
(continuous batching), in input order through a bounded reorder buffer of 16 batches; called with a list, frame, table or dataset it returns
one. A row that fails has its error as outcome; random numbers depend on `seed` and the row's prompt alone. `run`: from file to file, also
on Ray actors, with resume and an HTML report.

A row is rendered to a prompt; its record and each sample are a `_Span` of a `Window`, calls of one prompt, which are joined to one outcome;
another row can start as soon as one ends. A hash of seed and prompt seeds each call. The agreement of a value is the share of samples with
an equal one (a failed sample agrees with none). A record that is cut, invalid or not JSON fails its row alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch

import fsm
from fsm import FSMError
from fsm.errors import is_one_of
from outlines_cont import generate, samplers
from outlines_cont.chat import Chat, answering, with_ends
from outlines_cont.checks import (
    DEFAULT_MAX_TOKENS,
    MAX_SAMPLES,
    check,
    check_int,
    checked_bool,
    is_int,
    names_of,
    plain,
    unknown_option,
)
from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Task
from outlines_cont.errors import IncompleteOutput, OptionError, OutlinesContError, located_in
from outlines_cont.events.event import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.option_prior import opened_prompts
from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.stream import RunEvents
from outlines_cont.generation.tasks.progress import OnProgress
from outlines_cont.generation.tasks.window import Room, Window
from outlines_cont.generation.thinking import Thinking
from outlines_cont.interfaces import LanguageModel
from outlines_cont.near_names import NearNames
from outlines_cont.pipelines.abstaining import DEFAULT_SAMPLES, Abstaining
from outlines_cont.pipelines.calibration import Calibration, agreement, value_logprobs
from outlines_cont.pipelines.columns import RecordColumns, extracted, shape_of
from outlines_cont.pipelines.extraction import Extraction, Tally
from outlines_cont.pipelines.image_files import ImageFiles
from outlines_cont.pipelines.outcome import Confidence, Failure, InputFormat, Outcome, ShowValue, Usage
from outlines_cont.pipelines.prompt_template import MakePrompt, PromptTemplate
from outlines_cont.pipelines.ray_workers import WorkerOptions
from outlines_cont.pipelines.reading import RowSource
from outlines_cont.pipelines.record_schema import RecordSchema
from outlines_cont.pipelines.row_images import RowImages
from outlines_cont.pipelines.row_prompts import RowPrompts
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.file import name_of_model
from outlines_cont.state.row import FORCED, StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import Tokens

# Errors of rows, as opposed to bugs.
_OF_ROWS = (OutlinesContError, FSMError, torch.OutOfMemoryError)
# Look-ahead in batches: the most calls from the first unfinished one on; others start only after it has ended.
_AHEAD = 16


@dataclass(slots=True, eq=False)
class _Span:
    """What is written after the prompt of a row, its record or sample number `sample`, by a call; and then its result."""

    extractor: Extractor
    number: int
    sample: int
    prompt: Any
    error: Exception | None
    show: ShowValue | None
    steps: int = 0
    row: StateRow | None = None

    @property
    def length(self) -> int:
        """The number of its tokens, thoughts included."""
        if self.row is None or self.row.piece is None:
            return 0
        thoughts = self.row.piece.thoughts
        return len(self.row.token_ids) - (self.row.piece.start if thoughts is None else thoughts.start)

    def task(self) -> Task:
        """Return its call as a task, which shows the record while it is written."""
        self.steps = 0
        if self.error is not None:  # of its prompt
            return
        made, events = self.extractor, None
        maker = made._voter if self.sample and made._voter is not None else made._generator
        try:
            call = Call(maker, [self.prompt], made._options, rng=self._seeds(maker), score_last=made._is_scored)
            if self.show is not None and not self.sample:
                events = RunEvents(call, StreamOptions(True, 0, False, True))
            yield from call.task(lambda: self._note(events))
            (row,) = call.results
        except _OF_ROWS as error:
            self.error = error
        else:
            self.row, self.error = replace(row, kv=None, logits=None), row.error

    def _note(self, events: RunEvents | None) -> Sequence[Any]:
        """Count a step, and show the new parts of the record."""
        self.steps += 1
        if events is not None and self.show is not None:
            for event in events.pull():
                self.show(self.number, event.value, event.finish_reason not in ("", "length", "error"))
        return ()

    def _seeds(self, maker: PieceMaker) -> list[int] | None:
        """Return a digest of the prompt as seed, so that a record does not depend on the other rows or their order."""
        thinking = maker.thinking_of(self.extractor._options)
        used = (maker.sampler, None if thinking is None else thinking.sampler)
        if not any(getattr(sampler, "needs_random", False) for sampler in used):
            return None
        prompt = self.prompt.text if isinstance(self.prompt, Tokens) else str(self.prompt)
        if isinstance(self.prompt, SequenceState):
            prompt += "".join(f" {span.digest}" for group in self.prompt.rows for row in group for span in row.images)
        text = f"{self.extractor._seed}{f' {self.sample - 1}' if self.sample else ''} {prompt}"
        return [int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])]

    def value(self) -> Any:
        """Return the value of its call; raise its error, also if it was cut."""
        if self.error is not None:
            raise self.error
        assert self.row is not None
        if self.row.finish_reason == "length":
            raise IncompleteOutput(
                f"expected a whole record, but max_tokens={self.extractor._options.max_tokens} or the context of the model cut it. "
                "Raise `max_tokens` (--max-tokens), or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return self.row.value

    def dumped(self) -> Any:
        """Return its value as JSON; if it has failed, an object that is equal to no other."""
        try:
            return self.extractor.schema.dump(self.value())
        except Exception:
            return object()


def _asked(chat: Chat, content: Any, *, thinks: bool) -> SequenceState:
    """Return the state in which the reply to a message of the user begins."""
    asked = chat.user(content)
    return asked.state if thinks else answering(asked)


def _outcome(span: _Span, *votes: _Span) -> Outcome:
    usage, schema, is_scored = _usage(span, votes), span.extractor.schema, span.extractor._is_scored
    try:
        value = span.value()
        record = schema.dump(value)
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except Exception as error:  # a serializer of the user may raise anything, or return a value that is not JSON
        return Outcome(failure=Failure.of(error), usage=usage)
    assert span.row is not None
    tokenizer = span.extractor._generator.model.tokenizer
    outcome = Outcome(
        record,
        value=value,
        weight=_weight(span.row) if is_scored else None,
        usage=usage,
        logprobs=value_logprobs(span.row, tokenizer) if is_scored else {},
        agreement=agreement(record, [vote.dumped() for vote in votes]) if votes else {},
    )
    rule = span.extractor._abstaining
    return outcome if rule is None else rule.applied(outcome, span.row, tokenizer)


def _weight(row: StateRow) -> float:
    """Return the log-probability of a record, without the thoughts before it."""
    if row.piece is None or row.piece.thoughts is None:
        return row.weight
    start = row.piece.start
    ends = tuple(end for end in row.counted.ends if end[0] >= start)
    return replace(row.counted, skipped=((0, start),), ends=ends).weight(row.logprobs)


def _usage(span: _Span, votes: Sequence[_Span]) -> Usage:
    sample_tokens = sum(vote.length for vote in votes)
    if span.row is None:
        return Usage(sample_tokens=sample_tokens, steps=span.steps)
    num_prompt = len(span.row.token_ids) - span.length
    num_forced = span.row.kinds[num_prompt:].count(FORCED)
    return Usage(num_prompt, span.length, num_forced, sample_tokens, span.steps)


Row = str | Mapping[str, Any]


class Extractor(NearNames):
    """A model with a schema and a prompt template, which turns rows into records.

    Args:
        model: the model.
        schema: the schema of records: a JSON Schema, a pydantic model or another type, or a `RecordSchema`.
        prompt: a Jinja template that may name `text`, any field of the row, `row` (all fields) and `schema`; or a function from the fields
            of a row to a prompt. None shows the message, and with `chat` asks for JSON by the schema.
        chat: a conversation, to which the text of the template is the message of the user, and the record the reply; None for plain text.
        images: the field of a row with an image, or a list of such fields: paths, bytes, images of PIL, the dicts of `datasets.Image`, or
            lists of these. `<image>` in the template stands for it; without a template it is the whole prompt, and a row may be the
            image alone.
        allow_missing: the fields that may be missing, None or blank in a row, as the template tests them (`{% if body %}`); True for all.
            A row without a value in any other that the template names fails.
        text_field: the field of a row with the message; a row that is a text has only this field.
        max_tokens: the most tokens of a record.
        sampler: the sampling strategy; greedy by default.
        seed: of the random numbers. Each row has its own, by seed and prompt, unlike the prompts of one call, which share those of the
            seed: rows that were all drawn with the same numbers would err together, and shares over a table would say less than they seem.
        samples: how many more records are sampled for each row; `agreement` is the share of them with an equal value, for each value.
        batch_size: the most rows that run at once, samples included.
        draft: the draft for speculative decoding; see `PieceOptions`.
        thinking: let the model think before each record: True, or a `Thinking`. Weights are those of the records alone.
        against: rows without content, such as `["N/A", ""]`: the values of enums and other fields of few texts are chosen as wholes, and
            one that is probable after these rows, too, counts less; see docs/choices.md.
        is_scored: whether to compute the log-probabilities of records (`weight`) and of their values.
        confidence: how sure each value is (`Outcome.confidence`): `"agreement"` with the samples, of which there are 5 if no number is
            given, or `"cheap"`, by the tokens of the record alone; see docs/pipelines.md.
        abstain_below: values with less confidence are None in the record, with a reason in `Outcome.withheld`. The default of
            `confidence` is `"agreement"` then.
        calibration: converts the confidence to the probability that a value is right.
        **options: passed to `fsm.json_schema`, such as `whitespace`.

    It can be pickled if its model can be.

    Raises:
        SetupError: the schema or the template cannot be used.
        UnsupportedModel: there are `images`, and the model takes none.
        OptionError: another argument is out of its range.
        UnknownOption: an option is unknown.
        fsm.FSMError: the schema has no value that the model can write.
    """

    def __init__(
        self,
        model: LanguageModel,
        schema: Any,
        prompt: str | PromptTemplate | MakePrompt | None = None,
        *,
        images: str | Sequence[str] | None = None,
        chat: Chat | None = None,
        allow_missing: Collection[str] | bool = (),
        text_field: str = "text",
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampler: Sampler | None = None,
        seed: int = 0,
        samples: int = 0,
        batch_size: int = 32,
        draft: Any = None,
        thinking: Thinking | bool | None = None,
        against: Sequence[Row] | None = None,
        is_scored: bool = True,
        confidence: Confidence | None = None,
        abstain_below: float | None = None,
        calibration: Calibration | None = None,
        **options: Any,
    ) -> None:
        named = {name: value for name, value in locals().items() if name not in ("self", "options")}
        if not isinstance(allow_missing, bool | str):
            are_names = _is_collection(allow_missing) and all(isinstance(name, str) for name in allow_missing)
            check("allow_missing", allow_missing, are_names, "True, False or names of fields")
            allow_missing = sorted(allow_missing)
            named["allow_missing"] = allow_missing  # a set has no order, and this is part of the digest
        self._arguments: dict[str, Any] = {**named, **options}
        _check_arguments(model, options)
        samples = check_int("samples", samples, 0, MAX_SAMPLES)
        self._abstaining = Abstaining.of(confidence, abstain_below, calibration)
        if self._abstaining is not None and self._abstaining.confidence == "agreement":
            samples = samples or DEFAULT_SAMPLES
        seed = check("seed", plain(seed), is_int(plain(seed)), "an int")
        checked_bool(is_scored, "is_scored")
        batch_size = check_int("batch_size", batch_size, 1)
        check("text_field", text_field, isinstance(text_field, str), "the name of a field")
        check("chat", chat, isinstance(chat, Chat | None), "a conversation, such as `Chat(model)`, or None")
        sampler = _checked_sampler(sampler)
        self.model = model
        self.schema = schema if isinstance(schema, RecordSchema) else RecordSchema.of(schema)
        self.text_field = text_field
        checked = Options.of({"max_tokens": max_tokens, "thinking": thinking})
        self._prompts = RowPrompts.of(
            model,
            prompt,
            self.schema.json_schema,
            text_field=text_field,
            images=images,
            ask=None if chat is None else partial(_asked, chat, thinks=checked.thinking is not None),
            begun="" if chat is None else json.dumps(chat.messages, default=str),
            allow_missing=allow_missing,
        )
        shape = shape_of(self.schema, has_formats=options.get("formats", "assert") == "assert")
        self.columns = RecordColumns(shape, has_agreement=bool(samples))
        """The columns of the records."""
        voter = sampler if getattr(sampler, "needs_random", False) else samplers.multinomial()
        if against is not None:
            options = {"exact_fields": True, **options}
        make = partial(generate.json, model, self.schema.schema, draft=draft, **options)
        self._generator = make(sampler=sampler)
        self._voter = make(sampler=voter) if samples else None
        self._options = checked if chat is None else with_ends(checked, [chat])
        if against is not None:
            self._options = replace(self._options, against=self._prompts_without_content(against))
        self._seed, self._samples, self._is_scored = seed, samples, is_scored
        self._room = Room(batch_size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, from which it is made again."""
        return partial(Extractor, **self._arguments), ()

    def __call__(self, data: Any) -> Any:
        """Return the records of rows in a container of their kind: a list of dicts for a list, columns for columns, a frame for a frame.

        There is a column for each member of the records, typed by the schema, and `error`, `weight`, `usage`; see `RecordColumns`. A row
        that fails has nulls and its error. `dataset.map(extractor, batched=True)` adds them to a dataset, and so does `extractor(dataset)`,
        which knows their types before the first row.

        Args:
            data: a list of texts or dicts (with `images` also of images), a dict of columns, a frame of pandas or polars, a table of
                pyarrow, a dataset of Hugging Face; a text or the dict of one row for one record; for any other iterable an iterator of
                records.

        Raises:
            OptionError: it is not a supported container of rows.
            SetupError: no row has a field that the template names; or pyarrow is not installed (lists and dicts do without).
        """
        return extracted(data, self._prompts, self.columns, self.outcomes)

    @property
    def needed(self) -> list[str]:
        """The fields that each row must have."""
        return self._prompts.needed

    @property
    def images(self) -> RowImages:
        """The fields of rows with images."""
        return self._prompts.images

    @property
    def digest(self) -> str:
        """A SHA-256 of what a record depends on except its row: model, schema, prompt (of a function its name) and options."""
        parts = [self.model.fingerprint, self.schema.json_schema, self._prompts.source, sorted(self._deciding.items())]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, Any]:
        """What a record depends on except its row, by name."""
        model = f"{name_of_model(self.model)} ({self.model.fingerprint[:12]})"
        return {"model": model, "schema": self.schema.json_schema, "prompt": self._prompts.source, **self._deciding}

    @property
    def _deciding(self) -> dict[str, Any]:
        """The options that a record depends on."""
        left_out = ("model", "schema", "prompt", "chat", "batch_size", "draft")
        given = {name: value for name, value in self._arguments.items() if name not in left_out}
        optional = ("against", "images", "confidence", "abstain_below", "calibration")
        unset = [name for name in optional if given[name] is None]
        return {name: one for name, one in given.items() if name not in unset}

    def outcomes(
        self, rows: Iterable[Row | Exception], show: ShowValue | None = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order, while others are running.

        Rows are taken when there is room for them, so their number is unbounded: at most 16 batches are in memory.

        Args:
            rows: texts, or the fields of rows; an exception in place of a row that could not be read is its outcome.
            show: takes values while they are written, with the number of the row; None shows nothing.
        """
        model: Any = self.model
        window = Window(self._spans(rows, show), self._room, _AHEAD * self._room.size, _OF_ROWS)
        num_reused = 0
        with model.meter() as meter, closing(engine_of(model).items(window.task())) as ended:
            while spans := [*islice(ended, 1 + self._samples)]:
                new = meter.reused_tokens - num_reused
                num_reused += new
                yield replace(_outcome(*spans), reused_tokens=new)

    def prompt(self, row: Row) -> Any:
        """Return the prompt of a row; raise `RowError` if it is neither a text nor a dict, or lacks a field, `ImageError` for its image."""
        return self._prompts.of_row(self._prompts.fields(row))

    def _spans(self, rows: Iterable[Row | Exception], show: ShowValue | None) -> Iterator[_Span]:
        """Yield the record and the samples of each row."""
        for number, row in enumerate(rows):
            prompt, failure = None, row if isinstance(row, Exception) else None
            try:
                prompt = None if isinstance(row, Exception) else self.prompt(row)
            except Exception as error:  # the prompt may be made by code of the user
                failure = error
            for sample in range(1 + self._samples):
                yield _Span(self, number, sample, prompt, failure, show)

    def _prompts_without_content(self, against: Any) -> list[Any]:
        """Return the prompts of the rows of `against`, and check that the generators take them."""
        is_rows = isinstance(against, Sequence) and not isinstance(against, str | bytes) and len(against) > 0
        check("against", against, is_rows, "a list of one row or more, such as ['N/A']")
        try:
            prompts = [self.prompt(row) for row in against]
        except OutlinesContError as error:
            raise located_in(error, "against") from None
        for maker in filter(None, (self._generator, self._voter)):
            maker.chooses_exactly(replace(self._options, against=prompts))  # raises now, not with the first row
            opened_prompts(maker.model, prompts)
        return prompts


def run(
    source: str | Path | Sequence[str | Path],
    extractor: Extractor | Callable[[], Extractor],
    destination: str | Path,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float = 0.0,
    block_size: int = 64,
    input_format: str = "auto",
    text_field: str = "text",
    keep_text: bool = False,
    details: bool = False,
    calibration: Calibration | None = None,
    settings: str = "",
    resume: bool = False,
    overwrite: bool = False,
    report: str | Path | None = None,
    gold: str | None = None,
    images: str | Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Tally:
    """Read rows, and write a record, or an error, for each of them, in their order.

    Args:
        source: a .jsonl, .txt, .csv or .parquet file; or a list of image files, each of which is a row.
        extractor: an extractor, or a function that makes one; it is called in the process of each worker, so that no model is loaded here.
        destination: a .jsonl, .csv or .parquet file. It has only whole lines at every moment; a table is written after the last row.
        workers: processes with a model each, on Ray; 1 is this process, unless `ray_address` is given.
        ray_address: of a cluster of Ray, such as `auto`.
        cpus_per_worker: cores and threads of a worker; None divides those of this machine, and is 1 on a cluster.
        gpus_per_worker: those of a worker.
        block_size: rows that are sent to a worker together.
        input_format: the format of the source, if it does not follow from its name.
        text_field: the field with the message, if `extractor` is a function.
        keep_text: whether the message is written to the output, too.
        details: whether log-probabilities, tokens and agreement are written; a report and samples need them.
        calibration: converts the agreement of samples to a confidence, which is written, too.
        settings: a text that changes with anything else that a record depends on: a resumed run must have the same. Required to resume if
            `extractor` is a function.
        resume: continue an existing output.
        overwrite: replace it.
        report: an HTML page to write after the last row.
        gold: the field of a row with the right record, for the report.
        images: the fields with images, if `extractor` is a function.
        on_progress: called with a `Progress` after each row, such as `ProgressBar("rows")`.

    Returns:
        The number of rows, of failures, and so on.

    Raises:
        SetupError: an argument cannot be used; nothing ran, and the output is unchanged.
        WorkersFailed: too many workers crash in succession; what was written can be resumed.
    """
    own = extractor if isinstance(extractor, Extractor) else None
    if resume and own is None and not settings:
        raise OptionError(
            "expected `settings` with a function that makes extractors and `resume`, got none: a text that changes with what decides a "
            "record, such as a version.",
            "settings",
        )
    check_int("workers", workers, 1)
    check_int("block_size", block_size, 1)
    if gold is not None and report is None:
        raise OptionError(f"expected `report` with `gold={gold!r}`, got none: nothing else uses it.", "report")
    output = Path(destination)
    of_images = own.images if own is not None else RowImages.of(images)
    text_field = own.text_field if own is not None else text_field
    has_workers = workers > 1 or ray_address is not None
    options = WorkerOptions(
        workers=workers, address=ray_address, cpus=cpus_per_worker, gpus=gpus_per_worker, block_size=block_size
    )
    extraction = Extraction(
        source=_rows_of(source, InputFormat(input_format), text_field, of_images),
        output=output,
        settings=[own.digest if own is not None else "", settings],
        named={**(own.settings if own is not None else {}), "settings": settings},
        title=f"{Path(source).name if isinstance(source, str | Path) else 'images'} → {output.name}",
        text_field=text_field,
        needed=own.needed if own is not None else (),
        keep_text=keep_text,
        details=details or report is not None or calibration is not None,
        calibration=calibration,
        shape=own.columns.shape if own is not None else None,
        resume=resume,
        overwrite=overwrite,
        report=None if report is None else Path(report),
        gold=gold,
        images=of_images,
        workers=options if has_workers else None,
    )
    started = monotonic()
    load: Callable[[], Any] = (lambda: extractor) if isinstance(extractor, Extractor) else extractor
    try:
        with closing(extraction.run(load)) as tallies:  # it has the lock of the output
            for tally in tallies:
                if on_progress is not None:
                    on_progress(tally.progress(monotonic() - started))
    finally:
        if on_progress is not None:
            on_progress(extraction.tally.progress(monotonic() - started, is_over=True))
    return extraction.tally


def _rows_of(
    source: str | Path | Sequence[str | Path], input_format: InputFormat, text_field: str, images: RowImages
) -> RowSource | ImageFiles:
    """Return the rows of a file, or of a list of image files."""
    if isinstance(source, str | Path):
        return RowSource(str(source), input_format, text_field, None, images.names)
    if len(images.names) != 1:
        raise OptionError(
            "expected an extractor with one field of images, `images=...`, for a list of image files", "source"
        )
    return ImageFiles([*map(str, source)], images.names[0])


def _check_arguments(model: object, options: Mapping[str, Any]) -> None:
    if not hasattr(model, "eos_token_ids"):
        raise OptionError(
            f"expected a model as the first argument, such as `models.tiny()`, got {type(model).__name__}. The schema comes second: "
            "`Extractor(model, Order)`.",
            "model",
        )
    taken = (Extractor.__init__, generate.json, fsm.json_schema)
    known = [name for name in dict.fromkeys(name for one in taken for name in names_of(one)) if name != "self"]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise unknown_option("`Extractor`", unknown, known)


def _is_collection(value: object) -> bool:
    return isinstance(value, Collection) and getattr(value, "shape", None) != ()


def _checked_sampler(sampler: Sampler | None) -> Sampler:
    if sampler is None:
        return samplers.greedy()
    is_single = hasattr(sampler, "sample") and is_one_of(getattr(sampler, "num_samples", 0), (None, 1))
    if isinstance(sampler, BeamSearch | BestOf) or not is_single:
        raise OptionError(
            f"expected a sampler that draws one record for each row, got {sampler!r}. For several write `samples=...`.",
            "sampler",
        )
    return sampler
