"""The small model that is shipped in the package: it reads short messages and writes records."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outlines_cont.models.hugging_face import HuggingFaceModel, from_transformers


def tiny(*, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32) -> HuggingFaceModel:
    """Load the bundled model from the package; nothing is downloaded.

    Args:
        device: where to put the weights; None is the CPU.
        dtype: the float type of the weights.
    """
    with as_file(files("outlines_cont.models") / "tiny") as folder:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return from_transformers(model if device is None else model.to(device), tokenizer)
