"""Tekken vocabularies (tiktoken-like), as mistral-common reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlines_cont.models.token_bytes import TokenTable


class TekkenBackend:
    """A `mistral_common` `Tekkenizer`; it is not changed.

    Special ids come first, and no text is ever encoded to one of them.
    """

    def __init__(self, tekkenizer: Any, *, start_token_ids: Iterable[int] = ()) -> None:
        special = frozenset(tekkenizer.special_ids)
        size = tekkenizer.n_words
        self.table = TokenTable.from_entries(
            (
                (token_id, tekkenizer.id_to_byte_piece(token_id))
                for token_id in range(size)
                if token_id not in special
            ),
            special_token_ids=special,
            eos_token_id=tekkenizer.eos_id,
            bos_token_id=tekkenizer.bos_id,
        )
        self.start_token_ids = tuple(start_token_ids)
        self._tekkenizer = tekkenizer

    def encode_start(self, text: str) -> list[int]:
        """Encode a text; tekken neither normalises nor adds a space."""
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as it is: no normalisation, no prefix space, no special tokens."""
        token_ids: list[int] = self._tekkenizer.encode(text, bos=False, eos=False)
        return token_ids
