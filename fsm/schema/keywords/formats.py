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
blanks; more hosts than one; more than 1,000 characters after the host (100 from the first one beyond ASCII on) or 200 after `#` (16 of
those). So every URL is far shorter than 2,083 bytes, pydantic's bound.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache, lru_cache

from fsm.pattern.ecma_pattern import ecma_search
from fsm.terms import node as nodes
from fsm.terms.characters import json_spelling
from fsm.terms.node import Node

ALPHANUMERIC = "A-Za-z0-9"
"""Letters and digits, inside of a class."""
_HEX = "[0-9A-Fa-f]"


def matched(pattern: str) -> Node:
    """The inside of the JSON strings that a pattern of ECMA-262 matches from end to end."""
    return ecma_search(f"^(?:{pattern})$", json_spelling)


_DATE = (
    r"(?:(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-(?:"
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[13579][26]|[2468][048])|(?:0[48]|[13579][26]|[2468][048])00)-02-29)"
)
"""RFC 3339 full-date; 29 February is in leap years alone."""
_MINUTE = r"(?:[01]\d|2[0-3]):[0-5]\d"
_CLOCK = rf"{_MINUTE}:[0-5]\d(?:\.\d{{1,6}})?"
_TIME = rf"{_MINUTE}:[0-5]\d(?:\.\d{{1,9}})?(?:[Zz]|[+-]{_MINUTE})"
"""RFC 3339 full-time."""
_HOURS = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION = rf"P(?:(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{_HOURS})?|{_HOURS}|\d+W)"
"""RFC 3339 appendix A: years, months, days, hours, minutes and seconds without a gap between them, or weeks."""
_OCTET = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
"""RFC 2673 section 3.2: four decimal octets without leading zeros."""


def _ipv6() -> str:
    """RFC 4291 section 2.2, in the grammar of RFC 3986."""
    h16 = f"{_HEX}{{1,4}}"
    ls32 = f"(?:{h16}:{h16}|{_IPV4})"
    forms = [f"(?:{h16}:){{6}}{ls32}"]
    for before in range(8):  # at most `before` groups precede `::`
        head = f"(?:(?:{h16}:){{0,{before - 1}}}{h16})?" if before else ""
        forms.append(f"{head}::" + (f"(?:{h16}:){{{5 - before}}}{ls32}" if before < 6 else h16 if before == 6 else ""))
    return f"(?:{'|'.join(forms)})"


_IPV6 = _ipv6()


def _label(most: int) -> str:
    return f"[{ALPHANUMERIC}](?:[{ALPHANUMERIC}-]{{0,{most - 2}}}[{ALPHANUMERIC}])?"


@cache
def hostname() -> Node:
    """RFC 1123 host name."""
    reserved = nodes.complement(matched(f"[{ALPHANUMERIC}-]{{2}}--[{ALPHANUMERIC}-]*"))
    first, further = (nodes.intersection((matched(_label(most)), reserved)) for most in (63, 26))
    return nodes.concat(first, nodes.repeat(nodes.concat(matched(r"\."), further), 0, 7))


def _ipv4_network() -> str:
    """IPv4 networks: the bits after those of the prefix are zero; an address without a prefix is a network, too."""
    found = [rf"{_IPV4}(?:/32)?"]
    for prefix in range(32):
        whole, bits = divmod(prefix, 8)
        part = "|".join(map(str, range(0, 256, 1 << (8 - bits))))
        found.append(rf"(?:{_OCTET}\.){{{whole}}}(?:{part})(?:\.0){{{3 - whole}}}/{prefix}")
    return f"(?:{'|'.join(found)})"


