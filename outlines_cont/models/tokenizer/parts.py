"""`TokenizerParts`: the normalizers, pre-tokenizers, decoders and post-processors of a `tokenizers.Tokenizer` as JSON data: how its
tokens spell bytes, whether it adds a prefix space, and its start tokens. Raises `TokenizerError` where tokens do not join to the text,
or a part is written in Python.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.token_bytes import PieceCode

Part = dict[str, Any]  # as in `tokenizer.json`

ADVICE = "Use a model with a byte-level, SentencePiece or tekken vocabulary."

_SPLIT_AT_SPACES = {"BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit"}
_EMPTY: dict[str, Any] = {
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
        """Return how pieces spell bytes, by the parts that encode and, where these do not say it, the decoder.

        `byte_fallback` says that the model spells by byte pieces what it has no piece for. Raises `TokenizerError` where the tokens do not
        join to the text.
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
                        f"it across tokens. {ADVICE}"
                    )
        lossy = [part["type"] for part in self.pre_tokenizers if _drops_text(part)]
        if lossy and not marks:
            raise TokenizerError(
                f"expected tokens that join to the text, but the pre-tokenizer {lossy[0]!r} drops spaces and "
                f"no token stands for them. {ADVICE}"
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
                    f"{part['prepend']!r} there. {ADVICE}"
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
            f"written in Python and cannot be read ({error}). {ADVICE}"
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
