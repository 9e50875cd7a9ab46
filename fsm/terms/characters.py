"""`utf8`, `json_spelling`: a set of characters as a term over the bytes of UTF-8, plain or as `json.dumps(..., ensure_ascii=False)` writes
them in a string, which is one spelling for each. Ranges are split into products of byte ranges. A set is a tuple of inclusive code point
ranges, ascending and disjoint, with `normalize`, `invert` and `intersect` here. Surrogates have no UTF-8 and are removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from fsm.terms import node as nodes
from fsm.terms.node import Node

Ranges = tuple[tuple[int, int], ...]
"""Inclusive code point ranges, ascending, neither touching nor overlapping."""
Speller = Callable[[Ranges], Node]
"""Makes the term of the bytes of one character out of a set."""

MAX_CODE_POINT = 0x10FFFF
ALL_CHARACTERS: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))

# The characters that `json.dumps(x, ensure_ascii=False)` escapes.
_ESCAPED = tuple(sorted({*range(0x20), 0x22, 0x5C}))


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
    return normalize((max(a, c), min(b, d)) for a, b in left for c, d in right if a <= d and c <= b)


@lru_cache(maxsize=1024)
def utf8(ranges: Ranges) -> Node:
    """One character of the set, in UTF-8. Cost: about one step per range, once per set."""
    by_tail: dict[Node, int] = {}
    for (first, last), *bounds in _byte_sequences(intersect(ranges, ALL_CHARACTERS)):
        tail = nodes.sequence([nodes.byte_range(*b) for b in bounds])
        by_tail[tail] = by_tail.get(tail, 0) | ((1 << (last + 1)) - (1 << first))
    return _join_leads(by_tail)


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
    """Return the last code point of a first part of first..last that is nearer to a product of byte ranges; None where all is one."""
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
    plain = intersect(ranges, invert(tuple((c, c) for c in _ESCAPED)))
    escaped = [json_text(chr(c)) for c in _ESCAPED if any(a <= c <= b for a, b in ranges)]
    return nodes.alternation((utf8(plain), nodes.words(escaped)))


def json_text(text: str) -> bytes:
    """A text as the inside of a JSON string, spelled like `json_spelling`.

    Raises:
        UnicodeEncodeError: the text contains a lone surrogate, which has no UTF-8.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


JSON_CHARACTER = json_spelling(ALL_CHARACTERS)
"""Any one character inside a JSON string."""
