"""What `outlines-cont extract` is given, checked and made an `Extraction`; see `docs/cli.md` for the shape of input and output.

What needs no model is checked here; the model is loaded when the extraction runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import fsm
from outlines_cont import __version__
from outlines_cont.commands.growing import GrowingRecords
from outlines_cont.commands.options import ExtractOptions
from outlines_cont.commands.sampler import parse_sampler
from outlines_cont.commands.template import DEFAULT_SOURCE, PromptTemplate
from outlines_cont.pipelines.errors import SetupError
from outlines_cont.pipelines.extraction import Extraction, LineOptions, Outcomes, Tally
from outlines_cont.pipelines.output import check_output
from outlines_cont.pipelines.rows import STDIN, RowSource
from outlines_cont.pipelines.schema import RecordSchema, load_schema
from outlines_cont.pipelines.table_output import lines_path
from outlines_cont.pipelines.table_rows import pyarrow

LoadOutcomes = Callable[[ExtractOptions, RecordSchema, PromptTemplate], Outcomes]
"""Makes what turns rows into records; it may take long."""


class ExtractCommand:
    """One run of `outlines-cont extract`.

    Raises:
        SetupError, fsm.FSMError: an option cannot be used. The output is untouched.
    """

    def __init__(self, options: ExtractOptions, *, stdin: BinaryIO, stdout: BinaryIO) -> None:
        _check_options(options)
        self.options = options
        source = RowSource(options.input, options.input_format, options.text_field, stdin)
        self.template = (
            PromptTemplate(DEFAULT_SOURCE) if options.prompt is None else PromptTemplate.from_file(options.prompt)
        )
        self.schema = load_schema(options.schema)
        fsm.json_schema(self.schema.schema, **options.schema_options)  # a bad one is told before a model is loaded
        parse_sampler(options.sampler)
        lines = LineOptions(
            text_field=options.text_field,
            needs_text="text" in self.template.names,
            keep_text=options.keep_text,
            settings=_settings_digest(options, self.template, self.schema),
        )
        output = stdout if options.output is None else options.output
        self._extraction = Extraction(source, output, lines, resume=options.resume)

    @property
    def tally(self) -> Tally:
        """How far it has come."""
        return self._extraction.tally

    def run(self, load: LoadOutcomes, growing: GrowingRecords | None = None) -> Iterator[Tally]:
        """Load the model, write the rows, and yield the tally after each; show the records while they are written."""
        make = partial(load, self.options, self.schema, self.template)
        if growing is None:
            yield from self._extraction.run(make)
            return
        with growing:
            yield from self._extraction.run(make, growing.show)


def _check_options(options: ExtractOptions) -> None:
    if options.resume and options.overwrite:
        raise SetupError(
            "expected --resume or --overwrite, got both. --resume keeps what the output holds, --overwrite does not."
        )
    if options.output is None and (options.resume or options.overwrite):
        raise SetupError(
            "expected --output FILE beside --resume or --overwrite, got none: the standard output has no earlier rows."
        )
    if options.model is not None:
        _check_model(options.model)
    if options.output is not None:
        input_path = None if options.input == STDIN else Path(options.input)
        check_output(options.output, input_path, resume=options.resume, overwrite=options.overwrite)
        if lines_path(options.output) != options.output:
            _check_table(options)


def _check_table(options: ExtractOptions) -> None:
    """Check a table and the file of lines beside it."""
    assert options.output is not None
    lines = lines_path(options.output)
    if options.output.suffix.lower() == ".parquet":
        pyarrow()
    if options.resume and options.output.exists() and not lines.exists():
        raise SetupError(
            f"the table {str(options.output)!r} is complete. To go on with it when the input has grown, write to a .jsonl file; to make it "
            "anew, pass --overwrite."
        )
    check_output(lines, None, resume=options.resume, overwrite=options.overwrite)


def _check_model(name: str) -> None:
    """Tell a path that does not exist from a hub id, which only the hub knows."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path and not Path(name).exists():
        raise SetupError(
            f"the model {name!r} cannot be loaded: there is no such folder. Give a hub id, or a folder with config, weights and "
            "tokenizer."
        )


def _settings_digest(options: ExtractOptions, template: PromptTemplate, schema: RecordSchema) -> str:
    """Return 12 hexadecimal digits that change with anything that decides a record beside its row."""
    model = options.model or f"bundled {__version__}"
    parts = [
        schema.json_schema,
        template.source,
        model,
        options.dtype,
        options.max_tokens,
        options.schema_options,
        [options.sampler, options.seed],
        options.text_field,
        options.keep_text,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
