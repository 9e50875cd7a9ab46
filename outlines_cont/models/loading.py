"""`Opening`: the call that opened a model (function and options), by which it is pickled instead of its weights. Unpickling returns the
model that this process opened by an equal call, or repeats the call once and compares the fingerprint of config and weights
(`ModelMismatch`).

`load`, `load_bundled`: a network and its tokenizer, loaded by transformers by hub id or path, or from this package. No code of a model
runs, and nothing is asked, without `trust_remote_code=True`. Sources, devices, types, options are checked before: an option that resembles
a known one (`difflib`) and is no attribute of the config is an `UnknownOption`. Other names are passed on; one that transformers refuses is
that error, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from importlib.resources import as_file, files
from itertools import count
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PretrainedConfig,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.utils import logging

from fsm.process_fork import rlock
from outlines_cont.checks import check, checked_bool, unknown_option
from outlines_cont.errors import (
    MissingTokenizer,
    ModelMismatch,
    ModelNotFound,
    OptionError,
    UnknownOption,
    UnsupportedModel,
    shortened,
)
from outlines_cont.models.capability import half_precision
from outlines_cont.models.collector import freeze_modules

P = ParamSpec("P")
T = TypeVar("T")

_LOCK = rlock(is_awaited=True)
# The models of this process by their openings.
_OPEN: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()
_NUMBERS = count(1)


def next_number() -> str:
    """Return what tells the next model of this process from those before it in a text: nothing for the first, then `, #2` and so on."""
    freeze_modules(False)  # from now on there is a model, which may be part of a cycle
    number = next(_NUMBERS)
    return f", #{number}" if number > 1 else ""


@dataclass(frozen=True, slots=True)
class Opening:
    """A call of a public function of `models` with options by name that opened a model.

    `name` is equal for equal calls; `number` distinguishes the models of equal calls that are open, from 0.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    name: str
    number: int = 0

    @classmethod
    def of(cls, model: object, function: Callable[..., Any], options: Mapping[str, Any]) -> Opening:
        """Return the opening of a newly opened model, and register the model in this process (weakly)."""
        name = f"{function.__name__}({', '.join(f'{key}={options[key]!r}' for key in sorted(options))})"
        with _LOCK:
            number = next(n for n in range(len(_OPEN) + 1) if (name, n) not in _OPEN)
            _OPEN[name, number] = model
        return cls(function, options, name, number)


def reopened(opening: Opening, fingerprint: str) -> Any:
    """Return the model of an opening: the one that is open in this process, or else a new one.

    Raises `ModelMismatch` if its config or weights are not those of `fingerprint`, and what opening the model raises.
    """
    key = opening.name, opening.number
    with _LOCK:
        if (known := _OPEN.get(key)) is not None:
            return known
        model = opening.function(**opening.options)
        if model.fingerprint != fingerprint:
            raise ModelMismatch(
                f"expected the model that was pickled ({fingerprint[:12]}), but {opening.name} opens another one now "
                f"({model.fingerprint[:12]}): its files or its weights were changed. Save the changed model with "
                "`save_pretrained`, open it from there, and pickle that."
            )
        _OPEN.pop((model.opening.name, model.opening.number), None)
        _OPEN[key] = model
        model.opening = opening
        return model


_OWN = ("device", "dtype", "fused", "kv_budget_bytes", "prefix_cache_bytes")
# Of `from_pretrained` of the tokenizer, too.
_SHARED = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code")
# Of `from_pretrained`; those that another version has in addition are passed on all the same.
_KNOWN = (
    *("attn_implementation", "cache_dir", "code_revision", "config", "device_map", "force_download", "gguf_file"),
    *("ignore_mismatched_sizes", "local_files_only", "max_memory", "offload_folder", "proxies", "quantization_config"),
    *("revision", "state_dict", "subfolder", "token", "tp_plan", "trust_remote_code", "use_safetensors", "variant"),
    "weights_only",
)
_FLOAT_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_ELSEWHERE = {
    "torch_dtype": "Write `dtype`.",
    "tokenizer": "Load the two yourself, and write `models.from_transformers(model, tokenizer)`.",
    "load_in_4bit": "Write `quantization_config=BitsAndBytesConfig(load_in_4bit=True)`.",
    "load_in_8bit": "Write `quantization_config=BitsAndBytesConfig(load_in_8bit=True)`.",
}


def _one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """Let one thread at a time load. While transformers loads, it replaces functions of PyTorch for the whole process, such as the
    initialization of weights: of two networks that load at once, one may be left with random weights, without an error.
    """

    @wraps(function)
    def load(*args: P.args, **options: P.kwargs) -> T:
        with _LOCK:
            return function(*args, **options)

    return load


