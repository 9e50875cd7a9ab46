"""Language models for the engine: those of transformers, loaded by hub id or path or wrapped, functions from token ids to logits, and
the small one that is bundled; with the probes of what their KV caches support.

Each has the methods of `interfaces.LanguageModel`, and runs its rows on an engine of its own. Imports
`engine`, `kv` and `models.tokenizer`; names are loaded when first used, as the tokenizers in this folder need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outlines_cont.models.versions import untested
from outlines_cont.near_names import module_attributes

if TYPE_CHECKING:
    from outlines_cont.meter import Meter
    from outlines_cont.models.callable_model import CallableModel, from_callable
    from outlines_cont.models.hugging_face import HuggingFaceModel, from_transformers, tiny, tiny_vision, transformers

__all__ = [
    "CallableModel",
    "HuggingFaceModel",
    "Meter",
    "from_callable",
    "from_transformers",
    "tiny",
    "tiny_vision",
    "transformers",
]

_HOMES = {
    "CallableModel": "models.callable_model",
    "Meter": "meter",
    "from_callable": "models.callable_model",
}

_missing = module_attributes(__name__, __all__)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        return _missing(name)
    try:
        return getattr(import_module(f"outlines_cont.{_HOMES.get(name, 'models.hugging_face')}"), name)
    except ImportError as error:  # a name of transformers that is no longer there
        if note := untested():
            error.add_note(note.strip())
        raise


def __dir__() -> list[str]:
    return __all__
