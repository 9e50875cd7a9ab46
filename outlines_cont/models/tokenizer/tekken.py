"""`TekkenBackend`: the backend for tekken vocabularies (byte-level BPE, like tiktoken) read by mistral-common. No normalisation, no
prefix space; special tokens in a text are found by our own search.
"""

from __future__ import annotations

from typing import Any

from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.models.tokenizer.token_bytes import TokenTable


class TekkenBackend:
    """A `Tekkenizer` of mistral-common, which is not changed; `start_token_ids` go before a text. No normalisation, no added space."""

    def __init__(self, tekkenizer: Any, *, start_token_ids: tuple[int, ...] = ()) -> None:
        special = frozenset(tekkenizer.special_ids)
        ordinary = (token_id for token_id in range(tekkenizer.n_words) if token_id not in special)
        entries = {token_id: tekkenizer.id_to_piece(token_id).encode() for token_id in special}
        self.table = TokenTable(
            entries | {token_id: tekkenizer.id_to_byte_piece(token_id) for token_id in ordinary},
            special_token_ids=special,
            eos_token_id=tekkenizer.eos_id,
            bos_token_id=tekkenizer.bos_id,
        )
        self.start_token_ids = start_token_ids
        self._tekkenizer = tekkenizer
        self._names = SpecialNames(self.table.special_tokens)

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text."""
        return self.encode_plain(text)

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text in which special tokens are recognised, which the library itself never does."""
        return self._names.encode(text, self.encode_plain, self.encode_plain)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text; tekken neither normalises nor adds a space."""
        token_ids: list[int] = self._tekkenizer.encode(text, bos=False, eos=False)
        return token_ids
