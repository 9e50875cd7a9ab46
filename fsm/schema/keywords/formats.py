r"""`format_node`: the values of `format` as terms of the inside of a JSON string, by the table `STRING_FORMATS`. They follow the grammars
of their standards; `byte`, `binary` and `password` are of the registry of OpenAPI, `x-...` of Python types. `idn-hostname` and `idn-email`
are missing: which labels they allow depends on tables of Unicode that change. Bounds on a whole length are replaced by stricter ones on its
parts and their number. Exceptions from the standards:

- dates and times (RFC 3339): without the year 0000, the leap second 60, which most parsers reject, and more than 9 digits of a fraction of
  a second. Days that a month does not have are excluded, and February 29 except in leap years;
- email: RFC 5321 `Mailbox`; the bounds of 64 and 255 octets for the two sides: a local part has at most 3 atoms of 20 characters or 31
  quoted ones, a domain at most 8 labels of 31. Address literals other than IPv4 and IPv6 are left out;
- hostname: RFC 1123; the bound of 253 characters: at most 8 labels, the first of 63 characters, the others of 26; those with `--` in the
  third and fourth place, reserved for Punycode, are left out;
- ipv6: RFC 4291 section 2.2, with an embedded IPv4 address, without a zone;
- regex: a part of ECMA-262. Groups are nested at most three deep, without names and references, and ranges of a class begin with `0`, `a`
  or `A`.

`url` are the URLs that pydantic accepts (`HttpUrl` and the like), of which these are left out: schemes in capital letters; hosts with
characters beyond ASCII, or with `--` in the third and fourth place of a label; user names beyond ASCII; the characters `"<>\^`{|}` and
blanks; more than 1,000 characters after the host (100 from the first one beyond ASCII on) or 200 after `#` (16 of those). So every URL is
far shorter than 2,083 bytes, pydantic's bound.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, Ranges, invert, json_spelling
from fsm.terms.node import EMPTY, EPSILON, Node


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


DIGIT = one_of(string.digits)
HEX = one_of(string.hexdigits)
LETTERS_DIGITS = string.ascii_letters + string.digits


def two_digits(lo: int, hi: int) -> Node:
    """The two-digit numbers from `lo` to `hi`."""
    return nodes.words(b"%02d" % n for n in range(lo, hi + 1))


def date() -> Node:
    """RFC 3339 full-date."""
    pairs = nodes.words(b"%02d" % n for n in range(4, 100, 4))
    leap_year = either(joined(times(DIGIT, 2), pairs), joined(pairs, text("00")))
    year = either(*(joined(times(text("0"), n), one_of("123456789"), times(DIGIT, 3 - n)) for n in range(4)))
    long_months, short_months = "01 03 05 07 08 10 12", "04 06 09 11"
    days = either(
        joined(either(*map(text, long_months.split())), text("-"), two_digits(1, 31)),
        joined(either(*map(text, short_months.split())), text("-"), two_digits(1, 30)),
        joined(text("02-"), two_digits(1, 28)),
    )
    return either(joined(year, text("-"), days), joined(leap_year, text("-02-29")))


def clock(fraction_digits: int = 6) -> Node:
    """Hours, minutes, seconds and an optional fraction."""
    fraction = nodes.optional(joined(text("."), times(DIGIT, 1, fraction_digits)))
    return joined(two_digits(0, 23), text(":"), two_digits(0, 59), text(":"), two_digits(0, 59), fraction)


def _offset() -> Node:
    return either(one_of("Zz"), joined(one_of("+-"), two_digits(0, 23), text(":"), two_digits(0, 59)))


def time() -> Node:
    """RFC 3339 full-time."""
    return joined(clock(9), _offset())


def date_time() -> Node:
    """RFC 3339 date-time."""
    return joined(date(), one_of("Tt"), clock(9), _offset())


def local_date_time() -> Node:
    """RFC 3339 date-time without the offset."""
    return joined(date(), text("T"), clock())


def duration() -> Node:
    """RFC 3339 appendix A: years, months, days, hours, minutes and seconds without a gap between them, or weeks."""
    second = _count("S")
    minute = joined(_count("M"), nodes.optional(second))
    hour = joined(_count("H"), nodes.optional(minute))
    clock_part = joined(text("T"), either(hour, minute, second))
    day = _count("D")
    month = joined(_count("M"), nodes.optional(day))
    year = joined(_count("Y"), nodes.optional(month))
    days = joined(either(year, month, day), nodes.optional(clock_part))
    return joined(text("P"), either(days, clock_part, _count("W")))


def _count(unit: str) -> Node:
    return joined(nodes.repeat(DIGIT, 1), text(unit))


def ipv4() -> Node:
    """RFC 2673 section 3.2: four decimal octets without leading zeros."""
    octet = nodes.words(b"%d" % n for n in range(256))
    return joined(octet, times(joined(text("."), octet), 3))


def ipv6() -> Node:
    """RFC 4291 section 2.2, in the grammar of RFC 3986."""
    h16 = times(HEX, 1, 4)
    group = joined(h16, text(":"))
    ls32 = either(joined(group, h16), ipv4())
    forms = [joined(times(group, 6), ls32)]
    for before in range(8):  # at most `before` groups precede `::`
        head = joined(times(group, 0, before - 1), h16) if before > 1 else h16
        head = nodes.optional(head) if before else EPSILON
        after = 5 - before
        tail = joined(times(group, after), ls32) if after >= 0 else (h16 if after == -1 else EPSILON)
        forms.append(joined(head, text("::"), tail))
    return either(*forms)


def interface(address: Node, bits: int) -> Node:
    """An IP address, and optionally how many of its bits are the network prefix."""
    return joined(address, nodes.optional(joined(text("/"), nodes.words(b"%d" % n for n in range(bits + 1)))))


def hostname() -> Node:
    """RFC 1123 host name."""
    edge, inner = one_of(LETTERS_DIGITS), one_of(LETTERS_DIGITS + "-")
    reserved = nodes.complement(joined(inner, inner, text("--"), nodes.repeat(inner)))
    first, further = (nodes.intersection((_label(edge, inner, most), reserved)) for most in (63, 26))
    return joined(first, times(joined(text("."), further), 0, 7))


def email() -> Node:
    """RFC 5321 Mailbox."""
    atom = times(one_of(_ATOM), 1, 20)
    quotable = json_spelling(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E)))
    escaped = joined(one_of("\\"), json_spelling(((0x20, 0x7E),)))
    quoted = joined(one_of('"'), times(either(quotable, escaped), 0, 31), one_of('"'))
    local = either(joined(atom, times(joined(text("."), atom), 0, 2)), quoted)
    label = _label(one_of(LETTERS_DIGITS), one_of(LETTERS_DIGITS + "-"), 31)
    domain = joined(label, times(joined(text("."), label), 0, 7))
    literal = joined(text("["), either(ipv4(), joined(text("IPv6:"), ipv6())), text("]"))
    return joined(local, text("@"), either(domain, literal))


_ATOM = LETTERS_DIGITS + "!#$%&'*+-/=?^_`{|}~"


def _label(edge: Node, inner: Node, most: int) -> Node:
    return joined(edge, nodes.optional(joined(times(inner, 0, most - 2), edge)))


def mailbox() -> Node:
    """The plain part of e-mail addresses: names of letters, digits and single dots or hyphens, a host name of the public kind."""
    some = one_of(LETTERS_DIGITS)
    local = joined(times(some, 1, 20), times(joined(one_of(".-_+"), times(some, 1, 20)), 0, 2))
    label = joined(times(some, 1, 30), times(joined(text("-"), times(some, 1, 30)), 0, 1))
    special = nodes.words((b"arpa", b"invalid", b"local", b"localhost", b"onion", b"test"))
    top = nodes.intersection((times(one_of(string.ascii_lowercase), 2, 24), nodes.complement(special)))
    return joined(local, text("@"), times(joined(label, text(".")), 1, 3), top)


_UNRESERVED, _SUB_DELIMS = LETTERS_DIGITS + "-._~", "!$&'()*+,;="
_ENCODED = joined(text("%"), HEX, HEX)
_PLANES = tuple((first, first + 0xFFFD) for first in range(0x10000, 0xE0000, 0x10000))
_IRI_CHARACTERS: Ranges = ((0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD))
_PRIVATE: Ranges = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


@dataclass(frozen=True, slots=True)
class _Syntax:
    """The grammar of RFC 3986, or of RFC 3987 with the characters that it adds.

    Attributes:
        more: characters beyond ASCII that are allowed wherever a letter is.
        private: those that are allowed only in a query.
    """

    more: Ranges = ()
    private: Ranges = ()

    def _one_of(self, characters: str) -> Node:
        return either(one_of(_UNRESERVED + characters), json_spelling(self.more), _ENCODED)

    @property
    def _authority(self) -> Node:
        userinfo = nodes.repeat(self._one_of(_SUB_DELIMS + ":"))
        future = joined(
            one_of("vV"), nodes.repeat(HEX, 1), text("."), nodes.repeat(one_of(_UNRESERVED + _SUB_DELIMS + ":"), 1)
        )
        host = either(joined(text("["), either(ipv6(), future), text("]")), nodes.repeat(self._one_of(_SUB_DELIMS)))
        port = nodes.optional(joined(text(":"), nodes.repeat(DIGIT)))
        return joined(nodes.optional(joined(userinfo, text("@"))), host, port)

    def _hierarchy(self, first_segment: Node) -> Node:
        """An authority with a path, or a path, whose first segment is `first_segment` if it does not begin with `/`."""
        segments = nodes.repeat(joined(text("/"), nodes.repeat(self._one_of(_SUB_DELIMS + ":@"))))
        rootless = joined(nodes.repeat(self._one_of(_SUB_DELIMS + ":@"), 1), segments)
        absolute = joined(text("/"), nodes.optional(rootless))
        return either(joined(text("//"), self._authority, segments), absolute, joined(first_segment, segments), EPSILON)

    @property
    def _rest(self) -> Node:
        """The query and the fragment, each of which may be absent."""
        plain = self._one_of(_SUB_DELIMS + ":@/?")
        query = joined(text("?"), nodes.repeat(either(plain, json_spelling(self.private))))
        return joined(nodes.optional(query), nodes.optional(joined(text("#"), nodes.repeat(plain))))

    def absolute(self) -> Node:
        """With a scheme."""
        scheme = joined(one_of(string.ascii_letters), nodes.repeat(one_of(LETTERS_DIGITS + "+-.")))
        hierarchy = self._hierarchy(nodes.repeat(self._one_of(_SUB_DELIMS + ":@"), 1))
        return joined(scheme, text(":"), hierarchy, self._rest)

    def reference(self) -> Node:
        """With a scheme; or without one, and then without a colon in the first segment."""
        relative = joined(self._hierarchy(nodes.repeat(self._one_of(_SUB_DELIMS + "@"), 1)), self._rest)
        return either(self.absolute(), relative)


URI = _Syntax()
"""RFC 3986."""
IRI = _Syntax(_IRI_CHARACTERS, _PRIVATE)
"""RFC 3987."""


def uri_template() -> Node:
    """RFC 6570 URI-Template, without the operators that it reserves."""
    reserved = set("\"%'<>\\^`{|}") - {"'"}
    ascii_literal = one_of("".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in reserved))
    literal = either(ascii_literal, json_spelling(_IRI_CHARACTERS), json_spelling(_PRIVATE), _ENCODED)
    varchar = either(one_of(LETTERS_DIGITS + "_"), _ENCODED)
    name = joined(varchar, nodes.repeat(joined(nodes.optional(text(".")), varchar)))
    length = joined(one_of("123456789"), times(DIGIT, 0, 3))
    variable = joined(name, nodes.optional(either(text("*"), joined(text(":"), length))))
    variables = joined(variable, nodes.repeat(joined(text(","), variable)))
    expression = joined(text("{"), nodes.optional(one_of("+#./;?&")), variables, text("}"))
    return nodes.repeat(either(literal, expression))


@lru_cache(maxsize=32)
def url(schemes: tuple[str, ...] | None) -> Node:
    """The URLs with one of these schemes, or with any: an address with a host, then a path, a query and a fragment.

    A URL of a file has no host. The module docstring lists what is left out.
    """
    hosted = schemes and nodes.words(scheme.encode() for scheme in schemes if scheme != "file")
    if schemes is None:
        later = one_of(string.ascii_lowercase + string.digits + "+-.")
        any_scheme = joined(one_of(string.ascii_lowercase), times(later, 0, 20))
        hosted = nodes.intersection((any_scheme, nodes.complement(text("file"))))
    forms = []
    if hosted:
        fragment = nodes.optional(joined(text("#"), _url_characters(200, 16)))
        forms.append(joined(hosted, text("://"), _url_authority(), nodes.optional(_url_path("/?")), fragment))
    if schemes is None or "file" in schemes:
        forms.append(joined(text("file://"), _url_path("/")))
    return either(*forms)


MAX_URL_BYTES = 2083
"""The bound of pydantic; no URL of ours is longer."""
_URL_CHARACTERS = LETTERS_DIGITS + "-._~!$&'()*+,;=:@/?%[]"


@cache
def _url_authority() -> Node:
    """An optional user, a host (a name whose last label begins with a letter, or an address) and an optional port."""
    number = joined(one_of(string.digits), nodes.repeat(one_of(LETTERS_DIGITS + "-")))
    before = joined(nodes.repeat(one_of(LETTERS_DIGITS + "-_.")), text("."))
    name = nodes.intersection((hostname(), nodes.complement(joined(nodes.optional(before), number))))
    host = either(name, ipv4(), joined(text("["), ipv6(), text("]")))
    user = joined(times(one_of(_UNRESERVED + _SUB_DELIMS + "%:"), 1, 64), text("@"))
    return joined(nodes.optional(user), host, nodes.optional(joined(text(":"), _port())))


def _port() -> Node:
    """0 to 65535."""
    nonzero = one_of("123456789")
    five = either(
        joined(one_of("12345"), times(DIGIT, 4)),
        joined(text("6"), one_of("01234"), times(DIGIT, 3)),
        joined(text("65"), one_of("01234"), times(DIGIT, 2)),
        joined(text("655"), one_of("012"), DIGIT),
        joined(text("6553"), one_of("012345")),
    )
    return either(text("0"), joined(nonzero, times(DIGIT, 0, 3)), five)


def _url_path(first: str) -> Node:
    """A path and a query that begin with one of the characters in `first`."""
    return joined(one_of(first), _url_characters(1_000, 100))


def _url_characters(ascii_only: int, mixed: int) -> Node:
    """At most `ascii_only` characters of ASCII, then nothing, or a character beyond ASCII and up to `mixed` in all from there."""
    plain, other = one_of(_URL_CHARACTERS), json_spelling(_IRI_CHARACTERS)
    return joined(times(plain, 0, ascii_only), nodes.optional(joined(other, times(either(plain, other), 0, mixed - 1))))


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
    "date": date,
    "time": time,
    "date-time": date_time,
    "duration": duration,
    "uuid": uuid,
    "email": email,
    "hostname": hostname,
    "ipv4": ipv4,
    "ipv6": ipv6,
    "uri": URI.absolute,
    "uri-reference": URI.reference,
    "uri-template": uri_template,
    "iri": IRI.absolute,
    "iri-reference": IRI.reference,
    "json-pointer": json_pointer,
    "relative-json-pointer": relative_json_pointer,
    "regex": regex,
}
OPENAPI_FORMATS: dict[str, Callable[[], Node]] = {"byte": base64, "binary": any_text, "password": any_text}
"""Formats of strings, after the registry of OpenAPI."""
OUR_FORMATS: dict[str, Callable[[], Node]] = {
    "x-local-date-time": local_date_time,
    "x-clock": clock,
    "x-mailbox": mailbox,
    "x-base64url": partial(base64, "-_"),
    "x-ipv4-interface": lambda: interface(ipv4(), 32),
    "x-ipv6-interface": lambda: interface(ipv6(), 128),
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
