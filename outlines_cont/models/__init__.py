"""Language models for the engine: loaded by hub id or path, wrapped, made from a function, or the small one that is bundled.

Each has the methods of `interfaces.LanguageModel`, and knows what its KV cache supports. Imports `kv` and `models.tokenizer`.
"""

from outlines_cont.meter import Meter
from outlines_cont.models.bundled import tiny
from outlines_cont.models.callable_model import CallableModel, from_callable
from outlines_cont.models.hugging_face import HuggingFaceModel, from_transformers, transformers

__all__ = ["CallableModel", "HuggingFaceModel", "Meter", "from_callable", "from_transformers", "tiny", "transformers"]
