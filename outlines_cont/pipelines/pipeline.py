"""`run`: extracts records from a file of rows into a file, in this process or on Ray actors, with resume, an HTML report and progress
callbacks. Unusable arguments raise before the first row runs; rows that fail are lines with an error, counted in the `Tally` that is
returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from outlines_cont.errors import OptionError
from outlines_cont.pipelines.extraction import Extraction, LineOptions, Outcomes, Tally, check_destination
from outlines_cont.pipelines.extractor import Extractor
from outlines_cont.pipelines.ray_workers import RayWorkers, WorkerOptions
from outlines_cont.pipelines.reports.calibration import Calibration
from outlines_cont.pipelines.reports.report import Report
from outlines_cont.pipelines.reports.report_page import write_page
from outlines_cont.pipelines.rows.reading import RowSource
from outlines_cont.pipelines.rows.row import InputFormat
from outlines_cont.progress import OnProgress, Progress


def run(
    source: str | Path,
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
    on_progress: OnProgress | None = None,
) -> Tally:
    """Read rows, and write a record, or an error, for each of them, in their order.

    Args:
        source: a .jsonl, .txt, .csv or .parquet file.
        extractor: turns rows into records, or a function that makes what does; it is called in the process of each worker, so that no
            model is loaded here.
        destination: a .jsonl, .csv or .parquet file. It holds whole lines at every moment, or, as a table, appears when all are there.
        workers: processes with a model each, on Ray; 1 is this process, unless `ray_address` is given.
        ray_address: of a cluster of Ray, such as `auto`.
        cpus_per_worker: those of a worker, which are its threads, too; None shares out those of this machine, and is 1 on a cluster.
        gpus_per_worker: those of a worker.
        block_size: rows that a worker is given at once.
        input_format: the format of the source, if it does not follow from its name.
        text_field: the field that holds the message, where `extractor` is a function.
        keep_text: whether the message is written to the output, too.
        details: whether log-probabilities, tokens and agreement are written; a report and samples need them.
        calibration: turns the agreement of samples into a confidence, which is written, too.
        settings: more that decides a record: a run that is resumed must have the same. To be given where `extractor` is a function.
        resume: continue an existing output.
        overwrite: replace it.
        report: a page to write, when all rows are there.
        gold: the field of a row that holds the right record, for the report.
        on_progress: called with a `Progress` after each row, such as `ProgressBar("rows")`.

    Returns:
        How many rows there are, and how many failed.

    Raises:
        SetupError: something cannot be used; nothing ran, and the output is as it was.
        WorkersFailed: too many workers crash in succession; what was written can be resumed.
    """
    is_made = isinstance(extractor, Extractor)
    if resume and not is_made and not settings:
        raise OptionError(
            "expected `settings` with a function that makes extractors and `resume`, got none: a text that changes with what decides a "
            "record, such as a version.",
            "settings",
        )
    if gold is not None and report is None:
        raise OptionError(f"expected `report` with `gold={gold!r}`, got none: nothing else uses it.", "report")
    path, output = Path(source), Path(destination)
    check_destination(output, path, resume=resume, overwrite=overwrite)
    options = WorkerOptions(
        workers=workers, address=ray_address, cpus=cpus_per_worker, gpus=gpus_per_worker, block_size=block_size
    )
    has_workers = workers > 1 or ray_address is not None
    has_details = details or report is not None or calibration is not None
    lines = LineOptions(
        text_field=extractor.text_field if isinstance(extractor, Extractor) else text_field,
        needs_text=extractor.needs_text if isinstance(extractor, Extractor) else False,
        keep_text=keep_text,
        details=has_details,
        calibration=calibration,
        shape=extractor.columns.shape if isinstance(extractor, Extractor) else None,
        settings=_digest(extractor, settings, keep_text, has_details),
        gold=gold,
    )

    def write_reports(file: Path) -> None:
        if report is not None:
            found = Report(lines.text_field, gold)
            found.add_file(file)
            write_page(found, Path(report), f"{path.name} → {output.name}")

    rows = RowSource(str(path), InputFormat(input_format), lines.text_field, None)
    extraction = Extraction(rows, output, lines, resume=resume, at_end=write_reports)
    make = (lambda: extractor) if isinstance(extractor, Extractor) else extractor
    load: Callable[[], Outcomes] = (lambda: RayWorkers(make, options)) if has_workers else make
    started = monotonic()
    for tally in extraction.run(load):
        if on_progress is not None:
            on_progress(_progress(tally, monotonic() - started, is_over=False))
    if on_progress is not None:
        on_progress(_progress(extraction.tally, monotonic() - started, is_over=True))
    return extraction.tally


def _progress(tally: Tally, seconds: float, *, is_over: bool) -> Progress:
    done = tally.skipped + tally.rows
    return Progress(tally.total or done, done, tally.failed, tally.tokens, seconds, is_over)


def _digest(extractor: Any, settings: str, keep_text: bool, details: bool) -> str:
    own = extractor.digest if isinstance(extractor, Extractor) else ""
    return hashlib.sha256(repr([own, settings, keep_text, details]).encode()).hexdigest()[:12]
