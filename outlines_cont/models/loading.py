"""`load`, `load_bundled`: a network and its tokenizer, loaded by transformers by hub id or path, or from this package. Sources, devices and
options are checked before: an option that resembles a known one (`difflib`) and is no attribute of the config is an `UnknownOption`. Other
names are passed on; one that transformers refuses is that error, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from difflib import get_close_matches
from importlib.resources import as_file, files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from outlines_cont.checks import check
from outlines_cont.errors import MissingTokenizer, ModelNotFound, OptionError, UnknownOption
from outlines_cont.unknown_option import unknown_option

_OWN = ("device", "dtype", "kv_budget_bytes", "prefix_cache_bytes")
# Of `from_pretrained` of the tokenizer, too.
_SHARED = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code")
# Of `from_pretrained`; those that another version has in addition are passed on all the same.
_KNOWN = (
    *("attn_implementation", "cache_dir", "code_revision", "config", "device_map", "force_download", "gguf_file"),
    *("ignore_mismatched_sizes", "local_files_only", "max_memory", "offload_folder", "proxies", "quantization_config"),
    *("revision", "state_dict", "subfolder", "token", "tp_plan", "trust_remote_code", "use_safetensors", "variant"),
    "weights_only",
)
_ELSEWHERE = {
    "torch_dtype": "Write `dtype`.",
    "tokenizer": "Load the two yourself, and write `models.from_transformers(model, tokenizer)`.",
    "load_in_4bit": "Write `quantization_config=BitsAndBytesConfig(load_in_4bit=True)`.",
    "load_in_8bit": "Write `quantization_config=BitsAndBytesConfig(load_in_8bit=True)`.",
}


def load(id_or_path: str | PathLike[str], device: Any, dtype: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a network on a device, and its tokenizer. `options` are those of `from_pretrained`.

    Raises what `models.transformers` does for its arguments, and `OSError` where a folder cannot be read.
    """
    _check_source(id_or_path)
    _check_device(device)
    try:
        network = _load_network(id_or_path, dtype, options)
    except OSError as error:
        if Path(id_or_path).is_dir():
            raise
        raise ModelNotFound(_not_found(str(id_or_path), error), "id_or_path") from error
    if device is not None:
        network = network.to(device)
    try:
        return network, AutoTokenizer.from_pretrained(id_or_path, **{k: options[k] for k in _SHARED if k in options})
    except (OSError, ValueError, KeyError) as error:
        raise MissingTokenizer(
            f"expected a tokenizer together with the model at {str(id_or_path)!r}, but: {error}. "
            "Load the two yourself and give them to `models.from_transformers(model, tokenizer)`."
        ) from error


def load_bundled(device: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the bundled network, on the CPU where `device` is None, and its tokenizer; no progress bar is shown."""
    _check_device(device)
    with ExitStack() as stack:
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            stack.callback(logging.enable_progress_bar)
        folder = stack.enter_context(as_file(files("outlines_cont.models") / "tiny"))
        network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return network if device is None else network.to(device), tokenizer


def _load_network(id_or_path: str | PathLike[str], dtype: Any, options: Mapping[str, Any]) -> Any:
    for name in options:
        if name in _ELSEWHERE:
            raise _refused(name)
        is_close = name not in _KNOWN and get_close_matches(name, (*_OWN, *_KNOWN), 1)
        if is_close and not _is_of_config(id_or_path, name, options):
            raise _refused(name)
    try:
        return AutoModelForCausalLM.from_pretrained(id_or_path, dtype=dtype, **options)
    except TypeError as error:
        unknown = next((name for name in options if str(error).endswith(f"unexpected keyword argument '{name}'")), None)
        if unknown is None:
            raise
        raise _refused(unknown) from error


def _is_of_config(id_or_path: str | PathLike[str], name: str, options: Mapping[str, Any]) -> bool:
    """Return whether an option is an attribute of the config, which `from_pretrained` sets."""
    config = AutoConfig.from_pretrained(id_or_path, **{key: options[key] for key in options if key in _KNOWN})
    return hasattr(config, name)


def _refused(name: str) -> UnknownOption:
    return unknown_option("`models.transformers`", name, (*_OWN, *_KNOWN), _ELSEWHERE.get(name, ""))


def _check_source(id_or_path: Any) -> None:
    expected = "a hub id such as 'Qwen/Qwen3-0.6B' or the folder of a model"
    check("id_or_path", id_or_path, isinstance(id_or_path, str | PathLike) and bool(str(id_or_path)), expected)
    path = Path(id_or_path)
    is_path = isinstance(id_or_path, PathLike) or str(id_or_path).startswith((".", "/", "~")) or path.is_absolute()
    if is_path and not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "does not exist"
        raise OptionError(
            f"expected the folder of a model as `id_or_path`, but {str(id_or_path)!r} {what}. "
            "Give the folder that `save_pretrained` wrote, or a hub id.",
            "id_or_path",
        )


def _not_found(name: str, error: OSError) -> str:
    hub = "the hub and its cache were searched"
    if any(os.environ.get(switch, "") not in ("", "0") for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        hub = "offline mode is on, so only the cache of the hub was searched"
    return (
        f"expected the folder of a model, or the id of one on the hub, as `id_or_path`, got {name!r}. Tried: the folder "
        f"{str(Path(name).absolute())!r}, which does not exist; then the id: {hub}. Check the spelling (ids have the form "
        f"'owner/name'), or give the folder that `save_pretrained` wrote. transformers says: {str(error).splitlines()[0]}"
    )


def _check_device(device: object) -> None:
    """Raise `OptionError` for a name that is not one of a device, and for a CUDA device that this machine does not have."""
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise OptionError(
                f"expected the name of a device as `device`, such as 'cpu', 'cuda', 'cuda:0' or 'mps', got {device!r}.",
                "device",
            ) from error
    if device is not None and str(device).startswith("cuda") and not torch.cuda.is_available():
        raise OptionError(
            f"expected a device of this machine as `device`, got {str(device)!r}, but this PyTorch sees no CUDA device. "
            "Leave `device` out for the CPU, or install the CUDA build of PyTorch and its driver.",
            "device",
        )
