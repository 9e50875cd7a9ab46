"""`SentencePieceBackend`: the backend for SentencePiece models read by the library `sentencepiece`. A copy of the model with
normalisation switched off encodes text within a text; models that mark spaces after words are refused.
"""

from __future__ import annotations

from typing import Any

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.models.tokenizer.token_bytes import PieceCode, TokenTable

_SPACE = "▁"
_TEXT = PieceCode(replacements=((_SPACE, " "),))
_BYTE = PieceCode(byte_fallback=True)

# A serialised NormalizerSpec: no character map (field 2), no dummy prefix (3), spaces kept (4). Protocol
# Buffers merge messages that are joined, later fields win; so appending this to a serialised model
# switches normalisation off and changes nothing else.
_IDENTITY_SPEC = b"\x12\x00\x18\x00\x20\x00"
_NORMALIZER_SPEC = b"\x1a" + bytes([len(_IDENTITY_SPEC)]) + _IDENTITY_SPEC  # field 3 of ModelProto


class SentencePieceBackend:
    """A `sentencepiece.SentencePieceProcessor`, which is not changed; `start_token_ids` go before a text.

    Raises `TokenizerError` where the model marks spaces at the end of words.
    """

    def __init__(self, processor: Any, *, start_token_ids: tuple[int, ...] = ()) -> None:
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
        self.table = TokenTable.from_entries(
            {token_id: piece_bytes(processor, token_id, piece) for token_id, piece in enumerate(pieces)},
            special_token_ids=special_ids(processor),
            unknown_token_ids=[processor.unk_id()],
            eos_token_id=None if processor.eos_id() < 0 else processor.eos_id(),
            bos_token_id=None if processor.bos_id() < 0 else processor.bos_id(),
            has_prefix_space=has_prefix_space(processor),
        )
        self.start_token_ids = start_token_ids
        self._processor = processor
        self._plain = without_normalization(processor)
        self._names = SpecialNames(self.table.special_tokens)

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text: normalised, with its prefix space."""
        token_ids: list[int] = self._processor.encode(text, enable_sampling=False)
        return token_ids

    def encode_special(self, text: str) -> list[int]:
        """Encode the start of a text in which special tokens are recognised, which the library itself never does."""
        return self._names.encode(text, self.encode_start, self.encode_plain)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text without normalisation and prefix space."""
        token_ids: list[int] = self._plain.encode(text)
        return token_ids


def piece_bytes(processor: Any, token_id: int, piece: str) -> bytes:
    """Return the bytes of a piece of `processor`."""
    return (_BYTE if processor.is_byte(token_id) else _TEXT).piece_bytes(piece)


def special_ids(processor: Any) -> set[int]:
    """Return the ids of `processor` without text: control, unknown and unused ones."""
    token_ids = list(range(processor.get_piece_size()))
    tests = (processor.is_control, processor.is_unknown, processor.is_unused)
    return {token_id for test in tests for token_id, holds in zip(token_ids, test(token_ids), strict=True) if holds}


def has_prefix_space(processor: Any) -> bool:
    """Return whether `processor` puts a space before a text; `TokenizerError` where it puts one after it."""
    marked = processor.normalize("a")
    if marked.endswith(_SPACE):
        raise TokenizerError(
            "expected a SentencePiece model that marks spaces before words, received one that marks them "
            "after words (`treat_whitespace_as_suffix`). Use another tokenizer."
        )
    return bool(marked.startswith(_SPACE))


def without_normalization(processor: Any) -> Any:
    """Return a copy of `processor` that neither normalises nor adds a space."""
    plain = type(processor)()
    plain.LoadFromSerializedProto(processor.serialized_model_proto() + _NORMALIZER_SPEC)
    return plain
