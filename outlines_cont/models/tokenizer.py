"""A Hugging Face tokenizer, and the exact bytes of its tokens.

Supported: byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece BPE with byte fallback (Llama 2, Mistral),
    Unigram with a mark
for the space, tekken. Refused with `TokenizerError`: WordPiece and other vocabularies whose tokens do not join to the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from outlines_cont.errors import TokenizerError
from outlines_cont.models.backends import TokenizerBackend
from outlines_cont.models.backends.open import open_backend
from outlines_cont.models.spelling import Speller

_CONTEXT_TOKENS = 4
_CONTEXT_BYTES = 64


class Tokenizer:
    """A tokenizer whose tokens are bytes; the wrapped tokenizer is never changed.

    Laws: `text_bytes(encode_inside(text)) == text.encode()`, always; `decode(encode(text)) == text` if the tokenizer does not
    normalise the text (as NFC does) and reads no special tokens in it.

    Args:
        tokenizer: A Hugging Face tokenizer (fast, SentencePiece or mistral-common), or what one wraps: a
            `tokenizers.Tokenizer`, a `sentencepiece.SentencePieceProcessor`, a `Tekkenizer`.
        vocab_size: Rows of the model's output layer, where it differs; ids beyond the tokenizer have no
            bytes.

    Raises:
        TokenizerError: The bytes of the tokens cannot be told exactly, or this kind of tokenizer is unknown.

    Attributes:
        hugging_face: The wrapped tokenizer.
        token_bytes: Exact bytes per id, `vocab_size` of them; None for special, unused and absent ids. A
            byte-fallback token such as `<0xE2>` is one byte; several ids may have the same bytes.
        special_token_ids: Ids that stand for no text.
        eos_token_id: The id that ends a text, None if there is none.
        bos_token_id: The id that begins a text, None if there is none.
        drops_prefix_space: The first token of a text carries a space that is not in the text.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int | None = None) -> None:
        self.hugging_face = tokenizer
        self._backend: TokenizerBackend = open_backend(tokenizer)
        table = self._backend.table
        size = len(table.token_bytes) if vocab_size is None else vocab_size
        missing = (None,) * (size - len(table.token_bytes))
        self.token_bytes: tuple[bytes | None, ...] = table.token_bytes[:size] + missing
        self.special_token_ids = table.special_token_ids
        self.eos_token_id = table.eos_token_id
        self.bos_token_id = table.bos_token_id
        self.drops_prefix_space = table.prefix_scheme != "never"
        self._spelled = tuple(data or b"" for data in self.token_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the start of a text, as the tokenizer gives them.

        Special tokens written in the text are recognised, and the text is normalised, if the tokenizer
        does so.

        Args:
            text: The text; empty gives no ids but those of `add_special_tokens`.
            add_special_tokens: Put the special tokens in front that the tokenizer puts there (BOS). None
                is put at the end.

        Raises:
            TokenizerError: The text is not Unicode (a lone surrogate), or needs an id that the model has
                no row for.
        """
        data = _utf8(text)
        token_ids = self._within_rows(self._backend.encode_start(text))
        if self.drops_prefix_space and data.startswith(b" ") and self.text_bytes(token_ids) == data:
            # The tokenizer took the text's own space for its prefix space. Give it another, as
            # SentencePiece itself does.
            token_ids = self.encode_inside(" " + text)
        return [*self._backend.start_token_ids, *token_ids] if add_special_tokens else token_ids

    def encode_inside(self, text: str, before: Sequence[int] = ()) -> list[int]:
        """Return ids whose joined bytes are exactly the UTF-8 bytes of `text`.

        No special token is added or recognised, no prefix space added, nothing normalised. Where the
        tokenizer cannot encode the text as it is (its normaliser would change it), the text is spelled
        with the fewest tokens.

        Args:
            text: The text that goes on after `before`; empty gives no ids.
            before: The ids that it follows. If encoding both together has a token border just between, the
                text is encoded as it is there; otherwise alone.

        Raises:
            TokenizerError: The text is not Unicode (a lone surrogate), or the tokens cannot spell it.

        Cost: one encoding of the text, and one of it with the last few tokens of `before`.
        """
        data = _utf8(text)
        if not data:
            return []
        token_ids = self._encode_after(self._context(before), text, data)
        if token_ids is None:
            token_ids = self._backend.encode_plain(text)
        if not self._spells(token_ids, data):
            token_ids = self._speller.spell(data)
        return token_ids

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the joined bytes of `token_ids`; special ids contribute nothing, a prefix space stays.

        Raises:
            TokenizerError: An id is out of range.
        """
        try:
            return b"".join(map(self._spelled.__getitem__, token_ids))
        except IndexError:
            raise TokenizerError(
                f"expected token ids below {len(self._spelled)}, received {max(token_ids)}. "
                "Pass the ids of this tokenizer, or the model's `vocab_size`."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids that start a text: special ids left out, a prefix space dropped once.

        Bytes that are not UTF-8 become U+FFFD.
        """
        data = self.text_bytes(token_ids)
        start = 1 if self.drops_prefix_space and data.startswith(b" ") else 0
        return data[start:].decode("utf-8", errors="replace")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over the bytes of all tokens and the special ids; equal for equal vocabularies."""
        digest = hashlib.sha256()
        lengths = (-1 if data is None else len(data) for data in self.token_bytes)
        digest.update(b"".join(length.to_bytes(4, "little", signed=True) for length in lengths))
        digest.update(b"".join(self._spelled))
        digest.update(b"".join(token_id.to_bytes(4, "little") for token_id in sorted(self.special_token_ids)))
        return digest.hexdigest()

    @cached_property
    def _speller(self) -> Speller:
        return Speller(self.token_bytes)

    def _within_rows(self, token_ids: list[int]) -> list[int]:
        beyond = [token_id for token_id in token_ids if token_id >= len(self.token_bytes)]
        if beyond:
            raise TokenizerError(
                f"the text needs token {beyond[0]}, but the model has rows for {len(self.token_bytes)} tokens only. "
                "Resize the model's embeddings, or leave this token out of the text."
            )
        return token_ids

    def _context(self, before: Sequence[int]) -> str:
        """Return the end of the text of `before`: a few tokens, after the last special one, whole characters."""
        data = b""
        for token_id in reversed(before[-_CONTEXT_TOKENS:]):
            token = self.token_bytes[token_id]
            if token is None or len(data) + len(token) > _CONTEXT_BYTES:
                break
            data = token + data
        try:
            return data.decode()
        except UnicodeDecodeError:
            return ""

    def _encode_after(self, context: str, text: str, data: bytes) -> list[int] | None:
        """Return the ids of `text` as it is encoded after `context`, None if no token border lies between the two."""
        if not context:
            return None
        token_ids = self._backend.encode_plain(context + text)
        length = 0
        for index in range(len(token_ids) - 1, -1, -1):
            length += len(self._spelled[token_ids[index]])
            if length >= len(data):
                return token_ids[index:] if self._spells(token_ids[index:], data) else None
        return None

    def _spells(self, token_ids: list[int], data: bytes) -> bool:
        size = len(self._spelled)
        return all(token_id < size for token_id in token_ids) and self.text_bytes(token_ids) == data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"expected Unicode text, received a lone surrogate {text[error.start]!r} at character {error.start}. "
            'Repair it first, for example with `text.encode("utf-8", "replace").decode()`.'
        ) from None
