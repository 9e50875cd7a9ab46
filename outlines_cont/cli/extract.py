"""`extract`: the command `outlines-cont extract`: `prepared` makes an `Extraction` of its options, and refuses wrong ones before a model is
loaded, as far as that needs none; see `docs/cli.md` for input and output.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
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
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.errors import NoChatTemplate
from outlines_cont.pipelines.calibration import Calibration
from outlines_cont.pipelines.columns import shape_of
from outlines_cont.pipelines.extraction import Extraction
from outlines_cont.pipelines.image_files import ImageFiles
from outlines_cont.pipelines.outcome import Outcomes, SetupError
from outlines_cont.pipelines.prompt_template import PromptTemplate, RowPrompt, default_source
from outlines_cont.pipelines.ray_workers import WorkerOptions
from outlines_cont.pipelines.reading import RowSource
from outlines_cont.pipelines.record_schema import RecordSchema, load_schema
from outlines_cont.pipelines.row_images import RowImages

# The options that a record depends on, beside model, schema, template and calibration, and the attributes that have them.
_DECIDING = {
    "dtype": "dtype",
    "max_tokens": "most_tokens",
    "whitespace and any_order": "schema_options",
    "sampler": "sampler",
    "seed": "seed",
    "text_field": "text_field",
    "chat": "chat",
    "system": "system",
    "allow_missing": "missing",
    "samples": "samples",
}

# Options, the options that each needs, and what to say if one of these is not given.
# fmt: off
_NEEDS = (
    ("system", ["chat"], "--chat with --system, got none. Without --chat a prompt is plain text; write what the system says into the "
        "template of --prompt."),
    *((name, ["output"], "--output FILE with --resume or --overwrite, got none: the standard output has no earlier rows.")
        for name in ("resume", "overwrite")),
    ("report", ["output"], "--output FILE with --report, got none: both are made of its rows."),
    ("save_calibration", ["output"], "--output FILE with --save-calibration, got none: both are made of its rows."),
    ("save_calibration", ["gold", "has_confidence"], "--gold NAME, and --samples N or --confidence, with --save-calibration: it compares "
        "them."),
    ("gold", ["has_reports"], "--report FILE or --save-calibration FILE with --gold: nothing else uses it."),
    ("calibration", ["has_confidence"], "--samples N or --confidence with --calibration: it converts what they tell to a probability."),
)
# fmt: on


def extract(options: ExtractOptions) -> bool:
    """Write the records, with a bar or the records that grow on the standard error; return whether each row has one."""
    started = time.monotonic()
    with plain_warnings():
        extraction, schema, template = prepared(options, sys.stdin.buffer, sys.stdout.buffer)
        _note_lengths(options, schema)
        load: Callable[[], Outcomes] = partial(_load_extractor, options, schema, template)
        if options.has_workers:
            load = partial(_load_in_worker, options, os.getcwd())
        growing = GrowingRecords(Console(stderr=True)) if options.stream else None
        bar = progress_bar(extraction.tally, False if options.stream else options.progress)
        # Messages of Ray about its workers must not appear between the rows.
        with bar as show, redirect_stdout(sys.stderr), growing or nullcontext():
            for tally in extraction.run(load, None if growing is None else growing.show):
                show(tally)
    seconds = time.monotonic() - started
    typer.echo(summary(extraction.tally, options.output, seconds, has_workers=options.has_workers), err=True)
    return not extraction.tally.failed


def prepared(
    options: ExtractOptions, stdin: BinaryIO, stdout: BinaryIO
) -> tuple[Extraction, RecordSchema, PromptTemplate]:
    """Return the extraction of the options, with the schema and the template; wrong options raise before the output is touched."""
    _check_options(options)
    images = RowImages.of(options.image_names, options.missing)
    template, schema = _template(options), load_schema(options.schema)
    template.check_used(has_images=bool(images))
    images.check_places(template.source)
    calibration = None if options.calibration is None else Calibration.load(options.calibration)
    model = options.model or f"bundled {__version__}"
    workers = WorkerOptions(
        workers=options.workers,
        address=options.ray_address,
        gpus=1 if (options.device or "").startswith("cuda") else 0,
        block_size=2 * options.batch_size,
    )
    named = {
        "schema": schema.json_schema,
        "prompt": template.source,
        "model": model,
        "calibration": calibration,
        **{name: getattr(options, attribute) for name, attribute in _DECIDING.items()},
        **({"images": images.names} if images else {}),
        **({"confidence": options.confidence, "abstain_below": options.abstain_below} if options.abstains else {}),
    }
    extraction = Extraction(
        source=_source(options, images, stdin),
        output=stdout if options.output is None else options.output,
        settings=[*named.values()],
        named=named,
        title=f"{'images' if options.has_image_files else Path(options.input[0]).name} → {Path(options.schema).name}",
        text_field=options.text_field,
        needed=RowPrompt(template, options.text_field, "", options.missing, images).needed,
        keep_text=options.keep_text,
        details=options.has_details,
        calibration=calibration,
        shape=shape_of(schema),
        resume=options.resume,
        overwrite=options.overwrite,
        report=options.report,
        save_calibration=options.save_calibration,
        gold=options.gold,
        images=images,
        workers=workers if options.has_workers else None,
    )
    return extraction, schema, template


def _source(options: ExtractOptions, images: RowImages, stdin: BinaryIO) -> RowSource | ImageFiles:
    if not options.has_image_files:
        return RowSource(options.input[0], options.input_format, options.text_field, stdin, images.names)
    if len(images.names) != 1:
        raise SetupError(f"expected one --images NAME with image files, whose path it is, got {len(images.names)}")
    return ImageFiles(options.input, images.names[0])


def _template(options: ExtractOptions) -> PromptTemplate:
    if options.prompt is not None:
        return PromptTemplate.from_file(options.prompt)
    if options.chat and options.model is None:
        return PromptTemplate("{{ text }}")  # the bundled model was trained on messages without instructions
    return PromptTemplate(default_source(is_chat=options.chat, num_images=len(options.image_names or ())))


def _check_options(options: ExtractOptions) -> None:
    """Raise `SetupError` for options that exclude or need each other, and for values that no model is needed to refuse."""
    if options.stream and options.progress:
        raise SetupError("expected --stream or --progress, got both. Leave out one: both are shown at one place.")
    if options.stream and options.has_workers:
        raise SetupError(
            "expected --stream or --workers, got both. Records of other processes are seen when they are whole."
        )
    for name, needed, expected in _NEEDS:
        if getattr(options, name) and not all(getattr(options, other) for other in needed):
            raise SetupError(f"expected {expected}")
    model = options.model or ""
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_like_path and not Path(model).exists():
        raise SetupError(
            f"the model {model!r} cannot be loaded: there is no such folder. Give a hub id, or a folder with config, weights and "
            "tokenizer."
        )
    if options.image_names is not None and options.model is None:
        raise SetupError(
            "expected --model with images, a model that takes them, as the bundled one reads texts alone. Such as --model "
            "Qwen/Qwen3-VL-4B-Instruct."
        )
    check_picture(options.report, "report", ".html", ".htm")
    parse_sampler(options.sampler)


def _note_lengths(options: ExtractOptions, schema: RecordSchema) -> None:
    """Compile the schema, which may refuse it, and name the strings and arrays of any length if there is no --max-tokens."""
    unbounded = fsm.json_schema(schema.schema, **options.schema_options).report.unbounded
    if unbounded and options.max_tokens is None:
        from outlines_cont.generation.options import named_lengths

        limit = f"may be of any length; a record is cut after {options.most_tokens} tokens"
        note = f"Note: {named_lengths(unbounded)} {limit}. Set --max-tokens, or bound them in the schema."
        typer.echo(note, err=True)


def _load_in_worker(options: ExtractOptions, folder: str) -> Outcomes:
    if os.path.isdir(folder):  # it may be missing on another machine
        os.chdir(folder)
    return _load_extractor(options, load_schema(options.schema), _template(options))


def _load_extractor(options: ExtractOptions, schema: RecordSchema, template: PromptTemplate) -> Outcomes:
    from outlines_cont.cli.chat import begun_chat
    from outlines_cont.cli.model import load_model, make_sampler
    from outlines_cont.pipelines.extractor import Extractor

    sampler = make_sampler(options.sampler)
    verbose = options.verbose and not options.has_workers
    model = load_model(
        options.model,
        options.device,
        options.dtype,
        fused=options.fused,
        deterministic=options.deterministic,
        num_rows=options.batch_size,
        verbose=verbose,
    )
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
        images=options.image_names,
        max_tokens=options.most_tokens,
        sampler=sampler,
        seed=options.seed,
        batch_size=options.batch_size,
        chat=chat,
        draft=None if options.draft == "none" else options.draft,
        thinking=options.thinking,
        samples=options.samples,
        confidence=options.confidence,
        abstain_below=options.abstain_below,
        calibration=Calibration.load(options.calibration)
        if options.calibration is not None and options.abstains
        else None,
        is_scored=options.has_details,
        **options.schema_options,
    )
