"""Formats and types against regular expressions that say the same, written by hand after the standards: equal languages."""

from __future__ import annotations

import pytest

from fsm import json_schema, regex, types
from fsm.automaton.lazy_dfa import Automaton
from fsm.schema.keywords import formats
from fsm.schema.keywords.formats import format_node
from fsm.terms import node as nodes

DATE = (
    "(?!0000)(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
SECONDS = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
DAYS = "(?:N+Y(?:N+M(?:N+D)?)?|N+M(?:N+D)?|N+D)".replace("N", "[0-9]")
HOURS = "T(?:N+H(?:N+M(?:N+S)?)?|N+M(?:N+S)?|N+S)".replace("N", "[0-9]")
OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = rf"(?:{OCTET}\.){{3}}{OCTET}"
H16 = "[0-9A-Fa-f]{1,4}"
LS32 = f"(?:{H16}:{H16}|{IPV4})"
IPV6 = (
    f"(?:(?:{H16}:){{6}}{LS32}|::(?:{H16}:){{5}}{LS32}|(?:{H16})?::(?:{H16}:){{4}}{LS32}"
    f"|(?:(?:{H16}:){{0,1}}{H16})?::(?:{H16}:){{3}}{LS32}|(?:(?:{H16}:){{0,2}}{H16})?::(?:{H16}:){{2}}{LS32}"
    f"|(?:(?:{H16}:){{0,3}}{H16})?::{H16}:{LS32}|(?:(?:{H16}:){{0,4}}{H16})?::{LS32}"
    f"|(?:(?:{H16}:){{0,5}}{H16})?::{H16}|(?:(?:{H16}:){{0,6}}{H16})?::)"
)
LABEL = "(?![A-Za-z0-9-]{2}--)[A-Za-z0-9](?:[A-Za-z0-9-]{0,%d}[A-Za-z0-9])?"
FIRST, FURTHER = LABEL % 61, LABEL % 24
HOST = rf"{FIRST}(?:\.{FURTHER}){{0,7}}"
ATOM = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]{1,20}"
QUOTED = r'\\"(?:[ !#-\[\]-~]|\\\\(?:[ !#-\[\]-~]|\\["\\])){0,31}\\"'  # as JSON spells it
MAIL_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"
MAIL_DOMAIN = rf"(?:{MAIL_LABEL}(?:\.{MAIL_LABEL}){{0,7}}|\[(?:{IPV4}|IPv6:{IPV6})\])"
HEX = "[0-9A-Fa-f]"
ESCAPE = r'\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])'
POINTER = rf'(?:/(?:[^"\\/~\x00-\x1f]|{ESCAPE}|~[01])*)*'
PLANES = "".join(rf"\U{plane:04x}0000-\U{plane:04x}FFFD" for plane in range(1, 0xE))
BEYOND = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{PLANES}\U000E1000-\U000EFFFD"
PRIVATE = r"\ue000-\uf8ff\U000F0000-\U000FFFFD\U00100000-\U0010FFFD"


def base64(digits: str) -> str:
    return f"(?:[{digits}]{{4}})*(?:[{digits}][AQgw]==|[{digits}]{{2}}[AEIMQUYcgkosw048]=)?"


def uri_pattern(more: str, private: str, *, is_reference: bool) -> str:
    """RFC 3986, and 3987 with more characters: `scheme:` and what comes after it, or what comes without one."""
    plain = rf"A-Za-z0-9\-._~{more}!$&'()*+,;="
    encoded = f"%{HEX}{{2}}"
    inside = f"(?:[{plain}:@]|{encoded})"
    ascii_only = r"A-Za-z0-9\-._~!$&'()*+,;="
    host = rf"(?:\[(?:{IPV6}|[vV]{HEX}+\.[{ascii_only}:]+)\]|(?:[{plain}]|{encoded})*)"
    authority = f"//(?:(?:[{plain}:]|{encoded})*@)?{host}(?::[0-9]*)?(?:/{inside}*)*"
    rest = rf"(?:\?(?:{inside}|[/?{private}])*)?(?:\#(?:{inside}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+\-.]*:(?:{authority}|/(?:{inside}+(?:/{inside}*)*)?|{inside}+(?:/{inside}*)*|){rest}"
    if not is_reference:
        return absolute
    first = f"(?:[{plain}@]|{encoded})+"
    return f"(?:{absolute}|(?:{authority}|/(?:{inside}+(?:/{inside}*)*)?|{first}(?:/{inside}*)*|){rest})"


