"""SentencePiece models, as `sentencepiece` reads them: alone, in a slow Hugging Face tokenizer, or in mistral-common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from outlines_cont.models.token_bytes import PieceCode, PrefixScheme, TokenTable

_CODE = PieceCode(byte_fallback=True, replacements=(("▁", " "),))

# A serialised NormalizerSpec: no character map (field 2), no dummy prefix (3), spaces kept (4). Messages
# that are joined are merged, later fields win, so appending it to a serialised model switches
# normalisation off without any other change.
_IDENTITY_SPEC = b"\x12\x00\x18\x00\x20\x00"
_NORMALIZER_FIELD = b"\x1a"  # field 3 of ModelProto, length-delimited


class SentencePieceBackend:
    """A `sentencepiece.SentencePieceProcessor`; it is not changed.

    Args:
        processor: The processor.
        pieces: (id, piece) pairs for a tokenizer that numbers the pieces otherwise, or adds some; None for
            the processor's own.
        special_token_ids: Ids that are special beyond control, unknown and unused pieces.
        eos_token_id: The id that ends a text; None for the processor's own.
        bos_token_id: The id that begins a text; None for the processor's own.
    """

    def __init__(
        self,
        processor: Any,
        *,
        special_token_ids: Iterable[int] = (),
        start_token_ids: tuple[int, ...] = (),
    ) -> None:
        size = processor.get_piece_size()
        special = {
            token_id
            for token_id in range(size)
            if processor.is_control(token_id)
            or processor.is_unknown(token_id)
            or processor.is_unused(token_id)
        }
        self.table = TokenTable.from_entries(
            ((token_id, _CODE.piece_bytes(processor.id_to_piece(token_id))) for token_id in range(size)),
            special_token_ids=special.union(special_token_ids),
            eos_token_id=_id_or_none(processor.eos_id()),
            bos_token_id=_id_or_none(processor.bos_id()),
            prefix_scheme=_prefix_scheme(processor),
        )
        self.start_token_ids = start_token_ids
        self._encode_start: Callable[[str], list[int]] = processor.encode
        self._encode_plain: Callable[[str], list[int]] = _without_normalization(processor).encode

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text as the tokenizer does: normalised, with its prefix space, no special tokens."""
        return self._encode_start(text)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as it is: no normalisation, no prefix space, no special tokens."""
        return self._encode_plain(text)


def _id_or_none(token_id: int) -> int | None:
    return None if token_id < 0 else token_id


def _prefix_scheme(processor: Any) -> PrefixScheme:
    return "first" if processor.normalize("a").startswith("▁") else "never"


def _without_normalization(processor: Any) -> Any:
    override = _NORMALIZER_FIELD + bytes([len(_IDENTITY_SPEC)]) + _IDENTITY_SPEC
    plain = type(processor)()
    plain.LoadFromSerializedProto(processor.serialized_model_proto() + override)
    return plain
