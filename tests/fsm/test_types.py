"""`fsm.types`: examples on both sides of every border, and the readers of the standard library as oracles."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import uuid

import pytest

import fsm
from fsm import types
from fsm.automaton.lazy_dfa import Automaton
from tests.examples import examples
from tests.walks import random_text

EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "integer": (["0", "7", "-1", "1234567890", "-90"], ["", "-0", "007", "1.0", "+1", "1e3", "٣", " 1"]),
    "number": (["0", "-0", "1.5", "-2.50", "1e3", "6.02E+23", "10"], ["", ".5", "1.", "01", "+1", "1e", "0x1", "NaN", "1,5"]),
    "boolean": (["true", "false"], ["True", "FALSE", "yes", "1", "", "truefalse"]),
    "date": (
        ["2026-02-28", "2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"],
        ["2026-02-29", "1900-02-29", "2026-04-31", "0000-01-01", "2026-13-01", "2026-1-1", "26-01-01", "2026-00-10"],
    ),
    "time": (
        ["00:00:00", "23:59:59", "12:30:00.5", "12:30:00.123456Z", "06:07:08+05:30", "06:07:08-23:59"],
        ["24:00:00", "12:60:00", "12:30:60", "12:30", "12:30:00.", "12:30:00.1234567", "1:30:00", "12:30:00+24:00"],
    ),
    "datetime": (
        ["2026-07-01T12:30:00", "2024-02-29T00:00:00Z", "2026-07-01T12:30:00.5+02:00", "1999-12-31T23:59:59", "0001-01-01T00:00:00"],
        ["2026-07-01", "2026-07-01 12:30:00", "2026-02-29T12:00:00", "2026-07-01T25:00:00", "12:30:00", "2026-07-01t12:30:00"],
    ),
    "email": (
        ["a@b.co", "first.last@example.org", "x+tag@sub.example.com", "o'neill@ex-ample.ie", "_@1.a1", "a" * 64 + "@example.org"],
        [
            "a@b", "a@", "@b.co", ".a@b.co", "a..b@b.co", "a@-b.co", "a@b-.co", "a@b.1", "a b@c.de", "a@b.co.",
            "a" * 65 + "@example.org", "a@" + "b" * 64 + ".co", "a@" + "b234567." * 32 + "co", "é@b.co",
        ],
    ),
    "uri": (
        [
            "https://example.org/a?b=c#d", "mailto:a@b.co", "http://[::1]:80/", "urn:isbn:0451450523", "ftp://u:p@h/x%20y",
            "file:///etc/hosts", "a:", "http://[v1.x:y]/",
        ],
        ["example.org", "//example.org", "http://[::1", "https://exa mple.org", "1http://a", "http://a/%2", "http://a/#a#b", "", "http://é.fr"],
    ),
    "uuid": (
        [
            "123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "123E4567-e89b-12d3-A456-426614174000", "01890a5d-ac96-774b-bcce-b302099a8057",
        ],
        [
            "123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400", "{123e4567-e89b-12d3-a456-426614174000}",
            "123e4567-e89b-12d3-a456-42661417400g", "123e4567-e89b-12d3-a4564-26614174000", "",
        ],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "192.168.0.1", "8.8.8.8", "127.0.0.1"],
        ["256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.", "1.2.3.-4", "a.b.c.d"],
    ),
    "ipv6": (
        ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "::ffff:192.0.2.1", "fe80::", "1:2:3:4:5:6:7::"],
        ["1:2:3:4:5:6:7", "1::2::3", ":::", "1:2:3:4:5:6:7:8:9", "12345::", "::256.0.0.1", "fe80::1%eth0", "g::", "1:2:3:4:5:6:7::8"],
    ),
    "semver": (
        ["0.0.0", "1.2.3", "10.20.30-rc.1", "1.0.0-alpha-a.b-c+build.007", "1.0.0+0.build.1", "1.0.0-0A.is.legal", "1.0.0--"],
        ["1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-01", "v1.2.3", "1.2.3-", "1.2.3+", "1.2.3-a..b", "1.2.3+a+b"],
    ),
    "hex_color": (["#fff", "#FFFF", "#a1b2c3", "#A1B2C3d4", "#000"], ["fff", "#ff", "#fffff", "#ggg", "#fffffff", "#fffffffff", ""]),
    "json_string": (
        ['""', '"a b"', r'"\n\u00e9\/"', '"é😀"', r'"\ud83d\ude00"', '"\x7f"'],
        ["", "a", '"', '"a', '"a\nb"', r'"\x41"', r'"\u12"', "'a'", '"a"b"', '"\\"'],
    ),
    "json_value": (
        ["{}", "[]", "null", "-1.5e3", '{"a": [1, {"b": null}], "c": "d"}', '[\n  1,\n  [\n    2\n  ]\n]', '[1,[2,[3,[[]]]]]', '{"a":{}}'],
        ["", "{", "[1,]", '{"a"}', '{"a":1,}', "{a: 1}", "nul", "[1 2]", " 1", "[1,  2]", "01", '{"a": 1}}', "[[]"],
    ),
    "markdown_list": (
        ["- a", "- a\n- b c", "* x\n* y\n* z", "1. a", "1. a\n2. b\n3. ü!", "+ -"],
        ["", "a", "-a", "- ", "- a\n", "- a\n* b", "1. a\n3. b", "2. a", "- a \n- b", "-  a", "1. a\n\n2. b"],
    ),
}  # fmt: skip


def test_every_type_has_examples_and_is_exported() -> None:
    assert sorted(EXAMPLES) == types.__all__ == dir(types)
    assert fsm.types is types
    with pytest.raises(AttributeError, match="no language 'postcode'"):
        types.postcode


@pytest.mark.parametrize("name", types.__all__)
def test_a_type_accepts_its_texts_and_no_others(name: str) -> None:
    language = getattr(types, name)
    accepted, rejected = EXAMPLES[name]
    assert repr(language) == f"types.{name}"
    assert getattr(types, name) is language
    assert [text for text in accepted if not language.accepts(text)] == []
    assert [text for text in rejected if language.accepts(text)] == []
    assert min(len(rejected), len(accepted) + 3 * (name == "boolean")) >= 5


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("integer", int), ("number", float), ("date", datetime.date.fromisoformat), ("time", datetime.time.fromisoformat),
        ("datetime", datetime.datetime.fromisoformat), ("uuid", uuid.UUID), ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address), ("json_string", json.loads), ("json_value", json.loads),
    ],
)  # fmt: skip
def test_what_is_written_can_be_read(name: str, read: object) -> None:
    assert callable(read)
    node = getattr(types, name).node
    for seed in range(examples(12)):
        read(random_text(node, random.Random(seed), 6 * seed).decode())


def test_every_day_of_a_calendar_is_a_date_and_no_other() -> None:
    days = [f"{y:04}-{m:02}-{d:02}" for y in (1, 4, 1900, 2000, 2026) for m in range(14) for d in range(33)]
    dates = Automaton(types.date.node)
    for text in days:
        try:
            datetime.date.fromisoformat(text)
        except ValueError:
            assert not dates.accepts(text.encode())
        else:
            assert dates.accepts(text.encode())


@pytest.mark.parametrize("text", ["[>1]", "[1>]", "[1>,2]", "[1,>2]", "[>]", '{>"a":1}', '{"a">:1}', '{"a":>1}', '{"a":1>}', "{>}"])
def test_lines_of_json_are_indented_by_forty_spaces_at_most(text: str) -> None:
    accepted = {n for n in (0, 1, 39, 40, 41, 80) if types.json_value.accepts(text.replace(">", "\n" + " " * n))}
    assert {0, 1, 39, 40} == accepted
    assert types.json_value.accepts(text.replace(">", " "))
    assert not types.json_value.accepts(text.replace(">", "  "))


def test_a_numbered_list_has_ninety_nine_items_at_most() -> None:
    items = [f"{n}. a" for n in range(1, 101)]
    sizes = (1, 2, 9, 10, 98, 99, 100)
    assert [n for n in sizes if types.markdown_list.accepts("\n".join(items[:n]))] == [*sizes[:-1]]
    assert not types.markdown_list.accepts("\n".join(items[1:3]))