def template() -> str:
    literal = rf"[!#$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~{BEYOND}{PRIVATE}]|%{HEX}{{2}}"
    name = rf"(?:[A-Za-z0-9_]|%{HEX}{{2}})(?:\.?(?:[A-Za-z0-9_]|%{HEX}{{2}}))*"
    variable = rf"{name}(?:\*|:[1-9][0-9]{{0,3}})?"
    return rf"(?:{literal}|\{{[+\#./;?&]?{variable}(?:,{variable})*\}})*"


def ecma() -> str:
    """Patterns of ECMA-262 in groups three deep, as JSON spells them."""
    syntax = r"[$()*+./?\[\]^{|}]|\\\\"
    escape = rf"\\\\(?:[dDsSwWtnvfr]|{syntax}|c[A-Za-z]|x{HEX}{{2}}|u{HEX}{{4}})"
    ranges = "|".join(f"{known[0]}-[{known}]" for known in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    counts = "[0-9]{1,9},?|" + "|".join(f"[0-{high}],{high}" for high in range(10))
    quantifier = rf"(?:(?:[*+?]|\{{(?:{counts})\}})\??)?"
    short = r'\\["bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])'  # the escapes of JSON but for the backslash
    plain = rf'[^$()*+./?\[\]^{{|}}"\\\x00-\x1f]|{short}'
    klass = rf'\[\^?(?:[^\-\]^"\\\x00-\x1f]|{short}|{ranges}|{escape})*\]'
    inner = None
    for _ in range(4):
        group = rf"|\((?:\?:)?{inner}\)" if inner is not None else ""
        around = rf"|\(\?<?[=!]{inner}\)" if inner is not None else ""
        alternative = rf"(?:[$^]|\\\\[bB]{around}|(?:{plain}|\.|{escape}|{klass}{group}){quantifier})*"
        inner = rf"{alternative}(?:\|{alternative})*"
    assert inner is not None
    return inner


PATTERNS = {
    "date": DATE,
    "time": rf"{SECONDS}(?:\.[0-9]{{1,9}})?{OFFSET}",
    "date-time": rf"{DATE}[Tt]{SECONDS}(?:\.[0-9]{{1,9}})?{OFFSET}",
    "x-local-date-time": rf"{DATE}T{SECONDS}(?:\.[0-9]{{1,6}})?",
    "x-clock": rf"{SECONDS}(?:\.[0-9]{{1,6}})?",
    "duration": f"P(?:{DAYS}(?:{HOURS})?|{HOURS}|[0-9]+W)",
    "uuid": f"{HEX}{{8}}(?:-{HEX}{{4}}){{3}}-{HEX}{{12}}",
    "byte": base64("A-Za-z0-9+/"),
    "x-base64url": base64(r"A-Za-z0-9\-_"),
    "ipv4": IPV4,
    "ipv6": IPV6,
    "x-ipv4-interface": f"{IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?",
    "x-ipv6-interface": f"{IPV6}(?:/(?:[1-9]?[0-9]|1[01][0-9]|12[0-8]))?",
    "hostname": HOST,
    "email": rf"(?:{ATOM}(?:\.{ATOM}){{0,2}}|{QUOTED})@{MAIL_DOMAIN}",
    "x-mailbox": (
        r"[A-Za-z0-9]{1,20}(?:[.\-_+][A-Za-z0-9]{1,20}){0,2}@(?:[A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30})?\.){1,3}"
        r"(?!(?:arpa|invalid|local|localhost|onion|test)\Z)[a-z]{2,24}"
    ),
    "json-pointer": POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:\#|{POINTER})",
    "uri": uri_pattern("", "", is_reference=False),
    "uri-reference": uri_pattern("", "", is_reference=True),
    "iri": uri_pattern(BEYOND, PRIVATE, is_reference=False),
    "iri-reference": uri_pattern(BEYOND, PRIVATE, is_reference=True),
    "uri-template": template(),
    "regex": ecma(),
}  # fmt: skip


def is_same(node: nodes.Node, pattern: str) -> bool:
    other = regex(pattern).node
    pairs = (node, nodes.complement(other)), (other, nodes.complement(node))
    return all(Automaton(nodes.intersection(pair)).is_empty() for pair in pairs)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_format_is_what_a_pattern_says(name: str) -> None:
    assert is_same(format_node(name), PATTERNS[name])


TYPES = {
    "uri": PATTERNS["uri"],
    "ipv4": IPV4,
    "ipv6": IPV6,
    "date": DATE,
    "time": rf"{SECONDS}(?:\.[0-9]{{1,6}})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?",
    "boolean": "true|false",
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_what_a_pattern_says(name: str) -> None:
    assert is_same(getattr(types, name).node, TYPES[name])


HOSTS = [
    "a", "a.b", "a1.b2", "1.b", "a-b.c-d", "1.2.3.4", "[::1]", "a.b:0", "a.b:9999", "a.b:10000", "a.b:59999", "a.b:64999",
    "a.b:65499",
]  # fmt: skip
HOSTS += ["a.b:65529", "a.b:65535", "a.b:60000", "a.b:65000", "u@a.b", "u:p%20@a.b", "a" * 64 + "@a.b", "x--y.a"]
NO_HOSTS = [
    "", ":1", "a.b:", "a.b:00", "a.b:65536", "a.b:65540", "a.b:65600", "a.b:66000", "a.b:70000", "a.b:100000", "@a.b", "a@@b",
]  # fmt: skip
NO_HOSTS += [
    "1", "a.1", "a.1b", "256.1.1.1", "1.2.3", "[1]", "::1", "a_b.c", "a..b", "-a.b", "a-.b", "a" * 65 + "@a.b", "xy--z.a",
]  # fmt: skip


@pytest.mark.parametrize(("schemes", "scheme"), [(("http", "https"), "https"), (("ftp", "file"), "ftp"), (None, "x+1.-")])
def test_a_url_has_a_host_and_a_port(schemes: tuple[str, ...] | None, scheme: str) -> None:
    accepts = Automaton(formats.url(schemes)).accepts
    assert [host for host in HOSTS if not accepts(f"{scheme}://{host}".encode())] == []
    assert [host for host in NO_HOSTS if accepts(f"{scheme}://{host}".encode())] == []


@pytest.mark.parametrize(("start", "most", "most_mixed"), [("/", 1_000, 100), ("?", 1_000, 100), ("#", 200, 16)])
def test_the_rest_of_a_url_has_its_bounds(start: str, most: int, most_mixed: int) -> None:
    for schemes, before in ((("http",), "http://a.b"), (None, "x://a.b"), (None, "file:///"), (("file",), "file:///"))[
        : 4 if start != "#" else 2
    ]:
        accepts = Automaton(formats.url(schemes)).accepts
        begin = before if before[0] == "f" else before + start
        for plain, mixed, is_right in (
            (most, 0, True), (most + 1, 0, False), (0, most_mixed, True), (0, most_mixed + 1, False), (most, most_mixed, True),
            (most + 1, 1, False), (3, most_mixed, True), (3, most_mixed + 1, False),
        ):  # fmt: skip
            text = begin + "a" * plain + "é" * (mixed > 0) + "b" * (mixed - 1)
            assert is_right == accepts(text.encode()), (begin, plain, mixed)
    for length, is_right in ((1, True), (64, True), (65, False), (0, False)):
        assert is_right == Automaton(formats.url(("http",))).accepts(b"http://" + b"a" * length + b"@a.b")
    file = Automaton(formats.url(("file",)))
    assert not file.accepts(b"file://a/b")
    assert not file.accepts(b"file:/a")
    assert not file.accepts(b"http://a.b")
    assert not Automaton(formats.url(("http",))).accepts(b"file:///a")
    assert not Automaton(formats.url(("http",))).accepts(b"https://a.b")
    anything = Automaton(formats.url(None))
    assert anything.accepts(b"a" * 21 + b"://a.b")
    assert not anything.accepts(b"a" * 22 + b"://a.b")
    assert not anything.accepts(b"1a://a.b")


def number(most: str, together: str, digits: int, more: str) -> str:
    """Numbers as doubles or singles hold them: an exponent after one digit, after up to `digits`, and none after more."""
    fraction, small = r"(?:\.[0-9]{1,40})?", "-[0-9]{1,3}"
    long, short = (rf"(?:e(?:{small}|\+?(?:{large})))" for large in (most, together))
    nonzero = f"[1-9](?:{fraction}{long}?|[0-9]{{1,{digits - 1}}}{fraction}{short}?{more})"
    return rf"{nonzero}|0{fraction}{long}?|-(?:{nonzero}|0(?:\.[0-9]{{1,40}}{long}?|{long}))"


NUMBERS: list[tuple[dict[str, str], str]] = [
    ({"type": "integer"}, "0|-?[1-9][0-9]{0,39}"),
    ({"type": "number"}, number("[0-9]{1,2}|[12][0-9]{2}|30[0-7]", "[0-9]{1,2}", 40, "")),
    ({"type": "number", "format": "float"}, number("0?[0-9]|[12][0-9]|3[0-7]", "0?[0-9]|1[0-9]", 18, r"|[0-9]{18,37}(?:\.[0-9]{1,40})?")),
]


@pytest.mark.parametrize(("schema", "pattern"), NUMBERS, ids=["integer", "number", "float"])
def test_a_number_is_what_a_pattern_says(schema: dict[str, str], pattern: str) -> None:
    assert is_same(json_schema(schema).node, pattern)
