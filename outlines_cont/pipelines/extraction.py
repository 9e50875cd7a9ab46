"""`Extraction`: writes a JSON line, record or error, for each row of an input, in input order. A line has digests of its row and of the
settings: with `resume` they are compared, an incomplete last line is truncated, and the remaining rows follow; changed rows or settings
raise `SetupError`. `table_output` makes CSV and Parquet tables of the lines at the end. `Tally`: its progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Protocol

from outlines_cont.pipelines.calibration import Calibration
from outlines_cont.pipelines.outcome import Failure, InputError, InputRow, Outcome, SetupError, ShowValue, check_columns
from outlines_cont.pipelines.output import (
    LINES_SUFFIXES,
    TABLE_SUFFIXES,
    WriteLine,
    check_output,
    file_output,
    lines_path,
    match_done,
    signed_line,
    stream_output,
    table_output,
)
from outlines_cont.pipelines.reading import RowSource, pyarrow
from outlines_cont.pipelines.shape import Shape
from outlines_cont.progress import Progress

_MESSAGE = " Name the column of the message with --text-field; --allow-missing is for those that the template tests."
_GOLD = " Name the column of the right records with --gold, or `gold=`."


class Outcomes(Protocol):
    """An object that turns rows into outcomes: an `Extractor`, or workers with one each."""

    def outcomes(
        self, rows: Iterable[Mapping[str, Any] | Exception], show: ShowValue | None = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order. Rows are taken when there is room for them."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """The contents of a line of output.

    Attributes:
        text_field: the field of a row with the message, which is written, too, with `keep_text`.
        needed: the fields that the prompt needs; a table must have them.
        details: whether `_details` is written: log-probabilities, tokens, and how many samples agree.
        calibration: converts the agreement of samples to a confidence; None for no confidence.
        shape: that of the records, for the types of a table; None infers types from the values.
        settings: a digest of everything but the row that a record depends on.
        gold: the field of a row with the right record, or None; a table must have it.
    """

    text_field: str = "text"
    needed: Collection[str] = ("text",)
    keep_text: bool = False
    details: bool = False
    calibration: Calibration | None = None
    shape: Shape | None = None
    settings: str = ""
    gold: str | None = None


class Extraction:
    """Runs the rows of an input and writes their outcomes to an output.

    The output has only whole lines at every moment, in the order of the input.

    Args:
        source: the input.
        output: a file, or a stream of bytes. A table (.csv, .parquet) is made from a file of lines after the last row.
        options: the contents of a line.
        resume: continue an existing output.
        at_end: called with the file of lines after the last row.

    Raises:
        SetupError: the input is a table without a column that is needed, or the output was not made from this input with these settings.
    """

    def __init__(
        self,
        source: RowSource,
        output: Path | BinaryIO,
        options: LineOptions,
        *,
        resume: bool = False,
        at_end: Callable[[Path], None],
    ) -> None:
        self._at_end = at_end
        self._output = output
        self._options = options
        self._lines = lines_path(output) if isinstance(output, Path) else None
        self.tally = Tally(source.count())
        columns = source.columns()
        if columns is not None:
            check_columns(columns, options.needed, _MESSAGE)
            check_columns(columns, [options.gold] if options.gold is not None else [], _GOLD)
        self._rows = iter(source)
        self._keep: int | None = None
        if self._lines is not None and self._lines.exists():
            done = match_done(self._lines, self._rows, options.settings) if resume else (0, 0, 0)
            self.tally.skipped, self.tally.failed, self._keep = done

    def run(self, load: Callable[[], Outcomes], show: ShowValue | None = None) -> Generator[Tally, None, None]:
        """Load the model, write row by row, and yield the tally after each; show the records while they are written.

        If it is interrupted, the output has only whole lines. Nothing is loaded if no row is left.

        Raises:
            InputError: the input cannot be read to its end; the rows before are written.
        """
        first = next(self._rows, None)
        runner: Outcomes | None = None
        if first is not None:
            started = monotonic()
            runner = load()
            self.tally.loading_seconds = monotonic() - started
        with self._opened() as write:
            if first is not None and runner is not None:
                for row, outcome in self._ended(chain([first], self._rows), runner, show):
                    write(self._line(row, outcome))
                    self.tally.count(row.line, outcome.failure)
                    self.tally.tokens += outcome.usage.tokens
                    self.tally.reused_tokens += outcome.reused_tokens
                    yield self.tally
            if self._lines is not None:
                self._at_end(self._lines)

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
        if not isinstance(self._output, Path):
            return stream_output(self._output)
        if self._lines != self._output:
            return table_output(self._output, self._keep, self._options.shape)
        return file_output(self._output, self._keep)

    def _line(self, row: InputRow, outcome: Outcome) -> bytes:
        options = self._options
        fields = {name: value for name, value in row.fields.items() if options.keep_text or name != options.text_field}
        fields |= {"_line": row.line, "_digest": f"{row.digest}-{options.settings}"}
        if options.details:
            fields["_details"] = _details(outcome, options.calibration)
        if outcome.failure is None:
            fields["record"] = outcome.record
        else:
            fields["error"] = asdict(outcome.failure)
        return signed_line(fields)


def check_destination(path: Path, source: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Raise `SetupError` if `path` cannot be the output for `source` (None for a stream), or exists, before anything runs."""
    if resume and overwrite:
        raise SetupError(
            "expected --resume or --overwrite, got both. --resume keeps what the output holds, --overwrite does not."
        )
    check_output(path, source, resume=resume, overwrite=overwrite, suffixes=(*LINES_SUFFIXES, *TABLE_SUFFIXES))
    lines = lines_path(path)
    if lines == path:
        return
    if path.suffix.lower() == ".parquet":
        pyarrow()
    if resume and path.exists() and not lines.exists():
        raise SetupError(
            f"the table {str(path)!r} is complete. To continue it when the input has grown, write to a .jsonl file; to make it "
            "anew, pass --overwrite."
        )
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
    if shares and calibration is not None:
        found["confidence"] = rounded({path: calibration.confidence(path, share) for path, share in shares.items()})
    return found
