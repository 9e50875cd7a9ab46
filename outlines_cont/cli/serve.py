"""`serve`: the command `outlines-cont serve`: uvicorn with the application of one model, and what it says at its start."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import typer

from fsm import SchemaWarning
from outlines_cont.cli.model import load_model
from outlines_cont.cli.options import ServeOptions
from outlines_cont.pipelines.outcome import SetupError

KEY = "OUTLINES_CONT_API_KEY"


def serve(options: ServeOptions) -> None:
    """Serve until Ctrl-C."""
    try:
        import uvicorn

        from outlines_cont.serve.app import make_app
        from outlines_cont.serve.limits import ServerLimits
    except ImportError as error:
        raise SetupError(f"expected the extra `serve`, but {error}: pip install 'outlines-cont[serve]'") from error
    model = load_model(options.model, options.device, options.dtype, num_rows=8)
    name = (
        options.name
        or (Path(options.model).name if options.model and Path(options.model).exists() else options.model)
        or "tiny"
    )
    limits = ServerLimits(max_requests=options.max_requests, max_tokens=options.max_tokens)
    warnings.simplefilter("ignore", SchemaWarning)  # of requests; `strict` makes them errors
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    app = make_app(model, name, limits=limits, api_key=os.environ.get(KEY))
    typer.echo(f"Serving {name!r} at http://{options.host}:{options.port}/v1", err=True)
    uvicorn.run(
        app, host=options.host, port=options.port, log_level="warning", access_log=False, timeout_graceful_shutdown=30
    )
