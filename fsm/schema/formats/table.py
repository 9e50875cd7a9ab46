"""`STRING_FORMATS`: a table of the formats of strings, each a function that makes the term of the inside of a JSON string.

They follow their standards, with the exceptions that `moment`, `address` and `uri` list; `byte`, `binary` and `password` are of the
registry of OpenAPI. `regex` is a part of ECMA-262 with the `u` flag: groups are nested at most three deep, without names and references,
and ranges of a class begin with `0`, `a` or `A`. `idn-hostname` and `idn-email` are missing: which labels they allow depends on tables of
Unicode that change.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache

from fsm.schema.formats import address, moment, uri
from fsm.schema.formats.parts import DIGIT, HEX, LETTERS_DIGITS, any_number, either, joined, one_of, text, times
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, invert, json_spelling
from fsm.terms.node import EMPTY, Node


@cache
def uuid() -> Node:
    """RFC 4122: 8-4-4-4-12 hexadecimal digits."""
    return joined(times(HEX, 8), times(joined(text("-"), times(HEX, 4)), 3), text("-"), times(HEX, 12))


@cache
def base64() -> Node:
    """RFC 4648 section 4, padded, with zero bits as padding: every decoder reads it."""
    return _base64("+/")


@cache
def base64url() -> Node:
    """RFC 4648 section 5, padded as above."""
    return _base64("-_")


def _base64(signs: str) -> Node:
    digits = LETTERS_DIGITS[26:52] + LETTERS_DIGITS[:26] + string.digits + signs
    digit = one_of(digits)
    last = joined(digit, either(joined(one_of("AQgw"), text("==")), joined(digit, one_of(digits[::4]), text("="))))
    return joined(any_number(times(digit, 4)), nodes.optional(last))


@cache
def any_text() -> Node:
    """Any string; the format is a hint for people."""
    return nodes.repeat(JSON_CHARACTER)


@cache
def json_pointer() -> Node:
    """RFC 6901 JSON Pointer."""
    plain = json_spelling(invert(((ord("/"), ord("/")), (ord("~"), ord("~")))))
    return any_number(joined(text("/"), any_number(either(plain, joined(text("~"), one_of("01"))))))


@cache
def relative_json_pointer() -> Node:
    """Relative JSON Pointer, as draft 2020-12 refers to it: a count of levels up, then a pointer or `#`."""
    up = either(text("0"), joined(one_of("123456789"), any_number(DIGIT)))
    return joined(up, either(text("#"), json_pointer()))


@cache
def regex() -> Node:
    """A pattern of ECMA-262; the module docstring lists what is left out."""
    pattern = _pattern(EMPTY)
    for _ in range(_MAX_GROUPS):
        pattern = _pattern(pattern)
    return pattern


def _pattern(inside: Node) -> Node:
    """A pattern whose groups contain `inside`."""
    times_read = either(one_of("*+?"), joined(text("{"), _counts(), text("}")))
    quantifier = nodes.optional(joined(times_read, nodes.optional(text("?"))))
    assertion = either(one_of("^$"), joined(one_of("\\"), one_of("bB")), _group(inside, "(?=", "(?!", "(?<=", "(?<!"))
    plain = json_spelling(invert(tuple((ord(c), ord(c)) for c in sorted(_SYNTAX))))
    atom = either(plain, text("."), _escape(), _class(), _group(inside, "(", "(?:"))
    alternative = any_number(either(assertion, joined(atom, quantifier)))
    return joined(alternative, any_number(joined(text("|"), alternative)))


def _group(inside: Node, *openings: str) -> Node:
    return joined(nodes.words(opening.encode() for opening in openings), inside, text(")"))


def _counts() -> Node:
    """`n` or `n,`, or `n,m` of one digit each with n <= m."""
    both = nodes.words(b"%d,%d" % (n, m) for m in range(10) for n in range(m + 1))
    return either(joined(times(DIGIT, 1, 9), nodes.optional(text(","))), both)


def _escape() -> Node:
    control = joined(text("c"), one_of(string.ascii_letters))
    code = either(joined(text("x"), HEX, HEX), joined(text("u"), times(HEX, 4)))
    return joined(one_of("\\"), either(one_of("dDsSwWtnvfr" + _SYNTAX), control, code))


def _class() -> Node:
    alphabets = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    ranges = nodes.words(f"{known[0]}-{last}".encode() for known in alphabets for last in known)
    plain = json_spelling(invert(tuple((ord(c), ord(c)) for c in sorted("-\\]^"))))
    return joined(text("["), nodes.optional(text("^")), any_number(either(plain, ranges, _escape())), text("]"))


_MAX_GROUPS = 3
_SYNTAX = "$()*+./?[\\]^{|}"


FORMATS: dict[str, Callable[[], Node]] = {
    "date": moment.date,
    "time": moment.time,
    "date-time": moment.date_time,
    "duration": moment.duration,
    "uuid": uuid,
    "email": address.email,
    "hostname": address.hostname,
    "ipv4": address.ipv4,
    "ipv6": address.ipv6,
    "uri": uri.uri,
    "uri-reference": uri.uri_reference,
    "uri-template": uri.uri_template,
    "iri": uri.iri,
    "iri-reference": uri.iri_reference,
    "json-pointer": json_pointer,
    "relative-json-pointer": relative_json_pointer,
    "regex": regex,
}
OPENAPI_FORMATS: dict[str, Callable[[], Node]] = {"byte": base64, "binary": any_text, "password": any_text}
"""Formats of strings, after the registry of OpenAPI."""
OUR_FORMATS: dict[str, Callable[[], Node]] = {
    "x-local-date-time": moment.local_date_time,
    "x-clock": moment.local_time,
    "x-mailbox": address.mailbox,
    "x-base64url": base64url,
    "x-ipv4-interface": address.ipv4_interface,
    "x-ipv6-interface": address.ipv6_interface,
}
"""Formats of Python types, see `model.py`."""
STRING_FORMATS = FORMATS | OPENAPI_FORMATS | OUR_FORMATS
"""All formats of strings; a call takes about 0.1 ms, once for each format."""
SPELLINGS = {
    "date": "`date`: no year 0000",
    "time": "`time`: no leap second, at most 9 digits of a fraction",
    "date-time": "`date-time`: no year 0000, no leap second, at most 9 digits of a fraction",
    "hostname": "`hostname`: at most 8 labels, none with `--` in the third and fourth place",
    "email": "`email`: at most 3 atoms of 20 characters, or 31 in quotes, before `@`, and 8 labels of 31 after it",
    "regex": "`regex`: groups at most three deep, without names and references",
    "byte": "`byte`: padded, the bits that stand for nothing zero",
    "x-mailbox": "e-mail addresses: letters, digits, single dots and hyphens, a host name that is public",
    "x-clock": "times: no offset, at most 6 digits of a fraction",
    "x-local-date-time": "times of a day: no offset, at most 6 digits of a fraction",
}
"""By format, a sentence on what it allows and the term leaves out."""
