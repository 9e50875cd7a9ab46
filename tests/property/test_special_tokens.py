"""Special tokens in the rows of a state: at the beginning they stay there, elsewhere they go with the token that follows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState
from outlines_cont.random_stream import RandomStream
from outlines_cont.state_row import StateRow
from tests.fakes import BOS, END_OF_TURN, EOS, FakeTokenizer

_TOKENIZER = FakeTokenizer()
_MODEL: Any = SimpleNamespace(tokenizer=_TOKENIZER, context_length=None, vocab_size=len(_TOKENIZER.token_bytes))
_WORDS = [_TOKENIZER.encode(word)[0] for word in ("abc", "the", " the", " an", "é", "a", "b", "red", "日")]
_ROWS = st.lists(st.sampled_from([*_WORDS, BOS, EOS, END_OF_TURN]), max_size=9)


def _state(token_ids: list[int]) -> SequenceState:
    return SequenceState(_MODEL, ((StateRow.of_prompt(token_ids, RandomStream(0)),),), 0)


def _specials(token_ids: list[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id <= END_OF_TURN]


@settings(max_examples=120, deadline=None)
@given(_ROWS, st.integers(0, 14), st.integers(0, 14))
def test_a_slice_keeps_a_special_token_with_the_token_that_follows_it(
    token_ids: list[int], start: int, stop: int
) -> None:
    state = _state(token_ids)
    text = str(state)
    start, stop = min(start, len(text)), min(stop, len(text))
    cut = state[start:stop]
    kept, at, waiting = [], 0, list[int]()
    for token_id in token_ids:
        if token_id <= END_OF_TURN:
            waiting.append(token_id)
            continue
        end = at + len(_TOKENIZER.decode([token_id]))
        if (start <= at and end <= stop) or (start == at == 0):
            kept += waiting
        at, waiting = end, []
    # After the last character, and in a row without one.
    if (start < stop == len(text)) or start == stop == len(text) == 0:
        kept += waiting
    assert text[start:stop] == str(cut)
    assert kept == _specials(list(cut.rows[0][0].token_ids))


@settings(max_examples=150, deadline=None)
@given(_ROWS, st.text(st.sampled_from("ab é"), max_size=3))
def test_text_beside_a_row_leaves_its_special_tokens_where_they_are(token_ids: list[int], text: str) -> None:
    state = _state(token_ids)
    leading = next((i for i, token_id in enumerate(token_ids) if token_id > END_OF_TURN), len(token_ids))
    for longer in (state + text, state.append(text), state.append(text, boundary="heal"), text + state):
        assert _specials(token_ids) == _specials(list(longer.rows[0][0].token_ids))
    if text:
        assert [*token_ids, *_TOKENIZER.encode_inside(text, token_ids)] == list((state + text).rows[0][0].token_ids)
        before = list((text + state).rows[0][0].token_ids)
        assert [*token_ids[:leading], *_TOKENIZER.encode(text), *token_ids[leading:]] == before
