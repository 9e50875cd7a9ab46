"""Models: loaded by hub id or path, wrapped, or the small one that is bundled."""

from outlines_cont.models.bundled import tiny
from outlines_cont.models.hugging_face import HuggingFaceModel, from_transformers, transformers
from outlines_cont.models.meter import Meter

__all__ = ["HuggingFaceModel", "Meter", "from_transformers", "tiny", "transformers"]
