r"""Patterns of ECMA-262 against Node.js, where it is installed with our version of Unicode: all properties over all characters, and random
patterns. Besides, properties, back-references and checked patterns by examples.
"""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from random import Random
from typing import Annotated, Any

import pytest
from pydantic import StringConstraints, TypeAdapter

from fsm import BudgetExceeded, Expression, SchemaError, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.pattern import ecma_matcher
from fsm.pattern.ecma_pattern import backtracking_matcher, ecma_search
from fsm.pattern.unicode_sets import in_both_cases, unicode_property
from fsm.schema.pattern_check import is_plain
from fsm.terms.characters import utf8
from scripts import unicode_tables
from tests import node
from tests.fuzz import patterns

needs_node = pytest.mark.skipif(bool(node.missing()), reason=node.missing() or "Node.js is here")


TABLES = unicode_tables.PATH.read_text(encoding="ascii").splitlines()


@needs_node
def test_properties_and_cases_are_those_of_node_for_every_character() -> None:
    tables = (unicode_tables.CATEGORIES, unicode_tables.SCRIPTS, unicode_tables.BINARY)
    some = (" ".join(table.split()[::step]) for table, step in zip(tables, (6, 20, 6), strict=True))
    assert set(unicode_tables.lines(*some)) <= set(TABLES)


@needs_node
@pytest.mark.slow
def test_all_properties_are_those_of_node_for_every_character() -> None:
    assert list(unicode_tables.lines()) == TABLES


def names() -> list[str]:
    """Every way to write a property."""
    found = ["Any", "ASCII", "Assigned"]
    for one in (*unicode_tables.CATEGORIES.split(), *unicode_tables.BINARY.split()):
        found += one.split("/")
    for key, table in (("gc", "CATEGORIES"), ("sc", "SCRIPTS"), ("scx", "SCRIPTS"), ("Script", "SCRIPTS")):
        for one in getattr(unicode_tables, table).split():
            found += [f"{key}={name}" for name in one.split("/")]
    return found


@needs_node
def test_all_names_of_properties_are_read_as_node_reads_them() -> None:
    """Those in no other case, too; a character of each set has the property."""
    with node.Node() as compared:
        for name in names():
            for written in (name, name.lower(), name.replace("_", ""), f"General_Category={name}", f"Script_Extensions={name}"):
                ranges = unicode_property(written)
                samples = [chr(edge) for pair in (ranges or ())[:3] for edge in pair]
                found = compared.found(rf"^\p{{{written}}}$", "u", samples)
                assert isinstance(found, str) == (ranges is None), written
                assert isinstance(found, str) or all(found), written


@needs_node
@pytest.mark.parametrize("seed", range(0, 4_000, 1_000))
def test_random_patterns_are_found_where_node_finds_them(seed: int) -> None:
    """As `python -m tests.fuzz patterns` does for as long as wanted."""
    counts = patterns.Counts()
    assert list(patterns.run(seed, 200, counts, count=12)) == []
    assert counts.found > 25


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("Script=Greek", "αΩ", "aа"),
        ("sc=Grek", "α", "\u0342"),
        ("scx=Grek", "α\u0342", "a"),
        ("Script_Extensions=Hiragana", "あー", "ア"),
        ("Emoji", "😀1#", "a"),
        ("EPres", "😀", "1"),
        ("White_Space", " \u2003\x85", "\ufeff"),
        ("Uppercase", "AⒶ", "a"),
        ("ID_Start", "aé漢", "1_"),
        ("AHex", "aF0", "gＡ"),
        ("RI", "🇩", "D"),
        ("sc=Zzzz", "\u0378", "a"),
        ("Script=Kawi", "\U00011f04", "a"),
    ],
)
def test_properties_are_in_the_automaton(name: str, inside: str, outside: str) -> None:
    expression = json_schema({"type": "string", "pattern": rf"^\p{{{name}}}+$"}, strict=True)
    opposite = Automaton(ecma_search(rf"^[^\p{{{name}}}]+$", utf8))
    for text in inside:
        assert expression.accepts(f'"{text}"')
        assert not opposite.accepts(text.encode())
    for text in outside:
        assert not expression.accepts(f'"{text}"')
        assert opposite.accepts(text.encode())


