"""Vocabularies for tests and benchmarks: the real ones inside the mistral-common wheel, and small ones trained here.

The real ones are read without `outlines_cont`, so that they can judge it. In the repository's root this is
`tests.vocabularies`.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from functools import cache
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

Tokens = list[bytes | None]

GPT2_EOS = "<|endoftext|>"
LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_PATTERN = LLAMA_3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind it at all.",
    '{"name": "Ada Lovelace", "born": 1815, "tags": ["mathematician", "writer"], "alive": false}',
    "def encode(text: str) -> list[int]:\n    return [ord(char) for char in text]\n\n\n    # 1234567890",
    "Façade, naïve, Ærøskøbing, Übergröße, señor, São Paulo, Zürich, Straße, coöperate, œuvre.",
    "東京都は日本の首都です。私は今日、新しい本を三冊買いました。北京是中国的首都。",
    "Быстрая коричневая лиса прыгает через ленивую собаку. Καλημέρα κόσμε.",
    "Prices: 12, 123, 1234, 12345, 3.14159, 2026-11-20, +49 30 1234567, 100 %, $5.00.",
    "Emoji: 🙂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 o\u0308 ⚙️.",
] * 4


def mistral_common_file(name: str) -> Path:
    """Return the path of a data file of the mistral-common wheel."""
    spec = importlib.util.find_spec("mistral_common")
    assert spec is not None, "mistral-common is missing; install the extra `test`"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data" / name


TEKKEN_FILE = mistral_common_file("tekken_240911.json")
SENTENCEPIECE_FILE = mistral_common_file("mistral_instruct_tokenizer_241114.model.v7")


@cache
def tekken_token_bytes() -> tuple[Tokens, list[int]]:
    """Return the 131,072 tokens of Mistral's tekken vocabulary (None: special), and its EOS ids."""
    data = json.loads(TEKKEN_FILE.read_text(encoding="utf-8"))
    num_special = data["config"]["default_num_special_tokens"]
    num_ordinary = data["config"]["default_vocab_size"] - num_special
    ordinary = [base64.b64decode(entry["token_bytes"]) for entry in data["vocab"][:num_ordinary]]
    return [None] * num_special + ordinary, [2]


@cache
def sentencepiece_token_bytes() -> tuple[Tokens, list[int]]:
    """Return the 32,768 tokens of Mistral's SentencePiece vocabulary (None: special), and its EOS ids."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(SENTENCEPIECE_FILE))
    tokens: Tokens = []
    for token_id in range(processor.get_piece_size()):
        piece = processor.id_to_piece(token_id)
        if processor.is_byte(token_id):
            tokens.append(bytes.fromhex(piece[3:5]))
        elif processor.is_control(token_id) or processor.is_unknown(token_id) or processor.is_unused(token_id):
            tokens.append(None)
        else:
            tokens.append(piece.replace("▁", " ").encode())
    return tokens, [processor.eos_id()]


def byte_level_bpe(
    *steps: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None, vocab_size: int = 900
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE; `steps` is the pre-tokenizer, by default that of GPT-2."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps) or [pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[GPT2_EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def pattern_bpe(pattern: str, normalizer: normalizers.Normalizer | None = None) -> tokenizers.Tokenizer:
    """Train a byte-level BPE that cuts the text by a regular expression, as Llama 3 and Qwen do."""
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return byte_level_bpe(split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), normalizer=normalizer)


def _with_specials(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def _metaspace_decoder(strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)


@cache
def _metaspace_bpe_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=700, show_progress=False))
    state = json.loads(tokenizer.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in sorted(state["vocab"], key=state["vocab"].get) if piece not in pieces]
    return {piece: token_id for token_id, piece in enumerate(pieces)}, [tuple(pair) for pair in state["merges"]]


def _metaspace_bpe_model() -> models.BPE:
    vocab, merges = _metaspace_bpe_parts()
    return models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def metaspace_bpe(prepend_scheme: str, *, split: bool = False) -> tokenizers.Tokenizer:
    """Make a BPE with byte fallback that marks spaces, as Llama 2 and Mistral do."""
    tokenizer = tokenizers.Tokenizer(_metaspace_bpe_model())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=split)
    tokenizer.decoder = _metaspace_decoder(strip=prepend_scheme != "never")
    return _with_specials(tokenizer)


def llama_2_bpe() -> tokenizers.Tokenizer:
    """Make the same with the mark put in by normalizers, as the first tokenizer.json files of Llama 2 have it."""
    tokenizer = tokenizers.Tokenizer(_metaspace_bpe_model())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = _metaspace_decoder(strip=True)
    return _with_specials(tokenizer)


def gemma_bpe() -> tokenizers.Tokenizer:
    """Make the same without a prefix space; runs of the mark and of line feeds are added tokens, as in Gemma."""
    vocab, merges = _metaspace_bpe_parts()
    runs = {"▁▁": len(vocab), "▁▁▁": len(vocab) + 1}
    more_merges = [*merges, ("▁", "▁"), ("▁▁", "▁")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab | runs, merges=more_merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = _metaspace_decoder(strip=False)
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("▁▁", "▁▁▁", "\n\n")])
    return _with_specials(tokenizer)


def unigram(prepend_scheme: str, *, byte_fallback: bool = True, splits: bool = False) -> tokenizers.Tokenizer:
    """Train a Unigram vocabulary that marks spaces; `splits` cuts at spaces first, as T5 does."""
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = metaspace
    trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    scored = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"] if piece != "<unk>"]
    byte_pieces = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)] if byte_fallback else []
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *byte_pieces, *scored]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if splits else metaspace
    tokenizer.decoder = (
        _metaspace_decoder(strip=prepend_scheme != "never") if byte_fallback else decoders.Metaspace(prepend_scheme=prepend_scheme)
    )
    return _with_specials(tokenizer)


def sentencepiece_model(**options: object) -> bytes:
    """Train a SentencePiece model with byte fallback; returns it serialised."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS),
        model_writer=written,
        **{"vocab_size": 600, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2} | options,
    )
    return written.getvalue()
