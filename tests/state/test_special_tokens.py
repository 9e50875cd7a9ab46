"""Special tokens in the rows of a state: one rule for texts, slices and counts; and no text becomes one by accident."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Guidance, SequenceState, Tokens, continuous, generate
from outlines_cont.errors import SpecialTokenWarning
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.tokens import prompt_row
from tests.examples import examples
from tests.fakes import BOS, END_OF_TURN, EOS, FakeTokenizer, random_model
from tests.tokenizer_kinds import KEEPS_TEXT, tokenizer_of

_TOKENIZER = FakeTokenizer()
_WORDS = [_TOKENIZER.encode(word)[0] for word in ("abc", "the", " the", " an", "é", "a", "b", "red", "日")]
_ROWS = st.lists(st.sampled_from([*_WORDS, BOS, EOS, END_OF_TURN]), max_size=9)
# Tokenizers that put a space after every special token, as the first Llamas do: it is text.
_ADD_SPACES = {"Llama 2", "GPT-2 with a prefix space", "metaspace always, split"}


def _model(tokenizer: Any) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, context_length=None, vocab_size=len(tokenizer.token_bytes))


_FAKE = _model(_TOKENIZER)


def _state(token_ids: list[int]) -> SequenceState:
    return SequenceState(_FAKE, ((prompt_row(token_ids, _FAKE, RandomStream(0)),),), 0)


def _prompt(model: Any, given: Any) -> SequenceState:
    """The state that a generator begins with."""
    return SequenceState(model, tuple(map(tuple, open_prompt(model, given, None, 0).rows)), 0)


def _ids(state: SequenceState) -> list[int]:
    return list(state.rows[0][0].token_ids)


def _specials(token_ids: list[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id <= END_OF_TURN]


def _ends(token_ids: list[int]) -> list[tuple[int, int]]:
    """The first character of each token, and the one after its last."""
    places, at = [], 0
    for index, token_id in enumerate(token_ids):
        name = _TOKENIZER.special_tokens.get(token_id, _TOKENIZER.decode([token_id]))
        size = 0 if index == 0 and token_id == BOS else len(name)
        places.append((at, at + size))
        at += size
    return places


@settings(max_examples=examples(120), deadline=None)
@given(_ROWS, st.integers(0, 30), st.integers(0, 30))
def test_a_slice_keeps_the_special_tokens_that_lie_inside_it(token_ids: list[int], start: int, stop: int) -> None:
    state = _state(token_ids)
    text = str(state)
    start, stop = min(start, len(text)), min(stop, len(text))
    cut = state[start:stop]
    places = zip(token_ids, _ends(token_ids), strict=True)
    inside = [i for i, (a, b) in places if (start <= a and b <= stop) and (a < b or start == 0)]
    assert text[start:stop] == str(cut)
    assert _specials(inside) == _specials(_ids(cut))
    assert str(cut + text[stop:] if "<" not in text[stop:] else cut + Tokens.of(text[stop:])) == text[start:stop] + text[stop:]


@settings(max_examples=examples(150), deadline=None)
@given(_ROWS, st.text(st.sampled_from("ab é"), max_size=3))
def test_text_beside_a_row_leaves_its_special_tokens_where_they_are(token_ids: list[int], text: str) -> None:
    state = _state(token_ids)
    start = state.rows[0][0].num_start_tokens
    for longer in (state + text, state.append(text), state.append(text, boundary="heal"), text + state):
        assert _specials(token_ids) == _specials(_ids(longer))
    if text:
        assert [*token_ids, *_TOKENIZER.encode_inside(text, token_ids)] == _ids(state + text)
        assert [*token_ids[:start], *_TOKENIZER.encode(text), *token_ids[start:]] == _ids(text + state)
    assert (text + str(state), str(state) + text) == (str(text + state), str(state + text))


@settings(max_examples=examples(150), deadline=None)
@given(_ROWS, _ROWS)
def test_the_text_of_a_row_gives_its_special_tokens_back(token_ids: list[int], more: list[int]) -> None:
    state, other = _state(token_ids), _state(more)
    again = Tokens.of(str(state), special=True)
    if token_ids:
        prompt = _prompt(_FAKE, again)
        shown = token_ids[state.rows[0][0].num_start_tokens :]
        assert _specials(_ids(prompt)) == ([] if shown[:1] == [BOS] else [BOS]) + _specials(shown)
        assert str(prompt) == str(state)
    assert str(state + Tokens.of(str(other), special=True)) == str(state) + str(other)
    if more:
        assert [*token_ids, *more] == _ids(state + tuple(more)) == _ids(state.append([tuple(more)]))
    assert str(state + other) == str(state) + str(other)
    assert str(state).count("<end>") == token_ids.count(END_OF_TURN)


@pytest.mark.parametrize("kind", KEEPS_TEXT)
def test_the_prompt_is_the_text_that_was_given(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    model = _model(tokenizer)
    name = next(name for i, name in sorted(tokenizer.special_tokens.items(), reverse=True) if name != "<unk>")
    for text in (f"{name}user\nHi é{name}", f"Hi {name} there", f"x{name}{name}", f"{name}"):
        with pytest.warns(SpecialTokenWarning, match="Tokens.of"):
            letters = _prompt(model, text)
        control = _prompt(model, Tokens.of(text, special=True))
        token_id = next(i for i, other in tokenizer.special_tokens.items() if other == name)
        start = tokenizer.encode("", add_special_tokens=True)
        assert text == str(letters)
        assert _ids(letters) == _ids(_prompt(model, Tokens.of(text)))
        assert token_id not in _ids(letters)[len(start) :]
        assert text.count(name) == _ids(control).count(token_id) - (token_id in start and control.rows[0][0].num_start_tokens)
        assert tokenizer.encode_special(text) == _ids(control)[control.rows[0][0].num_start_tokens :]
        for state in [letters] if kind in _ADD_SPACES else [letters, control]:
            assert text == str(state) == str(state[: len(text)])
            assert _ids(state) == _ids(state[: len(text)])
            longer = state + "!?"
            assert (text + "!?", "!?") == (str(longer), longer.generated)
            assert state == longer[: len(text)]
            assert longer[: len(text)].generated == ""
            assert text + "!?" == str(longer[:3] + longer[3:])


# Those with a token that begins every text; `test_which_tokenizers_begin_a_text` checks it, so that none is made while tests are collected.
_BEGIN = [
    "SentencePiece BPE",
    "SentencePiece 32k in LlamaTokenizer",
    "SentencePiece 32k in mistral-common",
    "tekken 131k in mistral-common",
]


@pytest.mark.parametrize("kind", KEEPS_TEXT)
def test_which_tokenizers_begin_a_text(kind: str) -> None:
    assert (tokenizer_of(kind).bos_token_id is not None) is (kind in _BEGIN)


@pytest.mark.parametrize("kind", _BEGIN)
def test_a_beginning_that_the_text_writes_is_there_once(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    start = tokenizer.encode("", add_special_tokens=True)
    bos = tokenizer.special_tokens[tokenizer.bos_token_id]  # type: ignore[index]
    model = _model(tokenizer)
    state = _prompt(model, Tokens.of(f"{bos}Hi", special=True))
    assert _ids(state).count(tokenizer.bos_token_id) == 1  # type: ignore[arg-type]
    assert len(start) - state.rows[0][0].num_start_tokens == (len(start) if start else 0)
    assert str(state).startswith(bos)
    plain = _prompt(model, "Hi")
    assert start == _ids(plain)[: len(start)]
    assert "Hi" == str(plain) == str(plain[:2])
    assert start == _ids(plain[:0])[: len(start)]
    ids = _prompt(model, _ids(plain))
    assert (_ids(plain), "Hi") == (_ids(ids), str(ids))


def test_no_warning_where_it_is_said_what_is_meant(tmp_path: Any) -> None:
    model = random_model()
    write = continuous(generate.text(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = write(Tokens.of("the<end>red", special=True), max_tokens=3)
        state = write(state + Tokens.of("<end>the<end>", special=True) + Tokens.of("<end>"), max_tokens=2)
        assert _ids(state).count(END_OF_TURN) == 3
        assert str(state).count("<end>") == 4
        assert str(state) == "the<end>red" + state.generated  # type: ignore[operator]
        state.save(tmp_path / "state.safetensors")
    loaded = SequenceState.load(tmp_path / "state.safetensors", model)
    assert (str(state), state.generated, _ids(state)) == (str(loaded), loaded.generated, _ids(loaded))
    assert "".join(span.text for span in state.spans[0][0]) == str(state)
    assert "&lt;end&gt;" in state._repr_html_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write("the<end>", max_tokens=1)
        assert str(state + "<end>") == str(state.append(["<end>"]))
        assert str("<s>" + state) == "<s>" + str(state)
    assert [__file__] * 4 == [warning.filename for warning in caught]


def test_a_negative_prompt_is_a_prompt() -> None:
    model = random_model()
    write = generate.text(model)
    ids = [BOS, END_OF_TURN, *_TOKENIZER.encode("red")]
    texts = [
        write("the name", max_tokens=4, guidance=Guidance(negative, 2.0))
        for negative in (ids, Tokens.of("<end>red", special=True), Tokens.of("<s><end>red", special=True))
    ]
    assert texts == texts[:1] * 3
    with pytest.warns(SpecialTokenWarning):
        write("the name", max_tokens=1, guidance=Guidance("<end>red", 2.0))


def test_stop_texts_are_letters_and_a_healed_prompt_is_no_part_of_what_was_generated() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the nam", max_tokens=4, heal=True)
    assert str(state) == "the nam" + state.generated  # type: ignore[operator]
    with pytest.warns(SpecialTokenWarning):
        assert str(continuous(generate.text(model))("a<end>", max_tokens=2, stop_at="<end>"))[:6] == "a<end>"


def test_what_transformers_gives_is_a_prompt() -> None:
    model = random_model()
    ids = [BOS, *_TOKENIZER.encode("the name")]
    write = continuous(generate.text(model))
    wanted = write("the name", max_tokens=2)
    padded = {"input_ids": torch.tensor([[0, *ids], [END_OF_TURN, *ids]]), "attention_mask": torch.tensor([[0] + [1] * len(ids)] * 2)}
    for same in (ids, tuple(ids), torch.tensor(ids), torch.tensor([ids]), {"input_ids": ids}, [ids]):
        assert wanted == write(same, max_tokens=2)
    assert [str(wanted)] * 2 == list(write(padded, max_tokens=2))
    assert [str(wanted)] * 2 == list(write([ids, "the name"], max_tokens=2))
