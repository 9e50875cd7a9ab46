"""Formats of hosts, IP addresses and mailboxes, as regular expressions after the grammars of their RFCs. Bounds on a whole length are
replaced by stricter ones on its parts and their number. For Python types: `mailbox`, plain e-mail addresses, and `interface`, an address
with its network.

Exceptions from the standards:

- email: RFC 5321 `Mailbox`; the bounds of 64 and 255 octets for the two sides: a local part has at most 3 atoms of 20 characters or 31
  quoted ones, a domain at most 8 labels of 31. Address literals other than IPv4 and IPv6 are left out;
- hostname: RFC 1123; the bound of 253 characters: at most 8 labels, the first of 63 characters, the others of 26; those with `--` in the
  third and fourth place, reserved for Punycode, are left out;
- ipv6: RFC 4291 section 2.2, with an embedded IPv4 address, without a zone.
"""

from __future__ import annotations

import string

from fsm.schema.formats.parts import HEX, LETTERS_DIGITS, either, joined, one_of, text, times
from fsm.terms import node as nodes
from fsm.terms.characters import json_spelling
from fsm.terms.node import EPSILON, Node


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
