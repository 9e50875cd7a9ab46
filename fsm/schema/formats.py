"""Formats: the languages that the values of `format` name, as the inside of a JSON string.

Exact after their standards, but for this:

- date, date-time: the year 0000 is left out, which most readers refuse (RFC 3339 allows it);
- time, date-time: the leap second 60 is left out for the same reason; a fraction has at most 9 digits;
- email: RFC 5321 `Mailbox`; the bounds of 64 and 255 octets for the two sides are kept by bounds on their parts: a local
  part has at most 3 atoms of 20 characters or 31 quoted ones, a domain at most 8 labels of 31. Address literals other than
  IPv4 and IPv6 are left out;
- ipv6: RFC 4291 section 2.2, with an embedded IPv4 address, without a zone;
- uri: RFC 3986 `URI` (with a scheme).
"""

from __future__ import annotations

import string
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache

from fsm import node as nodes
from fsm.characters import json_spelling
from fsm.errors import SchemaError
from fsm.node import EPSILON, Node


def format_node(name: str, pointer: str) -> Node:
    """The inside of a JSON string in the format `name`.

    Raises:
        SchemaError: the format is unknown here.

    Cost: some 0.1 ms once per format.
    """
    build = FORMATS.get(name) or OUR_FORMATS.get(name)
    if build is None:
        near = get_close_matches(name, FORMATS, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise SchemaError(
            f"format {name!r} is not supported; known are {', '.join(FORMATS)}. {hint}"
            'Write a `pattern` instead, or pass formats="annotate" to enforce no format',
            pointer,
        )
    return build()


def text(characters: str) -> Node:
    """Exactly these ASCII characters, none of which a JSON string escapes."""
    return nodes.literal(characters.encode())


def one_of(characters: str) -> Node:
    """One of these ASCII characters."""
    return json_spelling(tuple(sorted((ord(c), ord(c)) for c in characters)))


def either(*options: Node) -> Node:
    """Any of the options."""
    return nodes.alternation(options)


def joined(*parts: Node) -> Node:
    """The parts one after the other."""
    return nodes.sequence(parts)


def times(part: Node, lo: int, hi: int | None = None) -> Node:
    """`part` from `lo` to `hi` times; without `hi` exactly `lo` times."""
    return nodes.repeat(part, lo, lo if hi is None else hi)


def any_number(part: Node, lo: int = 0) -> Node:
    """`part` at least `lo` times."""
    return nodes.repeat(part, lo)


DIGIT = one_of(string.digits)
HEX = one_of(string.hexdigits)
_LETTERS_DIGITS = string.ascii_letters + string.digits


def two_digits(lo: int, hi: int) -> Node:
    """The two-digit numbers from `lo` to `hi`."""
    return nodes.words(b"%02d" % n for n in range(lo, hi + 1))


@cache
def date() -> Node:
    """RFC 3339 full-date."""
    pairs = nodes.words(b"%02d" % n for n in range(4, 100, 4))
    leap_year = either(joined(times(DIGIT, 2), pairs), joined(pairs, text("00")))
    nonzero = one_of("123456789")
    year = either(*(joined(times(text("0"), n), nonzero, times(DIGIT, 3 - n)) for n in range(4)))
    long_months, short_months = "01 03 05 07 08 10 12", "04 06 09 11"
    days = either(
        joined(either(*map(text, long_months.split())), text("-"), two_digits(1, 31)),
        joined(either(*map(text, short_months.split())), text("-"), two_digits(1, 30)),
        joined(text("02-"), two_digits(1, 28)),
    )
    return either(joined(year, text("-"), days), joined(leap_year, text("-02-29")))


def clock(fraction_digits: int) -> Node:
    """Hours, minutes, seconds and an optional fraction."""
    fraction = nodes.optional(joined(text("."), times(DIGIT, 1, fraction_digits)))
    return joined(two_digits(0, 23), text(":"), two_digits(0, 59), text(":"), two_digits(0, 59), fraction)


def offset(most_hours: int = 23) -> Node:
    """`Z`, or hours and minutes from UTC."""
    return either(one_of("Zz"), joined(one_of("+-"), two_digits(0, most_hours), text(":"), two_digits(0, 59)))


@cache
def time() -> Node:
    """RFC 3339 full-time."""
    return joined(clock(9), offset())


@cache
def date_time() -> Node:
    """RFC 3339 date-time."""
    return joined(date(), one_of("Tt"), clock(9), offset())


@cache
def local_date_time() -> Node:
    """RFC 3339 date-time without the offset."""
    return joined(date(), text("T"), clock(6))


@cache
def local_time() -> Node:
    """Hours, minutes and seconds, without an offset."""
    return clock(6)


@cache
def uuid() -> Node:
    """RFC 4122: 8-4-4-4-12 hexadecimal digits."""
    return joined(times(HEX, 8), times(joined(text("-"), times(HEX, 4)), 3), text("-"), times(HEX, 12))


@cache
def ipv4() -> Node:
    """RFC 2673 section 3.2: four decimal octets without leading zeros."""
    octet = nodes.words(b"%d" % n for n in range(256))
    return joined(octet, times(joined(text("."), octet), 3))


@cache
def ipv6() -> Node:
    """RFC 4291 section 2.2, in the grammar of RFC 3986."""
    h16 = times(HEX, 1, 4)
    group = joined(h16, text(":"))
    ls32 = either(joined(group, h16), ipv4())
    forms = [joined(times(group, 6), ls32)]
    for before in range(8):  # at most `before` groups stand before `::`
        head = joined(times(group, 0, before - 1), h16) if before > 1 else h16
        head = nodes.optional(head) if before else EPSILON
        after = 5 - before
        tail = joined(times(group, after), ls32) if after >= 0 else (h16 if after == -1 else EPSILON)
        forms.append(joined(head, text("::"), tail))
    return either(*forms)


@cache
def email() -> Node:
    """RFC 5321 Mailbox."""
    atom = times(one_of(_LETTERS_DIGITS + "!#$%&'*+-/=?^_`{|}~"), 1, 20)
    quotable = json_spelling(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E)))
    escaped = joined(one_of("\\"), json_spelling(((0x20, 0x7E),)))
    quoted = joined(one_of('"'), times(either(quotable, escaped), 0, 31), one_of('"'))
    local = either(joined(atom, times(joined(text("."), atom), 0, 2)), quoted)
    edge, inner = one_of(_LETTERS_DIGITS), one_of(_LETTERS_DIGITS + "-")
    label = joined(edge, nodes.optional(joined(times(inner, 0, 29), edge)))
    domain = joined(label, times(joined(text("."), label), 0, 7))
    literal = joined(text("["), either(ipv4(), joined(text("IPv6:"), ipv6())), text("]"))
    return joined(local, text("@"), either(domain, literal))


