"""One tokenizer of every kind that `Tokenizer` reads: trained here, or real, in the wrappers that users have."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import normalizers, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend
from transformers.tokenization_utils_base import generate_merges
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from tests.vocabularies import (
    LLAMA_3_PATTERN,
    QWEN_PATTERN,
    SENTENCEPIECE_FILE,
    TEKKEN_FILE,
    byte_level_bpe,
    gemma_bpe,
    llama_2_bpe,
    metaspace_bpe,
    pattern_bpe,
    sentencepiece_model,
    unigram,
)


def trained_sentencepiece(**options: object) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(**options))


TEKKEN_BEGINS = 12_000
"""The tokens of tekken as far as transformers makes a tokenizer of them: of all 131,072 it takes four seconds."""


def write_tekken(folder: str) -> Path:
    """Write a tekken.json with its first tokens."""
    data = json.loads(TEKKEN_FILE.read_text(encoding="utf-8"))
    data["config"]["default_vocab_size"] = TEKKEN_BEGINS
    path = Path(folder, "tekken.json")
    path.write_text(json.dumps(data | {"vocab": data["vocab"][:TEKKEN_BEGINS]}), encoding="utf-8")
    return path


def tekken_as_json() -> PreTrainedTokenizerFast:
    """The tokenizer that transformers makes of a folder with a tekken.json."""
    with tempfile.TemporaryDirectory() as folder:
        write_tekken(folder)
        return PreTrainedTokenizerFast.from_pretrained(folder)


def llama_32k() -> LlamaTokenizer:
    """The tokenizer that transformers makes of the SentencePiece file where protobuf is installed."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(SENTENCEPIECE_FILE))
    ids = range(processor.get_piece_size())
    vocab = {processor.id_to_piece(i): i for i in ids}
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in ids}
    return LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab, scores), add_bos_token=True)


def digits_bpe() -> tokenizers.Tokenizer:
    return byte_level_bpe(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False))


# Every text comes back out of the ids.
KEEPS_TEXT: dict[str, Callable[[], Any]] = {
    "GPT-2": byte_level_bpe,
    "GPT-2 with a prefix space": lambda: byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama 3": lambda: pattern_bpe(LLAMA_3_PATTERN),
    "digits": digits_bpe,
    "Llama 2": llama_2_bpe,
    "metaspace first": lambda: metaspace_bpe("first"),
    "metaspace always, split": lambda: metaspace_bpe("always", split=True),
    "metaspace never": lambda: metaspace_bpe("never"),
    "Gemma": gemma_bpe,
    "Unigram first": lambda: unigram("first"),
    "Unigram never": lambda: unigram("never"),
    "SentencePiece BPE": lambda: trained_sentencepiece(
        model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False
    ),
    "SentencePiece 32k in LlamaTokenizer": llama_32k,
    "SentencePiece 32k in mistral-common": lambda: MistralCommonBackend(SENTENCEPIECE_FILE),
    "SentencePiece 32k in a slow tokenizer": lambda: SentencePieceBackend(vocab_file=str(SENTENCEPIECE_FILE)),
    "tekken 131k in mistral-common": lambda: MistralCommonBackend(TEKKEN_FILE),
    "tekken 12k as tokenizer.json": tekken_as_json,
}
# The tokenizer normalises the text, or drops spaces of it.
CHANGES_TEXT: dict[str, Callable[[], Any]] = {
    "Qwen": lambda: pattern_bpe(QWEN_PATTERN, normalizers.NFC()),
    "NFKC and lower case": lambda: pattern_bpe(LLAMA_3_PATTERN, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "T5": lambda: unigram("always", splits=True),
    "SentencePiece Unigram, nmt_nfkc": lambda: trained_sentencepiece(model_type="unigram"),
}
EVERY_KIND: dict[str, Callable[[], Any]] = KEEPS_TEXT | CHANGES_TEXT


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """Return the tokenizer of a kind, made once for all tests."""
    return Tokenizer(EVERY_KIND[kind]())


def is_byte_level(kind: str) -> bool:
    """Return whether the pieces of a kind are bytes in disguise, so that no text can be mistaken for a mark."""
    return kind.startswith(("GPT-2", "Llama 3", "digits", "tekken", "Qwen", "NFKC"))
