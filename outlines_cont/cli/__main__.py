"""The command line `outlines-cont`: runs the commands of `cli.options`. Exit status: 0 success, 1 some row failed or the output was closed,
2 an error ended the command (mostly before any row), 130 interrupted.

Heavy imports happen when a command runs, so that `--help` and wrong options do not wait for them.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Annotated, Any

import typer

from outlines_cont import __version__
from outlines_cont.cli.console import FAILED_ROWS, check_picture, demo_output, flags_of, one_line_errors
from outlines_cont.cli.options import (
    BatchOptions,
    ChatOptions,
    DemoOptions,
    ExtractOptions,
    ProgramOptions,
    SchemaOptions,
    ServeOptions,
    app,
)


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks becomes a question mark, not an error.
            stream.reconfigure(errors="replace")
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlines-cont {__version__}")
        raise typer.Exit


def _run(options: object, **_: Any) -> None:
    with one_line_errors(lambda: _interrupted(options), flags_of(type(options))):
        if not _has_succeeded(options):
            raise typer.Exit(FAILED_ROWS)


@app.callback(result_callback=_run)
def outlines_cont(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Structured generation on Hugging Face models: chain generators, never feed a token twice."""


def _has_succeeded(options: object) -> bool:
    """Run a command, and return whether no row has failed."""
    match options:
        case DemoOptions():
            _check_demo(options)
            with demo_output(options.output) as file:  # which is refused before the model is loaded
                if options.images:
                    from outlines_cont.cli.demo_images import show_image_demo

                    return show_image_demo(options, file)
                from outlines_cont.cli.demo import show_demo

                return show_demo(options, file)
        case ExtractOptions():
            from outlines_cont.cli.extract import extract

            return extract(options)
        case ProgramOptions():
            from outlines_cont.cli.program import run_program

            return run_program(options)
        case ChatOptions():
            from outlines_cont.cli.chat import talk

            talk(options)
        case BatchOptions():
            from outlines_cont.cli.batch import run_batch

            return run_batch(options, lambda: _application(options))
        case ServeOptions():
            _serve(options)
        case SchemaOptions():
            check_picture(options.draw, "draw", ".svg")
            from outlines_cont.cli.schema import describe

            describe(options)
    return True


def _check_demo(options: DemoOptions) -> None:
    """Raise `SetupError` for options that exclude or need each other."""
    from outlines_cont.pipelines.outcome import SetupError

    if options.images and options.stream:
        raise SetupError(
            "expected --images or --stream, got both. Receipts are read in one batch, and shown when all are read."
        )
    if options.report is not None and not options.images:
        raise SetupError("expected --images with --report: the page has pictures.")
    check_picture(options.report, "report", ".html", ".htm")


@contextmanager
def _extra_serve() -> Iterator[None]:
    """Raise `SetupError` for what the block cannot import."""
    try:
        yield
    except ImportError as error:
        from outlines_cont.pipelines.outcome import SetupError

        raise SetupError(f"expected the extra `serve`, but {error}: pip install 'outlines-cont[serve]'") from error


def _application(options: BatchOptions) -> Any:
    """Return the application of the server that answers the requests of a batch."""
    with _extra_serve():
        from outlines_cont.serve.app import make_app
        from outlines_cont.serve.limits import ServerLimits
    from fsm import SchemaWarning

    warnings.simplefilter("ignore", SchemaWarning)  # of requests; `strict` makes them errors
    model, name, others = _opened(
        options.models,
        device=options.device,
        dtype=options.dtype,
        fused=options.fused,
        num_rows=min(options.at_once, 8),
        kv_budget_bytes=options.kv_budget_bytes,
        verbose=options.verbose,
    )
    limits = ServerLimits(max_requests=options.at_once, max_tokens=options.max_tokens, max_body_bytes=sys.maxsize)
    return make_app(model, name, others=others, limits=limits)


def _opened(models: dict[str, str | None], **options: Any) -> tuple[Any, str, dict[str, Callable[[], Any]]]:
    """Return the first of some models, its name, and functions that open the others, by name; `options` are those of `load_model`."""
    from outlines_cont.cli.model import load_model

    (name, first), *others = models.items()
    later = options | {"num_rows": None}
    return load_model(first, **options), name, {other: partial(load_model, source, **later) for other, source in others}


def _serve(options: ServeOptions) -> None:
    with _extra_serve():
        from outlines_cont.serve.app import run
        from outlines_cont.serve.limits import ServerLimits
    from fsm import Limits

    model, name, others = _opened(
        options.models,
        device=options.device,
        dtype=options.dtype,
        fused=options.fused,
        deterministic=options.deterministic,
        num_rows=8,
        kv_budget_bytes=options.kv_budget_bytes,
    )
    named = {limit.name: getattr(options, limit.name) for limit in fields(ServerLimits) if limit.name != "schema"}
    limits = ServerLimits(**named, schema=Limits(max_work=options.max_schema_work))
    run(
        model,
        name,
        others=others,
        host=options.host,
        port=options.port,
        limits=limits,
        api_key=os.environ.get("OUTLINES_CONT_API_KEY"),
        allow_hosts=options.allow_host or (),
        cors_origins=options.cors_origin or (),
        image_hosts=options.allow_image_urls or (),
    )


def _interrupted(options: object) -> str:
    """Return what is printed after Ctrl-C."""
    match options:
        case DemoOptions():
            return "Interrupted; nothing was written."
        case ProgramOptions(output=output) if output is not None:
            return f"Interrupted. {output} has only complete lines."
        case BatchOptions(output=output):
            return f"Interrupted. {output} has only complete lines; run the same command with --resume to continue."
        case ExtractOptions(output=output) if output is not None:
            from outlines_cont.pipelines.output import lines_path

            lines = lines_path(output)
            if not lines.exists():
                return "Interrupted before the first row; nothing was written."
            return f"Interrupted. {lines} is intact; run the same command with --resume to continue."
    return "Interrupted."


if __name__ == "__main__":
    main()
