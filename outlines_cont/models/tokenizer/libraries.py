"""Backends for the libraries `sentencepiece` and mistral-common (tekken: byte-level BPE, like tiktoken), and `SlowBackend` for slow
Hugging Face tokenizers around SentencePiece, which may number the pieces anew and add tokens. A copy of a SentencePiece model with
normalisation switched off encodes text within a text; models that mark spaces after words are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.special_names import Encode, SpecialNames
from outlines_cont.models.tokenizer.token_bytes import PieceCode, TokenTable

_SPACE = "▁"
_TEXT = PieceCode(replacements=((_SPACE, " "),))
_BYTE = PieceCode(byte_fallback=True)

# A serialised NormalizerSpec: no character map (field 2), no dummy prefix (3), spaces kept (4). Protocol
# Buffers merge messages that are joined, later fields win; so appending this to a serialised model
# switches normalisation off and changes nothing else.
_IDENTITY_SPEC = b"\x12\x00\x18\x00\x20\x00"
_NORMALIZER_SPEC = b"\x1a" + bytes([len(_IDENTITY_SPEC)]) + _IDENTITY_SPEC  # field 3 of ModelProto


@dataclass(frozen=True)
class LibraryBackend:
    """The functions of a library that never reads special tokens in a text; see `TokenizerBackend`. The library is not changed."""

    table: TokenTable
    start_token_ids: tuple[int, ...]
    encode_start: Encode
    encode_plain: Encode

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text in which special tokens are recognised, by a search of their names."""
        return self._names.encode(text, self.encode_start, self.encode_plain)

    @cached_property
    def _names(self) -> SpecialNames:
        return SpecialNames(self.table.special_tokens)


def sentencepiece_backend(processor: Any, start_token_ids: tuple[int, ...] = ()) -> LibraryBackend:
    """Return the backend of a `SentencePieceProcessor`; `TokenizerError` where its model marks spaces after words."""
    pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
    table = TokenTable(
        {token_id: _piece_bytes(processor, token_id, piece) for token_id, piece in enumerate(pieces)},
        special_token_ids=_special_ids(processor),
        unknown_token_ids=[processor.unk_id()],
        eos_token_id=None if processor.eos_id() < 0 else processor.eos_id(),
        bos_token_id=None if processor.bos_id() < 0 else processor.bos_id(),
        has_prefix_space=_has_prefix_space(processor),
    )
    encode_start = partial(processor.encode, enable_sampling=False)
    return LibraryBackend(table, start_token_ids, encode_start, _without_normalization(processor).encode)


def tekken_backend(tekkenizer: Any, start_token_ids: tuple[int, ...] = ()) -> LibraryBackend:
    """Return the backend of a `Tekkenizer` of mistral-common, which neither normalises nor adds a space."""
    special = frozenset(tekkenizer.special_ids)
    ordinary = (token_id for token_id in range(tekkenizer.n_words) if token_id not in special)
    entries = {token_id: tekkenizer.id_to_piece(token_id).encode() for token_id in special}
    table = TokenTable(
        entries | {token_id: tekkenizer.id_to_byte_piece(token_id) for token_id in ordinary},
        special_token_ids=special,
        eos_token_id=tekkenizer.eos_id,
        bos_token_id=tekkenizer.bos_id,
    )
    encode = partial(tekkenizer.encode, bos=False, eos=False)
    return LibraryBackend(table, start_token_ids, encode, encode)