def test_case_is_ignored_by_simple_folding() -> None:
    classes = [("k", "kK\u212a"), ("s", "sSſ"), ("ß", "ßẞ"), ("σ", "Σσς"), ("i", "iI"), ("ı", "ı"), ("İ", "İ"), ("µ", "µΜμ")]
    for sign, equal in classes:
        ranges = in_both_cases(((ord(sign), ord(sign)),))
        assert {chr(c) for first, last in ranges for c in range(first, last + 1)} == set(equal)


def words(pattern: str, **more: Any) -> Expression:
    return json_schema({"type": "string", "pattern": pattern, **more})


ALWAYS_EMPTY = [r"^(\1|\1)$", r"^(a\1)?$", r"^(?:\1(a))?$", r"^(?:(a)|\1)$", r"^(?!(b)c)\1a?$", r"^(?<n>\k<n>)a?$", r"^(?:\2(x)|(a))?$"]


@pytest.mark.parametrize("pattern", ALWAYS_EMPTY)
def test_a_reference_to_a_group_that_cannot_have_matched_is_the_empty_text_and_regular(pattern: str) -> None:
    matcher, exact = backtracking_matcher(pattern), json_schema({"type": "string", "pattern": pattern}, strict=True)
    for text in ("", "a", "aa", "b", "x"):
        assert exact.accepts(f'"{text}"') == matcher.found_in(text)
    assert matcher.found_in("") or matcher.found_in("a")


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        (r"^(?<n>a|b)\k<n>$", ["aa", "bb"], ["ab", "a"]),
        (r"^(?<\u{61}é>a|b)\k<\u0061é>$", ["aa"], ["ab"]),
        (r"^(.+)-\1$", ["a-a", "é\n"[:1] + "-é"], ["a-b", "\n-\n"]),
        (r"^(?:(a)|b)*\1$", ["b", "ab", "aa", "baa"], ["bac"]),
        (r"(?<=\1(a))b", ["aab"], ["ab", "b"]),
        (r"^(?=(a+))a*b\1$", ["aba", "aabaa"], ["aaba"]),
        (r"^(?i)(k)\1$", ["kK", "k\u212a"], ["ks"]),
        (r"^(?:(a)?b)*?\1c$", ["babac", "abc"[1:]], ["a"]),
        (r"^(z)((a+)?(b+)?(c))*\3$", ["zaacbbbcac"[:8] + "aca"], ["z1"]),
    ],
)
def test_back_references_are_matched_by_backtracking(pattern: str, found: list[str], missed: list[str]) -> None:
    expression = words(pattern)
    assert [line.level for line in expression.report if line.keyword == "pattern"] == ["checked"]
    assert [text for text in found if not expression.accepts(json.dumps(text, ensure_ascii=False))] == []
    assert [text for text in missed if expression.accepts(json.dumps(text, ensure_ascii=False))] == []


READ_ALIKE = [r"^.$", r"^\s$", r"^\w$", r"^\d$", r"^[^\w]$", r"^\bé?a$", r"^\p{Emoji}?.$", "^(?i)k$", "a$", r"^\W\b", "^[.]$", r"^[\s\S]$"]
KEYS = ["a", "é", "k", "K", "\u212a", "\r", "\u2028", "\u0085", "\ufeff", "٣", "1", "😀", "éa", "a\n", ".", ""]


