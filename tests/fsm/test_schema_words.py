"""Schemas as people write them: unknown keywords and formats, words of older drafts and of OpenAPI, odd patterns."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsm
from fsm.errors import SchemaError, SchemaWarning
from fsm.schema.check import Translation
from fsm.schema.documents.document import meant_by
from fsm.schema.keywords import KEYWORDS
from fsm.schema.keywords.resource import dialect_named

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
D2019, D2020 = "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"


def accepts(schema: Any, value: Any, **options: Any) -> bool:
    expression = fsm.json_schema(schema, key_order="any", **options)
    return expression.accepts(json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    "note",
    [
        "_format", "//pattern", "x-type", "$$ref", "typeof", "id", "self", "version", "readonly", "min", "decription", "links", "types",
        "formats", "cost", "when", "typo", "mot", "_uniqueItems", "tsAdditionalProperties", "@items", "pattern2", "items_count",
        "$default", "$$description", "Description", "@comment",
    ],
)  # fmt: skip
def test_an_unknown_keyword_annotates_in_silence(note: str) -> None:
    with warnings.catch_warnings(action="error"):
        expression = fsm.json_schema({"type": "null", note: {"a": 1}}, strict=True)
        fsm.json_schema({"type": "null", note: "text"}, strict=True)
    assert expression.accepts("null")
    assert [(line.level, line.keyword) for line in expression.report] == [("exact", "type"), ("annotated", note)]


@pytest.mark.parametrize(
    ("word", "value", "keyword"),
    [
        ("requried", ["a"], "required"), ("min_length", 3, "minLength"), ("max-items", 3, "maxItems"),
        ("Exclusive_Minimum", 3, "exclusiveMinimum"), ("additional_properties", False, "additionalProperties"),
        ("any_of", [{"type": "null"}], "anyOf"), ("requireds", ["a"], "required"), ("patterns", "a", "pattern"),
        ("propertis", {}, "properties"), ("pettern", "a", "pattern"), ("item", {}, "items"), ("tpye", "string", "type"),
        ("typpe", "string", "type"), ("Type", "string", "type"), ("additionalproperties", False, "additionalProperties"),
        ("maxlenght", 5, "maxLength"), ("enmu", [1], "enum"), ("minimun", 1, "minimum"),
    ],
)  # fmt: skip
def test_a_misspelt_keyword_is_told_once_and_refused_where_all_is_strict(word: str, value: Any, keyword: str) -> None:
    schema = {"properties": {"a": {word: value}, "b": {word: value}}}
    with pytest.warns(SchemaWarning) as caught:
        expression = fsm.json_schema(schema)
    assert [__file__] == [warning.filename for warning in caught]
    for name in "ab":
        assert f"'#/properties/{name}/{word}': unknown keyword {word!r}" in str(caught[0].message)
        line = next(line for line in expression.report if line.pointer == f"#/properties/{name}/{word}")
        assert (word, "annotated") == (line.keyword, line.level)
        assert f"Did you mean {keyword!r}?" in line.note
    with pytest.raises(SchemaError, match=f"Did you mean '{keyword}'") as refused:
        fsm.json_schema(schema, strict=True)
    assert f"#/properties/a/{word}" == refused.value.pointer


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("Type", "AWS::S3::Bucket"), ("item", "x"), ("requires", True), ("minimun", "1")),
        *(
            ("min_length", "3"), ("consts", 1), ("x_enum", [1]), ("_type", "null"), ("min__length", 3), ("min_lenght", 3),
            ("types", "null"), ("enums", [1]),
        ),
    ],
)  # fmt: skip
def test_what_the_keyword_would_not_take_is_no_misspelling(word: str, value: Any) -> None:
    assert meant_by(word, value) is None


@given(st.text(max_size=12))
def test_nothing_is_suspected_but_names_of_letters(word: str) -> None:
    meant = meant_by(word, {})
    letters = word.replace("_", "").replace("-", "")
    assert meant is None or (letters.isascii() and letters.isalpha() and word not in KEYWORDS.annotations and meant in KEYWORDS.enforced)


@pytest.mark.parametrize("name", ["URI", "color", "utc-millisec", "", "flag-topic", "idn-email", "phone"])
def test_an_unknown_format_annotates(name: str) -> None:
    schema = {"properties": {"a": {"type": "string", "format": name}}, "required": ["a"]}
    with pytest.warns(SchemaWarning, match="#/properties/a/format.*is not known"):
        expression = fsm.json_schema(schema)
    assert expression.accepts('{"a": "any text"}')
    assert not expression.accepts('{"a": 1}')
    line = next(line for line in expression.report if line.keyword == "format")
    assert (line.pointer, line.level) == ("#/properties/a/format", "annotated")
    with pytest.raises(SchemaError, match="is not known"):
        fsm.json_schema(schema, strict=True)
    with warnings.catch_warnings(action="error"):
        fsm.json_schema(schema, formats="annotate", strict=True)
    with pytest.warns(SchemaWarning):
        denied = fsm.json_schema({"not": schema["properties"]["a"]})  # type: ignore[index]
    assert [denied.accepts(text) for text in ("1", '"red"')] == [True, False]


@pytest.mark.parametrize("schema", [{"format": "email"}, {"format": "email", "$comment": "alone"}, {"allOf": [{"format": "email"}]}])
def test_a_schema_of_only_a_format_that_annotates_accepts_any_value(schema: dict[str, Any]) -> None:
    expression = fsm.json_schema(schema, formats="annotate", strict=True)
    texts = ["null", "true", "-1.5e3", '""', '"no address"', "[]", '[1, {"a": "x"}]', "{}", '{"format": [1]}']
    assert texts == [text for text in texts if expression.accepts(text)]
    assert not expression.accepts("nothing")
    assert ("format", "annotated") in [(line.keyword, line.level) for line in expression.report]
    assert not fsm.json_schema(schema).accepts('"no address"')


LATER = [{}, {"$schema": D2020}, {"$schema": D2019}]


@pytest.mark.parametrize("around", [*LATER, {"$schema": D7}], ids=str)
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, [{"a": 1, "b": 1}, {"c": 1, "d": 1}, {}], [{"a": 1}, {"c": 1}]),
        ({"dependencies": {"a": "b"}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
        ({"items": [{"type": "integer"}], "additionalItems": False}, [[], [1]], [["x"], [1, 2]]),
        ({"items": [], "additionalItems": {"type": "null"}}, [[], [None]], [[1]]),
        ({"items": {"type": "null"}, "additionalItems": False}, [[None, None]], [[1]]),
        ({"minimum": 3, "exclusiveMinimum": True}, [4], [3]),
        ({"maximum": 3, "exclusiveMaximum": False}, [3], [4]),
        ({"properties": {"a": {"required": True}, "b": {"required": False}}}, [{"a": 1}], [{}, {"b": 1}]),
        ({"properties": {"a": {"required": True}}, "required": ["b"]}, [{"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]),
        ({"definitions": {"x": {"type": "null"}}, "items": {"$ref": "#/definitions/x"}}, [[None]], [[1]]),
        ({"type": "string", "nullable": True}, ["a", None], [1]),
        ({"type": "string", "nullable": False}, ["a"], [1, None]),
        ({"enum": ["a"], "nullable": True}, ["a", None], ["b"]),
        ({"const": "a", "nullable": True}, ["a", None], ["b"]),
        ({"items": {"enum": ["a"], "nullable": True}, "uniqueItems": True, "minItems": 2, "type": "array"}, [["a", None]], [["a", "a"]]),
        ({"type": "object", "nullable": True, "allOf": [{"required": ["a"]}]}, [{"a": 1}, None], [{}, 1]),
        ({"definitions": {"x": {"type": "string"}}, "items": {"$ref": "#/definitions/x", "nullable": True}}, [["a", None]], [[1]]),
    ],
    ids=str,
)  # fmt: skip
def test_words_of_older_drafts_mean_what_they_meant(
    schema: dict[str, Any], around: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    with warnings.catch_warnings(action="error"):
        for value in valid:
            assert accepts({**around, **schema}, value), value
        for value in invalid:
            assert not accepts({**around, **schema}, value), value


@pytest.mark.parametrize(
    ("around", "first"),
    [
        ({}, {"enum": ["x"], "nullable": True}),
        ({"$schema": D4}, {"const": "x"}),  # no keyword of draft 4
        ({"$schema": D7, "definitions": {"a": {}}}, {"$ref": "#/definitions/a", "enum": ["x"]}),  # nothing counts beside `$ref`
    ],
)
def test_branches_that_overlap_by_the_words_of_their_draft_are_not_taken_apart(around: dict[str, Any], first: dict[str, Any]) -> None:
    branches = [{"required": ["a"], "properties": {"a": schema}} for schema in (first, {"enum": [None]})]
    schema = {**around, "type": "object", "oneOf": branches}
    assert not accepts(schema, {"a": None})
    assert accepts(schema, {"a": "x"})


def test_the_type_any_is_read_as_draft_3_means_it() -> None:
    with pytest.warns(SchemaWarning, match="'any' is no type since draft 4"):
        assert accepts({"properties": {"a": {"type": "any"}}}, {"a": [1]})
    with pytest.raises(SchemaError, match="'any' is no type"):
        fsm.json_schema({"type": "any"}, strict=True)


def test_required_outside_of_a_property_says_nothing_and_is_told() -> None:
    with pytest.warns(SchemaWarning, match="#/items/required.*has no effect"):
        assert accepts({"items": {"required": True}}, [{}])


def test_draft_3_is_read_in_its_own_words() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-03/schema#",
        "type": "object",
        "properties": {
            "a": {"type": ["string", {"type": "integer", "divisibleBy": 5}], "required": True},
            "b": {"disallow": ["string", {"minimum": 3}]},
            "c": {"type": "any"},
        },
        "extends": {"maxProperties": 2},
    }
    with warnings.catch_warnings(action="error"):
        assert accepts(schema, {"a": 10, "b": 1})
        assert accepts(schema, {"a": "x", "c": {}})
        for value in ({"a": 3}, {}, {"a": "x", "b": "x"}, {"a": "x", "b": 4}, {"a": "x", "b": 1, "c": 1}):
            assert not accepts(schema, value), value


OPENAPI = {
    "openapi": "3.0.3",
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "nullable": True},
                    "kind": {"type": "string", "nullable": True, "enum": ["cat"]},
                    "age": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                    "owner": {"$ref": "#/components/schemas/Owner", "nullable": True},
                },
                "discriminator": {"propertyName": "kind"},
            },
            "Owner": {"type": "integer", "nullable": True, "multipleOf": 3},
        }
    },
}


PET = "#/components/schemas/Pet"


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({**OPENAPI, "$ref": PET}, {}),
        ({"components": OPENAPI["components"], "$ref": PET}, {"dialect": "openapi-3.0"}),
        ({"$ref": f"http://x.org/api.json{PET}"}, {"registry": {"http://x.org/api.json": OPENAPI}}),
    ],
    ids=["document", "named", "registry"],
)
def test_a_document_of_openapi_is_read_in_its_dialect(schema: dict[str, Any], options: dict[str, Any]) -> None:
    for value in ({"name": None}, {"age": 0.5}, {"owner": 3}, {"owner": None}, {"kind": "cat"}):
        assert accepts(schema, value, **options), value
    for value in ({"kind": None}, {"age": 0}, {"owner": 4}, None):
        assert not accepts(schema, value, **options), value


def test_an_option_names_the_dialect_of_a_schema_that_names_none() -> None:
    schema = {"const": 1, "$ref": "#/definitions/x", "definitions": {"x": {"type": "integer"}}}
    assert accepts(schema, 2, dialect="draft-07")
    assert not accepts(schema, 2, dialect="2020-12")
    assert not accepts(schema, 2)
    with pytest.raises(SchemaError, match="expected one of draft/2020-12, .*openapi-3.0 as `dialect`, received 'draft-99'"):
        fsm.json_schema(True, dialect="draft-99")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("http://json-schema.org/draft-05/schema#", "draft-04"),
        ("http://json-schema.org/draft-04/hyper-schema#", "draft-04"),
        ("https://www.json-schema.org/draft-07/schema", "draft-07"),
        ("http://json-schema.org/draft/2019-09/hyper-schema", "draft/2019-09"),
        ("http://json-schema.org/2020-12/schema", "draft/2020-12"),
        ("http://json-schema.org/2019-09/schema#", "draft/2019-09"),
        ("http://json-schema.org/schema#", "draft/2020-12"),
        ("https://spec.openapis.org/oas/3.1/dialect/base", "draft/2020-12"),
    ],
)
def test_the_uri_of_a_draft_may_be_spelled_in_many_ways(uri: str, name: str) -> None:
    assert name == dialect_named(uri).name
    with warnings.catch_warnings(action="error"):
        fsm.json_schema({"$schema": uri, "type": "null"}, strict=True)


@pytest.mark.parametrize("uri", ["https://json-schema.org/draft-07/schema#", "http://json-schema.org/schema", D7, D2020])
def test_the_metaschema_of_a_draft_is_found_by_any_of_its_names(uri: str) -> None:
    expression = fsm.json_schema({"items": {"$ref": uri}})
    assert expression.accepts('[{"type": "string"}]')
    assert not expression.accepts('[{"type": "text"}]')


@pytest.mark.parametrize("reference", ["#/definitions/0", "#/minimum/0", "#/title/0", "#/enum/1", "#/enum/x"])
def test_a_reference_of_an_older_draft_that_leads_nowhere_is_told(reference: str) -> None:
    schema = {
        "$schema": D7, "definitions": {"a": {}}, "minimum": 5, "title": "t", "enum": [[1]], "items": {"$ref": reference},
    }  # fmt: skip
    with pytest.raises(SchemaError, match=f"{reference}' leads nowhere"):
        fsm.json_schema(schema)


@pytest.mark.parametrize("beside", [{"pattern": r"^(a+)b\1$"}, {"allOf": [{"pattern": r"^(a+)b\1$"}]}])
def test_values_beside_a_pattern_that_is_not_regular_are_checked(beside: dict[str, Any]) -> None:
    expression = fsm.json_schema({"enum": ["aba", "ab", "abaa"], **beside})
    assert [text for text in ('"aba"', '"ab"', '"abaa"') if expression.accepts(text)] == ['"aba"']


def test_an_unknown_metaschema_is_told() -> None:
    schema = {"$schema": "http://iglucentral.com/schemas/self-desc/schema/jsonschema/1-0-0#", "type": "null"}
    with pytest.warns(SchemaWarning, match=r"'#/\$schema': the metaschema .* is not known"):
        assert accepts(schema, None)
    with pytest.raises(SchemaError, match="is not known"):
        fsm.json_schema(schema, strict=True)
    with warnings.catch_warnings(action="error"):
        assert accepts(schema, None, dialect="draft-04", strict=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"id": "http://x.org/root.json", "definitions": {"a": {"id": "a.json", "type": "null"}}, "items": {"$ref": "a.json"}},
        {"$schema": D7, "id": "http://x.org/r", "definitions": {"a": {"id": "#a", "type": "null"}}, "items": {"$ref": "#a"}},
        {"$schema": D4, "definitions": {"a": {"$id": "#a", "type": "null"}}, "items": {"$ref": "#a"}},
        {"$schema": D4, "definitions": {"a": {"type": "null"}}, "items": {"id": "/items", "anyOf": [{"$ref": "#/definitions/a"}]}},
        {"id": "root", "definitions": {"a": {"type": "null"}}, "items": {"$ref": "root#/definitions/a"}},
        {"items": [{"$id": "first", "type": "null"}, {"$ref": "first"}]},
        {"definitions": {"x": "no schema", "a": {"$id": "a", "type": "null"}}, "items": {"$ref": "a"}},
    ],
    ids=str,
)  # fmt: skip
def test_identifiers_are_found_as_they_are_often_written(schema: Any) -> None:
    assert accepts(schema, [None, None])
    assert not accepts(schema, [1])


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "array", "not": {"items": {"minimum": 3, "exclusiveMinimum": True}, "uniqueItems": True}}, [3], [4]),
        ({"items": [{"multipleOf": 0.3}, {"$ref": "#/items/0"}], "additionalItems": False}, [0.6, 0.9], [0.6, 1]),
        ({"not": {"properties": {"b": {"type": ["string"], "nullable": True, "required": True}}, "uniqueItems": True}},
         {"b": 1}, {"b": None}),
        ({"properties": {"a": {"nullable": True, "type": "number", "multipleOf": 0.3}}, "dependencies": {"a": ["b"]}}, {"a": None, "b": 1},
         {"a": 0.5, "b": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_checks_read_older_words_too(schema: Any, valid: Any, invalid: Any) -> None:
    assert fsm.json_schema(schema).has_checks
    assert accepts(schema, valid)
    assert not accepts(schema, invalid)


def test_a_pattern_that_the_u_flag_forbids_is_reported() -> None:
    report = fsm.json_schema({"type": "string", "pattern": r"^\_[\w-.]\p\-$"}, strict=True).report
    assert [(line.level, line.note) for line in report if line.keyword == "type"] == [("exact", "")]
    notes = [(line.level, line.note) for line in report if line.keyword == "pattern"]
    assert notes == [("exact", r"ECMA-262 refuses it with the `u` flag: '\_', '-' beside a class, '\p', '\-'")]
    assert not fsm.json_schema({"type": "string", "pattern": r"^[\w\-.]\/\p{L}{2}\u0041$"}).report[1].note


TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WRAPPED: list[tuple[dict[str, Any], str]] = [
    ({"type": "function", "function": {"name": "f", "description": "d", "parameters": TOOL, "strict": True}}, "#/function/parameters"),
    ({"type": "function", "name": "f", "parameters": TOOL, "strict": True}, "#/parameters"),
    ({"name": "f", "description": "d", "parameters": TOOL}, "#/parameters"),
    ({"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": TOOL}}, "#/json_schema/schema"),
    ({"type": "json_schema", "name": "f", "schema": TOOL, "strict": True}, "#/schema"),
    ({"name": "f", "strict": True, "schema": TOOL}, "#/schema"),
    ({"name": "f", "description": "d", "input_schema": TOOL}, "#/input_schema"),
    ({"type": "custom", "name": "f", "input_schema": TOOL, "cache_control": {"type": "ephemeral"}}, "#/input_schema"),
    ({"name": "f", "title": "F", "description": "d", "inputSchema": TOOL, "outputSchema": True, "annotations": {}}, "#/inputSchema"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "pointer"), WRAPPED, ids=str)
def test_a_tool_is_unwrapped_and_refused_as_a_schema(tool: dict[str, Any], pointer: str) -> None:
    is_strict = True in (tool.get("strict"), *(part.get("strict") for part in tool.values() if isinstance(part, dict)))
    assert fsm.tool_schema(tool) == (TOOL | {"additionalProperties": False} if is_strict else TOOL)
    with pytest.raises(
        SchemaError, match=r"nothing in this schema rejects a value.*fsm\.json_schema\(fsm\.tool_schema\(tool\)\)"
    ) as caught:
        fsm.json_schema(tool)
    assert f"the schema is at '{pointer}'" in str(caught.value)
    with pytest.raises(SchemaError, match="nothing in this schema"):
        fsm.json_schema(json.dumps(tool))


FORMS_OF_TOOLS: list[Callable[[Any], dict[str, Any]]] = [
    lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}},
    lambda schema: {"type": "function", "name": "f", "parameters": schema},
    lambda schema: {"name": "f", "parameters": schema},
    lambda schema: {"name": "f", "input_schema": schema},
    lambda schema: {"type": "custom", "name": "f", "input_schema": schema},
    lambda schema: {"name": "f", "inputSchema": schema, "annotations": None},
]


@pytest.mark.parametrize("form", FORMS_OF_TOOLS)
@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": True}, {"type": ["object", "null"], "additionalProperties": {}}, {"minProperties": 0, "description": "x"},
        {"properties": {"a": {"type": "integer"}}}, {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": True}}}},
        {"$ref": "#/definitions/a", "definitions": {"a": True}, "$schema": "http://json-schema.org/draft-07/schema#"},
        {"anyOf": [{"type": "object"}, {"type": "string"}]},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_are_an_object(form: Callable[[Any], dict[str, Any]], schema: dict[str, Any]) -> None:
    expression = fsm.json_schema(fsm.tool_schema(form(schema)))
    assert [text for text in ('{"a": 1}', "{}", "1", '"a"', "null", "[]") if expression.accepts(text)] == ['{"a": 1}', "{}"]


@pytest.mark.parametrize(
    "tool", [{"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}, {"name": "f", "description": None},
             *(form(None) for form in FORMS_OF_TOOLS)], ids=str
)  # fmt: skip
def test_a_tool_without_a_schema_has_no_arguments(tool: dict[str, Any]) -> None:
    expression = fsm.json_schema(fsm.tool_schema(tool))
    assert expression.accepts("{}")
    assert not expression.accepts('{"a": 1}')


@pytest.mark.parametrize("form", FORMS_OF_TOOLS)
@pytest.mark.parametrize(
    "schema",
    [
        {}, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"type": None}, {"type": ["object", "null"]}, {"description": "x"},
        {"type": "object"}, {"properties": {}}, {"type": "object", "properties": {}, "required": []},
        {"properties": None, "required": None},
        {"type": "object", "title": "A", "additionalProperties": False}, {"type": "object", "additionalProperties": None, "$defs": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_names_no_members_has_no_arguments(form: Callable[[Any], dict[str, Any]], schema: dict[str, Any]) -> None:
    expression = fsm.json_schema(fsm.tool_schema(form(schema)))
    assert [text for text in ('{"a": 1}', "{}", "1", "null", "[]") if expression.accepts(text)] == ["{}"]


_MEMBER = {"type": "object", "properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"properties": {"a": _MEMBER}}, {"a": {"b": 1}}, {"a": {"b": 1, "c": 1}}),
        ({"properties": {"a": {"type": "array", "items": _MEMBER}}}, {"a": [{"b": 1}]}, {"a": [{"c": 1}]}),
        ({"properties": {"a": {"anyOf": [_MEMBER, {"type": "null"}]}}}, {"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"properties": {"a": {"$ref": "#/$defs/m"}}, "$defs": {"m": _MEMBER}}, {"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"properties": {"a": {"prefixItems": [_MEMBER]}}}, {"a": [{"b": 1}]}, {"a": [{"c": 1}]}),
        ({"properties": {"a": _MEMBER}, "additionalProperties": {"type": "integer"}}, {"c": 1}, {"a": {"c": 1}}),
    ],
    ids=str,
)
def test_objects_of_a_strict_tool_are_closed(schema: Any, valid: Any, invalid: Any) -> None:
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    assert accepts(fsm.tool_schema(strict), valid)
    assert not accepts(fsm.tool_schema(strict), invalid)
    assert accepts(fsm.tool_schema({"name": "f", "parameters": schema, "strict": False}), invalid)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": True}, "allOf": [{"properties": {"b": True}}]},
        {"allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]},
        {"properties": {"a": True}, "$ref": "#/$defs/b", "$defs": {"b": {"type": "object"}}},
        {"properties": {"a": True}, "anyOf": [{"properties": {"b": True}}]},
    ],
    ids=str,
)
def test_an_object_whose_members_are_named_in_two_places_stays_open(schema: Any) -> None:
    assert accepts(fsm.tool_schema({"name": "f", "parameters": schema, "strict": True}), {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        (TOOL, "received what is a schema itself, with the keys 'type', 'properties', 'required'"),
        ([TOOL], "received a list. Give one of them"),
        (5, "received 5. Give the dict"),
        ({"type": "web_search_20250305", "name": "web_search"}, "a tool that the service runs has none"),
        ({"type": "json_schema", "json_schema": {"name": "f"}}, "looked for under"),
        ({"name": "f", "input_schema": "text"}, "expected a schema there in Anthropic's form of a tool, received 'text'"),
        ({"name": "f", "inputSchema": []}, "expected a schema there in MCP's form"),
        ({"name": "f", "inputSchema": {"type": "string"}}, "expected 'object', as arguments are one, received 'string'"),
        ({"name": "f", "parameters": {"type": ["array", "null"]}}, "expected 'object', as arguments are one"),
        ({}, "received the keys (none)"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_tool_is_refused(tool: Any, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        fsm.tool_schema(tool)
    assert problem in str(caught.value)


@pytest.mark.parametrize("keyword", ["required", "properties", "enum", "items", "pattern", "minimum", "anyOf", "$ref", "format", "not"])
def test_a_keyword_that_is_null_counts_as_absent_and_the_report_says_so(keyword: str) -> None:
    for schema, pointer in (
        ({"type": "object", "additionalProperties": True, keyword: None}, "#/"),
        ({"additionalProperties": {keyword: None}}, "#/additionalProperties/"),
    ):
        expression = fsm.json_schema(fsm.tool_schema({"name": "f", "parameters": schema}))
        assert expression.accepts('{"a": 1}')
        notes = [line.note for line in expression.report if line.pointer == f"{pointer}{keyword}"]
        assert notes == ["null, read as if the keyword were absent"]
        with pytest.raises(SchemaError, match="is null"):
            fsm.json_schema(schema, strict=True)


def test_a_null_that_is_a_value_is_one() -> None:
    assert fsm.json_schema({"const": None, "default": None}, strict=True).accepts("null")
    assert fsm.json_schema({"enum": [None]}).accepts("null")


NAMED = {"name": "f", "inputSchema": {}}


@pytest.mark.parametrize("schema", [OPENAPI, {"swagger": "2.0", "definitions": {}}, {"tools": [TOOL]}, {"toolSpec": {}}, NAMED], ids=str)
def test_what_is_around_schemas_is_no_schema(schema: Any) -> None:
    with pytest.raises(SchemaError, match="nothing in this schema rejects a value"):
        fsm.json_schema(schema)


@pytest.mark.parametrize("schema", [{}, {"definitions": {"a": TOOL}}, {"title": "x", "name": "y"}, {"type": "object", "parameters": TOOL}])
def test_a_schema_may_allow_anything(schema: Any) -> None:
    assert accepts(schema, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "\ud800"},
        {"enum": ["a", "\ud800"]},
        {"not": {"const": "\ud800"}},
        {"not": {"enum": ["a", {"b": ["\ud800"]}]}},
        {"not": {"const": {"\ud800": 1}}},
    ],
)
def test_a_value_with_a_lone_surrogate_is_refused_wherever_it_stands(schema: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match=r"lone surrogate, which has no UTF-8. Remove it \(at '#/(not/)?(const|enum/1)'\)"):
        fsm.json_schema(schema)


@pytest.mark.parametrize(
    ("reference", "moved"),
    [
        ("#/items/1", "#/prefixItems/1"),
        ("#/items/01", "#/prefixItems/1"),
        ("#/items/2", "#/items/2"),
        ("#/items/-1", "#/items/-1"),
        ("#/items/x", "#/items/x"),
        ("#/items/²", "#/items/²"),
        ("#/items/1/properties/a~1b", "#/prefixItems/1/properties/a~1b"),
        ("#/properties/a~1b/x", "#/properties/a~1b/x"),
        ("#/properties/0", "#/properties/0"),
        ("other.json", "other.json"),
    ],
)
def test_a_reference_is_moved_where_there_is_something(reference: str, moved: str) -> None:
    schema = {"items": [{"type": "null"}, {"properties": {"a/b": {"type": "any"}}}], "properties": {"a/b": {"$ref": reference}}}
    found: Any = Translation(schema, dialect_named("draft-03")).root
    assert moved == found["properties"]["a/b"]["$ref"]


@pytest.mark.parametrize(("num_words", "num_more"), [(8, 0), (9, 1), (12, 4)])
def test_a_warning_names_eight_parts_and_counts_the_others(num_words: int, num_more: int) -> None:
    with pytest.warns(SchemaWarning) as caught:
        fsm.json_schema({"properties": {f"p{n}": {"requried": ["a"]} for n in range(num_words)}})
    lines = str(caught[0].message).splitlines()
    assert min(num_words, 8) == sum("unknown keyword" in line for line in lines)
    assert ([f"... and {num_more} more; `report` has all"] if num_more else []) == lines[1 + min(num_words, 8) :]


@pytest.mark.parametrize(("num_options", "end"), [(4, "'o3'])"), (5, "'o3', ... 5 in all])")])
def test_a_choice_names_four_options_and_counts_the_others(num_options: int, end: str) -> None:
    expression = fsm.choice([f"o{n}" for n in range(num_options)])
    assert f"choice(['o0', 'o1', 'o2', {end}" == expression.source