def _ipv6_network() -> str:
    """IPv6 networks, with `::` for all groups after those of the prefix, or earlier; an address without a prefix is one, too."""
    rest = ""
    for groups in reversed(range(8)):  # what may follow so many groups, each with a colon
        start, zeros = ":" if groups else "::", ":0" * (7 - groups)
        ends = [f"(?:{start}|0{zeros})/(?:{'|'.join(map(str, range(16 * groups, 129)))})"]
        for bits in range(1, 16):  # of a group that the prefix cuts; zeros before it may be left out
            digits, cut = divmod(bits, 4)
            last = f"[{''.join(f'{digit:x}' for digit in range(0, 16, 1 << (4 - cut)))}]" if cut else ""
            group = f"{_HEX}{{{0 if cut else 1},{digits}}}{last}{'0' * (4 - digits - bool(cut))}"
            ends.append(f"{group}{f'(?:::|{zeros})' if zeros else ''}/{16 * groups + bits}")
        rest = f"(?:{'|'.join([*ends, f'{_HEX}{{1,4}}:{rest}'] if rest else ends)})"
    return f"(?:{_IPV6}(?:/128)?|{rest})"


_ATOM = rf"[{ALPHANUMERIC}!#$%&'*+\-/=?^_`{{|}}~]{{1,20}}"
_EMAIL = (
    rf'(?:{_ATOM}(?:\.{_ATOM}){{0,2}}|"(?:[ !#-\[\]-~]|\\[ -~]){{0,31}}")'
    rf"@(?:{_label(31)}(?:\.{_label(31)}){{0,7}}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
)
"""RFC 5321 Mailbox."""


def mailbox() -> Node:
    """The plain part of e-mail addresses: names of letters, digits and single dots or hyphens, a host name of the public kind."""
    some = f"[{ALPHANUMERIC}]"
    name = rf"{some}{{1,20}}(?:[.\-_+]{some}{{1,20}}){{0,2}}@(?:{some}{{1,30}}(?:-{some}{{1,30}})?\.){{1,3}}"
    special = matched("arpa|invalid|local|localhost|onion|test")
    return nodes.concat(matched(name), nodes.intersection((matched("[a-z]{2,24}"), nodes.complement(special))))


_UNRESERVED, _SUB_DELIMS = rf"{ALPHANUMERIC}\-._~", "!$&'()*+,;="
_ENCODED = f"%{_HEX}{{2}}"
_PLANES = "".join(rf"\u{{{first:x}}}-\u{{{first + 0xFFFD:x}}}" for first in range(0x10000, 0xE0000, 0x10000))
_IRI_CHARACTERS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}\u{{e1000}}-\u{{efffd}}"
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"


def _uri(more: str = "", private: str = "", *, is_reference: bool = False) -> str:
    """The grammar of RFC 3986, or of RFC 3987 with the characters that it adds.

    Args:
        more: characters beyond ASCII that are allowed wherever a letter is.
        private: those that are allowed only in a query.
        is_reference: whether the scheme may be absent; then there is no colon in the first segment.
    """
    basic = f"{_UNRESERVED}{more}{_SUB_DELIMS}"
    character, plain = f"(?:[{basic}:@]|{_ENCODED})", f"(?:[{basic}:@/?]|{_ENCODED})"
    future = rf"[vV]{_HEX}+\.[{_UNRESERVED}{_SUB_DELIMS}:]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{basic}]|{_ENCODED})*)"
    authority = rf"(?:(?:[{basic}:]|{_ENCODED})*@)?{host}(?::\d*)?"
    segments = f"(?:/{character}*)*"
    rest = rf"(?:\?(?:{plain}|[{private}])*)?(?:#{plain}*)?" if private else rf"(?:\?{plain}*)?(?:#{plain}*)?"
    paths = f"//{authority}{segments}|/(?:{character}+{segments})?|"  # after a scheme or none, before the first segment
    absolute = rf"[A-Za-z][{ALPHANUMERIC}+\-.]*:(?:{paths}{character}+{segments})?{rest}"
    relative = f"(?:{paths}(?:[{basic}@]|{_ENCODED})+{segments})?{rest}"
    return f"(?:{absolute}|{relative})" if is_reference else absolute


