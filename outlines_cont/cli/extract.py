"""`extract`: the command `outlines-cont extract`. `ExtractCommand`: makes an `Extraction` of its options, with workers, report and
calibration, and a digest of what a record depends on, for `--resume`; see `docs/cli.md` for input and output. Options are checked before a
model is loaded, as far as they do not need it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import BinaryIO

import typer
from rich.console import Console

import fsm
from outlines_cont import __version__
from outlines_cont.cli.console import check_picture, parse_sampler, plain_warnings
from outlines_cont.cli.growing import GrowingRecords, progress_bar, summary
from outlines_cont.cli.options import Draft, ExtractOptions
from outlines_cont.errors import NoChatTemplate
from outlines_cont.pipelines.calibration import Calibration
from outlines_cont.pipelines.extraction import Extraction, LineOptions, Outcomes, Tally, check_destination
from outlines_cont.pipelines.outcome import SetupError, digest_of
from outlines_cont.pipelines.prompt_template import CHAT_SOURCE, DEFAULT_SOURCE, PromptTemplate, RowPrompt
from outlines_cont.pipelines.ray_workers import RayWorkers, WorkerOptions, check_ray
from outlines_cont.pipelines.reading import STDIN, RowSource
from outlines_cont.pipelines.record_schema import RecordSchema, load_schema
from outlines_cont.pipelines.report import write_reports
from outlines_cont.pipelines.shape import shape_of

LoadOutcomes = Callable[[ExtractOptions, RecordSchema, PromptTemplate], Outcomes]
"""Loads the model, and makes an object that turns rows into outcomes."""


def extract(options: ExtractOptions) -> bool:
    """Write the records, with a bar or the records that grow on the standard error; return whether each row has one."""
    if options.stream and options.progress:
        raise SetupError("expected --stream or --progress, got both. Leave out one: both are shown at one place.")
    if options.stream and options.has_workers:
        raise SetupError(
            "expected --stream or --workers, got both. Records of other processes are seen when they are whole."
        )
    growing = GrowingRecords(Console(stderr=True)) if options.stream else None
    started = time.monotonic()
    with plain_warnings():
        job = ExtractCommand(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
        if job.unbounded and options.max_tokens is None:
            from outlines_cont.generation.options import named_lengths

            limit = f"may be of any length; a record is cut after {options.most_tokens} tokens"
            note = f"Note: {named_lengths(job.unbounded)} {limit}. Say --max-tokens, or bound them in the schema."
            typer.echo(note, err=True)
        progress = progress_bar(job.tally, False if options.stream else options.progress)
        # Messages of Ray about its workers must not appear between the rows.
        with progress as show, redirect_stdout(sys.stderr):
            for tally in job.run(_load_extractor, growing):
                show(tally)
    seconds = time.monotonic() - started
    typer.echo(summary(job.tally, options.output, seconds, has_workers=options.has_workers), err=True)
    return not job.tally.failed


class ExtractCommand:
    """One call of `outlines-cont extract`; its constructor raises for wrong options, before the output is touched."""

    def __init__(self, options: ExtractOptions, *, stdin: BinaryIO, stdout: BinaryIO) -> None:
        _check_options(options)
        self.options = options
        source = RowSource(options.input, options.input_format, options.text_field, stdin)
        self.template = _template(options)
        self.schema = load_schema(options.schema)
        self.unbounded = fsm.json_schema(self.schema.schema, **options.schema_options).report.unbounded
        parse_sampler(options.sampler)
        lines = LineOptions(
            text_field=options.text_field,
            needed=RowPrompt(self.template, options.text_field, "", options.missing).needed,
            keep_text=options.keep_text,
            details=options.has_details,
            calibration=None if options.calibration is None else Calibration.load(options.calibration),
            shape=shape_of(self.schema),
            settings=_settings_digest(options, self.template, self.schema),
            gold=options.gold,
        )
        output = stdout if options.output is None else options.output
        reports = partial(
            write_reports,
            title=f"{Path(options.input).name} → {Path(options.schema).name}",
            text_field=options.text_field,
            gold=options.gold,
            page=options.report,
            curves=options.save_calibration,
        )
        self._extraction = Extraction(source, output, lines, resume=options.resume, at_end=reports)
        self.tally = self._extraction.tally

    def run(self, load: LoadOutcomes, growing: GrowingRecords | None = None) -> Iterator[Tally]:
        """Load the model, write the rows, and yield the tally after each; show the records while they are written."""
        options = self.options
        make: Callable[[], Outcomes] = partial(load, options, self.schema, self.template)
        if options.has_workers:
            workers = WorkerOptions(
                workers=options.workers,
                address=options.ray_address,
                gpus=1 if (options.device or "").startswith("cuda") else 0,
                block_size=2 * options.batch_size,
            )
            make = partial(RayWorkers, partial(_load_in_worker, load, options, os.getcwd()), workers)
        with growing or nullcontext():
            yield from self._extraction.run(make, None if growing is None else growing.show)


def _load_in_worker(load: LoadOutcomes, options: ExtractOptions, folder: str) -> Outcomes:
    if os.path.isdir(folder):  # it may be missing on another machine
        os.chdir(folder)
    return load(options, load_schema(options.schema), _template(options))


def _template(options: ExtractOptions) -> PromptTemplate:
    if options.prompt is not None:
        return PromptTemplate.from_file(options.prompt)
    if not options.chat:
        return PromptTemplate(DEFAULT_SOURCE)
    # The bundled model was trained on messages without instructions.
    return PromptTemplate(CHAT_SOURCE if options.model is not None else "{{ text }}")


def _check_options(options: ExtractOptions) -> None:
    if options.system is not None and not options.chat:
        raise SetupError(
            "expected --chat with --system, got none. Without --chat a prompt is plain text; write what the system says into the "
            "template of --prompt."
        )
    if options.output is None and (options.resume or options.overwrite):
        raise SetupError(
            "expected --output FILE with --resume or --overwrite, got none: the standard output has no earlier rows."
        )
    model = options.model or ""
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_like_path and not Path(model).exists():
        raise SetupError(
            f"the model {model!r} cannot be loaded: there is no such folder. Give a hub id, or a folder with config, weights and "
            "tokenizer."
        )
    if options.output is not None:
        source = None if options.input == STDIN else Path(options.input)
        check_destination(options.output, source, resume=options.resume, overwrite=options.overwrite)
    if options.has_workers:
        check_ray()
    check_picture(options.report, "report", ".html", ".htm")
    for name, path in (("--report", options.report), ("--save-calibration", options.save_calibration)):
        if path is not None and options.output is None:
            raise SetupError(f"expected --output FILE with {name}, got none: both are made of its rows.")
        if path is not None and not path.parent.is_dir():
            raise SetupError(f"expected a folder that exists for {name}, got {str(path)!r}.")
    if options.save_calibration is not None and not (options.gold and options.samples):
        raise SetupError("expected --gold NAME and --samples N with --save-calibration: it compares them.")
    if options.gold is not None and options.report is None and options.save_calibration is None:
        raise SetupError("expected --report FILE or --save-calibration FILE with --gold: nothing else uses it.")
    if options.calibration is not None and not options.samples:
        raise SetupError("expected --samples N with --calibration: it converts their agreement to a probability.")


def _settings_digest(options: ExtractOptions, template: PromptTemplate, schema: RecordSchema) -> str:
    """Return a digest of everything but the row that a record depends on."""
    parts = [
        schema.json_schema,
        template.source,
        options.model or f"bundled {__version__}",
        options.dtype,
        options.most_tokens,
        options.schema_options,
        [options.sampler, options.seed],
        options.text_field,
        options.keep_text,
        *((options.chat, options.system) if options.chat else ()),
        *([["allow_missing", options.missing]] if options.missing else ()),
    ]
    if options.has_details:
        parts += [
            options.samples,
            None if options.calibration is None else options.calibration.read_text(encoding="utf-8"),
        ]
    return digest_of(json.dumps(parts).encode())


def _load_extractor(options: ExtractOptions, schema: RecordSchema, template: PromptTemplate) -> Outcomes:
    from outlines_cont.cli.chat import begun_chat
    from outlines_cont.cli.model import load_model, make_sampler
    from outlines_cont.pipelines.extractor import Extractor

    sampler = make_sampler(options.sampler)
    verbose = options.verbose and not options.has_workers
    model = load_model(options.model, options.device, options.dtype, num_rows=options.batch_size, verbose=verbose)
    try:
        chat = begun_chat(model, None, options.system, options.seed) if options.chat else None
    except NoChatTemplate as error:
        raise SetupError(
            f"expected a model with a chat template with --chat, got {options.model!r}, whose tokenizer has none. Leave out --chat, and "
            "say in the template of --prompt what the model is to do."
        ) from error
    return Extractor(
        model,
        schema,
        template,
        allow_missing=options.missing,
        text_field=options.text_field,
        max_tokens=options.most_tokens,
        sampler=sampler,
        seed=options.seed,
        batch_size=options.batch_size,
        chat=chat,
        draft=None if options.draft is Draft.NONE else options.draft.value,
        samples=options.samples,
        is_scored=options.has_details,
        **options.schema_options,
    )