@pytest.mark.parametrize("pattern", READ_ALIKE)
def test_what_is_checked_is_read_as_in_the_automaton(pattern: str) -> None:
    """In `pattern`, `patternProperties` and `propertyNames`, beside back-references."""
    exact = json_schema({"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False})
    member = {pattern: {"type": "null"}, r"^(\ud7ff)\1$": True}
    checked = json_schema({"type": "object", "patternProperties": member, "additionalProperties": False})
    both = {"allOf": [{"pattern": pattern}, {"pattern": r"^(a?)[^]*\1$"}]}
    string = json_schema({"type": ["null", "string"]} | both)
    names = json_schema({"type": "object", "propertyNames": both})
    assert {line.level for line in checked.report if line.keyword == "patternProperties"} == {"checked"}
    for key in KEYS:
        member_text, text = json.dumps({key: None}, ensure_ascii=False), json.dumps(key, ensure_ascii=False)
        expected = backtracking_matcher(pattern).found_in(key)
        assert (expected, expected) == (exact.accepts(member_text), checked.accepts(member_text)), key
        is_both = expected and backtracking_matcher(r"^(a?)[^]*\1$").found_in(key)
        assert (is_both, is_both) == (string.accepts(text), names.accepts(member_text)), key


@pytest.mark.parametrize("pattern", [r"\b", r"\B", r"^.\b.$", r"^.\B.$", r"\ba\b", r"^\b\w+\b$", r"a\B\S", r"^\W\b"])
def test_a_word_boundary_of_a_type_is_one_for_pydantic_and_for_ecma(pattern: str) -> None:
    text = Annotated[str, StringConstraints(pattern=pattern)]
    expression, adapter = json_schema(text), TypeAdapter(text)
    made = ["".join(signs) for length in range(4) for signs in itertools.product("aé1-\u0301", repeat=length)]
    accepted = [one for one in made if expression.accepts(json.dumps(one, ensure_ascii=False))]
    assert accepted
    for one in accepted:
        assert adapter.validate_python(one) == one
        assert backtracking_matcher(pattern).found_in(one)


def test_several_key_patterns_that_are_not_regular_apply_to_their_keys() -> None:
    schema = {
        "type": "object",
        "patternProperties": {r"^(.)\1$": {"type": "null"}, r"^(.)(.)\2\1$": {"const": 1}, r"^\w+$": {"type": ["null", "integer"]}},
        "unevaluatedProperties": False,
        "properties": {"other": {"$ref": "#/patternProperties/%5E(.)%5C1$"}},
    }
    expression = json_schema(schema)
    for text, expected in [
        ('{"aa": null}', True),
        ('{"aa": 1}', False),
        ('{"abba": 1}', True),
        ('{"abba": 2}', False),
        ('{"abc": 2}', True),
        ('{"-a": 2}', False),
        ('{"--": null}', True),
        ('{"other": null}', True),
        ('{"other": 1}', False),
        ('{"aa": null, "abba": 1}', True),
    ]:
        assert expression.accepts(text) == expected, text


def test_only_what_every_dialect_reads_equally_is_plain() -> None:
    plain = ["", "a", "^a+$", "(?:a|b)*?", "[^a-z0-9_-]+", r"\.\\\(", "a{2}", "a{1,}?", "x y", "é", "[-a]"]
    other = [
        ".",
        r"\d",
        "(?=a)",
        "(?<n>a)",
        "[a&&b]",
        "[[a]",
        "a{,2}",
        "{",
        "]",
        r"\b",
        "(?i)a",
        "a{100}",
        r"\p{L}",
        r"\u0041",
        "[^]",
        "[]",
    ]
    assert [pattern for pattern in plain if not is_plain(pattern)] == []
    assert [pattern for pattern in other if is_plain(pattern)] == []


HOSTILE = [r"^(a*)*\1b", r"^(a|aa)+\1c", r"(.*)(.*)(.*)\1\2\3x$", r"(?=(a+)+\1c)", r"^((a?){30}a{30}\2)*$"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_the_matcher_ends_within_its_steps(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecma_matcher, "MAX_STEPS", 20_000)
    with suppress(BudgetExceeded):
        backtracking_matcher(pattern).found_in("a" * 500)
    with pytest.raises(BudgetExceeded, match="not decided within 20,000 steps"):
        backtracking_matcher(r"(.*)(.*)(.*)\1\2\3x").found_in("a" * 500)


@pytest.mark.parametrize("depth", [1, 49, 1_000])
def test_the_matcher_needs_no_recursion_for_deep_patterns(depth: int) -> None:
    assert backtracking_matcher("(" * depth + "a" + ")" * depth + r"\1").found_in("aa")
    looks = min(depth, 49)
    assert backtracking_matcher("(?=" * looks + "a" + ")" * looks + "a").found_in("ba")


def test_what_is_malformed_is_refused_when_it_is_compiled() -> None:
    random = Random(1)
    for wrong in (r"(?<n>a)\k<m>", r"\1", r"\p{RGI_Emoji}", r"\b*", r"\B?", "(?<=a)+", r"\p{Greek}"):
        place = random.choice([{"pattern": wrong}, {"not": {"pattern": wrong}}, {"patternProperties": {wrong: True}}])
        with pytest.raises(SchemaError, match="in pattern"):
            json_schema({"type": ["string", "object"], **place})