def _uri_template() -> str:
    """RFC 6570 URI-Template, without the operators that it reserves."""
    literal = rf"[!#$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_IRI_CHARACTERS}{_PRIVATE}]|{_ENCODED}"
    varchar = f"(?:[{ALPHANUMERIC}_]|{_ENCODED})"
    variable = rf"{varchar}(?:\.?{varchar})*(?:\*|:[1-9]\d{{0,3}})?"
    return rf"(?:{literal}|\{{[+#./;?&]?{variable}(?:,{variable})*\}})*"


@lru_cache(maxsize=32)
def url(schemes: tuple[str, ...] | None, *, lists_hosts: bool = False, is_strict: bool = False) -> Node:
    """The URLs with one of these schemes, or with any: an address with a host, then a path, a query and a fragment.

    A URL of a file has no host. With `is_strict`, as pydantic reads one in strict mode, no brackets are after the host, and `%` is before
    two digits. With `lists_hosts` a comma before the host separates hosts, so there is none. The module docstring lists
    what is left out.
    """
    hosted = schemes and nodes.words(scheme.encode() for scheme in schemes if scheme != "file")
    if schemes is None:
        hosted = nodes.intersection((matched(r"[a-z][a-z0-9+\-.]{0,20}"), nodes.complement(nodes.literal(b"file"))))
    forms = []
    if hosted:
        rest = matched(f"(?:[/?]{_url_characters(1_000, 100, is_strict)})?(?:#{_url_characters(200, 16, is_strict)})?")
        forms.append(nodes.sequence((hosted, nodes.literal(b"://"), _url_authority(lists_hosts, is_strict), rest)))
    if schemes is None or "file" in schemes:
        forms.append(matched(f"file:///{_url_characters(1_000, 100, is_strict)}"))
    return nodes.alternation(forms)


MAX_URL_BYTES = 2083
"""The bound of pydantic; no URL of ours is longer."""


@cache
def _url_authority(lists_hosts: bool, is_strict: bool) -> Node:
    """An optional user, a host (a name whose last label begins with a letter, or an address) and an optional port."""
    number = matched(rf"(?:[{ALPHANUMERIC}\-_.]*\.)?\d[{ALPHANUMERIC}-]*")
    name = nodes.intersection((hostname(), nodes.complement(number)))
    signs = _SUB_DELIMS.replace(",", "") if lists_hosts else _SUB_DELIMS
    plain = f"[{_UNRESERVED}{signs}:]"
    name_and_password = (
        f"(?:{plain}{{1,64}}|(?:{plain}|{_ENCODED}){{1,21}})" if is_strict else f"[{_UNRESERVED}{signs}%:]{{1,64}}"
    )
    user = matched(f"(?:{name_and_password}@)?")
    port = r"0|[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"
    host = nodes.alternation((name, matched(rf"{_IPV4}|\[{_IPV6}\]")))
    return nodes.sequence((user, host, matched(f"(?::(?:{port}))?")))


def _url_characters(ascii_only: int, mixed: int, is_strict: bool) -> str:
    """At most `ascii_only` characters of ASCII, then nothing, or a character beyond ASCII and up to `mixed` in all from there."""
    plain = f"{_UNRESERVED}{_SUB_DELIMS}:@/?"
    if not is_strict:
        plain = rf"{plain}%\[\]"
        return f"[{plain}]{{0,{ascii_only}}}(?:[{_IRI_CHARACTERS}][{plain}{_IRI_CHARACTERS}]{{0,{mixed - 1}}})?"
    ascii_text = f"(?:[{plain}]{{0,{ascii_only}}}|(?:[{plain}]|{_ENCODED}){{0,{ascii_only // 3}}})"
    return f"{ascii_text}(?:[{_IRI_CHARACTERS}](?:[{plain}{_IRI_CHARACTERS}]|{_ENCODED}){{0,{mixed - 1}}})?"


