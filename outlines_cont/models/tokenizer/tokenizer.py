"""`Tokenizer`: a tokenizer of Hugging Face, SentencePiece or mistral-common with the exact bytes of every token; those whose tokens do not
join to the text, such as WordPiece, are refused. `encode_inside` returns ids whose bytes join to exactly the text, if need be the fewest
that spell it; `encode` follows the library, which may normalise the text. Special tokens in a text are ordinary characters, except for
`encode_special`; markup such as `<think>` is, too, except for that and `encode_inside`.

Supported are byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece BPE with byte fallback (Llama 2, Mistral), Unigram with a mark for the
space, and tekken. `open_backend` chooses the `TokenizerBackend`, which has what differs, by the attributes of the object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import tokenizers

from outlines_cont.errors import TokenizerError
from outlines_cont.immutable import Immutable
from outlines_cont.models.tokenizer.fast import FastBackend
from outlines_cont.models.tokenizer.libraries import SlowBackend, sentencepiece_backend, tekken_backend
from outlines_cont.models.tokenizer.special_names import Speller, encode_letters
from outlines_cont.models.tokenizer.token_bytes import TokenTable

# How much of the text before is encoded together with its continuation. More would not often change the result, since tokenizers
# cut a text at words, and would cost time at every call.
_CONTEXT_TOKENS = 4
_CONTEXT_BYTES = 64

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


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


class Tokenizer(Immutable):
    """A tokenizer whose tokens are bytes. The wrapped tokenizer is never changed.

    Two invariants hold for every text of Unicode characters. `text_bytes(encode_inside(text)) == text.encode()`, or it raises.
    `decode(encode(text)) == text`, unless the tokenizer normalises the text (NFC, lower case, runs of spaces) or has no token for a part
    of it. No text becomes a special token but by `encode_special`, and none a token of markup but by that and by `encode_inside`.

    Args:
        tokenizer: A Hugging Face tokenizer (fast, slow around SentencePiece, or mistral-common), or what one wraps: a
            `tokenizers.Tokenizer`, a `sentencepiece.SentencePieceProcessor`, a `Tekkenizer`. Tokens that are added to it later are
            not seen.
        vocab_size: Rows of the model's output layer, if that is known; ids beyond the tokenizer have no bytes.

    Raises:
        TokenizerError: The tokens do not join to the text, or this kind of tokenizer is unknown.

    Attributes:
        hugging_face: The wrapped tokenizer.
        token_bytes: Exact bytes per id, `vocab_size` of them; None for special, unused and absent ids. A byte-fallback token such as
            `<0xE2>` is one byte. Several ids may have the same bytes.
        special_token_ids: Ids without text (control tokens, padding, unknown); some may be beyond `vocab_size`.
        special_tokens: How the special ids are written, such as `</s>`, by id.
        markup_tokens: Added tokens that have text and steer a model all the same, such as `<tool_response>`, by id.
        eos_token_id: The id that ends a text, or None.
        bos_token_id: The id that begins a text, or None.
        drops_prefix_space: The first token of a text carries a space that is not in the text.

    Cost: 0.35 s of CPU time for 131,072 tokens (2.5 GHz Xeon), of which the library takes 0.15 s to list them.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int | None = None) -> None:
        self.hugging_face = tokenizer
        self._backend = open_backend(tokenizer)
        table = self._backend.table
        size = len(table.token_bytes) if vocab_size is None else vocab_size
        absent = (None,) * (size - len(table.token_bytes))
        self.token_bytes: tuple[bytes | None, ...] = table.token_bytes[:size] + absent
        self.special_token_ids = table.special_token_ids
        self.special_tokens = table.special_tokens
        self.markup_tokens = table.markup_tokens
        self.eos_token_id = table.eos_token_id
        self.bos_token_id = table.bos_token_id
        self.drops_prefix_space = table.has_prefix_space
        self._control_ids = (table.special_token_ids - table.unknown_token_ids) | table.markup_tokens.keys()
        self._joinable = tuple([token or b"" for token in self.token_bytes])

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the start of a text, as the wrapped tokenizer gives them.

        The tokenizer may normalise the text. A space at the start is kept, also where the wrapped tokenizer would take it for the prefix
        space. Special tokens and markup that are written in the text are ordinary characters.

        Args:
            text: The text; empty gives no ids but those of `add_special_tokens`.
            add_special_tokens: Put the special tokens in front that the tokenizer puts there (BOS), none at the end.

        Raises:
            TokenizerError: The text has a lone surrogate, or needs an id that the model has no row for.
        """
        data = utf8(text)
        token_ids = self._backend.encode_start(text)
        if self.drops_prefix_space and data.startswith(b" ") and self._spells(token_ids, data):
            token_ids = encode_letters(" " + text, self)
        if not self._control_ids.isdisjoint(token_ids):
            # The text was encoded as a piece that is not text, as in Unigram vocabularies; where no other piece has these letters,
            # such as a letter that pads texts, it is kept.
            with suppress(TokenizerError):
                token_ids = encode_letters(" " + text if self.drops_prefix_space else text, self)
        if add_special_tokens:
            token_ids = [*self._backend.start_token_ids, *token_ids]
        return self._checked(token_ids)

    def encode_special(self, text: str) -> list[int]:
        """Return the ids of the start of a text in which special tokens are written, such as that of a chat template.

        The ids are those that the wrapped tokenizer gives where it finds special tokens; it may strip spaces around them, and adds none.

        Raises:
            TokenizerError: The text has a lone surrogate, or needs an id that the model has no row for.
        """
        utf8(text)
        return self._checked(self._backend.encode_special(text))

    def encode_inside(self, text: str, before: Sequence[int] = ()) -> list[int]:
        """Return ids whose joined bytes are exactly the UTF-8 bytes of `text`.

        No special token is added or found, no prefix space added, nothing normalised; markup is found, as a model writes it: the text of a
        user goes through `encode_letters`. Where the tokenizer does not encode the text exactly, the fewest tokens that spell it are used.

        Args:
            text: The text after `before`; empty gives no ids.
            before: The ids that it follows. If both encoded together have a token border between them, the ids after it are returned;
                otherwise `text` is encoded alone.

        Raises:
            TokenizerError: The text has a lone surrogate, or no tokens spell it.

        Cost: one encoding of the text, with `before` at most two: 10 to 20 us for 10 characters, 20 to 90 us for 80 (2.5 GHz Xeon).
        """
        data = utf8(text)
        if not data:
            return []
        if context := self._context(before):
            token_ids = self._ids_after(self._backend.encode_plain(context + text), data)
            if token_ids is not None:
                return token_ids
        token_ids = self._backend.encode_plain(text)
        return token_ids if self._spells(token_ids, data) else self._speller.spell(data)

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the joined bytes of `token_ids`; special ids contribute nothing, a prefix space stays.

        Raises:
            TokenizerError: An id is not below `vocab_size`.
        """
        try:
            return b"".join(map(self._joinable.__getitem__, token_ids))
        except IndexError:
            raise TokenizerError(
                f"expected token ids below {len(self._joinable)}, received {max(token_ids)}. "
                "Pass ids of this tokenizer, and the model's own `vocab_size` when the tokenizer is made."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids that start a text: without special ids, a prefix space dropped once, bytes that are not UTF-8 as U+FFFD.

        Raises:
            TokenizerError: An id is not below `vocab_size`.
        """
        data = self.text_bytes(token_ids)
        if self.drops_prefix_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex over the bytes of all tokens and the special ids: equal for equal vocabularies."""
        lengths = (-1 if token is None else len(token) for token in self.token_bytes)
        digest = hashlib.sha256(b"".join(length.to_bytes(4, "little", signed=True) for length in lengths))
        digest.update(b"".join(self._joinable))
        digest.update(b"".join(token_id.to_bytes(4, "little") for token_id in sorted(self.special_token_ids)))
        return digest.hexdigest()

    @cached_property
    def _speller(self) -> Speller:
        return Speller(self.token_bytes)

    def _checked(self, token_ids: list[int]) -> list[int]:
        if max(token_ids, default=0) >= len(self.token_bytes):
            raise TokenizerError(
                f"expected token ids below {len(self.token_bytes)}, the rows of the model, but the tokenizer "
                f"gives {max(token_ids)} for this text. Resize the model's embeddings, or change the text."
            )
        return token_ids

    def _context(self, before: Sequence[int]) -> str:
        """Return the end of the text of `before`: whole characters, a few tokens, none before a special one."""
        data = b""
        for token_id in reversed(before[-_CONTEXT_TOKENS:]):
            token = self.token_bytes[token_id]
            if token is None or len(data) + len(token) > _CONTEXT_BYTES:
                break
            data = token + data
        try:
            return data.lstrip(_CONTINUATION_BYTES).decode()
        except UnicodeDecodeError:  # it ends inside a character
            return ""

    def _ids_after(self, token_ids: list[int], data: bytes) -> list[int] | None:
        """Return the last ids of `token_ids` whose bytes are `data`; None if no such ids exist."""
        length = 0
        for index in range(len(token_ids) - 1, -1, -1):
            length += len(self._joinable[token_ids[index]])
            if length >= len(data):
                return token_ids[index:] if self._spells(token_ids[index:], data) else None
        return None

    def _spells(self, token_ids: list[int], data: bytes) -> bool:
        try:
            return b"".join(map(self._joinable.__getitem__, token_ids)) == data
        except IndexError:  # a token that the model has no row for
            return False


def utf8(text: str) -> bytes:
    """Return the bytes of a text; `TokenizerError` for a lone surrogate, which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"expected Unicode characters, received the lone surrogate {text[error.start]!r} at position "
            f'{error.start}. Repair the text first, as `text.encode("utf-8", "replace").decode()` does.'
        ) from None


def open_backend(tokenizer: Any) -> TokenizerBackend:
    """Return the backend of a Hugging Face tokenizer, or of the library object that one wraps.

    Raises `TokenizerError` if the kind is unknown, or its tokens have no exact bytes.
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
        return sentencepiece_backend(tokenizer)
    if hasattr(tokenizer, "id_to_byte_piece"):
        return tekken_backend(tokenizer)
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
        return tekken_backend(inner, (inner.bos_id,))
    if hasattr(processor := getattr(inner, "_model", None), "serialized_model_proto"):
        return sentencepiece_backend(processor, (inner.bos_id,))
    raise TokenizerError(
        f"expected a tekken or SentencePiece tokenizer of mistral-common, received {type(inner).__name__}. "
        "Load the model's tokenizer.json instead, with `transformers.PreTrainedTokenizerFast`."
    )
