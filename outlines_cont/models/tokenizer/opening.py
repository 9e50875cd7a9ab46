"""`open_backend`: chooses the backend (`TokenizerBackend`) for a tokenizer object by its attributes: `tokenizers`, SentencePiece,
tekken, a slow Hugging Face tokenizer around SentencePiece, or what mistral-common wraps. Others raise `TokenizerError`.
"""

from __future__ import annotations

from typing import Any, Protocol

import tokenizers

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.fast import FastBackend
from outlines_cont.models.tokenizer.sentencepiece import SentencePieceBackend
from outlines_cont.models.tokenizer.slow import SlowBackend
from outlines_cont.models.tokenizer.tekken import TekkenBackend
from outlines_cont.models.tokenizer.token_bytes import TokenTable


class TokenizerBackend(Protocol):
    """The methods of a tokenizer library that `Tokenizer` uses. The tokenizer of the user is never changed."""

    @property
    def table(self) -> TokenTable:
        """The bytes of every token."""

    @property
    def start_token_ids(self) -> tuple[int, ...]:
        """Special ids that the tokenizer puts before a text; empty if it adds none."""

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text, without special tokens; those in it, and markup, are ordinary characters.

        The tokenizer may normalise the text and add a space in front.
        """

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text as the tokenizer does where special tokens that are written in it are read as such."""

    def encode_plain(self, text: str) -> list[int]:
        """Encode text unchanged: no normalisation, no prefix space, no special tokens.

        The joined bytes are those of the text where the library can do it; the caller checks.
        """


def open_backend(tokenizer: Any) -> TokenizerBackend:
    """Return the backend of a Hugging Face tokenizer, or of the library object that one wraps.

    Raises `TokenizerError` where the kind is unknown, or its tokens have no exact bytes.
    """
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return FastBackend(tokenizer)
    if isinstance(getattr(tokenizer, "backend_tokenizer", None), tokenizers.Tokenizer):
        return FastBackend(
            tokenizer.backend_tokenizer,
            special_token_ids=tokenizer.all_special_ids,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
        )
    if hasattr(tokenizer, "serialized_model_proto"):
        return SentencePieceBackend(tokenizer)
    if hasattr(tokenizer, "id_to_byte_piece"):
        return TekkenBackend(tokenizer)
    if hasattr(tokenizer, "sp_model"):
        return SlowBackend(tokenizer)
    instruct = getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None)
    if (inner := getattr(instruct, "tokenizer", None)) is not None:
        return _open_mistral_common(inner)
    raise TokenizerError(
        "expected a Hugging Face tokenizer that is fast, or made with SentencePiece or mistral-common, received "
        f"{type(tokenizer).__name__}. Load one with `transformers.AutoTokenizer.from_pretrained`."
    )


def _open_mistral_common(inner: Any) -> TokenizerBackend:
    """Return the backend of the tokenizer inside a `MistralTokenizer`, which puts BOS before a text."""
    if hasattr(inner, "id_to_byte_piece"):
        return TekkenBackend(inner, start_token_ids=(inner.bos_id,))
    if hasattr(processor := getattr(inner, "_model", None), "serialized_model_proto"):
        return SentencePieceBackend(processor, start_token_ids=(inner.bos_id,))
    raise TokenizerError(
        f"expected a tekken or SentencePiece tokenizer of mistral-common, received {type(inner).__name__}. "
        "Load the model's tokenizer.json instead, with `transformers.PreTrainedTokenizerFast`."
    )
