"""Inputs that hang, exhaust or crash others: patterns, schemas and grammars, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsm import Expression, choice, grammar, json_schema, regex


def nested(depth: int, keyword: str) -> Any:
    schema: Any = {"type": "integer"}
    for level in range(depth):
        other = {"type": "object", "properties": {f"p{level}": {"type": "string"}}, "required": [f"p{level}"]}
        schema = {keyword: [schema, other, {"type": "array", "items": schema}]}
    return schema


def arrays(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(length: int) -> Any:
    links = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "null"}}}


def objects(depth: int, keyword: str) -> Any:
    """Objects in each other, each with a choice of two."""
    schema: Any = {"type": "string"}
    for level in range(depth):
        branches = [{"properties": {f"{kind}{level}": schema}, "required": [f"{kind}{level}"]} for kind in "ab"]
        schema = {"type": "object", keyword: branches}
    return schema


HOSTILE: dict[str, Callable[[], Expression]] = {
    "nested quantifiers": lambda: regex("(a+)+b"),
    "deeper quantifiers": lambda: regex("(((a{1,9}){1,9}){1,9}){1,9}b"),
    "exponential automaton": lambda: regex("(a|b)*a(a|b){16}"),
    "dot and count": lambda: regex(".*a.{20}"),
    "huge count": lambda: regex("[a-z]{1,50000}"),
    "enormous count": lambda: regex("a{1000000000}"),
    "parentheses": lambda: regex("(" * 100_000 + "a" + ")" * 100_000),
    "alternatives": lambda: regex("|".join(f"w{n}" for n in range(20_000))),
    "words": lambda: choice([f"word {n}" for n in range(50_000)]),
    "malformed": lambda: regex("foo**"),
    "lookarounds": lambda: regex("".join(f"(?=.*{n})" for n in range(40)) + ".*"),
    "boundaries": lambda: regex(r"\b".join("abcdefgh")),
    "boundaries in a row": lambda: regex(r"(?i)\B\B\B\B\B\B\B\w\B\B\B\B"),
    "tempered dot": lambda: regex("<!--(?:(?!-->).)*-->"),
    "lookaheads in loops": lambda: regex("(?:(?:(?:(?!a.{20}b).)*(?=c{1,50})c)*d)*"),
    "counted lookaheads": lambda: regex("(?:(?!x{1,5000}y)[a-z]){1,100000}"),
    "all lookaheads in a loop": lambda: regex("(?:" + "".join(f"(?=.*{n})" for n in range(8)) + ".)*x?"),
    "long lookbehinds in a loop": lambda: regex("(?:(?<=a.{20})b|a|c)*"),
    "words in a loop": lambda: regex(r"(?:\b\w+\b\W*)+"),
    "enum": lambda: json_schema({"enum": [f"value {n}" for n in range(50_000)]}),
    "maxLength": lambda: json_schema({"type": "string", "maxLength": 10**6}),
    "minItems": lambda: json_schema({"type": "array", "minItems": 10**9}),
    "nesting": lambda: json_schema(arrays(5_000)),
    "optional properties": lambda: json_schema({"properties": {f"p{n}": {"type": "integer"} for n in range(2_000)}}),
    "properties in any order": lambda: json_schema(
        {"properties": {f"p{n}": {"type": "integer"} for n in range(100)}, "additionalProperties": False}, key_order="any"
    ),
    "remote reference": lambda: json_schema({"$ref": "http://example.org/x"}),
    "file reference": lambda: json_schema({"$ref": "file:///etc/passwd"}),
    "required self": lambda: json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}),
    "chain of references": lambda: json_schema(chain(5_000)),
    "short chain of references": lambda: json_schema(chain(50)),
    "nested oneOf": lambda: json_schema(nested(6, "oneOf")),
    "nested anyOf": lambda: json_schema(nested(8, "anyOf")),
    "wide oneOf": lambda: json_schema({"oneOf": [{"type": "integer", "multipleOf": n} for n in range(1, 60)]}),
    "many dependencies": lambda: json_schema({"dependentRequired": {f"k{n}": [f"k{n + 1}"] for n in range(40)}}),
    "many patterns": lambda: json_schema({"patternProperties": {f"^{n}.*{n}$": {"type": "null"} for n in range(40)}}),
    "contains counts": lambda: json_schema({"contains": {"const": 1}, "minContains": 10**6}),
    "not of not": lambda: json_schema({"not": {"not": {"not": {"not": nested(3, "anyOf")}}}}),
    "paradox": lambda: json_schema({"not": {"$ref": "#"}}),
    "many bits": lambda: json_schema({"type": "integer", "minimum": 0, "maximum": 10**5000}),
    "nested stars": lambda: regex("((a*)*)*b"),
    "alternatives that are alike": lambda: regex("(a|a|aa)*b"),
    "counts in counts": lambda: regex("((x{1,100}){1,100}y?){1,100}"),
    "many options in a row": lambda: regex("a?" * 500 + "a" * 500),
    "many counted loops in a row": lambda: regex("".join(f"[a-z]{{0,{n}}}" for n in range(1, 200)) + "!"),
    "long literal": lambda: regex("a" * 100_000),
    "class of many characters": lambda: regex("[" + "".join(map(chr, range(0x400, 0x9000, 2))) + "]+"),
    "words without case": lambda: regex("(?i)" + "|".join(f"word{n}" for n in range(2_000))),
    "anchors": lambda: regex("^" * 20_000 + "a" + "$" * 20_000),
    "anchors in a loop": lambda: regex("(?m:(?:^a|b$|c\n?)+)"),
    "password": lambda: regex(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[^\w\s]).{8,64}"),
    "not a word": lambda: regex(r"(?:(?!\b(?:alpha|beta|gamma|delta)\b)[^.]){1,500}\."),
    "two dots": lambda: regex(".*.*.*.*x.{12}y"),
    "back-reference": lambda: regex(r"(a+)b\1"),
    "complement of much": lambda: ~regex(".*a.{16}") & regex("[ab]{0,60}"),
    "many intersections": lambda: regex("(?=.*a.{3})(?=.*b.{4})(?=.*c.{5})[abc]{8,90}"),
    "groups": lambda: regex("(" * 150 + "a" + "b?){1,3}" * 150),
    "60 optional properties": lambda: json_schema({"properties": {f"p{n}": {"type": "integer"} for n in range(60)}}),
    "additional beside 3,000": lambda: json_schema(
        {"properties": {f"name{n}": {"type": "integer"} for n in range(3_000)}, "additionalProperties": {"type": "string"}}
    ),
    "misspelt type": lambda: json_schema({"type": "strnig"}),
    "malformed pattern": lambda: json_schema({"type": "string", "pattern": "foo**"}),
    "hostile pattern": lambda: json_schema({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 10**6}),
    "pattern and far length": lambda: json_schema({"type": "string", "pattern": "^a", "minLength": 10**9}),
    "pattern not anchored": lambda: json_schema({"type": "string", "pattern": "a.{20}b", "maxLength": 100}),
    "many patterns for one value": lambda: json_schema(
        {"type": "string", "allOf": [{"pattern": f"{a}.*{b}"} for a, b in ("ab", "cd", "ef", "gh", "ij", "kl")]}
    ),
    "enum that is not ASCII": lambda: json_schema({"enum": [f"värde {n}" for n in range(30_000)]}),
    "empty enum": lambda: json_schema({"enum": []}),
    "enum of objects": lambda: json_schema({"enum": [{"kind": n, "values": [n] * 5} for n in range(500)]}),
    "strings in arrays": lambda: json_schema(
        {"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 5_000}, "maxItems": 5_000}}
    ),
    "unique items": lambda: json_schema({"type": "array", "items": {"enum": [*range(200)]}, "uniqueItems": True, "minItems": 150}),
    "minProperties": lambda: json_schema({"type": "object", "minProperties": 10**6}),
    "tiny multiples": lambda: json_schema({"type": "number", "multipleOf": 1e-300}),
    "large divisors": lambda: json_schema({"type": "integer", "multipleOf": 9_999_991, "minimum": 10**30}),
    "two divisors": lambda: json_schema({"type": "integer", "allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]}),
    "nested oneOf of objects": lambda: json_schema(objects(12, "oneOf")),
    "nested anyOf of objects": lambda: json_schema(objects(12, "anyOf")),
    "allOf of 1,000": lambda: json_schema({"allOf": [{"properties": {f"p{n}": {"minimum": n}}} for n in range(1_000)]}),
    "anyOf of 1,000": lambda: json_schema(
        {"anyOf": [{"properties": {"k": {"const": n}, "v": {"type": "string"}}, "required": ["k"]} for n in range(1_000)]}
    ),
    "not of all": lambda: json_schema({"type": "string", "not": {"pattern": "a.{12}b"}, "maxLength": 200}),
    "if in if": lambda: json_schema(
        {"allOf": [{"if": {"properties": {f"p{n}": {"const": n}}}, "then": {"required": [f"p{n + 1}"]}} for n in range(12)]}
    ),
    "schemas that depend": lambda: json_schema(
        {"dependentSchemas": {f"k{n}": {"properties": {f"k{n + 1}": {"type": "null"}}} for n in range(10)}}
    ),
    "references in a circle": lambda: json_schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
    ),
    "tree of many kinds": lambda: json_schema(
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                f"n{n}": {"type": "object", "properties": {f"c{m}": {"$ref": f"#/$defs/n{m}"} for m in range(30)}} for n in range(30)
            },
        }
    ),
    "kinds of keys": lambda: json_schema(
        {"patternProperties": {word: {"type": "null"} for word in ("name", "tags", "when", "vars", "hosts")}, "maxProperties": 9}
    ),
    "keys with a far look": lambda: json_schema({"propertyNames": {"pattern": "a.{12}b"}, "patternProperties": {"b.{9}a": False}}),
    "watched in layers": lambda: json_schema(
        {"unevaluatedProperties": False, "anyOf": [{"properties": {f"p{n}": {}}, "unevaluatedProperties": False} for n in range(9)]}
    ),
    "rule that is itself": lambda: grammar("start: start"),
    "ambiguous grammar": lambda: grammar('start: start start | "a"'),
    "mutual recursion": lambda: grammar('start: a "x" | "y"\na: b "z" | start\nb: a | start "w"'),
    "nested grammar": lambda: grammar("start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "nullable grammar": lambda: grammar("start: " + " ".join(["a"] * 40) + '\na: "x"?'),
    "terminals with many ways": lambda: grammar("start: (T|S)+\nT: /(a|b)*a(a|b){16}c/\nS: /(a|b)*b(a|b){16}c/"),
    "nested terminal": lambda: grammar("start: T\nT: /((a{1,9}){1,9}){1,9}b/"),
    "many keywords": lambda: grammar(
        "start: (" + "|".join(f'"kw{n}"' for n in range(200)) + "|NAME)+\nNAME: /[a-z]+/\n%ignore / /"
    ),
    "many sets of places": lambda: grammar(
        'start: "a" start | "b" start | "a" q0\n'
        + "\n".join(f'q{n}: ("a"|"b") q{n + 1}' for n in range(18))
        + '\nq18: "a"'
    ),
    "60,000 parentheses": lambda: grammar("start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "star of star": lambda: grammar('start: ("a"*)*'),
    "hidden left recursion": lambda: grammar('start: a start "x" | "y"\na: "z"?'),
    "many rules": lambda: grammar("start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1} | "b"' for n in range(200)) + '\nr200: "c"'),
    "counted rule": lambda: grammar('start: ("a" | "b" start)~1..100000'),
    "deep right recursion": lambda: grammar('start: "a" start "b" | "c"'),
    "no words": lambda: choice([]),
    "empty": lambda: regex("a") & regex("b"),
}  # fmt: skip
