"""The algebra of expressions against sets of strings; named parts; substrings; expressions denote texts."""

from __future__ import annotations

import re
from itertools import product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fsm
import fsm.types
from fsm import Expression, ExpressionError, choice, json_schema, regex, until
from fsm.automaton.lazy_dfa import Automaton
from fsm.expression import lift
from fsm.languages import Substrings
from fsm.terms import node as nodes
from fsm.terms.rule import TEXTS, Rule
from outlines_cont import continuous, generate, models
from tests.examples import examples
from tests.walks import RANDOMS, random_text

ALPHABET = b"ab"
MOST = 5
UNIVERSE = frozenset(bytes(t) for n in range(MOST + 1) for t in product(ALPHABET, repeat=n))
Language = tuple[Expression, frozenset[bytes]]


def cut(texts: set[bytes]) -> frozenset[bytes]:
    return frozenset(t for t in texts if len(t) <= MOST)


def joined(left: frozenset[bytes], right: frozenset[bytes]) -> frozenset[bytes]:
    return cut({a + b for a in left for b in right if len(a) + len(b) <= MOST})


def repeated(body: frozenset[bytes], lo: int, hi: int | None) -> frozenset[bytes]:
    out, power = set[bytes](), frozenset({b""})
    for count in range((MOST + lo if hi is None else hi) + 1):
        if count >= lo:
            out |= power
        power = joined(power, body)
    return cut(out)


def leaf(texts: list[bytes]) -> Language:
    return Expression(nodes.words(texts)), cut(set(texts))


LEAVES = st.lists(st.text("ab", max_size=3).map(str.encode), min_size=0, max_size=4).map(leaf)


def grow(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    pairs = st.tuples(inner, inner)
    counts = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 3)))

    def repeat(args: tuple[Language, tuple[int, int | None]]) -> Language:
        (expression, texts), (lo, extra) = args
        hi = None if extra is None else lo + extra
        return expression.repeat(lo, hi), repeated(texts, lo, hi)

    return st.one_of(
        pairs.map(lambda p: (p[0][0] | p[1][0], p[0][1] | p[1][1])),
        pairs.map(lambda p: (p[0][0] + p[1][0], joined(p[0][1], p[1][1]))),
        pairs.map(lambda p: (p[0][0] & p[1][0], p[0][1] & p[1][1])),
        inner.map(lambda p: (~p[0], UNIVERSE - p[1])),
        st.tuples(inner, counts).map(repeat),
    )


LANGUAGES = st.recursive(LEAVES, grow, max_leaves=8)


@given(LANGUAGES)
@settings(max_examples=examples(150))
def test_expressions_accept_exactly_what_set_algebra_says(language: Language) -> None:
    expression, texts = language
    automaton = Automaton(expression.node)
    assert texts == {t for t in UNIVERSE if automaton.accepts(t)}


@given(LANGUAGES)
@settings(max_examples=examples(100))
def test_live_moves_are_those_from_which_something_is_accepted(language: Language) -> None:
    """Every live state must reach an accepting one; a search over the automaton itself is the proof."""
    automaton = Automaton(language[0].node)
    if automaton.is_empty():
        assert not language[1]
        return
    seen, queue, back = {1}, [1], dict[int, set[int]]()
    for state in queue:
        for target in automaton.moves(state).values():
            back.setdefault(target, set()).add(state)
            if target not in seen:
                seen.add(target)
                queue.append(target)
    reaches = [s for s in seen if automaton.is_accepting(s)]
    alive = set(reaches)
    for state in reaches:
        new = back.get(state, set()) - alive
        alive |= new
        reaches.extend(new)
    assert seen == alive


def test_operators_refuse_recursive_operands() -> None:
    rule = Rule("list")
    rule.define(nodes.alternation((nodes.literal(b"x"), nodes.sequence([nodes.literal(b"("), rule.term, nodes.literal(b")")]))))
    nested = Expression(rule.term)
    assert nested.accepts("(((x)))")
    assert not nested.accepts("((x)")
    with pytest.raises(ExpressionError, match="recursive rule"):
        ~nested
    with pytest.raises(ExpressionError, match="recursive rule"):
        nested & "x"


def test_a_rule_that_needs_itself_is_empty() -> None:
    rule = Rule("forever")
    rule.define(nodes.concat(nodes.literal(b"("), rule.term))
    assert Expression(rule.term).is_empty()


