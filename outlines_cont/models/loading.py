"""`load_network`: `AutoModelForCausalLM.from_pretrained` that raises `UnknownOption` for an option that resembles a known one (edit
similarity, `difflib`), or that transformers does not accept. Attributes of the config may be set; other names are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from os import PathLike
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from outlines_cont.errors import UnknownOption
from outlines_cont.unknown_option import unknown_option

_OWN = ("device", "dtype", "kv_budget_bytes", "prefix_cache_bytes")
# Of `from_pretrained`; where another version has more, they reach it all the same.
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


def load_network(id_or_path: str | PathLike[str], dtype: Any, options: Mapping[str, Any]) -> Any:
    """Return what `AutoModelForCausalLM.from_pretrained` loads; `OSError` where there is no such model, or it cannot be read.

    Raises `UnknownOption` for an option that looks like another one, or whose name transformers does not know.
    """
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
