"""`FastBackend`: the backend for the library `tokenizers`: byte-level BPE, SentencePiece-style BPE, and Unigram with a mark for the space.
It derives the bytes of every token from the vocabulary, and makes encoders with and without special tokens and normalisation. Vocabularies
whose tokens do not join to the text are refused, and parts written in Python. `TokenizerParts`: the normalizers, pre-tokenizers, decoders
and post-processors of a tokenizer as JSON data, which give the rule of the bytes.

Refused are WordPiece (`##`), whole words, BPE with an end-of-word suffix, decoders with a regular expression. The user's tokenizer is only
read. Encoding runs on private ones around the same model, because the user's settings (truncation, padding, special tokens) may change at
any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.token_bytes import PieceCode, TokenTable

Part = dict[str, Any]  # as in `tokenizer.json`

_ADVICE = "Use a model with a byte-level, SentencePiece or tekken vocabulary."

_SPLIT_AT_SPACES = {"BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit"}
_EMPTY: Part = {
    **dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")),
    **{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}},
}


class FastBackend:
    """A `tokenizers.Tokenizer`, which is not changed, with the special tokens of a wrapper around it.

    `special_token_ids` are those that `tokenizer` itself does not mark as special. Raises `TokenizerError` if the tokens do not join
    to the text, or a part of the tokenizer cannot be read.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        special_token_ids: Iterable[int] = (),
        eos_token_id: int | None = None,
        bos_token_id: int | None = None,
    ) -> None:
        model = _model(tokenizer)
        parts = TokenizerParts.of(tokenizer)
        byte_fallback, unknown = _model_facts(model)
        code = parts.piece_code(byte_fallback=byte_fallback)
        added = tokenizer.get_added_tokens_decoder()
        vocab = tokenizer.get_vocab(with_added_tokens=False)
        unknown_ids = [vocab[piece] for piece in unknown if piece in vocab]
        special = {*special_token_ids, *unknown_ids, *(token_id for token_id, token in added.items() if token.special)}
        entries = dict(zip(vocab.values(), code.pieces_bytes(list(vocab)), strict=True))
        for token_id, token in added.items():
            # An added token has the bytes of its own text; one that is a piece, too (Gemma's runs of the mark), those of the piece.
            if code.byte_level or token_id not in entries:
                entries[token_id] = token.content.encode()
        self.table = TokenTable(
            entries,
            special_token_ids=special,
            unknown_token_ids=unknown_ids,
            eos_token_id=eos_token_id,
            bos_token_id=bos_token_id,
            has_prefix_space=parts.has_prefix_space(code),
            added={token_id: token.content for token_id, token in added.items()},
        )
        self.start_token_ids = parts.start_token_ids()
        self.encode_special = _Encoder(parts.build(model), added)
        letters = special | self.table.markup_tokens.keys()
        self.encode_start = _Encoder(parts.build(model), {i: token for i, token in added.items() if i not in letters})
        texts = {i: t for i, t in added.items() if i not in special and entries[i] == t.content.encode()}
        self.encode_plain = _Encoder(parts.plain(code).build(model), {i: _as_text(t) for i, t in texts.items()})