class SlowBackend:
    """A slow Hugging Face tokenizer around a SentencePiece processor (`sp_model`), with a numbering and added tokens of its own.

    It is not changed. Raises `TokenizerError` if the model marks spaces after words.
    """

    def __init__(self, tokenizer: Any) -> None:
        processor = tokenizer.sp_model
        added = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        special = set(tokenizer.all_special_ids)
        special.update(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        no_text = _special_ids(processor)
        unknown = set() if tokenizer.unk_token_id is None else {tokenizer.unk_token_id}
        self._piece_ids: dict[str, int] = {}
        entries: dict[int, bytes] = {}
        names: dict[int, bytes] = {}
        for token_id, piece in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
            processor_id = processor.piece_to_id(piece)
            if processor.id_to_piece(processor_id) != piece:
                entries[token_id] = added.get(token_id, "").encode()
            elif processor_id in no_text:
                special.add(token_id)
                if processor.is_unknown(processor_id):
                    unknown.add(token_id)
                names[token_id] = piece.encode()
            else:
                self._piece_ids[piece] = token_id
                entries[token_id] = _piece_bytes(processor, processor_id, piece)
        self.table = TokenTable(
            entries | names,
            special_token_ids=special,
            unknown_token_ids=unknown,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            has_prefix_space=_has_prefix_space(processor),
            added=added,
        )
        built = tokenizer.build_inputs_with_special_tokens([-1])  # -1 in place of the ids of a text
        self.start_token_ids = tuple(built[: built.index(-1)])
        self._tokenizer = tokenizer
        names_by_id = self.table.special_tokens
        self._names = SpecialNames({**names_by_id, **self.table.markup_tokens})
        self._unnamed = SpecialNames({i: name for i, name in names_by_id.items() if i not in added})
        self._plain = _without_normalization(processor)
        self._added_ids = {text: i for i, text in added.items() if entries.get(i) == text.encode() != b""}
        longest_first = sorted(map(re.escape, self._added_ids), key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(longest_first)})") if longest_first else None

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text: normalised, with its prefix space."""
        return self._encode(text, **({} if self._names.first_in(text) is None else {"split_special_tokens": True}))

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text with special tokens recognised, also those that only the SentencePiece model names."""
        return self._unnamed.encode(text, self._encode, self.encode_plain)

    def _encode(self, text: str, **options: bool) -> list[int]:
        """Encode as the tokenizer does, special tokens that it names recognised."""
        # Not `tokenizer.encode`, which keeps a note in the tokenizer when a text is long.
        token_ids: list[int] = self._tokenizer.convert_tokens_to_ids(self._tokenizer.tokenize(text, **options))
        return token_ids

    def encode_plain(self, text: str) -> list[int]:
        """Encode text without normalisation and prefix space; a part that no token spells is left out."""
        token_ids: list[int] = []
        for part in self._added.split(text) if self._added else [text]:
            if part in self._added_ids:
                token_ids.append(self._added_ids[part])
            else:
                pieces = self._plain.encode(part, out_type=str)
                token_ids += [self._piece_ids[piece] for piece in pieces if piece in self._piece_ids]
        return token_ids


def _piece_bytes(processor: Any, token_id: int, piece: str) -> bytes:
    return (_BYTE if processor.is_byte(token_id) else _TEXT).piece_bytes(piece)


def _special_ids(processor: Any) -> set[int]:
    """Return the ids of `processor` without text: control, unknown and unused ones."""
    token_ids = list(range(processor.get_piece_size()))
    tests = (processor.is_control, processor.is_unknown, processor.is_unused)
    return {token_id for test in tests for token_id, holds in zip(token_ids, test(token_ids), strict=True) if holds}


def _has_prefix_space(processor: Any) -> bool:
    """Return whether `processor` puts a space before a text; `TokenizerError` where it puts one after it."""
    marked = processor.normalize("a")
    if marked.endswith(_SPACE):
        raise TokenizerError(
            "expected a SentencePiece model that marks spaces before words, received one that marks them "
            "after words (`treat_whitespace_as_suffix`). Use another tokenizer."
        )
    return bool(marked.startswith(_SPACE))


def _without_normalization(processor: Any) -> Any:
    plain = type(processor)()
    plain.LoadFromSerializedProto(processor.serialized_model_proto() + _NORMALIZER_SPEC)
    return plain
