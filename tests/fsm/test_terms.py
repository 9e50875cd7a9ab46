"""Terms (inner laws): as text for people, as pickled calls, their distances, and small automata as terms of loops."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import fsm
from fsm import Expression, choice, json_schema, regex, types
from fsm.automaton.lazy_dfa import Automaton, as_loop
from fsm.errors import BudgetExceeded, clip
from fsm.pattern.python_pattern import preferred_texts
from fsm.terms import derivative, work
from fsm.terms import node as nodes
from fsm.terms.derivative import ALL_BYTES, Derivatives
from fsm.terms.distance import Distances
from fsm.terms.members import FieldList, fields
from fsm.terms.node import EMPTY, Kind, Node
from fsm.terms.rendering import MAX_LENGTH, render
from fsm.terms.rule import Rule
from fsm.terms.state_elimination import MAX_STATES, as_loops
from tests.examples import examples

NESTED = nodes.literal(b"x")
for _ in range(5000):
    NESTED = nodes.alternation((nodes.concat(nodes.byte_range(0x61, 0x63), NESTED), nodes.literal(b"yy")))


@pytest.mark.parametrize(
    "expression",
    [
        regex("a|b"),
        regex(r"\d+", ascii=True),
        regex("a") + "x\n" | choice(["yes", "no"]),
        (~regex("a|b") & "c").repeat(1, 3).named("few"),
        ("[" + regex("a").repeat(2)) & regex("..."),
    ],
)
def test_a_repr_can_be_pasted_back(expression: Expression) -> None:
    again = eval(repr(expression), {name: getattr(fsm, name) for name in fsm.__all__})  # noqa: S307 - ours
    assert again == expression
    assert again.name == expression.name


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("abc", "abc"),
        ("a[bc]{2,3}", "a[bc]{2,3}"),
        ("(?:ab)*c?[^a]{0}", "(ab)*c?"),
        (r"\.\n[\]^-]+é", r"\.\n[\-\]\^]+é"),
        (".*", ".*"),
        ("(?s:.)+", "<character>+"),
        ("one|two|three", "(one|three|two)"),
        (r"(?:a+|)b", "(a+)?b"),
        ("|".join(f"{n}word" for n in range(10, 60)), "(10word|11word|12word|13word|... 50 words)"),
        ("(?!)", "<nothing>"),
        ("", ""),
    ],
)
def test_a_term_is_shown_like_a_pattern(pattern: str, shown: str) -> None:
    assert shown == render(regex(pattern).node)


@pytest.mark.parametrize(
    "expression",
    [
        regex("a" * 5000),
        regex("[ab]?" * 5000),
        choice(["x" * 5000] * 2 + [str(n) for n in range(5000)]),
        json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}),
        Expression(NESTED),
        Expression(nodes.complement(NESTED)).named("n" * 5000),
        Expression(nodes.sequence([nodes.byte_range(n % 90, n % 90 + 7) for n in range(5000)])),
        *(getattr(types, name) for name in types.__all__),
    ],
    ids=lambda e: repr(e)[:30],
)
def test_a_repr_is_short_and_shows_no_number_of_a_node(expression: Expression) -> None:
    for shown in (expression, expression + "x", ~expression if expression.node.is_regular else expression.repeat(2, 3)):
        assert len(repr(shown)) <= 3 * MAX_LENGTH
        assert str(expression.node.serial) not in repr(shown) or expression.node.serial < 100


def test_a_recursive_term_and_a_rule_are_shown_by_name() -> None:
    assert repr(types.json_value) == "types.json_value"
    assert render(types.json_value.node) == "<json_value>"
    assert render(nodes.concat(nodes.byte_range(0x80, 0xFF), nodes.literal(b"\xff"))) == r"[\x80-\xff]\xff"


def test_shortening_keeps_both_ends() -> None:
    assert clip("abc", 3) == "abc"
    assert clip("a" * 50 + "z" * 50, 30) == "a" * 20 + "..." + "z" * 7
    assert len(clip("a" * 1000)) == MAX_LENGTH


ALPHABET = "ab\n.]-^\\+\u00e9"
BYTES = st.sets(st.sampled_from(ALPHABET.replace("\u00e9", "")), min_size=1).map(
    lambda found: nodes.byte_set(sum(1 << ord(c) for c in found))
)
LEAVES = st.text(ALPHABET, max_size=3).map(lambda text: nodes.literal(text.encode())) | BYTES


def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(inner, min_size=1, max_size=3)
    counts = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2))
    return st.one_of(
        some.map(nodes.sequence),
        some.map(nodes.alternation),
        inner.map(nodes.optional),
        st.tuples(inner, counts).map(lambda args: nodes.repeat(args[0], args[1][0], None if args[1][1] is None else sum(args[1]))),
    )


@settings(max_examples=examples(80))
@given(st.recursive(LEAVES, grow, max_leaves=6))
def test_what_is_shown_whole_is_a_pattern_of_the_same_language(node: Node) -> None:
    shown = render(node, 1_000)
    assume("<" not in shown and "words)" not in shown and r"\x" not in shown)
    again = regex(shown).node
    for one, other in ((node, again), (again, node)):
        assert Automaton(nodes.intersection((one, nodes.complement(other)))).is_empty(), shown
    if len(shown) > 3:
        assert shown == render(node, max(len(shown), 20))
        assert render(node, len(shown) - 1) == f"{shown[: len(shown) - 4]}..."


class Person(BaseModel):
    """A type that another process can import."""

    name: str


def _again(expression: Expression) -> Expression:
    return pickle.loads(pickle.dumps(expression))  # type: ignore[no-any-return]  # noqa: S301  # our own


_MADE = {
    "regex": lambda: fsm.regex("a+b", ascii=True),
    "choice": lambda: fsm.choice(["yes", "no"]),
    "schema": lambda: fsm.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}, whitespace="none"),
    "type": lambda: fsm.json_schema(Person),
    "checks": lambda: fsm.json_schema({"type": "array", "uniqueItems": True}),
    "until": lambda: fsm.until("\n\n"),
    "substring": lambda: fsm.substring("the name", end="."),
    "operators": lambda: ("(" + (fsm.regex("[ab]") | "c").repeat(1, 3) + ")") & ~fsm.regex(".*cc.*"),
    "names": lambda: fsm.regex("[0-9]+").named("count") + " " + fsm.choice(["lamps", "desks"]).named("what"),
    "types": lambda: fsm.types.email | fsm.types.date | fsm.types.markdown_list,
}


@pytest.mark.parametrize("name", _MADE)
def test_an_expression_made_again_is_the_same(name: str) -> None:
    expression = _MADE[name]()
    again = _again(expression)
    assert again == expression
    assert hash(again) == hash(expression)
    assert (repr(again), again.report, again.names) == (repr(expression), expression.report, expression.names)
    assert _again(again) == expression


@pytest.mark.parametrize("text", ['start: "a" start | "b"', 'start: ["a"] "b"'])
def test_a_grammar_made_again_accepts_the_same(text: str) -> None:
    expression = fsm.grammar(text)
    again = _again(expression)
    for word in ("a", "b", "ab", "aab", "ba", ""):
        assert again.accepts(word) == expression.accepts(word)


def test_long_chains_and_shared_parts_cost_no_more_than_their_calls() -> None:
    chain = fsm.regex("a")
    for _ in range(300):
        chain = chain + "b"
    assert _again(chain) == chain
    shared = fsm.regex("[ab]")
    for _ in range(10):
        shared = shared | shared
    assert len(pickle.dumps(shared)) < 1500
    assert _again(shared) == shared


def test_another_process_makes_the_same_language() -> None:
    expression = _MADE["operators"]()
    code = "import pickle, sys; e = pickle.loads(sys.stdin.buffer.read()); print(e.accepts('(abc)'), e.accepts('(cc)'))"
    run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(expression), capture_output=True, check=True)
    assert run.stdout.split() == [b"True", b"False"]


def test_a_part_of_which_nothing_is_known_is_refused() -> None:
    unknown = Expression(nodes.literal(b"x"))
    with pytest.raises(TypeError, match="made in another way"):
        pickle.dumps("a" + unknown)


LETTER = nodes.byte_range(ord("a"), ord("z"))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (nodes.EPSILON, 0),
        (LETTER, 1),
        (nodes.literal(b"name"), 4),
        (nodes.repeat(LETTER), 0),
        (nodes.repeat(LETTER, 3, 9), 3),
        (regex("abc(de|f)[0-9]{2}").node, 6),
        (nodes.intersection((regex(".*ab").node, regex(".*cde").node)), 5),
        (nodes.complement(nodes.repeat(LETTER)), 1),
        (Rule("never built").term, 1),
        (nodes.munch(nodes.repeat(LETTER, 2), nodes.literal(b" x")), 4),
    ],
    ids=["empty", "byte", "literal", "loop", "counted", "sequence", "intersection", "complement", "rule", "munch"],
)
def test_a_distance_is_read_off_the_parts(term: nodes.Node, expected: int) -> None:
    assert expected == Distances().of(term)


def test_a_long_chain_needs_no_recursion() -> None:
    chain = nodes.sequence([nodes.byte_range(97 + n % 2, 99) for n in range(20_000)])
    assert Distances().of(chain) == 20_000


def test_what_is_forgotten_is_found_again() -> None:
    distances = Distances(max_memo=5)
    assert [distances.of(regex(f"[ab]{{{n}}}x").node) for n in range(2, 30)] == [n + 1 for n in range(2, 30)]


def test_a_string_is_a_loop_between_quotes() -> None:
    found = as_loops(preferred_texts(r'".*?(?<!\\)(\\\\)*?"'))
    assert found is not None
    assert found.args[0].args[0] == b'"'
    loop = as_loop(found.args[1])
    assert loop is not None
    assert loop[1:3] == (0, None)
    assert loop[3].kind is Kind.LITERAL


def test_the_bound_on_states_is_the_last_that_is_allowed() -> None:
    assert as_loops(regex(f"a{{{MAX_STATES - 1}}}").node) is not None
    assert as_loops(regex(f"a{{{MAX_STATES}}}").node) is None
    assert as_loops(regex(f"(?:a|b)*a(?:a|b){{{MAX_STATES}}}").node) is None
    assert as_loops(EMPTY) is EMPTY


BODY = nodes.alternation((nodes.byte_range(97, 98), nodes.literal(b"cc")))
LANGUAGE_PARTS = st.one_of(
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=5).map(lambda texts: nodes.words(text.encode() for text in texts)),
    st.sampled_from([nodes.byte_range(97, 98), nodes.byte_range(97, 99), nodes.literal(b"abc"), nodes.EPSILON]),
    st.sampled_from([nodes.repeat(nodes.byte_range(97, 98)), nodes.repeat(BODY, 0, 3), nodes.optional(nodes.literal(b"a"))]),
    st.sampled_from([EMPTY, BODY]).map(lambda stop: fields(FieldList((b"aa", b"ab", b"c"), (BODY,) * 3, BODY, stop, BODY))),
)
LANGUAGES = st.recursive(
    LANGUAGE_PARTS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(nodes.sequence),
        st.lists(inner, min_size=2, max_size=3).map(nodes.alternation),
        st.lists(inner, min_size=2, max_size=3).map(nodes.intersection),
        inner.map(nodes.complement),
        st.builds(
            lambda body, lo, more: nodes.repeat(body, lo, more and lo + more), inner, st.integers(0, 2), st.none() | st.integers(1, 3)
        ),
    ),
    max_leaves=8,
)


@given(LANGUAGES, st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=8), st.booleans())
@settings(max_examples=examples(180), deadline=None)
def test_several_bytes_that_are_read_at_once_lead_where_they_lead_one_by_one(
    term: nodes.Node, texts: list[str], are_arcs_known: bool
) -> None:
    derivatives, plain = Derivatives(), Derivatives()
    for text in texts:
        data, node, expected = text.encode(), term, term
        if are_arcs_known:
            derivatives.arcs(term)
        while data:
            node, count = derivatives.read(node, data)
            for byte in data[:count]:
                expected = next((target for mask, target in plain.arcs(expected) if mask >> byte & 1), EMPTY)
            data = data[count:]
            same = nodes.alternation(
                nodes.intersection((one, nodes.complement(other))) for one, other in ((node, expected), (expected, node))
            )
            assert not plain.is_inhabited(same)


A, B = nodes.literal(b"a"), nodes.literal(b"b")


def test_a_term_is_shown_with_its_kind() -> None:
    assert (repr(A), repr(Kind.LITERAL)) == (f"<literal {A.serial}>", "Kind.LITERAL")


def test_terms_without_texts_stay_without() -> None:
    assert nodes.byte_set(0) is nodes.EMPTY
    assert nodes.munch(nodes.EMPTY, A, B) is nodes.munch(A, nodes.EMPTY, B) is nodes.EMPTY
    assert nodes.munch(nodes.EPSILON, A, nodes.EMPTY) is nodes.munch(nodes.EPSILON, A, nodes.EPSILON) is A
    assert Derivatives().is_inhabited(nodes.munch(A, B, nodes.EMPTY))
    assert not Derivatives().is_inhabited(nodes.EMPTY)


def test_what_is_left_as_soon_as_it_cannot_go_on_is_shown_as_its_parts() -> None:
    assert render(nodes.munch(nodes.repeat(A, 1), B, nodes.EMPTY)) == render(nodes.concat(nodes.repeat(A, 1), B))


def test_a_search_is_bounded_within_the_alternatives_of_one_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four patterns with twelve alternatives each behind their first byte: 20,736 of their intersection."""
    taken, members_of = [0], derivative.members_of

    def counted(node: Node) -> Sequence[Node]:
        taken[0] += 1
        return members_of(node)

    monkeypatch.setattr(derivative, "members_of", counted)
    ways = [[f"[{a}{chr(97 + i)}{chr(65 + j)}].*{a}{i}" for i in range(12)] for j, a in enumerate("pqrs")]
    root = nodes.intersection([regex(f"x(?:{'|'.join(some)})").node for some in ways])
    assert Derivatives(by_sets=False)._search_within(root, ALL_BYTES, 300, False, sys.maxsize) is None
    assert taken[0] <= 300


def test_all_searches_for_one_text_together_are_bounded_in_work() -> None:
    root, before = regex(r"(?:(?!.*a.{9}b)(?!.*c.{8}d).)*(?=.*a.{7}z)[a-d]{40}").node, work.done()
    with pytest.raises(BudgetExceeded, match="no answer after 2,000 states"):
        Derivatives(max_search=2_000).is_inhabited(root)
    assert work.done() - before < 25_000
