"""What asks for something else where a text does not fit: the keyword, pattern or rule, for a table, and whatever stands before it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fsm
from fsm import TokenFSM, Vocabulary, json_schema
from fsm.schema import blame
from tests.examples import examples

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "paid"]}, "maxItems": 2},
        "kind": {"$ref": "#/$defs/kind"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"kind": {"anyOf": [{"const": "a"}, {"type": "integer", "minimum": 3}]}},
}
START = '{"name":"ab","age":5,'
TREE = {"properties": {"left": {"$ref": "#"}, "size": {"type": "integer"}}, "required": ["size"], "type": "object"}
CASES: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    (PERSON, "[", ("#/type",)),
    ({"uniqueItems": True}, "[1,1]", ("#/uniqueItems",)),
    ({"properties": {"a:b": {"type": "null"}}}, '{"a:b":1', ("#/properties/a:b/type",)),  # no other document
    ({"properties": {"a": {"pattern": r"(.)\1"}}}, '{"a":"ab",', ("#/properties/a/pattern",)),
    (PERSON, '{"name":1', ("#/properties/name/type",)),
    (PERSON, '{"name":"x"', ("#/properties/name/minLength",)),
    (PERSON, '{"name":"xA', ("#/properties/name/pattern",)),
    (PERSON, '{"name":"ab","age":121', ("#/properties/age/maximum",)),
    (PERSON, '{"name":"ab","age":5.', ("#/properties/age/type",)),
    (PERSON, '{"name":"ab","agf', ("#/additionalProperties",)),
    (PERSON, '{"name":"ab"}', ("#/required",)),
    (PERSON, START + '"tags":["o', ("#/properties/tags/items/enum",)),
    (PERSON, START + '"tags":["new","new",', ("#/properties/tags/maxItems",)),
    (PERSON, START + '"kind":"b', ("#/$defs/kind/anyOf/0/const", "#/$defs/kind/anyOf/1/type")),
    (PERSON, START + '"kind":2}', ("#/$defs/kind/anyOf/0/const", "#/$defs/kind/anyOf/1/minimum")),
    (TREE, '{"left":{"left":{"size":"', ("#/properties/size/type",)),
    (TREE, '{"left":{}', ("#/required",)),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, '"', ("#/allOf/0/type",)),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, "1", ("#/type",)),
    ({"patternProperties": {"^n": {"type": "null"}}}, '{"n":1', ("#/patternProperties/^n/type",)),
    ({"propertyNames": {"pattern": "^a"}}, '{"b', ("#/propertyNames",)),
    ({"prefixItems": [True, {"const": 5}]}, "[1,6", ("#/prefixItems/1/const",)),
    ({"prefixItems": [{"type": "null"}], "items": {"const": 5}}, "[null,6", ("#/items/const",)),
    ({"properties": {"a": False}, "additionalProperties": True}, '{"a"', ("#/properties",)),
    (PERSON, '{"name":   ', ()),
    # None of them alone: 10, 15 and 1 would do.
    ({"type": "integer", "multipleOf": 10, "minimum": 15, "maximum": 25}, "1", ("#/multipleOf", "#/minimum", "#/maximum")),
]


@pytest.mark.parametrize(("schema", "text", "expected"), CASES, ids=lambda value: repr(value)[:40])
def test_the_keyword_that_forbids_a_text_is_named(schema: dict[str, Any], text: str, expected: tuple[str, ...]) -> None:
    order = "schema" if schema is PERSON else "any"
    assert expected == fsm.json_schema(schema, key_order=order).blame(text)  # type: ignore[arg-type]


def test_a_member_out_of_order_is_laid_to_the_properties() -> None:
    schema = {"properties": {"a": True, "b": True}}
    remark = '(this key comes earlier in the schema\'s order; `key_order="any"` allows it here)'
    assert fsm.json_schema(schema).blame('{"b":1,"a"') == (f"#/properties {remark}",)
    assert fsm.json_schema(schema, key_order="any").blame('{"b":1,"a":\x00') == ()


def deep(schema: Any) -> Any:
    for _ in range(250):
        schema = {"allOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("schema", "text", "is_allowed", "is_json"),
    [
        (PERSON, '{"name":"a', True, True),
        ({"minimum": 10}, "12", True, True),
        (PERSON, '{"name":   ', False, False),
        ({"type": "integer"}, "x", False, False),
        (deep({"type": "integer"}), '"', False, True),
    ],
)
def test_explain_tells_apart_why_nothing_is_blamed(schema: Any, text: str, is_allowed: bool, is_json: bool) -> None:
    language = fsm.json_schema(schema)

    def explained(one: fsm.Expression) -> str:
        return one.explain(text) or "the end of the text"

    assert language.blame(text) == ()
    assert ("the end of the text" in explained(language)) == is_allowed
    assert ("the end of the text" in explained(fsm.json_schema(True))) == is_json


def test_an_end_that_comes_too_early_is_laid_to_a_keyword() -> None:
    assert fsm.json_schema({"type": "integer", "minimum": 10}).blame("7", is_whole=True) == ("#/minimum",)


GRAMMAR = """
start: statement+
statement: NAME "=" sum ";"
sum: term ("+" term)*
term: NUMBER | NAME | "(" sum ")"
NAME: /[a-z]+/
NUMBER: /[0-9]+/
"""


@pytest.mark.parametrize(
    ("text", "expected"), [("A", ("rule 'statement'",)), ("a=1;b=)", ("rule 'term'",)), ("a=(1;", ("rule 'term'", "rule 'sum'"))]
)
def test_the_rules_that_stand_open_are_named(text: str, expected: tuple[str, ...]) -> None:
    assert expected == fsm.grammar(GRAMMAR).blame(text)


def test_a_pattern_and_the_parts_of_a_sequence_are_named() -> None:
    year, word = fsm.regex("[0-9]{4}"), fsm.regex("[a-z]+").named("word")
    assert year.blame("2x") == ("regex('[0-9]{4}')",)
    assert (year + "-" + word).blame("20-") == ("regex('[0-9]{4}')",)
    assert (year + "-" + word).blame("2024-A") == ("word",)
    assert (year | word).blame("ab1") == ("word",)
    answer = fsm.until("</think>") + fsm.json_schema(PERSON)
    assert answer.blame('so</think>{"name":1') == ("#/properties/name/type",)
    assert (fsm.json_schema(PERSON) + "." + word).blame('{"name":1') == ("#/properties/name/type",)
    assert (word | fsm.json_schema(PERSON)).blame('{"name":1') == ("#/properties/name/type",)


def test_long_chains_of_parts_are_read_without_recursion() -> None:
    expression = fsm.regex("a")
    for _ in range(300):
        expression = (expression | "c") + "b"
    assert expression.blame("x")


def test_explain_names_the_keyword_where_the_text_is_given() -> None:
    vocabulary = Vocabulary([bytes((b,)) for b in range(256)] + [None], [256])
    constraint = fsm.TokenFSM(fsm.json_schema(PERSON), vocabulary)
    text = b'{"name":"ab","age":12'
    state = constraint.initial_state
    for byte in text:
        state = constraint.next_state(state, vocabulary.tokens.index(bytes((byte,))))
    wrong = vocabulary.tokens.index(b"5")
    assert constraint.explain(state, wrong).sources == ()
    explanation = constraint.explain(state, wrong, text)
    assert explanation.sources == ("#/properties/age/maximum",)
    assert "This is required by #/properties/age/maximum." in str(explanation)
    allowed = vocabulary.tokens.index(b"0")
    assert constraint.explain(state, allowed, text).sources == ()


def test_an_end_too_early_is_laid_to_the_required_property() -> None:
    vocabulary = Vocabulary([bytes((b,)) for b in range(256)] + [None], [256])
    constraint = fsm.TokenFSM(fsm.json_schema(PERSON), vocabulary)
    state = constraint.initial_state
    for byte in b'{"name":"ab"':
        state = constraint.next_state(state, byte)
    said = constraint.explain(state, 256, text='{"name":"ab"')
    assert said.sources == ("#/required",)
    assert str(said).index("required by #/required") < str(said).index("What must follow")
    assert "What must follow" in str(constraint.explain(state, 256))


@pytest.mark.parametrize(("num_visits", "expected"), [(30, ("#/properties/size/type",)), (3, ())])
def test_so_many_parts_are_looked_at_and_no_more(num_visits: int, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "_MAX_VISITS", num_visits)
    assert expected == fsm.json_schema(TREE, key_order="any").blame('{"left":{"left":{"left":{"left":{"size":"')


TEXTS = st.text('"\\{}[],: a1é\n', max_size=5)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
WHOLE = {"type": "integer"}
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])
TRICKY = 'a"},[\\'
OBJECT = json_schema({"type": "object", "properties": {TRICKY: True, "b": True, "c": WHOLE}})
ARRAY = json_schema({"type": "array", "prefixItems": [True, True, WHOLE]})
NESTED = json_schema({"type": "object", "properties": {"b": {"type": "array", "items": {"properties": {"b": True, "c": WHOLE}}}}})


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=examples(8))
@given(VALUES, VALUES)
@example("\\", '"\\')
@example({"}": ["]"]}, ["{", {",": ":"}])
def test_the_value_that_is_wrong_is_found_behind_any_others(first: Any, second: Any) -> None:
    one, other = written(first), written(second)
    for wrong in ('"', "0.5", "null,", '"c"'):
        begun = f'"b": {other}, "c": {wrong}'
        assert OBJECT.blame(f"{{{written(TRICKY)}: {one}, {begun}") == ("#/properties/c/type",)
        assert ARRAY.blame(f"[{one}, {other}, {wrong}") == ("#/prefixItems/2/type",)
        assert NESTED.blame(f'{{"b": [{one}, {{{begun}') == ("#/properties/b/items/properties/c/type",)


@settings(max_examples=examples(25))
@given(st.permutations("abcd"), st.sets(st.sampled_from("abcd")), st.booleans())
@example(("b", "a", "c", "d"), {"a"}, False)
def test_what_only_the_order_of_keys_refuses_names_the_option_that_allows_it(
    keys: tuple[str, ...], required: set[str], is_closed: bool
) -> None:
    schema = {"properties": dict.fromkeys("abcd", WHOLE), "required": sorted(required), "additionalProperties": not is_closed}
    ordered, token_fsm = json_schema(schema), TokenFSM(json_schema(schema), BYTES)
    text = written(dict.fromkeys(keys, 1)).encode()
    assert json_schema(schema, key_order="any").accepts(text)
    state = token_fsm.initial_state
    for size, byte in enumerate(text):
        if byte not in token_fsm.allowed_token_ids(state):
            for said in (*ordered.blame(text[: size + 1]), str(token_fsm.explain(state, byte, text[:size]))):
                assert '`key_order="any"` allows it here' in said
            return
        state = token_fsm.next_state(state, byte)
    assert ordered.accepts(text)


_WORDS = st.lists(st.text('abä"\n{', max_size=4), min_size=1, max_size=4)


@given(words=_WORDS, text=st.text('abä"\n{', max_size=5))
def test_the_message_names_the_first_character_that_no_text_of_the_language_has(words: list[str], text: str) -> None:
    said = fsm.choice(words).explain(text)
    assert (said is None) is (text in words)
    if said is None:
        return
    num_common = max(n for n in range(len(text) + 1) for word in words if word.startswith(text[:n]))
    received = repr(text[num_common]) if num_common < len(text) else "the end of the text"
    assert re.match(rf"expected .* at character {num_common}(, after .*)?, received {re.escape(received)}\. ", said, re.DOTALL)


@pytest.mark.parametrize(
    "text", ["", '{"a"', '{"a":1}', '{"a":12}', '{"a":12} ', '{"b"', '["x","x"]', '["x"]', "\ud800", b"\xff", b"\xe2\x82"]
)
@pytest.mark.parametrize(
    "language",
    [
        fsm.json_schema({"type": "object", "properties": {"a": {"minimum": 10, "type": "integer"}}, "required": ["a"]}),
        fsm.json_schema({"type": "array", "uniqueItems": True, "items": {"type": "string"}}),
        fsm.grammar('start: expr\nexpr: expr "+" /[0-9]+/ | /[0-9]+/'),
        fsm.special("<|a|>") + "x",
        ~fsm.regex("[ab]*"),
        fsm.regex("a") & fsm.regex("b"),
    ],
)
def test_a_text_is_explained_where_it_is_not_accepted(language: fsm.Expression, text: str | bytes) -> None:
    said = language.explain(text)
    assert (said is None) is language.accepts(text)
    assert said is None or said.startswith(("expected ", "the text has the form "))


def test_what_a_text_lacks_is_explained_by_its_keyword() -> None:
    person = fsm.json_schema(
        {"properties": {"age": {"type": "integer", "maximum": 120}}, "required": ["age"], "additionalProperties": False}
    )
    assert person.explain('{"age":121}') == (
        "expected one of '0', '}' at character 9, after '{\"age\":12', received '1'. "
        "This is required by #/properties/age/maximum. What must follow there: (0)?\\}."
    )
    assert "received the end of the text. This is required by #/required. What" in str(person.explain("{"))
    assert fsm.regex("ab").explain("abc") == (
        "expected the end of the text at character 2, after 'ab', received 'c'. This is required by regex('ab')."
    )
    unique = fsm.json_schema({"type": "array", "uniqueItems": True, "items": {"type": "string"}})
    assert str(unique.explain('["x","x"]')).endswith("does not pass a check. This is required by #/uniqueItems.")
