"""Languages as JSON strings: against the languages themselves, on texts spelled by `json.dumps`."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm import Expression, ExpressionError, TokenFSM, Vocabulary, choice, grammar, json_schema, json_string, regex, special, until
from fsm.automaton.lazy_dfa import DEAD, Automaton

NESTED = 'start: list\nlist: "(" (list | WORD)* ")"\nWORD: /[a-c"\\n]+/\n%ignore " "'
LINES = 'start: line+\nline: "+" /(.*)/ LF\n%import common.LF'
LANGUAGES = {
    "all": regex(r"[\s\S]*"),
    "lines": regex(r'(?:["\\a-c]{0,3}\n)*'),
    "others": ~choice(['"', "a", "\\n"]),
    "mark": until('"""') & ~regex(r"[\s\S]*\n[\s\S]*"),
    "nested": grammar(NESTED),
    "patch": grammar(LINES),
    "words": choice(['say "no"', "say\tyes", "\x01", "\x1f", "é\\"]),
}
_TEXTS = st.text(st.sampled_from('"\\\n\t\x01\x1f\x7fabcn/u+() é😀'), max_size=7)


@given(st.sampled_from(sorted(LANGUAGES)), _TEXTS)
def test_a_spelled_text_belongs_to_it_where_the_text_belongs_to_the_language(name: str, text: str) -> None:
    language = LANGUAGES[name]
    spelled = json.dumps(text, ensure_ascii=False)
    assert json_string(language).accepts(spelled) == language.accepts(text)
    assert not json_string(language).accepts(spelled[:-1])


@given(st.sampled_from(sorted(LANGUAGES)), st.text(st.sampled_from('"\\\\\\nu0019abc()+"'), max_size=9))
def test_what_it_accepts_is_the_spelling_of_a_text(name: str, inside: str) -> None:
    found = json_string(LANGUAGES[name]).accepts(f'"{inside}"')
    try:
        text = json.loads(f'"{inside}"')
    except ValueError:
        assert not found
    else:
        assert found == (json.dumps(text, ensure_ascii=False) == f'"{inside}"' and LANGUAGES[name].accepts(text))


@pytest.mark.parametrize("name", sorted(LANGUAGES))
def test_its_masks_are_those_of_its_bytes(name: str) -> None:
    tokens = [bytes((byte,)) for byte in range(256)] + [b'"a', b"\\n", b'\\"', b'\\"\\', b'a"', b"\\u00", b"b\\", b"+a\\n", b"()", None]
    masks = TokenFSM(json_string(LANGUAGES[name]), Vocabulary(tokens, [len(tokens) - 1]))
    plain = Automaton(json_string(LANGUAGES[name]).node)
    state, at = masks.initial_state, Automaton.initial_state
    for token_id in (ord('"'), *b"a(+\\", *b"\\n", *b"()"):
        allowed = [i for i, data in enumerate(tokens[:-1]) if data is not None and plain.next_state(at, data) != DEAD]
        assert [i for i in masks.allowed_token_ids(state).tolist() if tokens[i] is not None] == allowed
        if token_id in allowed:
            state, at = masks.next_state(state, token_id), plain.next_state(at, bytes((token_id,)))


def test_it_is_a_language_as_others_are() -> None:
    found = '{"input": ' + json_string(grammar(NESTED)) + "}"
    assert found.accepts('{"input": "(a (b))"}')
    assert not found.accepts('{"input": "(a (b)"}')
    again: Expression = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert again.accepts('{"input": "()"}')
    assert json_string(choice(["a"]) & choice(["b"])).is_empty()
    assert not json_string(grammar(NESTED)).is_empty()
    assert json_string("a") == json_string("a")


@pytest.mark.parametrize("language", [special("<x>"), json_schema({"type": "array", "uniqueItems": True})])
def test_checks_and_special_tokens_are_refused(language: Expression) -> None:
    with pytest.raises(ExpressionError, match="Leave these out"):
        json_string(language)
