"""`format_node`: the known formats of strings as terms of the inside of a JSON string, by the table `STRING_FORMATS`. They follow their
standards, with the exceptions that `moment`, `address` and `uri` list; `byte`, `binary` and `password` are of the registry of OpenAPI,
`x-...` of Python types. `regex` is a part of ECMA-262; `idn-hostname` and `idn-email` are missing: which labels they allow depends on
tables of Unicode that change. The grammars of `uuid`, `byte`, `regex` and JSON pointers are here.

In a `regex`, groups are nested at most three deep, without names and references, and ranges of a class begin with `0`, `a` or `A`.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache, partial

from fsm.schema.formats import address, moment, uri
from fsm.schema.formats.parts import DIGIT, HEX, LETTERS_DIGITS, either, joined, one_of, text, times
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, invert, json_spelling
from fsm.terms.node import EMPTY, Node


@cache
def format_node(name: str) -> Node:
    """The inside of a JSON string in a known format of strings. Cost: about 0.1 ms, once for each format."""
    return STRING_FORMATS[name]()


def uuid() -> Node:
    """RFC 4122: 8-4-4-4-12 hexadecimal digits."""
    return joined(times(HEX, 8), times(joined(text("-"), times(HEX, 4)), 3), text("-"), times(HEX, 12))


def base64(signs: str = "+/") -> Node:
    """RFC 4648 section 4, or section 5 with the signs `-_`: padded, with zero bits as padding, so that every decoder reads it."""
    digits = LETTERS_DIGITS[26:52] + LETTERS_DIGITS[:26] + string.digits + signs
    digit = one_of(digits)
    last = joined(digit, either(joined(one_of("AQgw"), text("==")), joined(digit, one_of(digits[::4]), text("="))))
    return joined(nodes.repeat(times(digit, 4)), nodes.optional(last))


def any_text() -> Node:
    """Any string; the format is a hint for people."""
    return nodes.repeat(JSON_CHARACTER)


def json_pointer() -> Node:
    """RFC 6901 JSON Pointer."""
    plain = json_spelling(invert(((ord("/"), ord("/")), (ord("~"), ord("~")))))
    return nodes.repeat(joined(text("/"), nodes.repeat(either(plain, joined(text("~"), one_of("01"))))))


def relative_json_pointer() -> Node:
    """Relative JSON Pointer, as draft 2020-12 refers to it: a count of levels up, then a pointer or `#`."""
    up = either(text("0"), joined(one_of("123456789"), nodes.repeat(DIGIT)))
    return joined(up, either(text("#"), json_pointer()))


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
    alternative = nodes.repeat(either(assertion, joined(atom, quantifier)))
    return joined(alternative, nodes.repeat(joined(text("|"), alternative)))


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
    return joined(text("["), nodes.optional(text("^")), nodes.repeat(either(plain, ranges, _escape())), text("]"))


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
    "uri": uri.URI.absolute,
    "uri-reference": uri.URI.reference,
    "uri-template": uri.uri_template,
    "iri": uri.IRI.absolute,
    "iri-reference": uri.IRI.reference,
    "json-pointer": json_pointer,
    "relative-json-pointer": relative_json_pointer,
    "regex": regex,
}
OPENAPI_FORMATS: dict[str, Callable[[], Node]] = {"byte": base64, "binary": any_text, "password": any_text}
"""Formats of strings, after the registry of OpenAPI."""
OUR_FORMATS: dict[str, Callable[[], Node]] = {
    "x-local-date-time": moment.local_date_time,
    "x-clock": moment.clock,
    "x-mailbox": address.mailbox,
    "x-base64url": partial(base64, "-_"),
    "x-ipv4-interface": lambda: address.interface(address.ipv4(), 32),
    "x-ipv6-interface": lambda: address.interface(address.ipv6(), 128),
}
"""Formats of Python types, see `model.py`."""
STRING_FORMATS = FORMATS | OPENAPI_FORMATS | OUR_FORMATS
SPELLINGS = {
    "date": "`date`: no year 0000",
    "time": "`time`: no leap second, at most 9 digits of a fraction",
    "date-time": "`date-time`: no year 0000, no leap second, at most 9 digits of a fraction",
    "hostname": "`hostname`: at most 8 labels, none with `--` in the third and fourth place",
    "email": "`email`: at most 3 atoms of 20 characters, or 31 in quotes, before `@`, and 8 labels of 31 after it",
    "regex": "`regex`: groups at most three deep, without names and references",
    "byte": "`byte`: padded, the unused bits zero",
    "x-mailbox": "e-mail addresses: letters, digits, single dots and hyphens, a host name that is public",
    "x-clock": "times: no offset, at most 6 digits of a fraction",
    "x-local-date-time": "times of a day: no offset, at most 6 digits of a fraction",
}
"""By format, a sentence on what it allows and the term leaves out."""