def test_left_recursion_is_refused_with_the_name_of_the_rule() -> None:
    rule = Rule("sum")
    rule.define(nodes.alternation((nodes.literal(b"1"), nodes.concat(rule.term, nodes.literal(b"+1")))))
    with pytest.raises(ExpressionError, match="left recursion.*'sum'"):
        Expression(rule.term).accepts("1+1")


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="a & b"):
        bool(lift("a"))


def test_text_is_lifted_on_both_sides() -> None:
    assert ("a" + choice(["b", "c"]) + "d").accepts("acd")
    assert ("x" | lift("y")).accepts("x")
    assert not ("x" & lift("y")).accepts("x")


def test_counters_and_deep_terms_cost_no_recursion_and_no_unrolling() -> None:
    deep = lift("a")
    for _ in range(5_000):
        deep = ("(" + deep + ")").repeat(0, 2)
    assert deep.accepts("")
    counted = lift("a").repeat(3, 1_000_000_000)
    automaton = Automaton(counted.node)
    assert automaton.accepts(b"a" * 50)
    assert len(automaton) < 60


def test_parts_are_found_in_sums_alternatives_and_repetitions() -> None:
    pair = regex("[a-z]+").named("key") + "=" + regex("[0-9]+").named("value")
    line = ("# " + regex(".*").named("comment")) | (pair + (";" + pair).repeat())
    assert line.names == ("comment", "key", "value")
    assert line.captures("ab=1") == {"comment": None, "key": "ab", "value": "1"}
    assert line.captures("ab=1;c=23") == {"comment": None, "key": "c", "value": "23"}
    assert line.captures("# ab=1") == {"comment": "ab=1", "key": None, "value": None}
    assert line.captures("ab=") is None


def test_a_part_takes_as_much_as_it_can_from_left_to_right() -> None:
    two = regex("a*").named("x") + regex("a*").named("y")
    assert two.captures("aaa") == {"x": "aaa", "y": ""}
    both = regex("a+").named("first") | regex("[ab]+").named("second")
    assert both.captures("aa") == {"first": "aa", "second": None}
    assert both.captures("ab") == {"first": None, "second": "ab"}
    assert (regex("[ab]*").named("x") & regex(".b")).captures("ab") == {"x": "ab"}


def test_names_inside_names_and_inside_a_complement() -> None:
    inner = ("<" + regex("[a-z]*").named("word") + ">").named("tag")
    assert inner.captures("<ab>") == {"tag": "<ab>", "word": "ab"}
    assert (~inner).names == ()
    assert regex("a").captures("a") == {}


def test_checks_decide_where_a_part_ends() -> None:
    unique = json_schema({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, whitespace="none")
    twice = unique.named("a") + unique.named("b")
    assert twice.captures("[1][2,1]") == {"a": "[1]", "b": "[2,1]"}
    assert twice.captures("[1][1,1]") is None


def test_counts_without_bound_and_empty_rounds_end() -> None:
    word = regex("a?").named("x")
    assert word.repeat(10**9).captures("aa") == {"x": "a"}  # empty rounds that nothing needs do not count
    assert word.repeat(2, 2).captures("aa") == {"x": "a"}
    assert word.repeat(1, 2).captures("aaa") is None
    with pytest.raises(ExpressionError, match="100 deep"):
        for _ in range(200):
            word = word.named("x")


CASES = [
    ("(?P<x>a*)(?P<y>[ab]*)(?P<z>b*)", ("a*", "[ab]*", "b*")),
    ("(?P<x>a+)(?P<y>(?:ab)?)(?P<z>[ab]*)", ("a+", "(ab)?", "[ab]*")),
    ("(?P<x>[ab]?)(?P<y>b*)(?P<z>a?)", ("[ab]?", "b*", "a?")),
]


@pytest.mark.parametrize(("whole", "parts"), CASES)
def test_sums_are_divided_as_greedy_groups_are(whole: str, parts: tuple[str, ...]) -> None:
    expression = regex(parts[0]).named("x") + regex(parts[1]).named("y") + regex(parts[2]).named("z")
    for length in range(6):
        for letters in product("ab", repeat=length):
            match = re.fullmatch(whole, "".join(letters))
            assert (match and match.groupdict()) == expression.captures("".join(letters))


@given(st.lists(st.sampled_from(["a", "bb", "é"]), max_size=6), st.integers(0, 3))
def test_every_capture_belongs_to_its_part(words: list[str], lo: int) -> None:
    part = choice(["a", "bb", "é"])
    expression: Expression = "[" + (part.named("word") + ",").repeat(lo) + "]"
    found = expression.captures("[" + "".join(word + "," for word in words) + "]")
    assert (found is None) == (len(words) < lo)
    if found is not None:
        assert {"word": words[-1] if words else None} == found


def test_until_ends_at_the_first_mark() -> None:
    for mark, texts in (("ab", ["ab", "aab", "xyzab"]), ("aa", ["aa", "baa"]), ("é!", ["é!", "éé!"])):
        for text in texts:
            assert until(mark).accepts(text)
            assert not until(mark).accepts(text + mark)
            assert not until(mark).accepts(text[:-1])
    assert not until("aa").accepts("aaa")
    assert not until("a").accepts(b"\xffa")
    with pytest.raises(ExpressionError, match="at least one character"):
        until("")


def test_a_generator_gives_the_captures_as_its_value() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    answer = json_schema(schema, whitespace="none")
    thoughts = until("</think>") & regex("[a-z ]{0,10}</think>")
    found = generate.fsm(models.tiny(), thoughts.named("thoughts") + answer.named("answer"))("Is it?", max_tokens=60)
    assert list(found) == ["thoughts", "answer"]
    assert thoughts.accepts(found["thoughts"])
    assert found["answer"] in ('{"ok":true}', '{"ok":false}')
    state = continuous(generate.fsm(models.tiny(), "On " + fsm.types.date.named("day") + "."))("When?", max_tokens=30)
    assert state.values[0][0]["day"] == str(state)[-11:-1]


def _substrings(text: str) -> set[str]:
    return {text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)}


