"""The tokenizer of the mask benchmark: Mistral's tekken, 131,072 tokens, which lies in the mistral-common wheel."""

from __future__ import annotations

import json
from dataclasses import dataclass

import tiktoken

from tests.vocabularies import TEKKEN_FILE, Tokens, tekken_token_bytes


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer of byte pairs.

    Attributes:
        tokens: the bytes of every token id; None: special.
        eos_token_id: the id that ends a text.
        pattern: what cuts a text into words before the merges.
    """

    tokens: Tokens
    eos_token_id: int
    pattern: str

    def ranks(self) -> dict[bytes, int]:
        """Token ids by bytes, without the special ones; a lower id is an earlier merge."""
        return {token: i for i, token in enumerate(self.tokens) if token}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        encoding = tiktoken.Encoding("tekken", pat_str=self.pattern, mergeable_ranks=self.ranks(), special_tokens={})
        return encoding.encode_batch(texts, num_threads=1)


def tekken() -> Tokenizer:
    """Read the tokenizer."""
    tokens, eos_token_ids = tekken_token_bytes()
    config = json.loads(TEKKEN_FILE.read_text(encoding="utf-8"))["config"]
    return Tokenizer(tokens, eos_token_ids[0], config["pattern"])
