r"""`utf8`, `json_spelling`: a set of characters as a term over the bytes of UTF-8, plain or as `json.dumps(..., ensure_ascii=False)` writes
them in a string, which is one spelling for each. Ranges are split into products of byte ranges. A set is a tuple of inclusive code point
ranges, ascending and disjoint, with `normalize`, `invert` and `intersect` here. Surrogates have no UTF-8 and are removed.

Character classes as code point ranges: `\d \w \s` and case-insensitive matching as in `re`, `\s` of ECMA-262. They are computed with the
`re` and `unicodedata` of the running Python on the planes that have such characters, when first needed, and cached; so they have its
version of Unicode. The properties of ECMA-262 (`\p{...}`) are in `fsm/pattern/unicode_sets.py`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from fsm.terms import node as nodes
from fsm.terms.node import Node

Ranges = tuple[tuple[int, int], ...]
"""Inclusive code point ranges, ascending, neither touching nor overlapping."""
Speller = Callable[[Ranges], Node]
"""Makes the term of the bytes of one character out of a set."""

MAX_CODE_POINT = 0x10FFFF
ALL_CHARACTERS: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))

# The characters that `json.dumps(x, ensure_ascii=False)` escapes.
_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


def normalize(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges, join those that touch, drop empty ones (`last < first`)."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(r for r in ranges if r[0] <= r[1]):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return tuple(out)


def invert(ranges: Ranges) -> Ranges:
    """Every scalar value that is not in `ranges`."""
    edges, start = [], 0
    for first, last in normalize(ranges):
        edges.append((start, first - 1))
        start = last + 1
    return intersect(normalize((*edges, (start, MAX_CODE_POINT))), ALL_CHARACTERS)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    """Code points in both sets."""
    out, i, j = list[tuple[int, int]](), 0, 0
    while i < len(left) and j < len(right):
        (a, b), (c, d) = left[i], right[j]
        if a <= d and c <= b:
            out.append((max(a, c), min(b, d)))
        if b < d:
            i += 1
        else:
            j += 1
    return tuple(out)


_PLAIN = invert(_ESCAPED)


_known: WeakKeyDictionary[Node, Ranges] = WeakKeyDictionary()


def ranges_of(node: Node) -> Ranges | None:
    """The characters of a term that `utf8` has made; None of others, and of those that were made long ago."""
    return _known.get(node)


@lru_cache(maxsize=1024)
def utf8(ranges: Ranges) -> Node:
    """One character of the set, in UTF-8. Cost: about one step per range, once per set."""
    by_tail: dict[Node, int] = {}
    scalars = intersect(ranges, ALL_CHARACTERS)
    for (first, last), *bounds in _byte_sequences(scalars):
        tail = nodes.sequence([nodes.byte_range(*b) for b in bounds])
        by_tail[tail] = by_tail.get(tail, 0) | ((1 << (last + 1)) - (1 << first))
    node = _join_leads(by_tail)
    _known[node] = scalars
    return node


def _join_leads(by_tail: dict[Node, int]) -> Node:
    """Unite the tails of each lead byte, then the lead bytes with one tail."""
    tails: dict[int, list[Node]] = {}
    for tail, mask in by_tail.items():
        while mask:
            low = mask & -mask
            tails.setdefault(low, []).append(tail)
            mask ^= low
    leads: dict[Node, int] = {}
    for bit, rest in tails.items():
        joined = nodes.alternation(rest)
        leads[joined] = leads.get(joined, 0) | bit
    return nodes.alternation(nodes.concat(nodes.byte_set(mask), tail) for tail, mask in leads.items())


def _byte_sequences(ranges: Ranges) -> Iterator[tuple[tuple[int, int], ...]]:
    """Split ranges into products of byte ranges."""
    stack = list(reversed(ranges))
    while stack:
        first, last = stack.pop()
        cut = _cut(first, last)
        if cut is not None:
            stack.extend(((cut + 1, last), (first, cut)))
        else:
            yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _cut(first: int, last: int) -> int | None:
    """Return the last code point of a first part of first..last that is nearer to a product of byte ranges; None if all is one."""
    for limit in (0x7F, 0x7FF, 0xFFFF):
        if first <= limit < last:
            return limit
    if last <= 0x7F:
        return None
    for shift in (6, 12, 18):
        low = (1 << shift) - 1
        if first >> shift != last >> shift:
            if first & low:
                return first | low
            if last & low != low:
                return (last & ~low) - 1
    return None


@lru_cache(maxsize=1024)
def json_spelling(ranges: Ranges) -> Node:
    """One character of the set as `json.dumps(..., ensure_ascii=False)` writes it inside a string."""
    escaped = [json_text(chr(c)) for a, b in intersect(ranges, _ESCAPED) for c in range(a, b + 1)]
    return nodes.alternation((utf8(intersect(ranges, _PLAIN)), nodes.words(escaped)))


def json_text(text: str) -> bytes:
    """A text as the inside of a JSON string, spelled like `json_spelling`.

    Raises:
        UnicodeEncodeError: the text contains a lone surrogate, which has no UTF-8.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