@settings(max_examples=examples(34))
@given(st.sampled_from(['"', "**"]).flatmap(lambda end: st.tuples(st.just(end), st.text(f"ab{end[0]}é", max_size=9))))
def test_exactly_the_substrings_are_accepted_and_the_first_mark_ends_them(case: tuple[str, str]) -> None:
    end, text = case
    plain, marked = fsm.substring(text), fsm.substring(text, end=end)
    wanted = _substrings(text)
    for size in range(4):
        for word in map("".join, product(f"ab{end[0]}é", repeat=size)):
            assert (word in wanted) == plain.accepts(word)
            assert (word in wanted and (word + end).find(end) == len(word)) == marked.accepts(word + end)
    assert all(plain.accepts(word) for word in wanted)
    # No substring begins or ends inside a character.
    assert not plain.accepts("é".encode()[:1])
    assert not plain.accepts("é".encode()[1:])


def test_the_automaton_is_linear_in_the_text() -> None:
    text = "abcd" * 2000 + "🙂é" * 500
    reader = Substrings([text])
    assert len(reader._next) <= 2 * len(text)
    assert sum(map(len, reader._next)) <= 3 * len(text)
    assert fsm.substring(text).accepts(text[1000:8500])
    assert not fsm.substring(text).accepts(text + "a")


def test_it_is_a_language_like_all_others() -> None:
    assert fsm.substring("abc") == fsm.substring("abc")
    assert (fsm.substring("red green") & fsm.regex("[a-z]+")).accepts("gree")
    assert not (fsm.substring("red green") & ~fsm.substring("green")).accepts("gree")
    assert ("<" + fsm.substring("abc", end=">")).accepts("<bc>")
    assert "substring('abc'" in repr(fsm.substring("abc"))
    assert fsm.substring("").accepts("")


EVERYTHING = fsm.regex("(?s).*")
"""Every text."""


def is_same(left: Expression, right: Expression) -> bool:
    return (left & ~right).is_empty() and (right & ~left).is_empty()


def test_a_byte_that_is_no_text_is_no_way_out_of_a_complement() -> None:
    without = ~fsm.regex("(?s).*Porto.*")
    assert not without.accepts(b"Porto\xff")
    assert not without.accepts(b"\xffPorto")
    assert not without.accepts(b"\xc3")
    assert without.accepts("Lisboa é")


def test_nothing_is_left_of_everything() -> None:
    assert (~EVERYTHING).is_empty()
    assert (~(fsm.regex("(?s)a.*") | fsm.regex("(?s)([^a].*)?"))).is_empty()
    assert EVERYTHING == ~~EVERYTHING
    assert ~fsm.regex("(?!)") == EVERYTHING


@given(st.binary(max_size=6), LANGUAGES)
@settings(max_examples=examples(60))
def test_a_text_is_in_a_language_or_in_its_complement_and_other_bytes_in_neither(data: bytes, language: Language) -> None:
    expression = language[0]
    is_text = data.decode(errors="ignore").encode() == data
    assert is_text == (expression.accepts(data) != (~expression).accepts(data))
    assert is_text or not expression.accepts(data)


