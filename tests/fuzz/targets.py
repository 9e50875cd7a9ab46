"""What is fuzzed: functions of bytes that raise for a finding. `python -m tests.fuzz` runs them under atheris.

A refusal by an `FSMError` is never a finding; any other exception is, and so is a disagreement with the oracle.
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jsonschema_rs
import lark

from fsm import (
    Expression,
    FSMError,
    RegexSyntaxError,
    TokenFSM,
    Vocabulary,
    VocabularyGap,
    grammar,
    json_schema,
    regex,
)
from fsm.automaton.lazy_dfa import DEAD, Automaton, shortest_text
from fsm.errors import BudgetExceeded
from tests.fuzz.source import Source

PIECES = [
    "a", "b", "(", ")", "|", "*", "+", "?", "[", "]", "^", "$", ".", "-", "\\b", "\\B", "\\d", "\\w", "\\s", "\\D", "\\W",
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?", "??", "[a-b]", "[^a]", "[^\\w]", "A",
    "é", "\\n", "1", "_", "\\.", " ", "{", "}", ",", "\\", "a|b", "(a|b)", "(?i)", "(?s:", "(?-i:", "(?P<n>", "(?>", "\\1",
    "\\A", "\\Z", "(?m:", "\\x41", "\\u00e9", "[]a]", "(?#", "ß", "ſ", "K", "\n",
]  # fmt: skip
TEXTS = ["".join(text) for size in range(3) for text in itertools.product("ab1 ", repeat=size)]
TEXTS += [
    "aba",
    "aab",
    "bab",
    "ab1",
    "b b",
    "A",
    "Aa",
    "é",
    "É",
    "aé",
    "\n",
    "a\n",
    "\na",
    "a\nb",
    "_",
    ".",
    "a.b",
    "ſ",
    "s",
    "S",
    "ß",
    "K",
    "k",
    "\\",
    "a-b",
    "aaaaa",
]


def regular_expressions(data: bytes) -> None:
    """Patterns of Python: `re.fullmatch` is right."""
    pattern = Source(data).pieces(PIECES, 14)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            expected = None
        try:
            expression = regex(pattern)
        except RegexSyntaxError:
            assert expected is None, f"{pattern!r} is refused, though `re` reads it"
            return
        except FSMError:
            return
    assert expected is not None, f"{pattern!r} is read, though `re` refuses it"
    _same(pattern, expression, TEXTS, lambda text: expected.fullmatch(text) is not None)


_PYTHON_ONLY = {"(?P<n>", "(?#", "\\A", "\\Z", "[]a]", "{,2}"}


def ecma_patterns(data: bytes) -> None:
    """Patterns of JSON Schema: where Python reads the same words, `re.search` is right for plain texts."""
    pattern = Source(data).pieces([p for p in PIECES if p not in _PYTHON_ONLY], 14)
    try:
        expression = json_schema({"type": "string", "pattern": pattern})
    except FSMError:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.compile(pattern, re.ASCII)
    except re.error:
        return
    plain = [
        text for text in TEXTS if text and text.isascii() and "\n" not in text
    ]  # `\\B` of "" is false in Python alone
    spelled = {json.dumps(text): text for text in plain}
    _same(pattern, expression, spelled, lambda text: expected.search(spelled[text]) is not None)


SCALARS = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    2.5,
    0.1,
    "",
    "a",
    "b",
    "ab",
    "é",
    [],
    {},
    [1],
    {"a": 1},
    10**20,
    "\x00",
    '"',
]
PATTERNS = ["a", "^a", "b$", "^[ab]*$", "^$", "c|^b", "(?=a)", "\\bb", "^.$", "(", "\\1", "[^a]"]
NAMES = ["a", "b", "ab", "", "é", "$ref", "c"]
VALUES: list[Any] = [
    *SCALARS,
    ["a"],
    ["a", "a"],
    {"b": "a"},
    {"a": {"a": []}},
    [[1], {}],
    {"a": 1, "b": 2},
    [1, 2, 1],
    {"ab": "ab"},
]


def schemas(data: bytes) -> None:
    """Schemas, well formed or not: jsonschema-rs is right about values."""
    source = Source(data)
    schema: Any = _schema(source, 0)
    if isinstance(schema, dict):
        schema["$defs"] = {"x": {"items": {"$ref": "#/$defs/x"}}, "y": _schema(source, 2)}
    try:
        expression = json_schema(schema, key_order="any", formats="annotate", strict=bool(source.below(2)))
    except FSMError:
        return
    try:
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=False)
    except (jsonschema_rs.ValidationError, ValueError):
        return  # it is stricter about what a schema looks like
    spelled = {json.dumps(value, ensure_ascii=False): value for value in VALUES}
    _same(json.dumps(schema), expression, spelled, lambda text: validator.is_valid(spelled[text]))
    written = shortest_text(expression.node, max_states=500)
    if written is not None and expression.accepts(written):
        assert validator.is_valid(json.loads(written)), f"{json.dumps(schema)} writes {written!r}"


def _schema(source: Source, depth: int) -> Any:
    if depth > 3 or source.is_empty:
        return source.choice([True, {"type": "string"}, {"type": "integer"}, False, {"const": 1}, {}])
    return {keyword: value for _ in range(source.below(5)) for keyword, value in [_keyword(source, depth + 1)]}


def _keyword(source: Source, depth: int) -> tuple[str, Any]:
    kind, names = source.choice(_KEYWORDS)
    return source.choice(names), _value(source, source.choice(SHAPES) if source.below(40) == 39 else kind, depth)


def _value(source: Source, kind: str, depth: int) -> Any:
    """A value of the shape that a keyword asks for; now and then another one."""
    match kind:
        case "schema":
            return _schema(source, depth)
        case "schemas":
            return [_schema(source, depth) for _ in range(1 + source.below(3))]
        case "map":
            return {source.choice(NAMES): _schema(source, depth) for _ in range(source.below(4))}
        case "patterns":
            return {source.choice(PATTERNS): _schema(source, depth) for _ in range(source.below(3))}
        case "names":
            return [source.choice(NAMES) for _ in range(source.below(3))]
        case "needs":
            return {source.choice(NAMES): [source.choice(NAMES)] for _ in range(source.below(3))}
        case "count":
            return source.choice([0, 1, 2, 3, 2.0, 10**9])
        case "number":
            return source.choice([0, 1, -1, 2.5, 0.1, 10, 10**20, 1e-9, -0.0, 3])
        case "pattern":
            return source.choice(PATTERNS)
        case "type":
            return source.choice(
                ["object", "array", "string", "integer", "number", "null", "boolean", ["string", "array"]]
            )
        case "values":
            return [source.choice(VALUES) for _ in range(source.below(4))]
        case "reference":
            return source.choice(["#/$defs/x", "#/$defs/y", "#", "#/$defs/z", "#/items"])
        case "flag":
            return bool(source.below(2))
        case _:
            return source.choice(VALUES)


_KEYWORDS = [
    ("schema", ["items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
                "unevaluatedItems", "unevaluatedProperties"]),
    ("schemas", ["anyOf", "allOf", "oneOf", "prefixItems"]),
    ("map", ["properties", "dependentSchemas"]),
    ("patterns", ["patternProperties"]),
    ("names", ["required"]),
    ("needs", ["dependentRequired"]),
    ("count", ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]),
    ("number", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ("pattern", ["pattern"]),
    ("type", ["type"]),
    ("values", ["enum"]),
    ("reference", ["$ref"]),
    ("flag", ["uniqueItems"]),
    ("any", ["const", "format", "default", "$anchor", "$id", "title", "requred"]),
]  # fmt: skip
SHAPES = [kind for kind, _ in _KEYWORDS]


def schema_texts(data: bytes) -> None:
    """Schemas as text, mostly malformed: refused, or compiled, and nothing else."""
    text = data.decode("utf-8", "replace")
    try:
        json_schema(text)
    except FSMError:
        return


GRAMMAR = [
    "start", "a", "b", "_c", "?d", "A", "B", "_C", ":", " ", "\n", "|", "(", ")", "[", "]", "*", "+", "?", "~2", "~1..2", '"x"',
    '"y"', '"xy"i', "/x/", "/[xy]+/", "/x*?/", '""', "->", "x", "!", "{", "}", ",", "%ignore", "%import", "common", ".", "WS",
    "INT", "%declare", "%override", "%extend", ".2", '"x".."z"', "//", "\\", "/(?=x)y/", "'", '"', "\nstart: ", "\na: ", "\nA: ",
    "\nb: ", "\nB: ", " | ", "a b", "A B", '\n%ignore " "', "\n%import common.INT", "{a}", "/(xy|x)z?/i",
]  # fmt: skip
STRINGS = ["".join(text) for size in range(5) for text in itertools.product("xyz ", repeat=size)]


def grammars(data: bytes) -> None:
    """Grammars, mostly malformed: what is accepted, Lark parses."""
    text = "start: " + Source(data).pieces(GRAMMAR, 24) + "\n"
    try:
        expression = grammar(text)
    except FSMError:
        return
    try:
        parser = lark.Lark(text)
    except lark.exceptions.LarkError as error:
        raise AssertionError(f"{text!r} is read, though Lark says {error}") from None
    for string in STRINGS[::3]:
        if expression.accepts(string):
            assert _parses(parser, string), f"{text!r} accepts {string!r}"


def _parses(parser: Any, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


TOKENS: list[bytes | None] = [b"a", b"b", b"ab", b"ba", b"aa", b'"', b'":', b"1", b"11", b" ", b"{", b"}", b"[", b"]",
          b",", b", ", b"\xc3", b"\xa9",
          b"\xc3\xa9", b"\n", b"null", b"nu", b"ll", b"aab", b'"a"', b'{"a"', b"-", b".", b"0", b"\\", b"\\n", b"", None]  # fmt: skip
LANGUAGES: list[Callable[[], Expression]] = [
    lambda: json_schema(
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}, "b": {"enum": ["ab", 1]}}}
    ),
    lambda: json_schema({"type": "array", "items": {"maxLength": 3, "type": ["string", "number"]}, "maxItems": 2}),
    lambda: json_schema({"properties": {"a": {"$ref": "#"}}, "type": "object", "additionalProperties": False}),
    lambda: grammar('start: "a" start? "b"'),
    lambda: grammar('start: A | start ", " A\nA: /[a1]+/'),
]


def vocabulary_walks(data: bytes) -> None:
    """Masks in the states of a random walk: trying every token byte by byte is right, and after it every row of tokens."""
    source = Source(data)
    tokens = [source.choice(TOKENS) for _ in range(2 + source.below(30))]
    tokens += [bytes((byte,)) for byte in range(256)] if source.below(2) else []
    if source.below(2):
        try:
            expression = source.choice(LANGUAGES)()
        except FSMError:
            return
    else:
        pattern = source.pieces([p for p in PIECES if p != "\n"], 10)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expression = regex(pattern)
        except FSMError:
            return
    eos = len(tokens)
    try:
        token_fsm = TokenFSM(expression, Vocabulary([*tokens, None], [eos]))
    except VocabularyGap:
        return
    except FSMError:
        return
    automaton, state, text = Automaton(expression.node), token_fsm.initial_state, b""
    for _ in range(8):
        found = token_fsm.allowed_token_ids(state).tolist()
        here = automaton.next_state(automaton.initial_state, text)
        expected = [n for n, token in enumerate(tokens) if token and automaton.next_state(here, token) != DEAD]
        spelled = [n for n in found if n != eos]
        assert set(spelled) <= set(expected), f"{expression!r} {tokens} after {text!r}: {found}, not {expected}"
        assert (eos in found) == automaton.accepts(text), f"{expression!r} {tokens} after {text!r}: end"
        ends: dict[int, bool | None] = dict.fromkeys(expected, True)
        if not token_fsm.vocabulary.spells_everything:
            ends = {n: _spells(automaton, tokens, automaton.next_state(here, tokens[n] or b"")) for n in expected}
        assert not any(ends[n] is False for n in spelled), f"{expression!r} {tokens} after {text!r}: {found}, {ends}"
        lost = {n for n, is_spelled in ends.items() if is_spelled} - set(spelled)
        assert not lost, f"{expression!r} {tokens} after {text!r}: {lost} are missing"
        if not spelled:
            return
        token_id = source.choice(spelled)
        state, text = token_fsm.next_state(state, token_id), text + (tokens[token_id] or b"")


def _spells(automaton: Automaton, tokens: list[bytes | None], state: int) -> bool | None:
    """Whether tokens lead from a state to an accepting one; None where that takes many states."""
    met = {state: None}
    waiting = [state]
    for place in waiting:
        if automaton.is_accepting(place):
            return True
        if len(waiting) > 60:
            return None
        targets = dict.fromkeys(automaton.next_state(place, token) for token in tokens if token)
        new = [target for target in targets if target != DEAD and target not in met]
        met.update(dict.fromkeys(new))
        waiting += new
    return False


def _same(what: str, expression: Expression, texts: Iterable[str], is_valid: Callable[[str], bool]) -> None:
    automaton = None if expression.has_checks else Automaton(expression.node)
    try:
        for text in texts:
            accepted = automaton.accepts(text.encode()) if automaton is not None else expression.accepts(text)
            valid = is_valid(text)
            assert accepted == valid, f"{what!r} {'accepts' if accepted else 'refuses'} {text!r}"
    except BudgetExceeded:
        return


SEEDS = [
    b'{"type":"object","properties":{"a":{"type":"integer","minimum":0}},"required":["a"],"additionalProperties":false}',
    b'{"anyOf":[{"$ref":"#/$defs/x"},{"enum":["a",1,null]}],"$defs":{"x":{"pattern":"^a+$","maxLength":3}}}',
    b'{"type":"array","prefixItems":[{"const":1e2}],"items":{"not":{"multipleOf":0.1}},"uniqueItems":true}',
    b'{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"]},"if":true,"then":{"format":"date"}}',
    b'{"patternProperties":{"^x-":true},"propertyNames":{"minLength":1},"minProperties":1,"$id":"http://a/b","$anchor":"c"}',
]
"""Texts to begin with; the other targets read any bytes."""

TARGETS = {
    "regex": regular_expressions,
    "ecma": ecma_patterns,
    "schema": schemas,
    "schema_text": schema_texts,
    "grammar": grammars,
    "walk": vocabulary_walks,
}
