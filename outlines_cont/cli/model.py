"""`load_model`: the model of a command, by hub id or path, or the bundled one, with its number of threads; failures are `SetupError`s."""

from __future__ import annotations

import torch
import typer
from transformers.utils.logging import disable_progress_bar

from outlines_cont.cli.options import DType
from outlines_cont.cli.threads import set_threads
from outlines_cont.errors import ModelNotFound
from outlines_cont.models.hugging_face import HuggingFaceModel, tiny, transformers
from outlines_cont.pipelines.rows.errors import SetupError


def load_model(
    name: str | None, device: str | None, dtype: DType | None, *, num_rows: int = 1, verbose: bool = False
) -> HuggingFaceModel:
    """Return a model by hub id or path, or the bundled one for None, and choose the threads for `num_rows` rows at a time.

    Raises `SetupError` if the model cannot be loaded; with `verbose` the choice of threads is printed.
    """
    model = _loaded(name, device, dtype)
    choice = set_threads(model, num_rows)
    if verbose:
        typer.echo(str(choice), err=True)
    return model


def _loaded(name: str | None, device: str | None, dtype: DType | None) -> HuggingFaceModel:
    # Its bar for the files of a model would interfere with ours; downloads keep theirs.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if name is None:
            return tiny(device=device, dtype=torch.float32 if dtype is None else getattr(torch, dtype.value))
        return transformers(name, device=device, dtype=None if dtype is None else dtype.value)
    except ModelNotFound as error:  # its message has what was tried, and what to do
        raise SetupError(f"the model {name!r} cannot be loaded: {error}") from error
    except Exception as error:  # hub, files, weights and devices have errors of many classes
        which = "the bundled model" if name is None else f"the model {name!r}"
        raise SetupError(
            f"{which} cannot be loaded: {type(error).__name__}: {error} -- "
            "Give a hub id, or a folder with config, weights and tokenizer, and a --device and --dtype that this machine has."
        ) from error
