"""Formats of URIs (RFC 3986), IRIs (RFC 3987) and URI templates (RFC 6570), and the URLs that pydantic accepts. The first three are the
grammars of their RFCs, in the combinators of `parts.py`; of the last (`url`) many are left out, such as those with a host beyond ASCII.

Left out of those (`HttpUrl` and the like) are schemes in capital letters; hosts with characters beyond ASCII, or with `--` in the third
and fourth place of a label; user names beyond ASCII; the characters `"<>\\^`{|}` and blanks; more than 1,000 characters after the host
(100 from the first one beyond ASCII on) or 200 after `#` (16 of those). So every URL is far shorter than 2,083 bytes, pydantic's bound.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cache, lru_cache

from fsm.schema.formats.address import hostname, ipv4, ipv6
from fsm.schema.formats.parts import DIGIT, HEX, LETTERS_DIGITS, either, joined, one_of, text, times
from fsm.terms import node as nodes
from fsm.terms.characters import Ranges, json_spelling
from fsm.terms.node import EPSILON, Node

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