@_one_at_a_time
def load(id_or_path: str | PathLike[str], device: Any, dtype: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a network on a device, and its tokenizer. `options` are those of `from_pretrained`. Other threads wait until it is loaded.

    Raises what `models.transformers` does for its arguments, and `OSError` where a folder cannot be read.
    """
    # With None transformers asks at the standard input, from which a command may be reading rows.
    options = {"trust_remote_code": False, **options}
    checked_bool(options["trust_remote_code"], "trust_remote_code")
    _check_source(id_or_path, _config_file(options))
    _check_device(device)
    dtype = "auto" if dtype is None else _chosen_type(float_type(dtype), device, options)
    why_cache_alone = None if Path(id_or_path).is_dir() else _why_cache_alone(str(id_or_path), options)
    if why_cache_alone is not None:
        options["local_files_only"] = True
    try:
        network = _load_network(id_or_path, dtype, options)
    except OSError as error:
        if Path(id_or_path).is_dir():
            raise
        raise ModelNotFound(_not_found(str(id_or_path), why_cache_alone, error), "id_or_path") from error
    if device is not None:
        network = network.to(device)
    try:
        return network, AutoTokenizer.from_pretrained(id_or_path, **{k: options[k] for k in _SHARED if k in options})
    except (OSError, ValueError, KeyError) as error:
        raise MissingTokenizer(
            f"expected a tokenizer together with the model at {str(id_or_path)!r}, but: {error}. "
            "Load the two yourself and give them to `models.from_transformers(model, tokenizer)`."
        ) from error


@_one_at_a_time
def load_bundled(name: str, device: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a bundled network, on the CPU where `device` is None, and its tokenizer; no progress bar is shown.

    `name` is that of its folder in this package.
    """
    _check_device(device)
    dtype = float_type(dtype)
    with ExitStack() as stack:
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            stack.callback(logging.enable_progress_bar)
        folder = stack.enter_context(as_file(files("outlines_cont.models") / name))
        network: Any = _auto_class(folder, {}).from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return network if device is None else network.to(device), tokenizer


def open_bundled_processor(name: str) -> Any:
    """Return the processor of images and texts of a bundled network."""
    with as_file(files("outlines_cont.models") / name) as folder:
        return open_processor(folder, {"local_files_only": True})


def _load_network(id_or_path: str | PathLike[str], dtype: Any, options: Mapping[str, Any]) -> Any:
    for name in options:
        if name in _ELSEWHERE:
            raise _refused(name)
        is_close = name not in _KNOWN and get_close_matches(name, (*_OWN, *_KNOWN), 1)
        if is_close and not _is_of_config(id_or_path, name, options):
            raise _refused(name)
    auto_class = _auto_class(id_or_path, options)
    try:
        return auto_class.from_pretrained(id_or_path, dtype=dtype, **options)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise UnsupportedModel(
            f"expected a decoder of texts, or of images and texts, at {str(id_or_path)!r}, got another kind of network: transformers "
            "has it neither in `AutoModelForCausalLM` nor in `AutoModelForImageTextToText`. transformers says: "
            f"{shortened(str(error).splitlines()[0], 120)}"
        ) from error
    except TypeError as error:
        unknown = next((name for name in options if str(error).endswith(f"unexpected keyword argument '{name}'")), None)
        if unknown is None:
            raise
        raise _refused(unknown) from error


def _auto_class(id_or_path: str | PathLike[str], options: Mapping[str, Any]) -> Any:
    """Return the class of transformers that loads a network: that for images and texts where its config is of such a network.

    Some of these are also in the table of causal language models, but without their vision encoder.
    """
    if options.get("gguf_file"):  # which has a text model alone
        return AutoModelForCausalLM
    config = options.get("config")
    if not isinstance(config, PretrainedConfig):
        found = {key: options[key] for key in (*_SHARED, "force_download", "proxies") if key in options}
        config = AutoConfig.from_pretrained(id_or_path, **found)
    own_code = getattr(config, "auto_map", None) or {}
    kind = config.model_type
    if "AutoModelForCausalLM" in own_code or not {kind, "AutoModelForImageTextToText"} & {
        *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *own_code,
    }:
        return AutoModelForCausalLM
    text, both = (
        names.get(kind) for names in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    )
    is_text = text is not None and (text == both or both not in (config.architectures or ()))
    return AutoModelForCausalLM if is_text else AutoModelForImageTextToText


@_one_at_a_time
def open_processor(id_or_path: str | PathLike[str], options: Mapping[str, Any]) -> Any:
    """Return the processor of images and texts that belongs to a network; `options` are those of `load`."""
    known = {"trust_remote_code": False, **{k: options[k] for k in _SHARED if k in options}}
    return AutoProcessor.from_pretrained(id_or_path, **known)  # type: ignore[no-untyped-call]


def _is_of_config(id_or_path: str | PathLike[str], name: str, options: Mapping[str, Any]) -> bool:
    """Return whether an option is an attribute of the config, which `from_pretrained` sets."""
    config = AutoConfig.from_pretrained(id_or_path, **{key: options[key] for key in options if key in _KNOWN})
    return hasattr(config, name)


def _refused(name: str) -> UnknownOption:
    return unknown_option("`models.transformers`", name, (*_OWN, *_KNOWN), _ELSEWHERE.get(name, ""))


def float_type(dtype: Any) -> Any:
    """Return a type of torch, or `"auto"`; raise `OptionError` for one that is no float type, or in which torch cannot multiply."""
    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    advice = "Weights of fewer bits are loaded with `quantization_config=...`"
    holds = found in ("auto", *_FLOAT_TYPES)
    check("dtype", dtype, holds, "'bfloat16', 'float16', 'float32', 'float64', such a type of torch or 'auto'", advice)
    return found


def _chosen_type(dtype: Any, device: Any, options: Mapping[str, Any]) -> Any:
    """Return the type that `"auto"` stands for on a CPU, by its instructions; another type as it is."""
    is_cpu = torch.device("cpu" if device is None else device).type == "cpu" and options.get("device_map") is None
    if dtype != "auto" or not is_cpu or options.get("quantization_config") is not None:
        return dtype
    return torch.bfloat16 if half_precision() else torch.float32


def _config_file(options: Mapping[str, Any]) -> str:
    """Return the path, below the folder or repository of a model, of the file by which it is recognised."""
    return str(PurePosixPath(options.get("subfolder") or "", options.get("gguf_file") or "config.json"))


def _check_source(id_or_path: Any, file: str) -> None:
    """Raise `OptionError` for what cannot be an id or a folder, and for a path that is no folder of a model."""
    if not isinstance(id_or_path, str | PathLike) or not str(id_or_path):
        received = repr(id_or_path) if isinstance(id_or_path, str) else type(id_or_path).__name__
        raise OptionError(
            f"expected a hub id such as 'Qwen/Qwen3-0.6B' or the folder of a model as `id_or_path`, got {received}. A model that is loaded "
            "already is wrapped with `models.from_transformers(model, tokenizer)`.",
            "id_or_path",
        )
    path = Path(id_or_path)
    try:
        path.exists()
    except OSError as error:  # such as a name that is too long
        raise OptionError(
            f"expected a hub id or a folder as `id_or_path`, got {shortened(str(id_or_path))!r}: {error.strerror}",
            "id_or_path",
        ) from error
    is_path = isinstance(id_or_path, PathLike) or str(id_or_path).startswith((".", "/", "~")) or path.is_absolute()
    if (is_path or path.exists()) and not (path / file).is_file():
        what = f"has no {file}" if path.is_dir() else "is a file" if path.exists() else "does not exist"
        raise OptionError(
            f"expected the folder of a model as `id_or_path`, but {str(id_or_path)!r} {what}.{_near_folder(path)} "
            "Give the folder that `save_pretrained` wrote, or a hub id.",
            "id_or_path",
        )


def _near_folder(path: Path) -> str:
    """Return a question for the folder of a model beside `path` with nearly its name, empty if there is none."""
    beside = [file.parent.name for file in path.parent.glob("*/config.json")]
    near = get_close_matches(path.name, [name for name in beside if name != path.name], 1)
    return f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""


def _why_cache_alone(name: str, options: Mapping[str, Any]) -> str | None:
    """Return why the hub is not searched for a model, None if it is; it is asked once, as transformers asks for each file six times."""
    if options.get("local_files_only"):
        return "`local_files_only` is given"
    if is_offline_mode():
        return "offline mode is on"
    try:
        get_hf_file_metadata(
            hf_hub_url(name, _config_file(options), revision=options.get("revision")), options.get("token")
        )
    except (HfHubHTTPError, HFValidationError):
        return None  # transformers explains the answer, and ids that cannot be
    except Exception as error:  # those of several libraries for connections
        return f"the hub cannot be reached ({error})"
    return None


def _not_found(name: str, why_cache_alone: str | None, error: OSError) -> str:
    hub = "the hub and its cache were searched"
    if why_cache_alone is not None:
        hub = f"{why_cache_alone}, so only the cache of the hub was searched"
    return (
        f"expected the folder of a model, or the id of one on the hub, as `id_or_path`, got {name!r}.{_near_folder(Path(name))} Tried: the "
        f"folder {str(Path(name).absolute())!r}, which does not exist; then the id: {hub}. Check the spelling (ids have the form "
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
