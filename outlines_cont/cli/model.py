"""`load_model`: the model of a command, by hub id or path, or the bundled one, with its number of threads; failures are `SetupError`s.
`make_sampler`: its sampler.

`set_threads`: chooses how many threads torch uses: it times short forwards with all cores, then with fewer (powers of two), until the
larger number saves at least 15 % of the time, or a forward takes more than half a second. With a GPU, or with `OMP_NUM_THREADS` set,
nothing is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import typer
from transformers.utils.logging import disable_progress_bar

from outlines_cont import samplers
from outlines_cont.checks import num_cores
from outlines_cont.cli.console import SAMPLER_FORMS, parse_sampler
from outlines_cont.cli.options import DType
from outlines_cont.errors import ModelNotFound
from outlines_cont.models.hugging_face import HuggingFaceModel, tiny, tiny_vision, transformers
from outlines_cont.pipelines.outcome import SetupError
from outlines_cont.sampling.params import Sampler

_OWN_CODE = (
    "it comes with code of its own, which a command never runs. Where you trust it, open the model in Python with the option "
    "`trust_remote_code`, set to true"
)
_VARIABLE = "OMP_NUM_THREADS"
# More threads must save at least this share of a forward's time.
_MIN_SAVING = 0.15
_REPEATS = 3
# Seconds. A model with a longer forward gets all cores, without further timing.
_LONG = 0.5


def load_model(
    name: str | None,
    device: str | None,
    dtype: DType | None,
    *,
    fused: bool = True,
    deterministic: bool = False,
    num_rows: int | None = 1,
    kv_budget_bytes: int | None = None,
    verbose: bool = False,
    is_of_images: bool = False,
) -> HuggingFaceModel:
    """Return a model by hub id or path, or the bundled one for None, and choose the threads for `num_rows` rows at a time.

    With None as `num_rows` the threads stay as they are, since the sums of other models that run depend on them. `is_of_images` takes
    the bundled vision model for None as `name`.

    Raises `SetupError` if the model cannot be loaded; with `verbose` the choice of threads is printed, and which forward runs.
    """
    own_options = {"fused": fused, "deterministic": deterministic, "kv_budget_bytes": kv_budget_bytes}
    model = _loaded(name, device, dtype, tiny_vision if is_of_images else tiny, **own_options)
    choice = f"{torch.get_num_threads()}, as before" if num_rows is None else set_threads(model, num_rows)
    if verbose:
        waiting = os.environ.get("OMP_WAIT_POLICY", "as OpenMP does").lower()
        typer.echo(f"Threads: {choice}; waiting: {waiting}", err=True)
        own = model.capabilities.fused
        typer.echo("Forward: fused" if own else f"Forward: by transformers ({own.why})", err=True)
    return model


def _loaded(
    name: str | None,
    device: str | None,
    dtype: DType | None,
    bundled: Callable[..., HuggingFaceModel],
    **options: Any,
) -> HuggingFaceModel:
    # Its bar for the files of a model would interfere with ours; downloads keep theirs.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if name is None:
            weights = torch.float32 if dtype is None else getattr(torch, dtype)
            return bundled(device=device, dtype=weights, **options)
        return transformers(name, device=device, dtype=dtype, **options)
    except ModelNotFound as error:  # its message has what was tried, and what to do
        raise SetupError(f"the model {name!r} cannot be loaded: {error}") from error
    except Exception as error:  # hub, files, weights and devices have errors of many classes
        which = "the bundled model" if name is None else f"the model {name!r}"
        if "trust_remote_code" in str(error):
            raise SetupError(f"{which} cannot be loaded: {_OWN_CODE}") from error
        raise SetupError(
            f"{which} cannot be loaded: {type(error).__name__}: {error} -- "
            "Give a hub id, or a folder with config, weights and tokenizer, and a --device and --dtype that this machine has."
        ) from error


def set_threads(model: HuggingFaceModel, num_rows: int) -> str:
    """Choose the number of threads for a model with `num_rows` rows at a time, set it in torch, and return what was chosen, and why.

    Cost: some forwards of a few tokens, at most about two seconds.
    """
    if model.device.type != "cpu":
        return f"the model runs on {model.device}"
    if _VARIABLE in os.environ:
        return f"{torch.get_num_threads()}, as set by {_VARIABLE}"
    input_ids = torch.zeros((num_rows, 2), dtype=torch.int64, device="cpu")

    def forward(threads: int) -> float:
        torch.set_num_threads(threads)
        best = float("inf")
        for _ in range(_REPEATS):
            started = perf_counter()
            model.hugging_face(input_ids)
            best = min(best, perf_counter() - started)
            if best > _LONG:
                break
        return best

    with torch.inference_mode():
        threads, why = choose_threads(forward, num_cores())
    torch.set_num_threads(threads)
    return why


def choose_threads(forward: Callable[[int], float], num_cores: int) -> tuple[int, str]:
    """Return a number of threads, at most `num_cores`, and why, by `forward`, which returns the seconds of a forward with as many."""
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < num_cores]
    chosen, best = num_cores, forward(num_cores)
    seconds = {num_cores: best}
    for count in reversed(counts):
        if best > _LONG:
            break
        seconds[count] = forward(count)
        if seconds[count] * (1 - _MIN_SAVING) > best:
            break
        chosen, best = count, min(best, seconds[count])
    shown = ", ".join(f"{1000 * value:.1f} ms with {count}" for count, value in sorted(seconds.items()))
    return chosen, f"{chosen} of {num_cores} (a short forward takes {shown})"


def make_sampler(text: str) -> Sampler:
    """Return the sampler of `text`; raise `SetupError` for an unknown name or option, `OptionError` for one out of its range."""
    name, options = parse_sampler(text)
    try:
        return samplers.greedy() if name == "greedy" else samplers.multinomial(**options)
    except TypeError as error:
        raise SetupError(f"expected {SAMPLER_FORMS} as --sampler, got {text!r}: {error}") from error
