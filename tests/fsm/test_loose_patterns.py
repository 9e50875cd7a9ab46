"""Patterns that ECMA-262 refuses with the `u` flag and that are read all the same: like the same in Python's words, and told of."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm import Expression, json_schema
from fsm.pattern.ecma_pattern import read_loosely


class Part(NamedTuple):
    """A part of a pattern as a schema has it, what Python calls it, and what is told of it."""

    loose: str
    python: str
    told: frozenset[str] = frozenset()


def part(loose: str, python: str, *told: str) -> Part:
    return Part(loose, python, frozenset(told))


ATOMS = st.sampled_from(
    [
        *(part(same, same) for same in ("a", "b", "S", ".", "[a-b]", "[^a]", r"\w", "ab", "Sb", r"\n", r"\.")),
        part("]", r"\]", "a lone ']'"),
        part("}", r"\}", "a lone '}'"),
        part(r"\-", "-", r"'\-'"),
        part(r"\a", "a", r"'\a'"),
        part(r"\_", "_", r"'\_'"),
        part(r"[\w-.]", r"[\w.\-]", "'-' beside a class"),
        part(r"[+-\d]", r"[+\-0-9]", "'-' beside a class"),
        part(r"[-a]", r"[\-a]"),
        part(r"[a-]", r"[\-a]"),
        part(r"[^-a]", r"[^\-a]"),
        part(r"[\-b]", r"[\-b]"),
        part(r"[\b]", r"\x08"),
        part(r"\142", "b", r"'\1'"),
        part(r"\x6", "x6", r"'\x'"),
        part(r"\x61", "a"),
        part(r"\u61", "u61", r"'\u'"),
        part(r"\u0061", "a"),
        part(r"\u{62}", "b"),
        part(r"\cJ", r"\n"),
        part(r"\c!", r"\\c!", r"'\c'"),
        part("(?P<n_NUMBER>a)", "(?:a)", "(?P<...>)"),
        part("(?<m_NUMBER>a)", "(?:a)"),
    ]
)


def grow(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    def row(parts: list[Part]) -> Part:
        return Part(
            "".join(p.loose for p in parts),
            "".join(p.python for p in parts),
            frozenset().union(*(p.told for p in parts)),
        )

    def either(parts: list[Part]) -> Part:
        both = row(parts)
        return Part(f"(?:{'|'.join(p.loose for p in parts)})", f"(?:{'|'.join(p.python for p in parts)})", both.told)

    def times(args: tuple[Part, str]) -> Part:
        body, count = args
        return Part(f"(?:{body.loose}){count}", f"(?:{body.python}){count}", body.told)

    def flagged(args: tuple[str, Part]) -> Part:
        flags, body = args
        return Part(f"(?{flags}:{body.loose})", f"(?{flags}:{body.python})", body.told | {f"(?{flags}:...)"})

    def from_here(args: tuple[Part, str, Part]) -> Part:
        before, flags, after = args
        told = before.told | after.told | {f"(?{flags})"}
        return Part(f"(?:{before.loose}(?{flags}){after.loose})", f"(?:{before.python}(?{flags}:{after.python}))", told)

    flags = st.sampled_from(["i", "s", "is", "i-s", "-i", "-s", "-is"])
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,2}?"])
    rows = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        rows.map(row),
        rows.map(either),
        st.tuples(inner, counts).map(times),
        st.tuples(flags, inner).map(flagged),
        st.tuples(inner, flags, inner).map(from_here),
    )


PATTERNS = st.recursive(ATOMS, grow, max_leaves=8)
TEXTS = st.lists(st.text("abABS.\n-]}_+x6u1\\c!\b", max_size=5), min_size=2, max_size=8)


def written(loose: str) -> str:
    """The pattern with a name of its own for each group."""
    pieces = loose.split("NUMBER")
    return "".join(f"{piece}{number}" for number, piece in enumerate(pieces[:-1])) + pieces[-1]


def accepts(expression: Expression, text: str) -> bool:
    return expression.accepts(json.dumps(text, ensure_ascii=False))


@settings(max_examples=200)
@given(PATTERNS, TEXTS)
@example(part("(?i)Sb(?-i)ab", "(?i:Sb(?-i:ab))", "(?i)", "(?-i)"), ["sBab", "sBaB", "SB"])
@example(part("(?:a(?s).)b.", "(?:a(?s:.))b.", "(?s)"), ["a\nb\n", "a\nbx"])
def test_a_loose_pattern_is_read_as_python_reads_the_same(pattern: Part, texts: list[str]) -> None:
    loose = written(pattern.loose)
    expression = json_schema({"type": "string", "pattern": f"^(?:{loose})$"})
    python = re.compile(rf"(?:{pattern.python})\Z", re.ASCII)
    for text in texts:
        assert bool(python.match(text)) == accepts(expression, text), text
    (line,) = (line for line in expression.report if line.keyword == "pattern")
    assert pattern.told == set(read_loosely(loose))
    assert [said for said in pattern.told if said not in line.note] == []
    assert bool(pattern.told) == ("ECMA-262 refuses it" in line.note)


@pytest.mark.parametrize(
    ("loose", "python"),
    [
        ("^(?i)ab|c$", r"^(?i:ab)|(?i:c)\Z"),
        ("^(?:(?i)ab|c)d$", r"^(?:(?i:ab)|(?i:c))d\Z"),
        ("^a{$", r"^a\{\Z"),
        ("^a{,2}$", r"^a\{,2\}\Z"),
        ("^a{2}{$", r"^aa\{\Z"),
        (r"^(a)\2$", r"^a\x02\Z"),
        (r"^\08$", r"^\x008\Z"),
        (r"^\8$", r"^8\Z"),
        (r"^\400$", r"^ 0\Z"),
        (r"^(?i)aab{2}$", r"^(?i:aabb)\Z"),
        (r"^(?i)(?:ab|b)c$", r"^(?i:(?:ab|b)c)\Z"),
    ],
)
def test_where_loose_flags_and_signs_end(loose: str, python: str) -> None:
    expression = json_schema({"type": "string", "pattern": loose})
    texts = [
        "ab",
        "AB",
        "c",
        "C",
        "abd",
        "ABd",
        "ABD",
        "cd",
        "Cd",
        "CD",
        "a{",
        "a{,2}",
        "aa{",
        "aa",
        "a",
        "A",
        "a\x02",
        "\x008",
        "8",
        " 0",
    ]
    texts += ["aabb", "AABB", "aab", "bc", "BC", "abc", "ABC", "xab", "abx", "xc", "cx"]
    for text in texts:
        assert bool(re.search(python, text)) == accepts(expression, text), text
