"""Budgets of work: what one mask may take; and inputs that hang others compile to right masks, or are refused and told why."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fsm import BudgetExceeded, EmptyLanguage, Expression, FSMError, SchemaError, TokenFSM, Vocabulary, choice, grammar, json_schema, regex
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import ExpressionError, GrammarError, RegexSyntaxError, UnsupportedRegex
from fsm.limits import work_bound
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.rule import Rule


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
    "terminals with many ways": lambda: grammar("start: (T|S)+\nT: /(a|b)*a(a|b){10}c/\nS: /(a|b)*b(a|b){10}c/"),
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


Tokens = tuple[list[bytes | None], list[int]]
ENTANGLED = "(?:(?!a.{20}b).)*c"
"""Its states know at which of the last 20 characters an `a` was."""


def vocabulary(tokens: Tokens) -> Vocabulary:
    return Vocabulary(*tokens)


def test_work_that_nobody_waits_for_ends() -> None:
    waiting = iter([True] * 50)
    schema = {"properties": {f"p{n}": {"type": "array", "items": {"enum": [n]}} for n in range(200)}}
    with work.cancellable(lambda: not next(waiting, False)):
        with work.uncounted():
            json_schema({"const": 1})  # never cancelled
        with pytest.raises(work.Cancelled):
            json_schema(schema)
    assert json_schema(schema).accepts('{"p7":[7]}')


def test_what_takes_too_much_is_refused_with_the_name_of_the_bound() -> None:
    with work_bound("max_mask_work", 10, "one thing"):
        work.add(10)
        work.check()
        work.add(1)
        with pytest.raises(BudgetExceeded, match="one thing takes more than 10 .* raise `max_mask_work`") as caught:
            work.check()
    assert (caught.value.limit, caught.value.value) == ("max_mask_work", 10)
    work.check()


def test_the_nearer_of_two_bounds_counts() -> None:
    with work_bound("outer", 5, "all"), work_bound("inner", 100, "a part"):
        work.add(6)
        with pytest.raises(BudgetExceeded) as caught:
            work.check()
    assert caught.value.limit == "outer"
    with work_bound("outer", 100, "all"):
        with work_bound("inner", 5, "a part"):
            work.add(6)
        work.check()


def test_each_letter_of_an_ambiguous_language_adds_as_much_work() -> None:
    derivatives = Derivatives()
    node, steps = grammar('start: x*\nx: "("+ x* | ["."] z ";"\nz: x*\n').node, list[int]()
    for _ in range(30):
        before = work.done()
        node = derivatives.after(node, ord("("))
        derivatives.arcs(node)
        steps.append(work.done() - before)
    assert max(steps) < 3 * steps[12]


def test_a_thread_has_its_own_work() -> None:
    found: list[int] = []
    work.add(7)
    thread = threading.Thread(target=lambda: found.append(work.done()))
    thread.start()
    thread.join()
    assert found == [0]


def test_building_a_rule_is_no_work_of_those_who_come_to_it() -> None:
    def build() -> nodes.Node:
        work.add(1_000)
        work.check()
        return nodes.literal(b"x")

    before = work.done()
    with work_bound("max_mask_work", 10, "one thing"):
        assert Derivatives().arcs(Rule("rule", build).term)
    assert work.done() - before <= 10


def test_a_budget_that_cannot_be_kept_refuses_when_the_constraint_is_made(sentencepiece_32k: Tokens) -> None:
    with pytest.raises(BudgetExceeded, match="max_mask_work") as caught:
        TokenFSM(regex(ENTANGLED), vocabulary(sentencepiece_32k), max_mask_work=300)
    assert (caught.value.limit, caught.value.value) == ("max_mask_work", 300)


LATE = "<" + ENTANGLED.replace("20", "9")
"""It is entangled behind its first byte."""


def test_a_mask_beyond_its_budget_is_made_slowly_and_is_the_same(sentencepiece_32k: Tokens) -> None:
    wide = TokenFSM(regex(LATE), vocabulary(sentencepiece_32k), max_mask_work=10**9)
    state = wide.automaton.next_state(wide.initial_state, b"<ab")
    before = work.done()
    expected = wide.allowed_token_ids(state).tolist()
    needed = work.done() - before
    small = TokenFSM(regex(LATE), vocabulary(sentencepiece_32k), max_mask_work=needed // 2)
    state = small.automaton.next_state(small.initial_state, b"<ab")
    assert expected == small.allowed_token_ids(state).tolist()


PATTERNS = [
    r"\w+@\w+\.(com|org)", r"(?=.*\d)(?=.*[A-Z]).{8,40}", r"(\w+\s?)+[.!?]", r"(?:(?!-->).)*-->", r".*a.{20}",
    r"(?:\b\w+\b\W*)+", r"(a|b)*a(a|b){16}", r"(?:(?!x{1,5000}y)[a-z]){1,100000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_that_makes_sense_is_far_from_the_budget(pattern: str, sentencepiece_32k: Tokens) -> None:
    token_fsm = TokenFSM(regex(pattern), vocabulary(sentencepiece_32k))
    state = token_fsm.initial_state
    for byte in b"aXxxxxx1xxx":
        before = work.done()
        token_fsm.bitmask(state)
        assert work.done() - before < token_fsm.max_mask_work / 4
        target = token_fsm.automaton.next_state(state, bytes((byte,)))
        state = target or state


def test_what_is_excluded_again_and_again_stays_one_condition() -> None:
    token_fsm = regex("(?:(?!x{1,5000}y)[a-z]){1,100000}")
    derivatives, node = Derivatives(), token_fsm.node
    for _ in range(300):
        node = derivatives.after(node, ord("x"))
    before = work.done()
    derivatives.after(node, ord("x"))
    assert work.done() - before < 300


def test_a_round_of_one_loop_is_united_once_for_all_ways_to_begin_it() -> None:
    tails = [nodes.concat(nodes.repeat(regex(".").node, 3 * n, 3 * n), nodes.literal(bytes((n,)))) for n in range(1, 30)]
    before = work.done()
    Derivatives().arcs(nodes.alternation(tails))
    assert work.done() - before < 250


def test_a_search_for_a_text_goes_where_an_end_seems_near() -> None:
    words = ["name", "tags", "when", "vars", "hosts", "roles"]
    node = nodes.intersection([(regex(".*") + regex(word) + regex(".*!")).node for word in words])
    assert Derivatives(max_search=1_000).is_inhabited(node)


def test_a_token_fsm_takes_its_budget_from_its_maker() -> None:
    expression: Expression = regex("a+")
    token_fsm = TokenFSM(expression, Vocabulary([b"a", None], [1]), max_mask_work=50)
    assert token_fsm.max_mask_work == 50


REFUSED: dict[str, tuple[type[FSMError], str]] = {
    "parentheses": (BudgetExceeded, "a pattern nests at most 200 groups"),
    "malformed": (RegexSyntaxError, "'foo**' at position 4"),
    "lookarounds": (UnsupportedRegex, "more than 8 lookarounds"),
    "boundaries": (EmptyLanguage, "no text satisfies regex"),
    "boundaries in a row": (EmptyLanguage, "no text satisfies regex"),
    "lookaheads in loops": (BudgetExceeded, "the mask of one state takes more than 20,000 steps"),
    "nesting": (BudgetExceeded, "nested values: 101 are more than the 100"),
    "remote reference": (SchemaError, "'http://example.org/x', which is not there. Nothing is ever fetched"),
    "file reference": (SchemaError, "'file:///etc/passwd', which is not there. Nothing is ever fetched"),
    "required self": (EmptyLanguage, "no JSON value satisfies the schema"),
    "chain of references": (BudgetExceeded, "references in a chain: 101 are more than the 100"),
    "paradox": (SchemaError, "'#' refers to itself"),
    "many bits": (BudgetExceeded, "digits of a number: 5,000 are more than the 1,000"),
    "password": (BudgetExceeded, "the mask of one state takes more than 20,000 steps"),
    "not a word": (BudgetExceeded, "the mask of one state takes more than 20,000 steps"),
    "back-reference": (UnsupportedRegex, "a back-reference (to group 1)"),
    "groups": (BudgetExceeded, "one step of the expression takes more than 20,000 steps"),
    "misspelt type": (SchemaError, "Did you mean 'string'?"),
    "malformed pattern": (SchemaError, "in pattern 'foo**' at position 4"),
    "pattern and far length": (BudgetExceeded, "search for a text of an intersection"),
    "empty enum": (EmptyLanguage, "no JSON value satisfies the schema"),
    "references in a circle": (SchemaError, "'#/$defs/a' refers to itself"),
    "keys with a far look": (BudgetExceeded, "compiling the schema takes more than 30,000 steps"),
    "rule that is itself": (EmptyLanguage, "the rule 'start' never ends"),
    "nested grammar": (GrammarError, "the grammar is nested too deeply"),
    "nested terminal": (BudgetExceeded, "reading a pattern in the order of `re`"),
    "60,000 parentheses": (BudgetExceeded, "characters of the grammar: 120,010 are more than the 100,000"),
    "no words": (ExpressionError, "received an empty one"),
    "empty": (EmptyLanguage, "no text satisfies (regex('a') & regex('b'))"),
}
"""The errors of those that are refused, and what the message says of the place."""


class Pieces:
    """The tokens that have text, by id and by their first byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.texts = {i: data for i, data in enumerate(vocabulary.tokens) if data and i not in vocabulary.eos_token_ids}
        self.all = list(self.texts)
        self.single = [token_id for token_id in self.all if len(self.texts[token_id]) == 1]
        self.by_first_byte: dict[int, list[int]] = {}
        for token_id, data in self.texts.items():
            self.by_first_byte.setdefault(data[0], []).append(token_id)


