"""`tiny`: loads the small model that is shipped with the package, without a network, in float32 on the CPU by default. It is trained to
read short messages and write JSON records.
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib.resources import as_file, files
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from outlines_cont.models.hugging_face import (
    HuggingFaceModel,
    check_device,
    check_prefix_cache_bytes,
    from_transformers,
)
from outlines_cont.models.opening import Opening
from outlines_cont.unknown_option import knows_its_options


@knows_its_options()
def tiny(
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    prefix_cache_bytes: int | None = None,
) -> HuggingFaceModel:
    """Load the bundled model from the package; nothing is downloaded.

    Args:
        device: where to put the weights; None is the CPU.
        dtype: the float type of the weights.
        prefix_cache_bytes: see `models.from_transformers`.

    Raises:
        OptionError: there is no such device, or `prefix_cache_bytes` is not a number of bytes.
    """
    check_device(device)
    check_prefix_cache_bytes(prefix_cache_bytes)
    with ExitStack() as stack:
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            stack.callback(logging.enable_progress_bar)
        folder = stack.enter_context(as_file(files("outlines_cont.models") / "tiny"))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    moved = model if device is None else model.to(device)
    wrapped = from_transformers(moved, tokenizer, prefix_cache_bytes=prefix_cache_bytes)
    options = {"device": device, "dtype": dtype, "prefix_cache_bytes": prefix_cache_bytes}
    wrapped.opening = Opening.of(wrapped, tiny, options)
    return wrapped
