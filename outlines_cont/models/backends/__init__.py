"""Tokenizer libraries behind one protocol."""

from outlines_cont.models.backends.backend import TokenizerBackend
from outlines_cont.models.backends.open import open_backend

__all__ = ["TokenizerBackend", "open_backend"]