@cache
def format_node(name: str) -> Node:
    """The inside of a JSON string in a known format of strings. Cost: about 1 ms, once for each format."""
    known = STRING_FORMATS[name]
    return matched(known) if isinstance(known, str) else known()


def _base64(signs: str) -> str:
    """RFC 4648 section 4, or section 5 with the signs `-_`: padded, with zero bits as padding, so that every decoder reads it."""
    digit, fourth = f"[{ALPHANUMERIC}{signs}]", "AEIMQUYcgkosw048"
    return f"(?:{digit}{{4}})*(?:{digit}(?:[AQgw]==|{digit}[{fourth}]=))?"


_POINTER = "(?:/(?:[^/~]|~[01])*)*"
"""RFC 6901 JSON Pointer."""


def _regex() -> str:
    """A pattern of ECMA-262; the module docstring lists what is left out."""
    counts = "|".join(f"[0-{most}],{most}" for most in range(10))  # `n,m` of one digit each with n <= m
    quantifier = rf"(?:(?:[*+?]|\{{(?:\d{{1,9}},?|{counts})\}})\??)?"
    escape = rf"\\(?:[dDsSwWtnvfr{_SYNTAX}]|c[A-Za-z]|x{_HEX}{{2}}|u{_HEX}{{4}})"
    ranges = "|".join(
        f"{s[0]}-[{s[0]}-{s[-1]}]" for s in (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    )
    characters = rf"\[\^?(?:[^\-\\\]^]|{ranges}|{escape})*\]"
    pattern = ""
    for depth in range(_MAX_GROUPS + 1):
        looks, groups = (rf"|\(\?<?[=!]{pattern}\)", rf"|\((?:\?:)?{pattern}\)") if depth else ("", "")
        atom = rf"(?:[^{_SYNTAX}]|\.|{escape}|{characters}{groups})"
        alternative = rf"(?:[$^]|\\[bB]{looks}|{atom}{quantifier})*"
        pattern = rf"{alternative}(?:\|{alternative})*"
    return pattern


_MAX_GROUPS = 3
_SYNTAX = r"$()*+./?\[\\\]\^{|}"


FORMATS: dict[str, str | Callable[[], Node]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "email": _EMAIL,
    "hostname": hostname,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _uri(),
    "uri-reference": _uri(is_reference=True),
    "uri-template": _uri_template(),
    "iri": _uri(_IRI_CHARACTERS, _PRIVATE),
    "iri-reference": _uri(_IRI_CHARACTERS, _PRIVATE, is_reference=True),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
    "regex": _regex(),
}
OPENAPI_FORMATS = {"byte": _base64("+/"), "binary": r"[^]*", "password": r"[^]*"}
"""Formats of strings, after the registry of OpenAPI."""
OUR_FORMATS: dict[str, str | Callable[[], Node]] = {
    "x-local-date-time": f"{_DATE}T{_CLOCK}",
    "x-clock": _CLOCK,
    "x-mailbox": mailbox,
    "x-base64url": _base64(r"\-_"),
    "x-ipv4-interface": rf"{_IPV4}(?:/(?:\d|[12]\d|3[0-2]))?",
    "x-ipv6-interface": rf"{_IPV6}(?:/(?:\d|[1-9]\d|1[01]\d|12[0-8]))?",
    "x-ipv4-network": _ipv4_network(),
    "x-ipv6-network": _ipv6_network(),
    "x-fraction": r"(?:0|-?[1-9]\d{0,39})(?:/[1-9]\d{0,39})?",
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
    "x-ipv6-network": "IPv6 networks: `::`, if any, where the zeros after the prefix begin",
    "x-fraction": "fractions: at most 40 digits before the `/` and after it",
    "x-local-date-time": "times of a day: no offset, at most 6 digits of a fraction",
}
"""By format, a sentence on what it allows and the term leaves out."""
