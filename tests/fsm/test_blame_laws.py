"""Which keyword is named where a text does not fit, whatever stands before it in the text."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm import TokenFSM, Vocabulary, json_schema

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
NESTED = json_schema(
    {"type": "object", "properties": {"b": {"type": "array", "items": {"properties": {"b": True, "c": WHOLE}}}}}
)


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=12)
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


@settings(max_examples=25)
@given(st.permutations("abcd"), st.sets(st.sampled_from("abcd")), st.booleans())
@example(("b", "a", "c", "d"), {"a"}, False)
def test_what_only_the_order_of_keys_refuses_names_the_option_that_allows_it(
    keys: tuple[str, ...], required: set[str], is_closed: bool
) -> None:
    schema = {
        "properties": dict.fromkeys("abcd", WHOLE),
        "required": sorted(required),
        "additionalProperties": not is_closed,
    }
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