@pytest.fixture(scope="module")
def pieces(sentencepiece_32k: Tokens) -> Pieces:
    """Of one vocabulary for all cases."""
    return Pieces(Vocabulary(*sentencepiece_32k))


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_error_that_says_why(name: str, pieces: Pieces) -> None:
    kind, said = REFUSED[name]
    with pytest.raises(kind, match=re.escape(said)) as refusal:
        token_fsm = TokenFSM(HOSTILE[name](), pieces.vocabulary, max_mask_work=20_000)
        token_fsm.allowed_token_ids(token_fsm.initial_state)
    assert refusal.type is kind


COSTLY = {"terminals with many ways": 2}
"""How many masks are compared where each takes a second or more, by the plain walk."""


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in REFUSED])
def test_it_compiles_and_its_masks_are_those_of_the_plain_walk(name: str, pieces: Pieces) -> None:
    """Compared are some allowed tokens, some that begin like them, some of one byte, and any."""
    token_fsm = TokenFSM(HOSTILE[name](), pieces.vocabulary, max_mask_work=20_000)
    plain, random = Automaton(token_fsm.expression.node), Random(name)
    state, place, num_taken = token_fsm.initial_state, plain.initial_state, 0
    for step in range(COSTLY.get(name, 4)):
        allowed = token_fsm.allowed_token_ids(state).tolist()
        assert [i in allowed for i in pieces.vocabulary.eos_token_ids] == [plain.is_accepting(place)]
        choices = [token_id for token_id in allowed if token_id in pieces.texts]
        texts = random.sample(choices, min(20, len(choices)))
        alike = [random.choice(pieces.by_first_byte[pieces.texts[i][0]]) for i in texts]
        for token_id in {*texts, *alike, *random.sample(pieces.single, 20), *random.sample(pieces.all, 20)}:
            is_alive = plain.next_state(place, pieces.texts[token_id]) != DEAD
            assert (token_id in allowed) == is_alive, pieces.texts[token_id]
        if not choices:
            break
        token_id = choices[(step * 37) % len(choices)]
        state, place = token_fsm.next_state(state, token_id), plain.next_state(place, pieces.texts[token_id])
        num_taken += 1
    assert num_taken
