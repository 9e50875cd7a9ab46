"""The tokenizer behind `outlines_cont`: tables of real vocabularies, special tokens, spaces, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from outlines_cont.errors import OutlinesContError, TokenizerError
from outlines_cont.models.tokenizer.token_bytes import PieceCode, byte_alphabet
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from tests.tokenizer_kinds import EVERY_KIND, KEEPS_TEXT, TEKKEN_BEGINS, is_byte_level, tokenizer_of, write_tekken
from tests.vocabularies import (
    GPT2_EOS,
    LLAMA_3_PATTERN,
    SENTENCEPIECE_FILE,
    Tokens,
    byte_level_bpe,
    gemma_bpe,
    llama_2_bpe,
    pattern_bpe,
    sentencepiece_model,
    unigram,
)

SPECIAL = processors.TemplateProcessing(single="<s> $A </s>", pair=None, special_tokens=[("<s>", 1), ("</s>", 2)])


def wrapped(tokenizer: tokenizers.Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def texts(tokenizer: Tokenizer, token_ids: list[int]) -> list[bytes | None]:
    return [tokenizer.token_bytes[token_id] for token_id in token_ids]


# The bytes of tokens


@pytest.mark.parametrize(("kind", "size"), [("tekken 131k in mistral-common", 131_072), ("tekken 12k as tokenizer.json", TEKKEN_BEGINS)])
def test_the_tekken_vocabulary_is_read_exactly(kind: str, size: int, tekken: tuple[Tokens, list[int]]) -> None:
    tokens = tekken[0][:size]
    assert size == len(tokens)
    tokenizer = tokenizer_of(kind)
    assert tuple(tokens) == tokenizer.token_bytes
    assert {i for i, token in enumerate(tokens) if token is None} == tokenizer.special_token_ids


@pytest.mark.parametrize("kind", ["SentencePiece 32k in mistral-common", "SentencePiece 32k in a slow tokenizer"])
def test_the_32k_vocabulary_is_read_exactly(kind: str, sentencepiece_32k: tuple[Tokens, list[int]]) -> None:
    tokens, _ = sentencepiece_32k
    tokenizer = tokenizer_of(kind)
    assert tuple(tokens) == tokenizer.token_bytes
    assert {i for i, token in enumerate(tokens) if token is None} == tokenizer.special_token_ids


@pytest.mark.parametrize("text", ["unbelievably", " runs over the hills", "def f(x):\n    return [x] * 12", "naïve 日本語", "\U0001f980"])
def test_the_32k_vocabulary_is_spelled_alike_by_each_library(text: str) -> None:
    common, slow = (tokenizer_of(f"SentencePiece 32k in {name}") for name in ("mistral-common", "a slow tokenizer"))
    assert common.encode_inside(text) == slow.encode_inside(text)


def test_the_32k_vocabulary_has_text_for_control_pieces_that_llama_does_not_know(sentencepiece_32k: tuple[Tokens, list[int]]) -> None:
    tokens, eos_token_ids = sentencepiece_32k
    tokenizer = tokenizer_of("SentencePiece 32k in LlamaTokenizer")
    differ = {i for i, token in enumerate(tokens) if token != tokenizer.token_bytes[i]}
    assert {None} == {tokens[i] for i in differ}
    assert b"[INST]" in texts(tokenizer, sorted(differ))
    assert eos_token_ids == [tokenizer.eos_token_id]


def test_equal_vocabularies_have_equal_fingerprints(tmp_path: Path) -> None:
    tekken = tokenizer_of("tekken 131k in mistral-common")
    first = Tokenizer(MistralCommonBackend(write_tekken(str(tmp_path))))
    assert first.fingerprint == tokenizer_of("tekken 12k as tokenizer.json").fingerprint != tekken.fingerprint
    assert Tokenizer(tekken.hugging_face, vocab_size=131_073).fingerprint != tekken.fingerprint
    common = tokenizer_of("SentencePiece 32k in mistral-common")
    assert tokenizer_of("SentencePiece 32k in a slow tokenizer").fingerprint == common.fingerprint
    assert tokenizer_of("SentencePiece 32k in LlamaTokenizer").fingerprint != common.fingerprint


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    assert set(pre_tokenizers.ByteLevel.alphabet()) == set(byte_alphabet())
    for byte, char in enumerate(byte_alphabet()):
        assert bytes([byte]) == PieceCode(byte_level=True).piece_bytes(char)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_byte_is_a_token_where_the_vocabulary_has_them_all(kind: str) -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(tokenizer_of(kind).token_bytes)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_token_is_empty(kind: str) -> None:
    assert b"" not in tokenizer_of(kind).token_bytes


def test_pieces_that_look_like_bytes_are_text_without_byte_fallback() -> None:
    model = models.BPE(vocab={"<0x41>": 0, "a": 1}, merges=[])
    assert Tokenizer(tokenizers.Tokenizer(model)).token_bytes == (b"<0x41>", b"a")
    model = models.BPE(vocab={"<0x41>": 0, "a": 1}, merges=[], byte_fallback=True)
    assert Tokenizer(tokenizers.Tokenizer(model)).token_bytes == (b"A", b"a")


def test_a_piece_outside_the_byte_alphabet_is_its_own_text() -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={"Ġa": 0, "<｜fim▁hole｜>": 1, "a b": 2}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert (b" a", "<｜fim▁hole｜>".encode(), b"a b") == Tokenizer(tokenizer).token_bytes


# Special and added tokens


@pytest.mark.parametrize("make", [byte_level_bpe, llama_2_bpe, lambda: unigram("first")])
def test_added_tokens_are_text_unless_special(make: Callable[[], tokenizers.Tokenizer]) -> None:
    plain = make()
    plain.add_special_tokens(["<|turn|>"])
    plain.add_tokens([tokenizers.AddedToken("<think>", rstrip=True), "né", " \n"])
    turn, think, accent = (plain.token_to_id(text) for text in ("<|turn|>", "<think>", "né"))
    tokenizer = Tokenizer(plain)
    assert [None, b"<think>", "né".encode()] == texts(tokenizer, [turn, think, accent])
    assert turn in tokenizer.special_token_ids
    assert think not in tokenizer.special_token_ids
    assert [think] == tokenizer.encode_inside("<think>")
    assert tokenizer.encode_inside("<think> \nné") == [think, plain.token_to_id(" \n"), accent]
    assert turn in tokenizer.encode_special("a<|turn|>b")
    assert turn not in tokenizer.encode("a<|turn|>b")
    assert turn not in tokenizer.encode_inside("a<|turn|>b")
    assert tokenizer.text_bytes(tokenizer.encode_inside("a<|turn|>b")) == b"a<|turn|>b"


def test_a_slow_tokenizer_adds_tokens_of_its_own() -> None:
    given = SentencePieceBackend(vocab_file=str(SENTENCEPIECE_FILE), bos_token="<s>", eos_token="</s>")
    size = len(given)
    given.add_tokens(["<think>", "<think>ing"])
    given.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer = Tokenizer(given)
    assert texts(tokenizer, [size, size + 1, size + 2]) == [b"<think>", b"<think>ing", None]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    dog, runs = tokenizer.encode_inside("the lazy dog"), tokenizer.encode_inside(" runs")
    assert tokenizer.encode_inside("the lazy dog<think>ing runs<think>") == [*dog, size + 1, *runs, size]
    assert tokenizer.encode_special("a<|pad|>") == given.encode("a<|pad|>", add_special_tokens=False)
    assert size + 2 in tokenizer.encode_special("a<|pad|>")
    assert size + 2 not in tokenizer.encode("a<|pad|>")
    assert size + 2 not in tokenizer.encode_inside("a<|pad|>")


def test_special_names_of_the_wrapper_count() -> None:
    plain = byte_level_bpe()
    tokenizer = Tokenizer(wrapped(plain, eos_token=GPT2_EOS, pad_token="!"))
    assert {0, plain.token_to_id("!")} == tokenizer.special_token_ids
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, None)
    assert tokenizer.token_bytes[plain.token_to_id("!")] is None


def test_a_bare_tokenizer_names_no_eos() -> None:
    assert Tokenizer(byte_level_bpe()).eos_token_id is None


@pytest.mark.parametrize("unknown", ["metaspace first", "Unigram first", "T5"])
def test_the_unknown_token_has_no_bytes(unknown: str) -> None:
    assert 0 in tokenizer_of(unknown).special_token_ids
    assert tokenizer_of(unknown).token_bytes[0] is None


def test_an_unknown_token_of_the_model_alone_has_no_bytes() -> None:
    bpe = tokenizers.Tokenizer(models.BPE(vocab={"?": 0, "a": 1}, merges=[], unk_token="?"))
    assert Tokenizer(bpe).token_bytes == (None, b"a")
    unigram_model = tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("?", 0.0)], unk_id=1))
    assert Tokenizer(unigram_model).token_bytes == (b"a", None)


def test_ids_beyond_the_tokenizer_have_no_bytes() -> None:
    plain = byte_level_bpe()
    tokenizer = Tokenizer(plain, vocab_size=1000)
    assert len(tokenizer.token_bytes) == 1000
    assert {None} == set(tokenizer.token_bytes[plain.get_vocab_size() :])


def test_a_token_without_a_row_in_the_model_is_never_given() -> None:
    plain = byte_level_bpe()
    size = plain.get_vocab_size()
    plain.add_tokens(["<think>"])
    tokenizer = Tokenizer(plain, vocab_size=size)
    assert size == len(tokenizer.token_bytes)
    assert max(tokenizer.encode_inside("<think>")) < size
    with pytest.raises(TokenizerError, match=f"expected token ids below {size}, the rows of the model"):
        tokenizer.encode_special("<think>")
    with pytest.raises(TokenizerError, match=f"expected token ids below {size}, received {size}"):
        tokenizer.text_bytes([0, size])


# The start of a text


@pytest.mark.parametrize(
    ("processor", "start"),
    [
        (SPECIAL, [1]),
        (processors.Sequence([processors.ByteLevel(), SPECIAL]), [1]),
        (processors.RobertaProcessing(("</s>", 2), ("<s>", 1)), [1]),
        (processors.TemplateProcessing(single="$A </s>", pair=None, special_tokens=[("</s>", 2)]), []),
        (None, []),
    ],
)
def test_special_tokens_are_added_before_a_text_and_not_after(processor: Any, start: list[int]) -> None:
    plain = llama_2_bpe()
    if processor is not None:
        plain.post_processor = processor
    tokenizer = Tokenizer(wrapped(plain, bos_token="<s>", eos_token="</s>"))
    assert start + tokenizer.encode("one text") == tokenizer.encode("one text", add_special_tokens=True)
    assert start == tokenizer.encode("", add_special_tokens=True)
    assert tokenizer.encode("") == []


@pytest.mark.parametrize(
    "kind", ["tekken 131k in mistral-common", "SentencePiece 32k in mistral-common", "SentencePiece 32k in LlamaTokenizer"]
)
def test_bos_is_added_as_the_wrapped_tokenizer_adds_it(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.hugging_face.encode("A text.") == tokenizer.encode("A text.", add_special_tokens=True)
    assert tokenizer.bos_token_id == tokenizer.encode("A text.", add_special_tokens=True)[0]
    assert tokenizer.decode(tokenizer.encode("A text.", add_special_tokens=True)) == "A text."


def test_decoding_replaces_what_is_not_utf_8() -> None:
    tokenizer = tokenizer_of("GPT-2")
    half = tokenizer.token_bytes.index(b"\xe2")
    assert tokenizer.decode([*tokenizer.encode("a"), half, *tokenizer.encode("b")]) == "a\ufffdb"


def test_special_ids_leave_no_text() -> None:
    tokenizer = tokenizer_of("Llama 2")
    one, two = tokenizer.encode("one"), tokenizer.encode_inside(" two")
    assert tokenizer.text_bytes([1, *one, 0, *two, 2]) == b" one two"
    assert tokenizer.decode([1, *one, 0, *two, 2]) == "one two"


# Text inside a text


def test_text_is_encoded_as_it_stands_after_the_text_before() -> None:
    tokenizer = Tokenizer(pattern_bpe(LLAMA_3_PATTERN))
    whole, before = tokenizer.encode_inside("else (tail)"), tokenizer.encode_inside("else ")
    inside = tokenizer.encode_inside("(tail)", before)
    assert whole == before + inside
    assert inside != tokenizer.encode_inside("(tail)")


def test_text_that_would_join_a_token_before_is_encoded_alone() -> None:
    tokenizer = tokenizer_of("tekken 131k in mistral-common")
    before = tokenizer.encode_inside("the answ")
    assert tokenizer.encode_inside("er is", before) == tokenizer.encode_inside("er is")
    assert before + tokenizer.encode_inside("er is", before) != tokenizer.encode_inside("the answer is")


@pytest.mark.parametrize("cut", [1, 2])
def test_text_after_half_a_character_is_encoded_alone(cut: int) -> None:
    tokenizer = tokenizer_of("metaspace never")
    half = [3 + byte for byte in "東".encode()[:cut]]
    assert "東".encode()[:cut] == tokenizer.text_bytes(half)
    assert tokenizer.encode_inside("the dog") == tokenizer.encode_inside("the dog", half)


def test_a_normalizer_is_passed_by() -> None:
    plain = pattern_bpe(LLAMA_3_PATTERN, normalizers.Lowercase())
    tokenizer = Tokenizer(plain)
    assert tokenizer.decode(tokenizer.encode("THE lazy dog")) == "the lazy dog"
    assert tokenizer.decode(tokenizer.encode_inside("THE lazy dog")) == "THE lazy dog"
    plain.normalizer = None
    assert Tokenizer(plain).encode("THE lazy dog") == tokenizer.encode_inside("THE lazy dog")


@pytest.mark.parametrize("make", [byte_level_bpe, llama_2_bpe, gemma_bpe, lambda: unigram("first")])
def test_text_between_added_tokens_is_encoded_as_anywhere(make: Callable[[], tokenizers.Tokenizer]) -> None:
    plain = make()
    before, after = "Über die Grenze xylophon", " quick brown 123 </turn>"
    ids = [Tokenizer(plain).encode_inside(text) for text in (before, after)]
    plain.add_special_tokens(["</turn>"])
    plain.add_tokens(["<think>"])
    think = plain.token_to_id("<think>")
    tokenizer = Tokenizer(plain)
    assert tokenizer.encode_inside(before + "<think>" + after) == [*ids[0], think, *ids[1]]


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if not is_byte_level(kind) and kind != "T5"])
def test_the_mark_for_a_space_is_spelled_by_bytes(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert ["▁".encode()[i : i + 1] for i in range(3)] == texts(tokenizer, tokenizer.encode_inside("▁"))


def test_text_that_the_vocabulary_cannot_spell_is_refused() -> None:
    tokenizer = Tokenizer(unigram("always", byte_fallback=False, splits=True))
    assert tokenizer.text_bytes(tokenizer.encode_inside("the  dog")) == b"the  dog"
    message = r"received 'the\\x07 dog', in which no tokens cover the character '\\x07' at position 3"
    with pytest.raises(TokenizerError, match=message):
        tokenizer.encode_inside("the\x07 dog")
    with pytest.raises(TokenizerError, match="the character '🦎' at position 4"):
        tokenizer.encode_inside("the 🦎")


@pytest.mark.parametrize("kind", ["GPT-2", "SentencePiece 32k in mistral-common", "tekken 131k in mistral-common"])
def test_a_lone_surrogate_is_refused(kind: str) -> None:
    for encode in (tokenizer_of(kind).encode, tokenizer_of(kind).encode_inside):
        with pytest.raises(TokenizerError, match=r"received the lone surrogate '\\ud800' at position 2"):
            encode("ab\ud800c")


# The user's tokenizer


def snapshot(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    inside = backend.to_str() if isinstance(backend, tokenizers.Tokenizer) else ""
    return inside + repr(sorted(getattr(tokenizer, "__dict__", {}).items()))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_wrapped_tokenizer_is_never_changed(kind: str) -> None:
    given = tokenizer_of(kind).hugging_face
    reference = given.encode("A référence text.")
    before = snapshot(given)
    tokenizer = Tokenizer(given, vocab_size=140_000)
    ids = tokenizer.encode("some <s>text</s> " * 400, add_special_tokens=True)
    tokenizer.encode_inside("  ▁ \x07日本", ids)
    tokenizer.decode(ids)
    assert tokenizer.fingerprint
    assert before == snapshot(given)
    assert str(reference) == str(given.encode("A référence text."))


def test_settings_of_the_wrapped_tokenizer_do_not_reach_ours() -> None:
    given = wrapped(llama_2_bpe(), pad_token="</s>")
    tokenizer = Tokenizer(given)
    ids = tokenizer.encode("a text of some words")
    given("a text of some words", truncation=True, max_length=2, padding="max_length")
    assert given.backend_tokenizer.truncation is not None
    assert ids == tokenizer.encode("a text of some words") == Tokenizer(given).encode("a text of some words")
    given.add_tokens(["some"])
    assert ids == tokenizer.encode("a text of some words") != Tokenizer(given).encode("a text of some words")


@pytest.mark.parametrize("split", [True, False])
def test_special_tokens_are_split_whatever_the_wrapped_tokenizer_does(split: bool) -> None:
    given = wrapped(llama_2_bpe(), eos_token="</s>", split_special_tokens=split)
    ids = Tokenizer(given).encode("a</s>b")
    given.split_special_tokens = True
    assert given.encode("a</s>b", add_special_tokens=False) == ids
    assert 2 not in ids
    assert 2 in Tokenizer(given).encode_special("a</s>b")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_text_becomes_a_special_token_but_where_it_is_asked_for(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    control = tokenizer.special_token_ids - tokenizer._backend.table.unknown_token_ids
    names = {i: name for i, name in tokenizer.special_tokens.items() if i in control}
    for token_id, name in list(names.items())[:4]:
        text = f"a {name} b{name}"
        assert control.isdisjoint(tokenizer.encode(text)), name
        assert control.isdisjoint(tokenizer.encode_inside(text)), name
        assert [token_id] * 2 == [i for i in tokenizer.encode_special(text) if i in control], name
        if kind in KEEPS_TEXT:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def bpe_with_dropout() -> Any:
    tokenizer = byte_level_bpe()
    tokenizer.model.dropout = 0.9
    return tokenizer


def sampling_unigram() -> Any:
    tokenizer = unigram("first")
    tokenizer.model.alpha, tokenizer.model.nbest_size = 0.1, 64
    return tokenizer


def sampling_sentencepiece() -> Any:
    model = sentencepiece_model(model_type="unigram")
    return sentencepiece.SentencePieceProcessor(model_proto=model, enable_sampling=True, alpha=0.1, nbest_size=-1)


@pytest.mark.parametrize("make", [bpe_with_dropout, sampling_unigram, sampling_sentencepiece])
def test_ids_are_not_random_where_the_wrapped_tokenizer_draws_them(make: Callable[[], Any]) -> None:
    given = make()
    tokenizer = Tokenizer(given)
    text = "the lazy dog jumps over the quick brown fox, doesn't it?"
    assert len({str(given.encode(text)) + str(getattr(given.encode(text), "ids", "")) for _ in range(9)}) > 1
    assert len({str(tokenizer.encode(text)) for _ in range(9)}) == 1
    assert len({str(tokenizer.encode_inside(text)) for _ in range(9)}) == 1


# What is refused


def no_steps(model: models.Model, **parts: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


class Upper:
    """A normalizer in Python."""

    def normalize(self, text: Any) -> None:
        text.uppercase()


AB = {"a": 0, "b": 1}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "WordPiece": (lambda: no_steps(models.WordPiece(AB | {"##b": 2}, unk_token="a")), "received WordPiece"),
    "WordLevel": (lambda: no_steps(models.WordLevel(AB, unk_token="a")), "received WordLevel"),
    "end of word": (lambda: no_steps(models.BPE(AB, [], end_of_word_suffix="</w>")), "word borders with '</w>'"),
    "inside a word": (lambda: no_steps(models.BPE(AB, [], continuing_subword_prefix="##")), "word borders with '##'"),
    "decoder": (lambda: no_steps(models.BPE(AB, []), decoder=decoders.BPEDecoder()), "received 'BPEDecoder'"),
    "decoder with a regular expression": (
        lambda: no_steps(models.BPE(AB, []), decoder=decoders.Replace(tokenizers.Regex("a+"), "b")),
        "received 'Replace'",
    ),
    "dropped spaces": (
        lambda: no_steps(models.BPE(AB, []), pre_tokenizer=pre_tokenizers.Whitespace()),
        "the pre-tokenizer 'Whitespace' drops spaces",
    ),
    "dropped text": (
        lambda: no_steps(models.BPE(AB, []), pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
        "the pre-tokenizer 'Split' drops spaces",
    ),
    "text put in front": (lambda: no_steps(models.BPE(AB, []), normalizer=normalizers.Prepend("a")), "received one that puts 'a' there"),
    "Python": (
        lambda: no_steps(models.BPE(AB, []), normalizer=normalizers.Normalizer.custom(Upper())),
        "received Normalizer, which is written in Python",
    ),
    "text": (lambda: "gpt2", "received str. Load one with `transformers.AutoTokenizer.from_pretrained`"),
    "nothing": (lambda: None, "received NoneType"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_tokens_without_exact_bytes_are_refused(kind: str) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(make())
    assert isinstance(caught.value, OutlinesContError)
    assert isinstance(caught.value, ValueError)


def test_a_model_that_marks_spaces_after_words_is_refused() -> None:
    model = sentencepiece_model(model_type="unigram", treat_whitespace_as_suffix=True)
    with pytest.raises(TokenizerError, match="received one that marks them after words"):
        Tokenizer(sentencepiece.SentencePieceProcessor(model_proto=model))
