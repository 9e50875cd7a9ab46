"""What is said of grammars, patterns and types that are written as others write them; aliases, which do not change a language."""

from __future__ import annotations

from random import Random

import pytest

from fsm import GrammarError, RegexSyntaxError, SchemaError, gbnf, grammar, json_schema, regex
from fsm.errors import FSMError
from tests.examples import first
from tests.fuzz.languages import grammar_text

GBNF = 'root ::= "a" [0-9]+ x\nx ::= "b"'
LARK = 'start: "a" x\nx: /b/\n%ignore " "'
BNF = '<expr> ::= "a" | <expr> "b"'
ISO = 'expr = term, { "+", term } ;\nterm = "a" ;'


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (grammar, GBNF, "`fsm.gbnf` reads"),
        (grammar, "# digits\n\nroot ::= [0-9]", "`fsm.gbnf` reads"),
        (grammar, "root::=a\na::=b", "`fsm.gbnf` reads"),
        (grammar, BNF, "without angle brackets"),
        (grammar, ISO, r"rules with `=` are not read\. Write `start: \.\.\.`"),
        (gbnf, LARK, "`fsm.grammar` reads"),
        (gbnf, '%import common.WS\nstart: "a"', "`fsm.grammar` reads"),
        (gbnf, '// a comment\n?start.2: "a"', "`fsm.grammar` reads"),
        (gbnf, '_NAME: "a"\nstart: _NAME', "`fsm.grammar` reads"),
        (gbnf, BNF, "Write the names of rules without them"),
        (gbnf, ISO, "rules with `=` are not read"),
    ],
)
def test_a_grammar_in_another_notation_is_answered_with_the_function_that_reads_it(read: object, text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=f"the grammar cannot be read: .*{said}"):
        read(text)  # type: ignore[operator]


def test_a_grammar_about_another_notation_has_its_own_errors() -> None:
    written = 'start: NAME "::=" text\nNAME: /[a-z]+/\ntext: \'"a"\''
    with pytest.raises(GrammarError, match="Strings take double quotes"):
        grammar(written)
    assert grammar('start: NAME "::=" NAME\nNAME: /[a-z]+/').accepts("a::=b")
    assert gbnf('root ::= "start: " [a-z]+').accepts("start: a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('root ::= "a"\n  | "b"', r"line 2 column 3: a rule ends with its line\. Write `\|` at the end of the line before, or"),
        ('root ::= "a"\n\n| "b"', "line 3 column 1: a rule ends with its line"),
        ("root ::= []", r'line 1 column 10: the set `\[\]` has no character\. Write some, or `""`'),
        ('root ::= "a" | x\nx ::= ([])*', r"line 2 column 8: the set `\[\]` has no character"),
        ('root ::= "a" - "b"', r"line 1: a difference .* subtract expressions: `a & ~b`"),
    ],
)
def test_faults_of_gbnf_are_named(text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        gbnf(text)


def test_what_looks_like_these_faults_is_read() -> None:
    assert gbnf('root ::= "a" |\n  "b"').accepts("b")
    assert gbnf('root ::= ("a"\n  | "b")').accepts("b")
    assert gbnf("root ::= [^]").accepts("é")
    assert gbnf('root ::= "a" - "b"\n- ::= "-"').accepts("a-b")
    assert gbnf('root ::= a-b\na-b ::= "x"').accepts("x")


@pytest.mark.parametrize("text", ['start: "a" - "b"', "start: /a/ - /b/", "start: x - y\nx: /a/\ny: /b/"])
def test_a_difference_in_lark_is_named_at_the_caret(text: str) -> None:
    with pytest.raises(GrammarError, match=r"A difference .* is not part of the notation.*`a & ~b`\.\nstart"):
        grammar(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"start: /(a)\1/", r"terminal /\(a\)\\1/ in line 1: a back-reference"),
        ('start: x\nx: /a(?=.*b)/ "c"', r"terminal /a\(\?=\.\*b\)/ in line 2: an anchor"),
        ("start: x\n\nx: /a*/ /b(?<=ab)/i", r"terminal /b\(\?<=ab\)/i in line 3: an anchor"),
    ],
)
def test_a_terminal_without_a_name_is_shown_by_its_pattern_and_line(text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        grammar(text)
    assert "__ANON" not in str(caught.value)


MATHS = """
start: expr
expr: term (SP ADD SP term)* -> add
    | term -> other
    | term
term: factor (SP MUL SP factor)* -> mul
factor: INT -> first | INT -> second
SP: " "
ADD: "+"
MUL: "*"
INT: /[0-9]+/
"""


def test_expansions_of_which_only_the_alias_differs_are_one() -> None:
    for text in ("1", "1 + 2 * 3"):
        assert grammar(MATHS).accepts(text)
    assert not grammar(MATHS).accepts("1 +")
    assert grammar('start: a\n?a: b -> x | b -> y | b "2" -> z | b "2"\nb: "1"').accepts("12")
    assert grammar('start: a{"1"} | a{"2"}\na{x}: x -> p | x -> q').accepts("2")
    assert grammar('start: "a" -> x').accepts("a")


@pytest.mark.parametrize("seed", first(12, range(25)))
def test_aliases_do_not_change_the_language_of_a_random_grammar(seed: int) -> None:
    random = Random(seed)
    plain = grammar_text(random)
    aliased = []
    for line in plain.splitlines():
        if line[:1].islower():
            name, _, body = line.partition(": ")
            options = [f"{one} -> {random.choice('pqrs')}" if random.random() < 0.7 else one for one in body.split(" | ")]
            options += [f"{random.choice(body.split(' | '))} -> again"] * (random.random() < 0.5)
            line = f"{name}: {' | '.join(options)}"
        aliased.append(line)
    try:
        expected = grammar(plain)
    except FSMError as error:
        with pytest.raises(type(error)):
            grammar("\n".join(aliased))
        return
    found = grammar("\n".join(aliased))
    for _ in range(40):
        text = "".join(random.choices(["a", "b", "ab", "if", "IF", ";", "(", " ", "1", "..", "=", '"x"'], k=random.randint(0, 5)))
        assert expected.accepts(text) == found.accepts(text), text


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("float", "number"),
        ("dict", "object"),
        ("list", "array"),
        ("int", "integer"),
        ("None", "null"),
        ("Str", "string"),
        ("bool", "boolean"),
        ("sting", "string"),
    ],
)
def test_a_type_of_another_language_is_answered_with_that_of_json(given: str, meant: str) -> None:
    for written in (given, ["null", given]):
        with pytest.raises(SchemaError, match=f"received '{given}'. Did you mean '{meant}'"):
            json_schema({"type": written})


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"\p{L}", r"`re` has no Unicode properties\. Write a class"),
        (r"[a\P{Lu}]", r"`re` has no Unicode properties"),
        (r"(?<y>\d)", r"a named group is '\(\?P<name>"),
        (r"\u{1F600}", r"'\\U' and eight"),
    ],
)
def test_patterns_of_other_engines_are_answered_with_what_re_reads(pattern: str, said: str) -> None:
    with pytest.raises(RegexSyntaxError, match=said):
        regex(pattern)
