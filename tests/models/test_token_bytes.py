"""Joined token bytes are the text's bytes, for every kind of tokenizer and all kinds of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.errors import TokenizerError
from outlines_cont.models.tokenizer.special_names import SpecialNames, Speller
from outlines_cont.models.tokenizer.token_bytes import PieceCode, byte_level_bytes
from tests.examples import examples
from tests.tokenizer_kinds import EVERY_KIND, KEEPS_TEXT, is_byte_level, tokenizer_of

LETTERS = ["the ", "doesn't", " 12345", '{"name": "', "é", "e\u0301", "ﬁ", "Å", "日本語", "東京", "Ж", "ؤ", "한국", "ก็"]
SIGNS = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🙂", "\x00", "\x07", "\x1b[0m", "\x7f", "\ufeff", "\ufffd", "\U0010ffff"]
SPACES = [" ", "  ", " " * 3, " " * 17, " " * 90, "\n", "\r\n", "\t", "\xa0", "\u2028"]
MARKS = ["▁", "▁▁", "Ġ", "<0x0A>", "##"]
SAMPLES = st.sampled_from(LETTERS + SIGNS + SPACES + MARKS)
SPECIALS = st.sampled_from(["<s>", "</s>", "<unk>", "<|endoftext|>", "[INST]"])
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS_WITH_SPECIALS = st.lists(SAMPLES | SPECIALS | st.text(CHARACTERS, max_size=6), max_size=8).map("".join)
TEXTS = st.lists(SAMPLES | st.text(CHARACTERS, max_size=6), max_size=8).map("".join)
WORDS = st.text("abcdefghijklmnopqrstuvwxyzäß", min_size=1, max_size=8)

every_kind = pytest.mark.parametrize("kind", EVERY_KIND)
keeps_text = pytest.mark.parametrize("kind", KEEPS_TEXT)
# What these libraries read as letters, their control tokens, we find ourselves.
_KNOWS_SPECIALS = {kind: False for kind in EVERY_KIND if "mistral-common" in kind or kind.startswith("SentencePiece ")}
_KNOWS_SPECIALS["SentencePiece 32k in LlamaTokenizer"] = True
quick = settings(max_examples=examples(15))


@every_kind
@quick
@given(text=TEXTS_WITH_SPECIALS)
def test_text_inside_a_text_keeps_its_bytes(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode_inside(text)
    assert text.encode() == tokenizer.text_bytes(token_ids)
    assert not tokenizer.special_token_ids.intersection(token_ids)


@every_kind
@quick
@given(text=TEXTS_WITH_SPECIALS)
def test_the_library_itself_encodes_text_as_it_is(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = text.translate(mistaken_by(kind))
    # Not by `encode_inside`, which would spell with any tokens what the library encodes wrongly.
    assert text.encode() == tokenizer.text_bytes(tokenizer._backend.encode_plain(text))


@keeps_text
@quick
@given(text=TEXTS)
def test_text_inside_a_text_gets_the_same_ids_as_at_its_start(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = text.translate(mistaken_by(kind))
    space = " " if tokenizer.drops_prefix_space and text else ""
    assert tokenizer.encode(text) == tokenizer.encode_inside(space + text)


@every_kind
@quick
@given(text=TEXTS, cut=st.integers(0, 30), context=st.data())
def test_text_after_ids_keeps_its_bytes(kind: str, text: str, cut: int, context: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    before = tokenizer.encode_inside(text[:cut])
    if context.draw(st.booleans(), label="random ids before"):
        before = context.draw(st.lists(st.integers(0, len(tokenizer.token_bytes) - 1), max_size=5))
    assert text[cut:].encode() == tokenizer.text_bytes(tokenizer.encode_inside(text[cut:], before))


@keeps_text
@quick
@given(text=TEXTS)
def test_a_text_keeps_its_bytes_behind_the_prefix_space(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = text.translate(mistaken_by(kind))
    token_ids = tokenizer.encode(text)
    space = b" " if tokenizer.drops_prefix_space and text else b""
    assert space + text.encode() == tokenizer.text_bytes(token_ids)
    assert text == tokenizer.decode(token_ids)


@every_kind
@quick
@given(text=TEXTS_WITH_SPECIALS)
def test_the_ids_of_a_text_are_those_of_the_wrapped_tokenizer(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    if not text.startswith((" ", "▁")):
        reference = reference_ids(tokenizer.hugging_face, text)
        if _KNOWS_SPECIALS.get(kind, True):
            assert reference == tokenizer.encode_special(text)
        if SpecialNames(tokenizer.special_tokens).first_in(text) is None:
            assert reference == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["GPT-2", "Llama 3", "tekken 131k in mistral-common", "tekken 12k as tokenizer.json"])
@quick
@given(words=st.lists(WORDS, min_size=2, max_size=6), cut=st.integers(1, 5))
def test_words_added_to_a_text_are_encoded_as_in_the_whole(kind: str, words: list[str], cut: int) -> None:
    tokenizer = tokenizer_of(kind)
    first, rest = " ".join(words[:cut]), "".join(" " + word for word in words[cut:])
    before = tokenizer.encode_inside(first)
    assert tokenizer.encode_inside(first + rest) == before + tokenizer.encode_inside(rest, before)


@given(st.text(st.sampled_from("aGĠġĊÃ©č¤é ▁\n日🙂") | CHARACTERS, max_size=8).map(lambda text: [text, text[1:], ""]))
def test_many_byte_level_pieces_have_the_bytes_that_each_has_alone(pieces: list[str]) -> None:
    assert [byte_level_bytes(piece) for piece in pieces] == PieceCode(byte_level=True).pieces_bytes(pieces)


def fewest_tokens(data: bytes, tokens: Sequence[bytes]) -> int | None:
    """Return how many tokens it takes to spell `data`, None if they cannot: all ways at once, a token at a time."""
    reached = {0}
    for count in range(len(data) + 1):
        if len(data) in reached:
            return count
        reached = {end + len(token) for end in reached for token in tokens if data.startswith(token, end)}
    return None


@given(st.text("ab", max_size=9).map(str.encode), st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=5))
def test_the_speller_takes_the_fewest_tokens(data: bytes, tokens: list[bytes]) -> None:
    speller = Speller([None, *tokens, *tokens])
    fewest = fewest_tokens(data, tokens)
    if fewest is None:
        with pytest.raises(TokenizerError, match="expected text that the vocabulary can spell"):
            speller.spell(data)
        return
    token_ids = speller.spell(data)
    assert fewest == len(token_ids)
    assert data == b"".join(tokens[token_id - 1] for token_id in token_ids)


def mistaken_by(kind: str) -> dict[int, str]:
    """Return how to rewrite a text so that nothing in it is mistaken by tokenizers of a kind.

    Those that mark spaces take the mark itself for a space; the Unigram of `tokenizers` takes `<0x0A>` for its byte, and
    finds special tokens, wherever a text has them.
    """
    unigram = kind.startswith(("Unigram", "T5"))
    return {} if is_byte_level(kind) else str.maketrans("▁<", "_(") if unigram else str.maketrans("▁", "_")


def reference_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids that the wrapped tokenizer's own `encode` gives, without special tokens."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    if isinstance(tokenizer, sentencepiece.SentencePieceProcessor):
        return list(tokenizer.encode(text))
    return list(tokenizer.encode(text, add_special_tokens=False))