JSON_CHARACTER = json_spelling(ALL_CHARACTERS)
"""Any one character inside a JSON string."""


# Planes 4 to 16 are unassigned or private, but for the end of each: nothing there is cased, a digit, a letter or a space.
_LAST_NAMED = 0x3FFFF
_LAST_CASED = 0x1FFFF

ASCII_DIGITS: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))


def _text(first: int, last: int) -> str:
    """All code points from `first` to `last`, surrogates included, in their order."""
    return np.arange(first, last + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@cache
def category(letter: str, ascii: bool = False) -> Ranges:
    r"""What `\d`, `\w`, `\s` or their negations mean to `re`.

    Args:
        letter: one of "d", "w", "s", "D", "W", "S".
        ascii: the meaning under `re.ASCII`.

    Cost: some 15 ms for a Unicode set, once.
    """
    if letter.isupper():
        return invert(category(letter.lower(), ascii))
    text = _text(0, 0x7F if ascii else _LAST_NAMED)
    found = re.finditer(rf"\{letter}+", text, re.ASCII if ascii else re.UNICODE)
    return tuple((match.start(), match.end() - 1) for match in found)


@cache
def _cased() -> str:
    """Every character that may equal another one when case is ignored, and some more."""
    return "".join(c for c in _text(0, _LAST_CASED) if c.lower() != c or c.upper() != c)


@lru_cache(maxsize=4096)
def ignoring_case(written: tuple[tuple[int, int], ...], ascii: bool = False, *, has_others: bool = False) -> Ranges:
    """The characters that `re.IGNORECASE` finds equal to one of a class, computed by `re` itself, so that K equals the Kelvin sign.

    Args:
        written: the ranges of the pattern, neither sorted nor joined: beyond U+FFFF and under `re.ASCII`, `re` matches a range in both
            cases and a single character in its own.
        ascii: the meaning under `re.ASCII`.
        has_others: whether the class also contains categories, such as `\\d`, which the caller adds.

    Cost: one small `re.compile` and a scan of some 3,000 characters, once per class.
    """
    if not written:
        return ()
    inside = "".join(rf"\U{a:08x}" if a == b else rf"\U{a:08x}-\U{b:08x}" for a, b in written)
    inside += r"\0" if has_others else ""  # it has no case, so it only makes the class one of several
    flags = re.ASCII if ascii else re.UNICODE
    found = set(re.compile(f"[{inside}]", flags | re.IGNORECASE).findall(_cased()))
    # In a class with others, `re` loses a capital beyond U+FFFF: '[a\U00010400]' and '[\d\U00010400]' do not match U+10400.
    lost = set(re.compile(f"[{inside}]", flags).findall(_cased())) - found
    ranges = normalize((*written, *((ord(c), ord(c)) for c in found)))
    return intersect(ranges, invert(normalize((ord(c), ord(c)) for c in lost))) if lost else ranges


@cache
def ecma_space() -> Ranges:
    r"""What `\s` means in ECMA-262: white space and line terminators.

    Source: ECMA-262, sections 12.2 and 12.3.
    """
    # What `str` regards as white space includes the category Zs, so that it need not be looked for among all characters.
    spaces = ((code, code) for code in range(0x3001) if chr(code).isspace() and unicodedata.category(chr(code)) == "Zs")
    return normalize(((0x09, 0x0D), (0x2028, 0x2029), (0xFEFF, 0xFEFF), *spaces))


def union(sets: Iterable[Ranges]) -> Ranges:
    """Code points of any of the sets."""
    return normalize(r for ranges in sets for r in ranges)


def single(code_point: int) -> Ranges:
    """The set of one character."""
    return ((code_point, min(code_point, MAX_CODE_POINT)),)
