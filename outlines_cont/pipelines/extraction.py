"""`Extraction`: what is read, what is written to which file, with workers, report and calibration, of `pipelines.run` and of the command
`extract`: it writes a JSON line, record or error, for each row of an input, in input order. A line has digests of its row and of the
settings: with `resume` they are compared, an incomplete last line is truncated, and the remaining rows follow; changed rows or settings
raise `SetupError`. CSV and Parquet tables are made of the lines at the end. `Tally`: its progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from outlines_cont.generation.tasks.progress import Progress
from outlines_cont.pipelines.calibration import Calibration
from outlines_cont.pipelines.columns import Shape
from outlines_cont.pipelines.image_files import ImageFiles
from outlines_cont.pipelines.outcome import (
    Failure,
    InputError,
    InputRow,
    Outcome,
    Outcomes,
    SetupError,
    ShowValue,
    check_columns,
    digest_of,
)
from outlines_cont.pipelines.output import (
    LINES_SUFFIXES,
    TABLE_SUFFIXES,
    Stamp,
    WriteLine,
    check_output,
    file_output,
    keep_settings,
    lines_path,
    match_done,
    match_table,
    shown_settings,
    signed_line,
    stamp_of,
    stream_output,
    table_output,
)
from outlines_cont.pipelines.ray_workers import RayWorkers, WorkerOptions, check_ray
from outlines_cont.pipelines.reading import RowSource, pyarrow
from outlines_cont.pipelines.report import Report, write_page
from outlines_cont.pipelines.row_images import RowImages

_MESSAGE = " Name the column of the message with --text-field; --allow-missing is for those that the template tests."
_GOLD = " Name the column of the right records with --gold, or `gold=`."


@dataclass(slots=True)
class Tally:
    """The progress of an extraction.

    Attributes:
        total: rows of the input, None for a stream.
        skipped: rows that an earlier run has written.
        rows: rows written by this run.
        failed: rows with an error, earlier ones included.
        first_failure: the first of this run, as one line, or None.
        loading_seconds: how long it took to load the model.
        tokens: those of the records of this run.
        reused_tokens: tokens that this run did not have to feed, because rows before had fed the same.
    """

    total: int | None
    skipped: int = 0
    rows: int = 0
    failed: int = 0
    first_failure: str | None = None
    loading_seconds: float = 0.0
    tokens: int = 0
    reused_tokens: int = 0

    def count(self, line: int, failure: Failure | None) -> None:
        """Count a row that was written."""
        self.rows += 1
        if failure is not None:
            self.failed += 1
            self.first_failure = self.first_failure or f"line {line}: {failure}"

    def progress(self, seconds: float, *, is_over: bool = False) -> Progress:
        """Return the progress after some seconds, earlier rows included."""
        done = self.skipped + self.rows
        return Progress(self.total or done, done, self.failed, self.tokens, seconds, is_over)


@dataclass(slots=True, kw_only=True)
class Extraction:
    """The rows of an input, whose outcomes are written to an output. Everything is checked when it is made, before anything runs.

    The output has only whole lines at every moment, in the order of the input.

    Attributes:
        source: the input.
        output: a file, or a stream of bytes. A table (.csv, .parquet) is made from a file of lines after the last row.
        settings: everything but the row that a record depends on, of which a resumed run must have the same.
        named: the same by name, for the error of a run that has others.
        text_field: the field of a row with the message, which is written, too, with `keep_text`.
        needed: the fields that the prompt needs; a table must have them.
        details: whether `_details` is written: log-probabilities, tokens, and how many samples agree.
        calibration: converts the agreement of samples to a confidence; None for no confidence.
        shape: the shape of the records, for the types of a table; None infers types from the values.
        resume, overwrite: continue an output that exists, or replace it.
        report: a page to write after the last row, with its `title`.
        save_calibration: a file for the calibration that is learned from the rows.
        gold: the field of a row with the right record, or None; a table must have it.
        images: the fields of a row with images: the output has their paths, and the report thumbnails.
        workers: the other processes in which the model runs, if there are any.
        tally: the progress.

    Raises:
        SetupError: the output cannot be written, or was not made from this input with these settings; the input is a table without a column
            that is needed; Ray or pyarrow is needed and not installed.
    """

    source: RowSource | ImageFiles
    output: Path | BinaryIO
    settings: Any
    named: Mapping[str, Any]
    title: str
    text_field: str = "text"
    needed: Collection[str] = ("text",)
    keep_text: bool = False
    details: bool = False
    calibration: Calibration | None = None
    shape: Shape | None = None
    resume: bool = False
    overwrite: bool = False
    report: Path | None = None
    save_calibration: Path | None = None
    gold: str | None = None
    images: RowImages = RowImages()  # noqa: RUF009  # frozen
    workers: WorkerOptions | None = None
    tally: Tally = field(init=False)
    _lines: Path | None = field(init=False, default=None)
    _digest: str = field(init=False)
    _shown: dict[str, str] = field(init=False)  # the settings, for the error of a run that has others
    _rows: Iterator[InputRow] = field(init=False)
    _keep: int | None = field(init=False, default=None)  # the bytes of the output that stay
    _seen: Stamp | None = field(init=False, default=None)  # the output as it was read
    _is_complete: bool = field(init=False, default=False)  # a table that an earlier run has finished

    def __post_init__(self) -> None:
        source, output = self.source, self.output
        if isinstance(output, Path):
            check_destination(output, source.path, resume=self.resume, overwrite=self.overwrite)
            self._lines = lines_path(output)
        for name, path in (("--report", self.report), ("--save-calibration", self.save_calibration)):
            if path is not None and not path.parent.is_dir():
                raise SetupError(f"expected a folder that exists for {name}, got {str(path)!r}.")
        if self.workers is not None:
            check_ray()
        self.tally = Tally(source.count())
        columns = source.columns()
        if columns is not None:
            check_columns(columns, self.needed, _MESSAGE)
            check_columns(columns, [self.gold] if self.gold is not None else [], _GOLD)
        self._digest = digest_of(repr([self.settings, self.keep_text, self.details]).encode())
        self._shown = shown_settings({**self.named, "keep_text": self.keep_text, "details": self.details})
        self._rows = iter(source)
        if self._lines is not None and self._lines.exists():
            self._seen = stamp_of(self._lines) if self.resume else None
            done = match_done(self._lines, self._rows, self._digest, self._shown) if self.resume else (0, 0, 0)
            self.tally.skipped, self.tally.failed, self._keep = done
        elif self.resume and isinstance(output, Path) and output.exists():
            if self.report is not None or self.save_calibration is not None:
                raise SetupError(
                    "expected a table that is not complete for --report or --save-calibration, which are made from its lines, but "
                    f"{str(output)!r} is. Pass `overwrite=True` (--overwrite) to make all anew."
                )
            self.tally.skipped, self.tally.failed = match_table(output, self._rows, self._digest)
            self._is_complete = True

    def run(self, load: Callable[[], Any], show: ShowValue | None = None) -> Generator[Tally, None, None]:
        """Load the model, write row by row, and yield the tally after each; show the records while they are written.

        `load` returns an `Extractor`, or any other `Outcomes`; each worker calls it. Nothing is loaded if no row is left. If it is
        interrupted, the output has only whole lines.

        Raises:
            InputError: the input cannot be read to its end; the rows before are written.
        """
        if self._is_complete:
            return
        first = next(self._rows, None)
        runner: Outcomes | None = None
        if first is not None:
            started = monotonic()
            runner = load() if self.workers is None else RayWorkers(load, self.workers)
            self.tally.loading_seconds = monotonic() - started
        with self._opened() as write:
            if self._lines is not None and not self.tally.skipped:
                keep_settings(self._lines, self._shown)
            if first is not None and runner is not None:
                for row, outcome in self._ended(chain([first], self._rows), runner, show):
                    write(self._line(row, outcome))
                    self.tally.count(row.line, outcome.failure)
                    self.tally.tokens += outcome.usage.tokens
                    self.tally.reused_tokens += outcome.reused_tokens
                    yield self.tally
            if self._lines is not None:
                self._write_reports(self._lines)

    def _ended(
        self, rows: Iterator[InputRow], runner: Outcomes, show: ShowValue | None
    ) -> Iterator[tuple[InputRow, Outcome]]:
        waiting: deque[InputRow] = deque()  # rows without an outcome
        num_ended = 0
        broken: InputError | None = None

        def fields() -> Iterator[Mapping[str, Any] | Exception]:
            nonlocal broken
            try:
                for row in rows:
                    waiting.append(row)
                    yield row.fields if row.error is None else row.error
            except InputError as error:
                broken = error  # after the rows that are running

        def show_row(number: int, value: Any, is_whole: bool) -> None:
            assert show is not None
            show(f"line {waiting[number - num_ended].line}", value, is_whole)

        with closing(runner.outcomes(fields(), None if show is None else show_row)) as outcomes:
            for outcome in outcomes:
                if show is not None:
                    show_row(num_ended, None, True)
                num_ended += 1
                yield waiting.popleft(), outcome
        if broken is not None:
            raise broken
        assert next(chain(waiting, rows), None) is None, "a row without an outcome"

    def _opened(self) -> AbstractContextManager[WriteLine]:
        if not isinstance(self.output, Path):
            return stream_output(self.output)
        if self._lines != self.output:
            return table_output(self.output, self._keep, self.shape, self._seen)
        return file_output(self.output, self._keep, self._seen)

    def _line(self, row: InputRow, outcome: Outcome) -> bytes:
        kept = self.images.written(row.fields)
        fields = {name: value for name, value in kept.items() if self.keep_text or name != self.text_field}
        fields |= {"_line": row.line, "_digest": f"{row.digest}-{self._digest}"}
        if self.details:
            fields["_details"] = _details(outcome, self.calibration)
        elif outcome.withheld:
            fields["_details"] = {"withheld": _withheld(outcome)}
        if outcome.failure is None:
            fields["record"] = outcome.record
        else:
            fields["error"] = asdict(outcome.failure)
        return signed_line(fields)

    def _write_reports(self, lines: Path) -> None:
        """Read the lines of the output, and write the page and the calibration that are learned from them."""
        if self.report is None and self.save_calibration is None:
            return
        report = Report(self.text_field, self.gold)
        report.add_file(lines)
        report.thumbnails = self._thumbnails(report.shown_lines) if self.report is not None else {}
        if self.report is not None:
            write_page(report, self.report, self.title)
        if self.save_calibration is not None:
            report.calibration().save(self.save_calibration)

    def _thumbnails(self, lines: Collection[int]) -> dict[int, list[str]]:
        """Return the thumbnails of the rows at some lines, which are read again; none of a stream."""
        if not self.images or not lines or not self.source.is_repeatable:
            return {}
        return {row.line: self.images.thumbnails(row.fields) for row in self.source if row.line in lines}


def check_destination(path: Path, source: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Raise `SetupError` if `path` cannot be the output for `source` (None for a stream), or exists, before anything runs."""
    if resume and overwrite:
        raise SetupError(
            "expected `resume=True` (--resume) or `overwrite=True` (--overwrite), got both. The first keeps what the output holds, the "
            "other does not."
        )
    check_output(path, source, resume=resume, overwrite=overwrite, suffixes=(*LINES_SUFFIXES, *TABLE_SUFFIXES))
    lines = lines_path(path)
    if lines == path:
        return
    if path.suffix.lower() == ".parquet":
        pyarrow()
    check_output(lines, None, resume=resume, overwrite=overwrite)


def _details(outcome: Outcome, calibration: Calibration | None) -> dict[str, Any]:
    """Return the details of a record as JSON, rounded to three decimals."""

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {path: round(value, 3) for path, value in values.items()}

    usage, shares = outcome.usage, outcome.agreement
    found: dict[str, Any] = {name: getattr(usage, name) for name in ("prompt_tokens", "tokens", "forced_tokens")}
    if outcome.weight is not None:
        found |= {"weight": round(outcome.weight, 3), "logprobs": rounded(outcome.logprobs)}
    if shares:
        found["agreement"] = rounded(shares)
    if outcome.confidence:  # the extractor has its own calibration
        found["confidence"] = rounded(outcome.confidence)
    elif shares and calibration is not None:
        found["confidence"] = rounded({path: calibration.confidence(path, share) for path, share in shares.items()})
    if outcome.certainty:
        found["certainty"] = rounded(outcome.certainty)
    if outcome.withheld:
        found["withheld"] = _withheld(outcome)
    return found


def _withheld(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return the values that are not in a record, by their paths, as JSON."""
    return {path: {**asdict(one), "confidence": round(one.confidence, 3)} for path, one in outcome.withheld.items()}
