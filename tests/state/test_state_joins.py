"""Slices of tokens and of characters that are joined again: no byte is lost, added or changed, over every kind of tokenizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_cont import BatchedExecutor, SequenceState
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import written
from outlines_cont.state.text import encoded_start
from outlines_cont.state.tokens import prompt_row
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_model
from tests.tokenizer_kinds import tokenizer_of

# Byte-level BPE with and without a prefix space, SentencePiece BPE and Unigram with byte fallback.
_KINDS = [
    "fake", "GPT-2", "GPT-2 with a prefix space", "Llama 2", "metaspace first", "metaspace never", "Unigram first",
]  # fmt: skip
_TEXTS = st.text(st.sampled_from('ab e1 \n"éß日本🙂👨‍👩‍👧é<'), max_size=14)


def _tokenizer(kind: str) -> Any:
    return FakeTokenizer() if kind == "fake" else tokenizer_of(kind)


def _state(tokenizer: Any, *rows: list[int]) -> SequenceState:
    """A state of one row per batch entry; nothing is run."""
    model: Any = SimpleNamespace(tokenizer=tokenizer, context_length=None, vocab_size=len(tokenizer.token_bytes))
    groups = tuple((prompt_row(row, model, RandomStream(0)),) for row in rows)
    return SequenceState(model, groups, 0)


def _ids(state: SequenceState) -> tuple[int, ...]:
    return state.rows[0][0].token_ids


def _bytes(state: SequenceState) -> bytes:
    """What the tokens contribute to the text, a prefix space included."""
    row = state.rows[0][0]
    return b"".join(written(row.token_ids, state.tokenizer, row.num_start_tokens))


def _shown_bytes(state: SequenceState) -> bytes:
    """The same without a prefix space, which letters at the beginning have, and a special token has not."""
    return _bytes(state)[len(_bytes(state).decode(errors="replace")) - len(str(state)) :]


def _begins_twice(token_ids: tuple[int, ...], tokenizer: Any) -> bool:
    """Whether the special tokens of a beginning stand there twice: joined, they are one beginning."""
    opening = tuple(tokenizer.encode("", add_special_tokens=True))
    return bool(opening) and token_ids[: 2 * len(opening)] == 2 * opening


@st.composite
def _token_ids(draw: st.DrawFn, tokenizer: Any) -> list[int]:
    """Ids of a text, a special token somewhere, and at the ends bytes that are no whole character."""
    token_ids: list[int] = tokenizer.encode(draw(_TEXTS), add_special_tokens=draw(st.booleans()))
    special = next(i for i, data in enumerate(tokenizer.token_bytes) if data is None)
    for place in draw(st.lists(st.integers(0, 30), max_size=2)):
        token_ids.insert(place % (len(token_ids) + 1), special)
    single = {data: i for i, data in enumerate(tokenizer.token_bytes) if data and len(data) == 1}
    if draw(st.booleans()):
        token_ids += [single[bytes([byte])] for byte in "🙂".encode()[: draw(st.integers(1, 3))]]
    return token_ids


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_slices_of_tokens_joined_again_are_the_same_tokens(kind: str, data: st.DataObject) -> None:
    tokenizer = _tokenizer(kind)
    state = _state(tokenizer, data.draw(_token_ids(tokenizer)))
    token_ids = _ids(state)
    assume(not _begins_twice(token_ids, tokenizer))
    for at in range(len(token_ids) + 1):
        both = state.tokens[:at] + state.tokens[at:]
        assert token_ids == _ids(both)
        assert state == both
    first, second = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), min_size=2, max_size=2)))
    parts = [state.tokens[:first], state.tokens[first:second], state.tokens[second:]]
    assert token_ids == _ids(parts[0] + parts[1] + parts[2])
    assert token_ids == _ids(parts[0] + (parts[1] + parts[2]))


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_slices_of_characters_joined_again_are_the_same_bytes(kind: str, data: st.DataObject) -> None:
    tokenizer = _tokenizer(kind)
    state = _state(tokenizer, data.draw(_token_ids(tokenizer)))
    for at in range(len(str(state)) + 1):
        assert _shown_bytes(state) == _shown_bytes(state[:at] + state[at:])


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_slices_of_a_slice_of_tokens_remember_that_they_begin_inside_a_text(kind: str, data: st.DataObject) -> None:
    tokenizer = _tokenizer(kind)
    state = _state(tokenizer, data.draw(_token_ids(tokenizer)))
    at = data.draw(st.integers(0, len(_ids(state))))
    left, right = state.tokens[:at], state.tokens[at:]
    text = str(right)
    for place in range(len(text) + 1 if text else 0):
        head, tail = right[:place], right[place:]
        assert (str(head), str(tail)) == (text[:place], text[place:])
        assert _shown_bytes(left + head + tail) == _shown_bytes(state)
        assert _shown_bytes(left + (head + tail)) == _shown_bytes(state)
    assert str("é" + right) in ("é" + text, "é " + text)  # a space that is no prefix space is text


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_a_sum_has_the_bytes_of_both_sides(kind: str, data: st.DataObject) -> None:
    tokenizer = _tokenizer(kind)
    left, right = (_state(tokenizer, data.draw(_token_ids(tokenizer))) for _ in range(2))
    shared = SequenceState(left.model, right.rows, 0)
    before, after = _bytes(left), _bytes(shared)
    if before and str(shared) != after.decode(errors="replace"):
        after = after.removeprefix(b" ") if getattr(tokenizer, "drops_prefix_space", False) else after
    assert before + after == _bytes(left + shared)
    text = data.draw(_TEXTS)
    assert str(left) + text == str(left + text)
    assert text + str(shared) == str(text + shared)


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=examples(30))
@given(st.text(" \u2581a\n<é日", max_size=6))
def test_a_text_at_the_beginning_of_a_row_is_spelled_as_it_is(kind: str, text: str) -> None:
    """Also where the tokenizer reads a mark of SentencePiece as a space, and drops a space in front."""
    tokenizer = _tokenizer(kind)
    assert text == tokenizer.decode(encoded_start(text, tokenizer))


def test_what_follows_tokens_that_a_conversation_drops_has_no_log_probability() -> None:
    executor = BatchedExecutor(random_model())
    conversation = executor.create("the name")
    for _ in range(5):
        executor.infer()
        conversation.step()
    before = conversation.state.rows[0][0]
    conversation.drop(2, 4)
    after = conversation.state.rows[0][0]
    assert before.token_ids[:2] + before.token_ids[4:] == after.token_ids
    assert sum(before.logprobs) < 0
    assert not any(after.logprobs)
    assert after.weight == 0
