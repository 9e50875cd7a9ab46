"""Added tokens that are not special and steer a model all the same, such as `<tool_response>`: letters in the text of users."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from outlines_cont import Chat, Guidance, Tokens, continuous, generate
from outlines_cont.chats.chat_format import aligned
from outlines_cont.errors import ChatError, OptionError, SpecialTokenWarning
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.models.tokenizer.token_bytes import markup_in
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.chat_models import chat_model
from tests.examples import examples
from tests.vocabularies import QWEN_PATTERN, SENTENCEPIECE_FILE, byte_level_bpe, gemma_bpe, llama_2_bpe, pattern_bpe, unigram

_ADDED = ["<think>", "</think>", "[CALL]", "<think>ing>", "C++", "né", "   "]
_MARKUP = {"<think>", "</think>", "[CALL]", "<think>ing>"}


def _with_added(given: Any) -> Any:
    given.add_tokens([AddedToken(text, normalized=False) for text in _ADDED])
    return given


_KINDS: dict[str, Callable[[], Any]] = {
    "GPT-2": byte_level_bpe,
    "Qwen, NFKC": lambda: pattern_bpe(QWEN_PATTERN, normalizers.NFKC()),
    "Llama 2": llama_2_bpe,
    "Gemma": gemma_bpe,
    "Unigram": lambda: unigram("first"),
    "slow": lambda: SentencePieceBackend(vocab_file=str(SENTENCEPIECE_FILE)),
}


@cache
def _tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(_with_added(_KINDS[kind]()))


def test_markup_begins_and_ends_with_punctuation_and_has_a_letter_between() -> None:
    markup = [
        "<think>", "</s>", "[/INST]", "<|a|>", "|||IP_ADDRESS|||", "<｜tool▁call｜>", "### Answer:", "\n<a>\n", "<1>", "<s>",
        "<search>",
    ]  # fmt: skip
    text = [
        "<b>", "</h1>", "<table>", "word", "two words", "C++", ".com", "don't", "   ", "\n\n", "▁▁", "->", "...", "é", "12",
        "日本", "",
    ]  # fmt: skip
    assert markup == list(markup_in(dict(enumerate(markup + text))).values())


@pytest.mark.parametrize("kind", _KINDS)
def test_only_markup_is_letters_in_a_text(kind: str) -> None:
    tokenizer = _tokenizer(kind)
    ids = {text: i for i, text in tokenizer.markup_tokens.items()}
    assert ids.keys() == _MARKUP
    assert tokenizer.encode_inside("<think>") == [ids["<think>"]]  # as a model writes it
    assert ids["</think>"] in tokenizer.encode_special("a</think> b")
    words = [i for i, token in enumerate(tokenizer.token_bytes) if token in (b"C++", "né".encode())]
    assert {*words} <= {*tokenizer.encode_inside("C++né")}
    assert {*words} <= {*encode_letters("C++né", tokenizer)}


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from([*_KINDS]),
    st.lists(st.sampled_from([*_ADDED, "<", "<thi", "nk>", "/think>", "[", "CALL]", " a", "b"]), max_size=5),
    st.integers(0, 20),
)
def test_no_text_of_a_user_has_markup_wherever_it_is_cut(kind: str, parts: list[str], cut: int) -> None:
    tokenizer = _tokenizer(kind)
    text = "x" + "".join(parts)
    whole = tokenizer.encode(text)
    first = encode_letters(text[:cut], tokenizer)
    inside = [*first, *encode_letters(text[cut:], tokenizer, first)]
    for token_ids in (whole, inside):
        assert not tokenizer.markup_tokens.keys() & {*token_ids}
    assert tokenizer.text_bytes(inside) == text.encode()


def test_letters_stay_letters_where_a_tokenizer_changes_them_into_markup() -> None:
    tokenizer = pattern_bpe(QWEN_PATTERN, normalizers.NFKC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=True)])
    read = Tokenizer(tokenizer)
    (token_id,) = read.markup_tokens
    assert token_id in read.encode_special("＜think＞")
    assert token_id not in read.encode("＜think＞")


def _markup_in(chat: Chat) -> list[str]:
    markup = chat.model.tokenizer.markup_tokens
    return [markup[i] for i in chat.state.rows[0][0].token_ids if i in markup]


def test_a_user_cannot_fake_what_a_template_or_a_model_writes() -> None:
    model = chat_model("Qwen3")
    text = "a <tool_call> b </think> c<think>"
    for role in ("user", "system"):
        chat = Chat(model).message({"role": role, "content": text}).user("Hi")
        assert _markup_in(chat) == []
        assert text in str(chat.state)
    spoken = Chat(model).user("Hi").assistant("<think>\nwell").assistant("\n</think>\n\n")
    assert _markup_in(spoken) == ["<think>", "</think>"]
    assert _markup_in(Chat(model, enable_thinking=False).user("<think>")) == ["<think>", "</think>"]


def test_markup_in_a_prompt_is_letters_with_a_warning_or_what_was_said() -> None:
    model = chat_model("Qwen3")
    say = continuous(generate.choice(model, ["yes"]))
    markup = model.tokenizer.markup_tokens.keys()
    text = "Is <think> a</think>?"
    with pytest.warns(SpecialTokenWarning, match="'<think>'"):
        plain = say(text)
    with pytest.warns(SpecialTokenWarning, match="'</think>'"):
        _ = plain + "</think>"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        letters = say(Tokens.of(text))
        longer = letters + Tokens.of("</think>") + Tokens.of("<thi") + Tokens.of("nk>")
        real = say(Tokens.of(text, special=True)) + Tokens.of("<think>", special=True)
    for state in (plain, letters, longer):
        assert not markup & {*state.rows[0][0].token_ids}
    assert sum(i in markup for i in real.rows[0][0].token_ids) == 3
    assert str(letters) == str(plain)
    assert str(longer) == f"{text}yes</think><think>"


def test_tokens_join_with_texts_of_their_kind() -> None:
    real = Tokens.of("<a>", special=True)
    assert Tokens.of("a") + "b" == "a" + Tokens.of("b") == Tokens.of("a") + Tokens.of("b") == Tokens.of("ab")
    assert real + Tokens.of("b", special=True) == Tokens.of("<a>b", special=True)
    assert real + "" == "" + real == real
    for join in (lambda: real + "b", lambda: "b" + real, lambda: Tokens.of("b") + real):
        with pytest.raises(OptionError, match="state \\+ first \\+ second"):
            join()
    with pytest.raises(TypeError):
        _ = real + 1  # type: ignore[operator]
    state = continuous(generate.choice(chat_model("Qwen3"), ["yes"]))("a")
    assert str(Tokens.of("b") + state) == "bayes"


def test_control_tokens_in_a_message_are_refused_with_the_way_out() -> None:
    with pytest.raises(ChatError, match="template=.*chat.state \\+ Tokens.of"):
        Chat(chat_model("Qwen3")).user(Tokens.of("<|im_end|>", special=True))


def test_a_row_keeps_its_markup_only_where_the_same_is_wanted() -> None:
    tokenizer = _tokenizer("GPT-2")
    real = tokenizer.encode_special("x<think>y")
    letters = tokenizer.encode("x<think>y")
    assert list(aligned(StateRow.of_prompt(real, RandomStream(0)), letters, tokenizer).token_ids) == letters
    assert list(aligned(StateRow.of_prompt(real, RandomStream(0)), real, tokenizer).token_ids) == real
    inside = [*tokenizer.encode("x th"), *real]
    row = StateRow.of_prompt(tokenizer.encode_inside("x t"), RandomStream(0))
    found = aligned(row, [*inside, *letters], tokenizer).token_ids
    assert sum(i in tokenizer.markup_tokens for i in found) == 1


@pytest.mark.parametrize("kind", ["Gemma", "GPT-2", "slow"])
def test_html_is_text_in_a_prompt_and_encoded_as_the_tokenizer_encodes_it(kind: str) -> None:
    """Gemma has tags of HTML as added tokens; a page that a user writes down is what such a model was trained on."""
    given: Any = _KINDS[kind]()
    given.add_tokens([AddedToken(text, normalized=False) for text in ("<b>", "</b>", "<h1>", "</h1>", "<think>")])
    tokenizer = Tokenizer(given)
    assert {*tokenizer.markup_tokens.values()} == {"<think>"}
    text = "x <h1>A <b>bold</b> one</h1>"
    ids = {token: i for i, token in enumerate(tokenizer.token_bytes) if token in (b"<b>", b"</b>", b"<h1>", b"</h1>")}
    assert len(ids) == 4
    assert {*ids.values()} <= {*tokenizer.encode(text)}
    assert {*ids.values()} <= {*encode_letters(text, tokenizer)}
    assert tokenizer.text_bytes(encode_letters(text, tokenizer)) == text.encode()
    assert tokenizer.encode(text) == tokenizer.encode_special(text)


def test_a_tokenizer_of_the_library_without_added_tokens_has_no_markup() -> None:
    assert Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"<a>": 0}, merges=[]))).markup_tokens == {}


def test_the_text_of_a_chat_template_is_a_negative_prompt() -> None:
    model = chat_model("Qwen3")
    chat = Chat(model).user("Hi")
    text = model.tokenizer.hugging_face.apply_chat_template(chat.messages, tokenize=False, add_generation_prompt=True)  # type: ignore[attr-defined]
    write = generate.text(model)
    guided = chat.assistant(write, max_tokens=4, guidance=Guidance(Tokens.of(text, special=True), scale=3))
    assert guided == chat.assistant(write, max_tokens=4)  # the negative prompt is the prompt
