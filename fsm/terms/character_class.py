r"""Character classes as code point ranges: `\d \w \s` and case-insensitive matching as in `re`, Unicode general categories and a few other
properties (`\p{Lu}`, `\p{Any}`), `\s` of ECMA-262. They are computed with the `re` and `unicodedata` of the running Python on the planes
that have such characters, when first needed, and cached; so they have its version of Unicode. Scripts are not supported.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from fsm.terms.characters import ALL_CHARACTERS, MAX_CODE_POINT, Ranges, intersect, invert, normalize

# Planes 4 to 16 are unassigned or private, but for the end of each: nothing there is cased, a digit, a letter or a space.
_LAST_NAMED = 0x3FFFF
_LAST_CASED = 0x1FFFF
_PRIVATE_PLANES: Ranges = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_TAGS: Ranges = ((0xE0000, 0xE0FFF),)

ASCII_DIGITS: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))

_CATEGORY_NAMES = {
    "Lu": "Uppercase_Letter", "Ll": "Lowercase_Letter", "Lt": "Titlecase_Letter", "LC": "Cased_Letter",
    "Lm": "Modifier_Letter", "Lo": "Other_Letter", "L": "Letter",
    "Mn": "Nonspacing_Mark", "Mc": "Spacing_Mark", "Me": "Enclosing_Mark", "M": "Mark",
    "Nd": "Decimal_Number", "Nl": "Letter_Number", "No": "Other_Number", "N": "Number",
    "Pc": "Connector_Punctuation", "Pd": "Dash_Punctuation", "Ps": "Open_Punctuation", "Pe": "Close_Punctuation",
    "Pi": "Initial_Punctuation", "Pf": "Final_Punctuation", "Po": "Other_Punctuation", "P": "Punctuation",
    "Sm": "Math_Symbol", "Sc": "Currency_Symbol", "Sk": "Modifier_Symbol", "So": "Other_Symbol", "S": "Symbol",
    "Zs": "Space_Separator", "Zl": "Line_Separator", "Zp": "Paragraph_Separator", "Z": "Separator",
    "Cc": "Control", "Cf": "Format", "Cs": "Surrogate", "Co": "Private_Use", "Cn": "Unassigned", "C": "Other",
}  # fmt: skip
_SHORT_NAMES = {long: short for short, long in _CATEGORY_NAMES.items()} | {
    "punct": "P", "digit": "Nd", "cntrl": "Cc", "Combining_Mark": "M",
}  # fmt: skip


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
def _by_category() -> dict[str, Ranges]:
    """Each two-letter general category with its code points, surrogates (Cs) and unassigned (Cn) included."""
    found: dict[str, list[tuple[int, int]]] = {}
    for first, last in ((0, _LAST_NAMED), *_TAGS):
        names = np.array(list(map(unicodedata.category, _text(first, last))))
        edges = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
        for start, end in pairwise(edges):
            found.setdefault(str(names[start]), []).append((first + start, first + end - 1))
    found["Co"].extend(_PRIVATE_PLANES)
    named = normalize(r for name, ranges in found.items() if name != "Cn" for r in ranges)
    return {name: normalize(ranges) for name, ranges in found.items()} | {"Cn": invert(named)}


def general_category(name: str) -> Ranges | None:
    """The characters of a Unicode general category, by its short or long name; None for any other name.

    Cost: 50 to 90 ms (measured on a busy core), once for all categories.
    """
    short = _SHORT_NAMES.get(name, name)
    if short not in _CATEGORY_NAMES:
        return None
    members = (
        ("Lu", "Ll", "Lt") if short == "LC" else tuple(n for n in _CATEGORY_NAMES if n.startswith(short) and n != "LC")
    )
    return intersect(union(_by_category().get(n, ()) for n in members), ALL_CHARACTERS)


def unicode_property(name: str) -> Ranges | None:
    r"""What `\p{name}` means: a general category, with or without `General_Category=`, `Any`, `ASCII` or `Assigned`; else None."""
    key, equals, value = name.partition("=")
    if equals:
        return general_category(value) if key in ("General_Category", "gc") else None
    if name == "Any":
        return ALL_CHARACTERS
    if name == "ASCII":
        return ((0, 0x7F),)
    if name == "Assigned":
        return invert(_by_category()["Cn"])
    return general_category(name)


@cache
def ecma_space() -> Ranges:
    r"""What `\s` means in ECMA-262: white space and line terminators.

    Source: ECMA-262, sections 12.2 and 12.3.
    """
    spaces = general_category("Zs") or ()
    return normalize(((0x09, 0x0D), (0x2028, 0x2029), (0xFEFF, 0xFEFF), *spaces))


def union(sets: Iterable[Ranges]) -> Ranges:
    """Code points of any of the sets."""
    return normalize(r for ranges in sets for r in ranges)


def single(code_point: int) -> Ranges:
    """The set of one character."""
    return ((code_point, min(code_point, MAX_CODE_POINT)),)
