"""Tokenizer libraries behind one protocol."""

from outlines_cont.models.backends.backend import TokenizerBackend
from outlines_cont.models.backends.fast import FastBackend
from outlines_cont.models.backends.sentencepiece import SentencePieceBackend
from outlines_cont.models.backends.tekken import TekkenBackend

__all__ = ["FastBackend", "SentencePieceBackend", "TekkenBackend", "TokenizerBackend"]