@cache
def mailbox() -> Node:
    """The plain part of e-mail addresses: names of letters, digits and single dots or hyphens, a host name of the public kind."""
    some = one_of(_LETTERS_DIGITS)
    local = joined(times(some, 1, 20), times(joined(one_of(".-_+"), times(some, 1, 20)), 0, 2))
    label = joined(times(some, 1, 30), times(joined(text("-"), times(some, 1, 30)), 0, 1))
    special = nodes.words((b"arpa", b"invalid", b"local", b"localhost", b"onion", b"test"))
    top = nodes.intersection((times(one_of(string.ascii_lowercase), 2, 24), nodes.complement(special)))
    return joined(local, text("@"), times(joined(label, text(".")), 1, 3), top)


@cache
def uri() -> Node:
    """RFC 3986 URI."""
    unreserved, sub_delims = _LETTERS_DIGITS + "-._~", "!$&'()*+,;="
    encoded = joined(text("%"), HEX, HEX)
    pchar = either(one_of(unreserved + sub_delims + ":@"), encoded)
    userinfo = any_number(either(one_of(unreserved + sub_delims + ":"), encoded))
    reg_name = any_number(either(one_of(unreserved + sub_delims), encoded))
    future = joined(one_of("vV"), any_number(HEX, 1), text("."), any_number(one_of(unreserved + sub_delims + ":"), 1))
    host = either(joined(text("["), either(ipv6(), future), text("]")), reg_name)
    port = nodes.optional(joined(text(":"), any_number(DIGIT)))
    authority = joined(nodes.optional(joined(userinfo, text("@"))), host, port)
    segments = any_number(joined(text("/"), any_number(pchar)))
    rootless = joined(any_number(pchar, 1), segments)
    absolute = joined(text("/"), nodes.optional(rootless))
    hierarchy = either(joined(text("//"), authority, segments), absolute, rootless, EPSILON)
    rest = any_number(either(pchar, one_of("/?")))
    scheme = joined(one_of(string.ascii_letters), any_number(one_of(_LETTERS_DIGITS + "+-.")))
    query, fragment = (nodes.optional(joined(text(mark), rest)) for mark in "?#")
    return joined(scheme, text(":"), hierarchy, query, fragment)


FORMATS: dict[str, Callable[[], Node]] = {
    "date": date,
    "time": time,
    "date-time": date_time,
    "uuid": uuid,
    "email": email,
    "ipv4": ipv4,
    "ipv6": ipv6,
    "uri": uri,
}
OUR_FORMATS: dict[str, Callable[[], Node]] = {
    "x-local-date-time": local_date_time,
    "x-clock": local_time,
    "x-mailbox": mailbox,
}
"""Formats of Python types, see `model.py`."""
