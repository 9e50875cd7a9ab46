"""The `tokenizers` library: byte-level BPE, SentencePiece-like BPE and Unigram with a mark for the space.

The rules are read from the parts of the tokenizer (normalizer, pre-tokenizer, decoder), which can be
written as JSON. Not supported, because their tokens have no bytes of their own: WordPiece (`##`),
word-level vocabularies, BPE with an end-of-word suffix, decoders with a regular expression, and parts
written in Python. These raise `TokenizerError`.

The user's `tokenizers.Tokenizer` is only read. Encoding runs on private tokenizers around the same model,
because the settings of the user's own (truncation, padding) may change at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import models

from outlines_cont.errors import TokenizerError
from outlines_cont.models.token_bytes import PieceCode, PrefixScheme, TokenTable

_Part = dict[str, Any]

_DROPS_SPACES = {"BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit"}
_EMPTY_TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


class FastBackend:
    """A `tokenizers.Tokenizer`, with what a wrapper around it says about special tokens.

    Args:
        backend: The tokenizer; it is not changed.
        special_token_ids: Ids that are special beyond those that `backend` marks as special.
        eos_token_id: The id that ends a text.
        bos_token_id: The id that begins a text.

    Raises:
        TokenizerError: The bytes of the tokens cannot be told from the parts of the tokenizer.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_token_ids: Iterable[int] = (),
        eos_token_id: int | None = None,
        bos_token_id: int | None = None,
    ) -> None:
        model = _supported_model(backend)
        normalizers = _parts(backend.normalizer, "normalizers")
        pre_tokenizers = _parts(backend.pre_tokenizer, "pretokenizers")
        code = _piece_code(normalizers, pre_tokenizers, _parts(backend.decoder, "decoders"), model)
        added = backend.get_added_tokens_decoder()
        vocab = backend.get_vocab(with_added_tokens=False)
        special = {token_id for token_id, token in added.items() if token.special}
        special.update(special_token_ids, _unknown_ids(model, vocab))
        entries = {token_id: code.piece_bytes(piece) for piece, token_id in vocab.items()}
        for token_id, token in added.items():
            if token_id not in entries or code.byte_level:
                entries[token_id] = token.content.encode()
        self.table = TokenTable.from_entries(
            entries.items(),
            special_token_ids=special,
            eos_token_id=eos_token_id,
            bos_token_id=bos_token_id,
            prefix_scheme=_prefix_scheme(normalizers, pre_tokenizers, code),
        )
        self.start_token_ids = _start_token_ids(_parts(backend.post_processor, "processors"))
        self._start = _Encoder(model, normalizers, pre_tokenizers, added)
        self._plain = _Encoder(
            model,
            [part for part in normalizers if _only_marks_spaces(part, code)],
            [_without_prefix_space(part) for part in pre_tokenizers if not _drops_spaces(part)],
            {
                token_id: tokenizers.AddedToken(
                    token.content, normalized=False, special=False, single_word=token.single_word
                )
                for token_id, token in added.items()
                if token_id not in special and entries[token_id] == token.content.encode()
            },
        )

    def encode_start(self, text: str) -> list[int]:
        """Encode the start of a text as the tokenizer does: normalised, special tokens recognised, none added."""
        return self._start.encode(text)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as it is: no normalisation, no prefix space, no special tokens."""
        return self._plain.encode(text)


class _Encoder:
    """A private tokenizer around a shared model, whose added tokens give the ids that the user's tokenizer gives."""

    def __init__(
        self,
        model: models.Model,
        normalizers: list[_Part],
        pre_tokenizers: list[_Part],
        added: dict[int, tokenizers.AddedToken],
    ) -> None:
        self._tokenizer = tokenizers.Tokenizer(model)
        if normalizers:
            self._tokenizer.normalizer = _build("normalizer", "normalizers", normalizers)
        if pre_tokenizers:
            self._tokenizer.pre_tokenizer = _build("pre_tokenizer", "pretokenizers", pre_tokenizers)
        by_id = sorted(added.items())
        self._tokenizer.add_tokens([token for _, token in by_id])
        # A private tokenizer numbers its added tokens from the end of the model's vocabulary; the user's
        # may have gaps there.
        numbered = ((self._tokenizer.token_to_id(token.content), token_id) for token_id, token in by_id)
        self._renumbered = {own: given for own, given in numbered if own is not None and own != given}

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        renumbered = self._renumbered
        return [renumbered.get(token_id, token_id) for token_id in token_ids] if renumbered else token_ids


def _supported_model(backend: tokenizers.Tokenizer) -> models.Model:
    """Return the model of `backend`, or a copy of it if encoding with it would be random."""
    model = backend.model
    if isinstance(model, models.BPE):
        if model.continuing_subword_prefix or model.end_of_word_suffix:
            affix = model.continuing_subword_prefix or model.end_of_word_suffix
            raise TokenizerError(
                f"the BPE vocabulary marks word borders with {affix!r}, so its tokens have no bytes of their own. "
                "Use a model with a byte-level, SentencePiece or tekken vocabulary."
            )
        if model.dropout:
            model = tokenizers.Tokenizer.from_str(backend.to_str()).model
            model.dropout = None
        return model
    if isinstance(model, models.Unigram):
        return model
    raise TokenizerError(
        f"expected a BPE or Unigram vocabulary, received {type(model).__name__}, whose tokens have no bytes of their own "
        "(spaces between words are lost). Use a model with a byte-level, SentencePiece or tekken vocabulary."
    )


