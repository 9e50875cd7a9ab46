"""`run_batch`: the command `outlines-cont batch`: the requests of a batch file of OpenAI, answered by the application of the server in this
process, or, with `--url`, by a server that runs already.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import typer

from outlines_cont import __version__
from outlines_cont.batches.batch_run import BatchRun
from outlines_cont.batches.doors import Application, application_door, server_door
from outlines_cont.cli.growing import progress_bar, summary
from outlines_cont.cli.options import BatchOptions


def run_batch(options: BatchOptions, application: Callable[[], Application]) -> bool:
    """Write the records, with a bar on the standard error; return whether every request has a reply.

    `application` loads the model, and returns what answers for it; it is called without `--url`.
    """
    started = time.monotonic()
    errors = options.errors or options.output.with_name(f"{options.output.stem}.errors{options.output.suffix}")
    named: str | None = None
    settings: Any = "server"
    if options.url is None:
        models = options.models
        named, first = next(iter(models.items()))
        settings = (first or f"bundled {__version__}", options.dtype, options.max_tokens, named, *[*models.items()][1:])
    batch = BatchRun(
        options.input,
        options.output,
        errors,
        settings=settings,
        model=named,
        at_once=options.at_once,
        resume=options.resume,
        overwrite=options.overwrite,
    )
    with progress_bar(batch.tally, options.progress) as show:
        if options.url is not None:
            door = server_door(options.url, os.environ.get("OUTLINES_CONT_API_KEY"))
        else:
            door = application_door(application())
            batch.tally.loading_seconds = time.monotonic() - started
        batch.run(door, show)
    told = summary(batch.tally, options.output, time.monotonic() - started)
    typer.echo(told + (f"; errors: {errors}" if batch.tally.failed else ""), err=True)
    return not batch.tally.failed