class _Encoder:
    """A private tokenizer, to which tokens are added that keep the ids that they have in the user's."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]) -> None:
        self._tokenizer = tokenizer
        tokenizer.add_tokens([added[token_id] for token_id in sorted(added)])
        # The library numbers added tokens from the end of the vocabulary on; the user's may have gaps there.
        own_ids = ((tokenizer.token_to_id(token.content), token_id) for token_id, token in added.items())
        self._renumbered = {own_id: token_id for own_id, token_id in own_ids if own_id != token_id}

    def __call__(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not self._renumbered:
            return token_ids
        return [self._renumbered.get(token_id, token_id) for token_id in token_ids]


def _model(tokenizer: tokenizers.Tokenizer) -> models.Model:
    """Return the model of `tokenizer`, a copy if it encodes at random; refuse those that lose text."""
    model = tokenizer.model
    if isinstance(model, models.Unigram):
        return _copy(tokenizer) if model.alpha else model
    if not isinstance(model, models.BPE):
        raise TokenizerError(
            f"expected a BPE or Unigram vocabulary, received {type(model).__name__}, whose tokens do not "
            f"join to the text. {_ADVICE}"
        )
    if affix := model.continuing_subword_prefix or model.end_of_word_suffix:
        raise TokenizerError(
            "expected a vocabulary whose tokens join to the text, received one that marks word borders with "
            f"{affix!r}. {_ADVICE}"
        )
    if model.dropout:
        copy: models.BPE = _copy(tokenizer)
        copy.dropout = None
        return copy
    return model


def _copy(tokenizer: tokenizers.Tokenizer) -> Any:
    """Return a copy of the model of `tokenizer`, without the settings that are not written to files."""
    return tokenizers.Tokenizer.from_str(tokenizer.to_str()).model


def _model_facts(model: models.Model) -> tuple[bool, list[str]]:
    """Return whether the model falls back to byte pieces, and the piece for what it cannot spell."""
    if isinstance(model, models.BPE):
        return bool(model.byte_fallback), [model.unk_token] if model.unk_token else []
    state = json.loads(model.__getstate__())
    unknown = state.get("unk_id")
    return bool(state.get("byte_fallback")), [] if unknown is None else [state["vocab"][unknown][0]]


def _as_text(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    """Return `token` as one that is matched literally, without the spaces around it."""
    return tokenizers.AddedToken(token.content, single_word=token.single_word, normalized=False, special=False)


@dataclass(frozen=True)
class TokenizerParts:
    """The steps around the model of a tokenizer, each a list in order, as `tokenizer.json` writes them.

    Normalizers change the text, pre-tokenizers cut it, decoders make text of tokens, and processors add special tokens.
    """

    normalizers: list[Part]
    pre_tokenizers: list[Part]
    decoders: list[Part]
    processors: list[Part]

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TokenizerParts:
        """Return the parts of `tokenizer`; `TokenizerError` where a part is written in Python."""
        return cls(
            _read(tokenizer.normalizer, "normalizers"),
            _read(tokenizer.pre_tokenizer, "pretokenizers"),
            _read(tokenizer.decoder, "decoders"),
            _read(tokenizer.post_processor, "processors"),
        )

    def piece_code(self, *, byte_fallback: bool) -> PieceCode:
        """Return how pieces spell bytes, by the parts that encode, and the decoder.

        `byte_fallback`: the model uses byte pieces for text without a piece. Raises `TokenizerError` if the tokens do not join to the
        text.
        """
        encoding = self.normalizers + self.pre_tokenizers
        if any(part["type"] == "ByteLevel" for part in encoding + self.decoders):
            return PieceCode(byte_level=True)
        marks = [(part["replacement"], " ") for part in encoding if part["type"] == "Metaspace"]
        marks += [(part["content"], " ") for part in self.normalizers if replaced_text(part) == " "]
        for part in self.decoders:
            match part["type"]:
                case "Metaspace":
                    marks.append((part["replacement"], " "))
                case "Replace" if (mark := replaced_text(part)) is not None:
                    marks.append((mark, part["content"]))
                case "ByteFallback":
                    byte_fallback = True
                case "Strip" if part["content"] == " " and part["start"] <= 1 and part["stop"] == 0:
                    pass  # the prefix space: it belongs to the whole text, not to a token
                case "Fuse":
                    pass
                case kind:
                    raise TokenizerError(
                        f"expected a decoder that joins the text of tokens, received {kind!r}, which changes "
                        f"it across tokens. {_ADVICE}"
                    )
        lossy = [part["type"] for part in self.pre_tokenizers if _drops_text(part)]
        if lossy and not marks:
            raise TokenizerError(
                f"expected tokens that join to the text, but the pre-tokenizer {lossy[0]!r} drops spaces and "
                f"no token stands for them. {_ADVICE}"
            )
        return PieceCode(byte_fallback=byte_fallback, replacements=tuple(dict.fromkeys(marks)))

    def has_prefix_space(self, code: PieceCode) -> bool:
        """Return whether encoding puts a space before a text; `TokenizerError` where it puts something else there."""
        for part in self.normalizers:
            if part["type"] == "Prepend":
                if code.piece_bytes(part["prepend"]) == b" ":
                    return True
                raise TokenizerError(
                    "expected a tokenizer that puts nothing or a space before a text, received one that puts "
                    f"{part['prepend']!r} there. {_ADVICE}"
                )
        return any(
            (part["type"] == "Metaspace" and part["prepend_scheme"] != "never")
            or (part["type"] == "ByteLevel" and part["add_prefix_space"])
            for part in self.pre_tokenizers
        )

    def start_token_ids(self) -> tuple[int, ...]:
        """Return the special ids that are put before a text."""
        for part in self.processors:
            if part["type"] in ("BertProcessing", "RobertaProcessing"):
                return (part["cls"][1],)
            if part["type"] == "TemplateProcessing":
                return _before_text(part)
        return ()

    def plain(self, code: PieceCode) -> TokenizerParts:
        """Return parts that only cut the text and mark its spaces: nothing normalised, added or dropped."""
        return TokenizerParts(
            [part for part in self.normalizers if _marks_spaces(part, code)],
            [_without_prefix_space(part) for part in self.pre_tokenizers if not _drops_text(part)],
            self.decoders,
            [],
        )

    def build(self, model: tokenizers.models.Model) -> tokenizers.Tokenizer:
        """Return a tokenizer around `model` that encodes with these parts; it adds no special tokens."""
        normalizer = {"type": "Sequence", "normalizers": self.normalizers} if self.normalizers else None
        pre_tokenizer = {"type": "Sequence", "pretokenizers": self.pre_tokenizers} if self.pre_tokenizers else None
        shell = tokenizers.Tokenizer.from_str(
            json.dumps(_EMPTY | {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})
        )
        shell.model = model
        return shell


def replaced_text(part: Part) -> str | None:
    """Return the text that a `Replace` looks for; None for other parts, and for a regular expression."""
    return part["pattern"].get("String") if part["type"] == "Replace" else None


def _read(component: Any, key: str) -> list[Part]:
    if component is None:
        return []
    try:
        pending = [json.loads(component.__getstate__())]
    except Exception as error:
        raise TokenizerError(
            f"expected parts of the library `tokenizers`, received {type(component).__name__}, which is "
            f"written in Python and cannot be read ({error}). {_ADVICE}"
        ) from error
    parts = []
    while pending:
        part = pending.pop(0)
        if part["type"] == "Sequence":
            pending[:0] = part[key]
        else:
            parts.append(part)
    return parts


def _before_text(template: Part) -> tuple[int, ...]:
    token_ids: list[int] = []
    for piece in template["single"]:
        if "Sequence" in piece:
            break
        token_ids += template["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return tuple(token_ids)


def _marks_spaces(part: Part, code: PieceCode) -> bool:
    return part["type"] == "ByteLevel" or (replaced_text(part) == " " and (part["content"], " ") in code.replacements)


def _drops_text(part: Part) -> bool:
    return part["type"] in _SPLIT_AT_SPACES or part.get("behavior") == "Removed"


def _without_prefix_space(part: Part) -> Part:
    changes: dict[str, Part] = {"Metaspace": {"prepend_scheme": "never"}, "ByteLevel": {"add_prefix_space": False}}
    return part | changes.get(part["type"], {})