@example((~Expression(nodes.EMPTY) | "a", UNIVERSE), (Expression(nodes.EMPTY), frozenset()))
@example((~Expression(nodes.EMPTY) + fsm.regex("a?"), UNIVERSE), (Expression(nodes.EMPTY), frozenset()))
@example((fsm.regex("a?") + ~Expression(nodes.EMPTY), UNIVERSE), (Expression(nodes.EMPTY), frozenset()))
@example((fsm.regex("b|(?s:.*)a?"), UNIVERSE), (Expression(nodes.EMPTY), frozenset()))
@given(LANGUAGES, LANGUAGES)
@settings(max_examples=examples(50))
def test_complements_obey_the_laws_of_sets(first: Language, second: Language) -> None:
    left, right = first[0], second[0]
    assert left == ~~left
    assert (left | right) == (right | left)
    assert hash(left & right) == hash(right & left)
    assert (left & ~left).is_empty()
    assert (~(left | ~left)).is_empty()
    assert is_same(~(left | right), ~left & ~right)
    assert is_same(~(left & right), ~left | ~right)
    assert is_same(left & ~right, left & ~(left & right))


SOURCES = {
    "regex": lambda: fsm.regex(r"[^a]\W\S\D.(?s:.)(?i:[^k])?"),
    "regex with a bound": lambda: fsm.regex(r"(?s)(?!é).*(?<!ü)\b."),
    "regex of surrogates": lambda: fsm.regex("[\ud7ff-\ue000]"),
    "choice": lambda: fsm.choice(["é", "", "\U00010400"]),
    "substring": lambda: fsm.substring("naïve 😀"),
    "substring with a mark": lambda: fsm.substring("ein größeres Maß", end="ß"),
    "until": lambda: fsm.until("é</x>"),
    "text": lambda: fsm.regex("a") + "é" + fsm.until("\n"),
    "complement": lambda: ~fsm.regex("é.*") + fsm.regex("x"),
    "complement twice": lambda: ~(~fsm.regex("é.*") + fsm.choice(["x", "\xff"])),
    "difference": lambda: fsm.regex("(?s).{2,5}") & ~fsm.regex("(?s).*é.*"),
    "repeat": lambda: (~fsm.regex("é+")).repeat(1, 3).named("all"),
    "string": lambda: fsm.json_schema({"type": "string", "not": {"pattern": "^[a-zé]"}, "maxLength": 9}),
    "pattern": lambda: fsm.json_schema({"type": "string", "pattern": r"^[^é]\W\S\D.[^]\P{L}$"}),
    "format": lambda: fsm.json_schema({"type": "string", "format": "iri"}),
    "keys": lambda: fsm.json_schema({"patternProperties": {"^é": {"type": "null"}}, "type": "object", "maxProperties": 2}),
    "any JSON": lambda: fsm.json_schema(True),
    "grammar": lambda: fsm.grammar('start: (WORD | /[^\\n ]/ "é" | /./s)+ "."\n%import common.WORD'),
    "grammar that ignores": lambda: fsm.grammar('start: /[^"]+/ ("=" /(?s:.)(?!ü)/)*\n%ignore /[^a-z]/', lexer="dynamic"),
    **{name: (lambda name=name: getattr(fsm.types, name)) for name in ("json_value", "markdown_list", "email")},
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
@given(random=RANDOMS)
@settings(max_examples=examples(3))
def test_whatever_is_made_holds_texts_only(source: str, random: Random) -> None:
    expression = SOURCES[source]()
    data = random_text(expression.node, random, 12)
    text = data.decode()
    assert expression.accepts(text)
    if expression.node.is_regular and not expression.has_checks:
        assert not (~expression).accepts(text)


@pytest.mark.parametrize("source", ["regex", "regex with a bound", "substring", "until", "complement twice", "pattern", "string"])
def test_no_byte_string_beside_the_texts_belongs_to_an_expression(source: str) -> None:
    node = SOURCES[source]().node
    assert Automaton(nodes.intersection((node, nodes.complement(TEXTS)))).is_empty()


def test_a_lone_surrogate_is_no_text() -> None:
    assert not EVERYTHING.accepts("a\ud800")
    assert not (~EVERYTHING).accepts("a\ud800")
    assert EVERYTHING.named("all").captures("\ud800") is None
    for make in (
        lambda: fsm.choice(["a", "b\ud800"]),
        lambda: fsm.until("\ud800"),
        lambda: fsm.substring("\ud800"),
        lambda: fsm.substring("a", end="\ud800"),
        lambda: EVERYTHING + "\ud800",
        lambda: "\ud800" | EVERYTHING,
    ):
        with pytest.raises(ExpressionError, match="lone surrogate at position"):
            make()
