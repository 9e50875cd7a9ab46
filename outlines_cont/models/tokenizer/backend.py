"""`TokenizerBackend`: the protocol of a tokenizer library: the bytes of every token, and three ways of encoding."""

from __future__ import annotations

from typing import Protocol

from outlines_cont.models.tokenizer.token_bytes import TokenTable


class TokenizerBackend(Protocol):
    """One tokenizer library behind three ways of encoding. What the user gave is never changed."""

    @property
    def table(self) -> TokenTable:
        """The bytes of every token."""

    @property
    def start_token_ids(self) -> tuple[int, ...]:
        """Special ids that the tokenizer puts before a text; empty if it adds none."""

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text as the tokenizer does, without the special tokens that it adds.

        It may normalise the text and add a space in front. Special tokens and markup that are written in it are read as letters.
        """

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text as the tokenizer does where special tokens that are written in it are read as such."""

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as it is: no normalisation, no prefix space, no special tokens.

        The joined bytes are those of the text wherever the library can do it; the caller checks.
        """
