"""Inputs that hang, exhaust or crash others: each compiles or is refused with a typed error, and masks can be walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fsm import Expression, FSMError, TokenFSM, Vocabulary, choice, grammar, json_schema, regex

Tokens = tuple[list[bytes | None], list[int]]


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
    "no words": lambda: choice([]),
    "empty": lambda: regex("a") & regex("b"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_it_compiles_and_can_be_walked_or_is_refused(name: str, sentencepiece_32k: Tokens) -> None:
    tokens, eos = sentencepiece_32k
    try:
        token_fsm = TokenFSM(HOSTILE[name](), _vocabulary(tokens, eos))
        state = token_fsm.initial_state
        for step in range(12):
            allowed = [t for t in token_fsm.allowed_token_ids(state).tolist() if t not in eos]
            if not allowed:
                break
            state = token_fsm.next_state(state, allowed[(step * 37) % len(allowed)])
    except FSMError as refusal:
        said = str(refusal)
    else:
        return
    assert len(said) > 20


_VOCABULARIES: dict[int, Vocabulary] = {}


def _vocabulary(tokens: list[bytes | None], eos: list[int]) -> Vocabulary:
    """One for all cases."""
    return _VOCABULARIES.setdefault(id(tokens), Vocabulary(tokens, eos))
