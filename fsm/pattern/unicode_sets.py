r"""`unicode_property`, `in_both_cases`, `case_class`: the Unicode properties that ECMA-262 permits in `\p{...}` with the `u` flag, and
which characters are equal when case is ignored (simple case folding). Sets have no surrogates, which have no UTF-8.

They are read from `unicode_tables.txt`, which `scripts/unicode_tables.py` makes, so they do not depend on the version of Python; the first
line of the file has the version of Unicode (17.0). The file is read when the first property or `i` flag is met, in some milliseconds.
Source: ECMA-262, section 22.2.2.9 (UnicodeMatchProperty), tables 65 to 68, and Canonicalize.
"""

from __future__ import annotations

from bisect import bisect_right
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

from fsm.terms.characters import ALL_CHARACTERS, Ranges, intersect, invert, normalize

_KINDS = {
    "gc": "gc",
    "General_Category": "gc",
    "sc": "sc",
    "Script": "sc",
    "scx": "scx",
    "Script_Extensions": "scx",
}
_PROPERTIES_OF_STRINGS = frozenset(
    {
        "Basic_Emoji",
        "Emoji_Keycap_Sequence",
        "RGI_Modifier_Sequence",
        "RGI_Flag_Sequence",
        "RGI_Emoji_Modifier_Sequence",
        "RGI_Emoji_Flag_Sequence",
        "RGI_Emoji_Tag_Sequence",
        "RGI_Emoji_ZWJ_Sequence",
        "RGI_Emoji",
    }
)


@lru_cache(maxsize=256)
def unicode_property(name: str) -> Ranges | None:
    r"""What `\p{name}` means: a general category, script, script extension or binary property by one of its names; None for other names."""
    key, equals, value = name.partition("=")
    if equals:
        kind = _KINDS.get(key)
        found = None if kind is None else _tables().get((kind, value))
        return _ranges(_tables().get(("sc", value)) if kind == "scx" and found is None else found)
    if name == "Any":
        return ALL_CHARACTERS
    if name == "ASCII":
        return ((0, 0x7F),)
    if name == "Assigned":
        return invert(unicode_property("gc=Cn") or ())
    return _ranges(_tables().get(("gc", name)) or _tables().get(("binary", name)))


def advice_for_property(name: str) -> str:
    """What to write instead of a property that ECMA-262 does not have."""
    if name in _PROPERTIES_OF_STRINGS:
        return (
            r"It is a property of strings, for which ECMA-262 needs the flag `v`; write '\p{Emoji}', or list the texts."
        )
    key, equals, value = name.rpartition("=")
    kinds = {_KINDS.get(key, "sc")} if equals else {"gc", "sc", "binary"}
    near = get_close_matches(value, [name for kind, name in _tables() if kind in kinds], 1)
    if not near:
        return r"Write a general category ('\p{Lu}'), a script ('\p{Script=Greek}') or a binary property ('\p{Emoji}')."
    is_script = equals or not {("gc", near[0]), ("binary", near[0])} & _tables().keys()
    prefix = f"{key or 'Script'}=" if is_script else ""
    return rf"Did you mean '\p{{{prefix}{near[0]}}}'?"


@lru_cache(maxsize=1024)
def in_both_cases(ranges: Ranges) -> Ranges:
    """The characters that are equal to one of a set when case is ignored."""
    starts = [first for first, _ in ranges]
    more = list[tuple[int, int]]()
    for equal in set(_case_classes().values()):
        places = ((code, bisect_right(starts, code) - 1) for code in equal)
        if any(place >= 0 and code <= ranges[place][1] for code, place in places):
            more += ((code, code) for code in equal)
    return normalize((*ranges, *more))


def case_class(character: str) -> tuple[int, ...]:
    """The characters that are equal to one when case is ignored, itself included."""
    return _case_classes().get(ord(character), (ord(character),))


@cache
def _tables() -> dict[tuple[str, str], str]:
    """The text of each table, by its kind and each of its names."""
    found = dict[tuple[str, str], str]()
    text = Path(__file__).with_name("unicode_tables.txt").read_text(encoding="ascii")
    for line in text.splitlines()[1:]:
        head, _, table = line.partition(" |")
        kind, _, names = head.partition(" ")
        found |= {(kind, name): table for name in names.split("/")}
    return found


def _ranges(table: str | None) -> Ranges | None:
    if table is None:
        return None
    edges = list(accumulate(int(number, 16) for number in table.split()))
    return intersect(
        tuple((first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)), ALL_CHARACTERS
    )


@cache
def _case_classes() -> dict[int, tuple[int, ...]]:
    """The characters equal to each one that has such others."""
    classes = [tuple(int(code, 16) for code in one.split(",")) for one in _tables()["equal", "in_case"].split()]
    return {code: equal for equal in classes for code in equal}
