"""`FastBackend`: the backend for the library `tokenizers`: byte-level BPE, SentencePiece-style BPE, and Unigram with a mark for the
space. It derives the bytes of every token from the vocabulary, and makes encoders with and without special tokens and normalisation.

Vocabularies whose tokens do not join to the text are refused: WordPiece (`##`), whole words, BPE with an end-of-word suffix, decoders
with a regular expression; and parts written in Python, which cannot be read. The user's tokenizer is only read. Encoding runs on
private ones around the same model, because the user's settings (truncation, padding, special tokens) may change at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import models

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.parts import ADVICE, TokenizerParts
from outlines_cont.models.tokenizer.token_bytes import TokenTable


class FastBackend:
    """A `tokenizers.Tokenizer`, which is not changed, with what a wrapper around it says about special tokens.

    `special_token_ids` are those that `tokenizer` itself does not mark as special. Raises `TokenizerError` where the tokens do not join
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
        special = {token_id for token_id, token in added.items() if token.special}
        special.update(special_token_ids, (vocab[piece] for piece in unknown if piece in vocab))
        entries = dict(zip(vocab.values(), code.pieces_bytes(list(vocab)), strict=True))
        for token_id, token in added.items():
            # An added token stands for its own text; one that is a piece too (Gemma's runs of the mark)
            # for the piece's.
            if code.byte_level or token_id not in entries:
                entries[token_id] = token.content.encode()
        self.table = TokenTable.from_entries(
            entries,
            special_token_ids=special,
            unknown_token_ids=(vocab[piece] for piece in unknown if piece in vocab),
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
        # Ids of added tokens are given out from the end of the vocabulary; the user's may have gaps there.
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
            f"join to the text. {ADVICE}"
        )
    if affix := model.continuing_subword_prefix or model.end_of_word_suffix:
        raise TokenizerError(
            "expected a vocabulary whose tokens join to the text, received one that marks word borders with "
            f"{affix!r}. {ADVICE}"
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
    """Return `token` so that it is found as it is written, and takes no spaces around it."""
    return tokenizers.AddedToken(token.content, single_word=token.single_word, normalized=False, special=False)