def _parts(component: Any, key: str) -> list[_Part]:
    """Return a normalizer, pre-tokenizer, decoder or post-processor as JSON values, sequences flattened."""
    if component is None:
        return []
    try:
        state = json.loads(component.__getstate__())
    except Exception as error:
        raise TokenizerError(
            f"the part {type(component).__name__} of the tokenizer is written in Python and cannot be read ({error}). "
            "Use parts of the `tokenizers` library alone."
        ) from error
    return list(_flatten(state, key))


def _flatten(state: _Part, key: str) -> Iterable[_Part]:
    pending = [state]
    while pending:
        part = pending.pop(0)
        if part["type"] == "Sequence":
            pending[:0] = part[key]
        else:
            yield part


def _build(kind: str, key: str, parts: list[_Part]) -> Any:
    state = {"type": "Sequence", key: parts}
    return getattr(tokenizers.Tokenizer.from_str(json.dumps(_EMPTY_TOKENIZER | {kind: state})), kind)


def _piece_code(
    normalizers: list[_Part], pre_tokenizers: list[_Part], decoders: list[_Part], model: models.Model
) -> PieceCode:
    """Return how pieces spell bytes, from the parts that encode; the decoder adds what they leave open."""
    encoding = normalizers + pre_tokenizers
    if any(part["type"] == "ByteLevel" for part in encoding + decoders):
        return PieceCode(byte_level=True)
    marks = [(part["replacement"], " ") for part in encoding if part["type"] == "Metaspace"]
    marks += [(part["content"], " ") for part in normalizers if _replaced(part) == " "]
    byte_fallback = _has_byte_fallback(model)
    for part in decoders:
        match part["type"]:
            case "Metaspace":
                marks.append((part["replacement"], " "))
            case "Replace" if _replaced(part) is not None:
                marks.append((_replaced(part) or "", part["content"]))
            case "ByteFallback":
                byte_fallback = True
            case "Strip" if part["content"] == " " and part["start"] <= 1 and part["stop"] == 0:
                pass  # the prefix space, which belongs to the text and not to a token
            case "Fuse":
                pass
            case kind:
                raise TokenizerError(
                    f"the decoder {kind!r} changes text across tokens, so single tokens have no exact bytes. "
                    "Use a model with a byte-level, SentencePiece or tekken vocabulary."
                )
    if not marks and (lossy := next(filter(_drops_spaces, pre_tokenizers), None)):
        raise TokenizerError(
            f"the pre-tokenizer {lossy['type']!r} drops spaces and no token stands for them, so tokens do not join to the text. "
            "Use a model with a byte-level, SentencePiece or tekken vocabulary."
        )
    return PieceCode(byte_fallback=byte_fallback, replacements=tuple(dict.fromkeys(marks)))


def _replaced(part: _Part) -> str | None:
    """Return the literal text that a `Replace` looks for, None for other parts and for a regular expression."""
    return part["pattern"].get("String") if part["type"] == "Replace" else None


def _has_byte_fallback(model: models.Model) -> bool:
    if isinstance(model, models.BPE):
        return bool(model.byte_fallback)
    return bool(json.loads(model.__getstate__()).get("byte_fallback"))


def _unknown_ids(model: models.Model, vocab: dict[str, int]) -> Iterable[int]:
    """Return the id that stands for what the vocabulary cannot spell, if the model has one."""
    if isinstance(model, models.BPE):
        unknown = vocab.get(model.unk_token) if model.unk_token else None
    else:
        unknown = json.loads(model.__getstate__()).get("unk_id")
    return () if unknown is None else (unknown,)


def _prefix_scheme(normalizers: list[_Part], pre_tokenizers: list[_Part], code: PieceCode) -> PrefixScheme:
    for part in normalizers:
        if part["type"] == "Prepend":
            if code.piece_bytes(part["prepend"]) != b" ":
                raise TokenizerError(
                    f"expected a normalizer that puts a space before the text, received one that puts {part['prepend']!r}. "
                    "Use a tokenizer without it."
                )
            return "always"
    for part in pre_tokenizers:
        if part["type"] == "Metaspace" and part["prepend_scheme"] != "never":
            return "first" if part["prepend_scheme"] == "first" else "always"
        if part["type"] == "ByteLevel" and part["add_prefix_space"]:
            return "always"
    return "never"


def _start_token_ids(processors: list[_Part]) -> tuple[int, ...]:
    """Return the special ids that the post-processor puts before a text."""
    for part in processors:
        if part["type"] in ("BertProcessing", "RobertaProcessing"):
            return (part["cls"][1],)
        if part["type"] == "TemplateProcessing":
            token_ids: list[int] = []
            for piece in part["single"]:
                if "Sequence" in piece:
                    return tuple(token_ids)
                token_ids += part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return ()


def _only_marks_spaces(part: _Part, code: PieceCode) -> bool:
    return part["type"] == "ByteLevel" or (
        _replaced(part) == " " and (part["content"], " ") in code.replacements
    )


def _without_prefix_space(part: _Part) -> _Part:
    match part["type"]:
        case "Metaspace":
            return part | {"prepend_scheme": "never"}
        case "ByteLevel":
            return part | {"add_prefix_space": False}
        case _:
            return part


def _drops_spaces(part: _Part) -> bool:
    return part["type"] in _DROPS_SPACES or part.get("behavior") == "Removed"
