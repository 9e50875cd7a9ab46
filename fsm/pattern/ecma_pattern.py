r"""`ecma_search`: regular expressions of JSON Schema's `pattern` (ECMA-262, found anywhere in the text) as terms. A parser with an explicit
stack makes postfix instructions (`postfix.py`), which `lookaround.search` compiles. What the `u` flag forbids is read as without it (annex
B), but for `\A`, `\Z`, `\z` and references to groups that are not there (`\7`); `read_loosely` lists it. Properties are those of ECMA-262
(`unicode_sets.py`). Not regular are back-references, but for those that always match the empty text (`(\1)`), and what `lookaround.py`
refuses: `EcmaMatcher` matches these by backtracking. Of ECMA-262 of 2025 are the flags of a group (`(?i:...)`, `m` and `s`) and groups
of one name in different alternatives; other inline flags are refused.

Forbidden by `u` and read: a backslash before any sign (`\_`, `\i`, `\p` without braces), a lone `]`, `}` or `{`, a `-` beside a class
escape (`[\w-.]`), a quantifier after a lookahead, and more. `\A`, `\Z` and `\z` stay errors: they are letters in ECMA-262 and anchors
everywhere else. Two constructs are not in ECMA-262 but mean the same wherever they exist: flags to the end of the group (`(?i)`) and
`(?P<name>...)`.
Source: ECMA-262, section 22.2 (Regular Expression Objects), and its annex B.1.2.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fsm.errors import NotRegular, SchemaError, clip
from fsm.pattern import postfix
from fsm.pattern.ecma_matcher import EcmaMatcher
from fsm.pattern.lookaround import search
from fsm.pattern.unicode_sets import advice_for_property, in_both_cases, unicode_property
from fsm.terms.characters import (
    ALL_CHARACTERS,
    ASCII_DIGITS,
    ASCII_WORD,
    MAX_CODE_POINT,
    Ranges,
    Speller,
    ecma_space,
    invert,
    single,
    union,
)
from fsm.terms.node import Node

Instruction = postfix.WithReferences

MAX_COUNT = 10**15
MAX_NESTED_LOOKS = 50
_MAX_DEPTH = 100  # groups around one that a back-reference names, for `_is_unset`
MAX_PATTERN_LENGTH = 1_000_000

_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_RUN = re.compile(r"[^\\^$.*+?()\[\]{}|]+")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})\??", re.ASCII)
_HEX2 = re.compile(r"[0-9A-Fa-f]{2}")
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
_BRACED_HEX = re.compile(r"\{([0-9A-Fa-f]+)\}")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_NAME_ESCAPE = re.compile(r"\\u(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{4}))")
_PROPERTY = re.compile(r"\{([^{}]*)\}")
_GROUP = re.compile(r"\((?:\?(?::|P?<([^>=!][^>]*)>))?")
_FLAGS = re.compile(r"\(\?([ims]*)(?:-([ims]*))?([:)])")
_CAPTURES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?|(\((?:(?!\?)|\?P?<(?![=!])([^>]*)))", re.DOTALL)
_REFERENCE = re.compile(r"\\(?:([1-9]\d*)|k<([^>]*)>)", re.ASCII)
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
_SYNTAX = "^$\\.*+?()[]{}|/"
_LONELY = ("]", "{", "}")
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_LOOKAROUNDS = {
    "(?=": postfix.Look(),
    "(?!": postfix.Look(is_negative=True),
    "(?<=": postfix.Look(is_behind=True),
    "(?<!": postfix.Look(is_behind=True, is_negative=True),
}


def ecma_search(pattern: str, spell: Speller, *, pointer: str = "") -> Node:
    """Return the texts in which `pattern` is found, each character spelled by `spell`.

    Args:
        pattern: a regular expression in ECMA-262 syntax.
        spell: how one character of a set is written, for example `characters.json_spelling`.
        pointer: JSON pointer to the pattern, for errors.

    Raises:
        SchemaError: the pattern is malformed, or uses something that is not supported; see the top of this module.

    Cost: linear in the pattern; a count such as `{1,50000}` costs nothing.
    """
    if not isinstance(pattern, str):
        raise SchemaError(f"a pattern is a string, received {type(pattern).__name__}. Give it as text", pointer)
    try:
        return search(_without_references(instructions(pattern, pointer=pointer)), spell)
    except postfix.NotSupported as refusal:
        said = f"{refusal.construct} is not supported, in pattern {clip(pattern, 80)!r}. {refusal.advice}"
        raise NotRegular(said, pointer) from None


def backtracking_matcher(pattern: str) -> EcmaMatcher:
    """Return a matcher that finds a pattern in texts by backtracking, for one that is not regular.

    Raises:
        SchemaError: the pattern is malformed.
    """
    return EcmaMatcher(pattern, instructions(pattern, has_marks=True))


def instructions(pattern: str, *, has_marks: bool = False, pointer: str = "") -> Iterator[Instruction]:
    """Yield a pattern in postfix order, with back-references to groups that may have matched; `has_marks`: and with these groups.

    Raises:
        SchemaError: the pattern is malformed.
    """
    try:
        yield from _Parser(pattern, has_marks).read()
    except _Malformed as error:
        problem, position, advice = error.args
        said = f"{problem}, in pattern {clip(pattern, 80)!r} at position {position}. {advice}"
        raise SchemaError(said, pointer) from None


def _without_references(program: Iterable[Instruction]) -> Iterator[postfix.Instruction]:
    for step in program:
        if isinstance(step, postfix.Reference | postfix.Mark):
            advice = "Not a regular language: list the alternatives that you need."
            raise postfix.NotSupported(f"a back-reference (to group {step.number})", advice)
        yield step


@lru_cache(maxsize=1024)
def read_loosely(pattern: str) -> tuple[str, ...]:
    """The constructs of a pattern that are read although ECMA-262 forbids them with the `u` flag; none for a malformed pattern."""
    parser = _Parser(pattern)
    try:
        deque(parser.read(), maxlen=0)
    except _Malformed:
        return ()
    return tuple(parser.loose)


class _Malformed(Exception):
    """What is wrong with a pattern, the position, and advice."""


@dataclass(slots=True, eq=False)
class _Group:
    """An open group: its start, complete alternatives, items of the current one, lookaround, flags, and number if it captures."""

    start: int
    alternatives: int = 0
    items: int = 0
    look: postfix.Look | None = None
    flags: frozenset[str] = frozenset()
    number: int | None = None
    parent: _Group | None = None
    alternative: int = 0
    """Of the parent."""
    is_open: bool = True


def _closed_around(group: _Group) -> list[_Group]:
    """A closed group and those around it, up to the one whose parent is open, or as many as are looked at; none for an open one."""
    found = list[_Group]()
    while not group.is_open and len(found) < _MAX_DEPTH:
        assert group.parent is not None, "the whole pattern is open"
        found.append(group)
        group = group.parent
    return found


def _is_in_other(around: list[_Group]) -> bool:
    """Whether the last of these groups is in an alternative of an open group that is read no longer."""
    if not around or around[-1].parent is None or not around[-1].parent.is_open:
        return False
    return around[-1].alternative != around[-1].parent.alternatives


class _Parser:
    """Parses one pattern into instructions, without recursion: `groups` is the stack of open groups."""

    def __init__(self, pattern: str, has_marks: bool = False) -> None:
        self.pattern = pattern
        self.has_marks = has_marks
        self.position = 0
        self.groups = [_Group(-1)]
        self.names = dict[str, list[_Group]]()
        self.loose = dict[str, None]()
        self.num_captures = 0
        self.num_looks = self.num_behind = 0
        self.captures = dict[int, _Group]()

    def read(self) -> Iterator[Instruction]:
        """Yield the pattern in postfix order.

        Raises:
            _Malformed: it breaks the syntax.
        """
        if len(self.pattern) > MAX_PATTERN_LENGTH:
            what = f"a pattern of more than {MAX_PATTERN_LENGTH:,} characters"
            raise _Malformed(what, MAX_PATTERN_LENGTH, "Write an `enum`, or split it.")
        while self.position < len(self.pattern):
            yield from self._read_item()
        if len(self.groups) > 1:
            advice = r"Close it with ')', or write '\(' for a parenthesis."
            raise _Malformed("unclosed group", self.groups[-1].start, advice)
        yield from self._close(self.groups[0])

    def _read_item(self) -> Iterator[Instruction]:
        sign = self.pattern[self.position]
        if sign == "(":
            yield from self._open_group()
        elif sign == "|":
            yield postfix.Join(self.groups[-1].items)
            self.groups[-1].alternatives += 1
            self.groups[-1].items = 0
            self.position += 1
        elif sign in "^$":
            yield from self._anchor(is_start=sign == "^")
            self.groups[-1].items += 1
            self.position += 1
        elif sign == ")":
            yield from self._close_group()
        else:
            yield from self._read_atom(sign)

    def _anchor(self, *, is_start: bool) -> Iterator[Instruction]:
        """The start or the end of the text, with the flag `m` also of a line."""
        if "m" in self.groups[-1].flags:
            yield postfix.Character(invert(_LINE_ENDS))
            yield postfix.Look(is_behind=is_start, is_negative=True)
        else:
            yield postfix.Assert(postfix.Anchor.TEXT_START if is_start else postfix.Anchor.TEXT_END)

    def _open_group(self) -> Iterator[Instruction]:
        start, flags = self.position, self.groups[-1].flags
        for sign, look in _LOOKAROUNDS.items():
            if self.pattern.startswith(sign, start):
                self.num_looks += 1
                if self.num_looks > MAX_NESTED_LOOKS:
                    raise _Malformed(
                        f"more than {MAX_NESTED_LOOKS} lookarounds inside one another", start, "Take some out."
                    )
                self.num_behind += look.is_behind
                self._push(_Group(start, look=look, flags=flags))
                self.position += len(sign)
                return
        if (found := _FLAGS.match(self.pattern, start)) is not None and any(found.groups()[:2]):
            return self._read_flags(found)
        opening = _GROUP.match(self.pattern, start)
        if self.pattern.startswith("(?", start) and (opening is None or opening.end() == start + 1):
            self._refuse_group(start)
        assert opening is not None
        self.position = opening.end()
        if opening[0] == "(?:":
            self._push(_Group(start, flags=flags))
            return
        self.num_captures += 1
        group = self.captures[self.num_captures] = _Group(start, flags=flags, number=self.num_captures)
        name = _unescaped(opening[1])
        if name is not None:
            others = self.names.setdefault(name, [])
            if not name.replace("$", "_").isidentifier() or not all(map(self._is_in_another_alternative, others)):
                problem = f"group name {name!r} is not an identifier, or is taken"
                raise _Malformed(problem, start, "Choose another name.")
            others.append(group)
            if self.pattern.startswith("(?P", start):
                self.loose["(?P<...>)"] = None
        self._push(group)
        if self.has_marks:
            yield postfix.Mark(self.num_captures)

    def _push(self, group: _Group) -> None:
        group.parent, group.alternative = self.groups[-1], self.groups[-1].alternatives
        self.groups.append(group)

    def _read_flags(self, found: re.Match[str]) -> None:
        """Read `(?i)`, which applies to the end of the group that contains it, or `(?i:`, which begins one."""
        around, named = self.groups[-1], found[1] + (found[2] or "")
        if len(set(named)) < len(named):
            raise _Malformed(f"a flag twice in {found[0]!r}", self.position, "Name each once, before or after '-'.")
        flags = (around.flags | set(found[1])) - set(found[2] or "")
        if found[3] == ":":
            self._push(_Group(self.position, flags=flags))
        else:
            around.flags = flags
            self.loose[found[0]] = None
        self.position = found.end()

    def _refuse_group(self, start: int) -> None:
        if self.pattern.startswith("(?P", start):
            raise _Malformed("group syntax of Python", start, "In ECMA-262 a named group is '(?<name>...)'.")
        if re.compile(r"\(\?[a-zA-Z-]").match(self.pattern, start):
            advice = "Only `i`, `m` and `s` are read."
            raise _Malformed("an inline flag that is not part of ECMA-262", start, advice)
        raise _Malformed("unknown kind of group", start, "Write '(?:...)', '(...)' or '(?<name>...)'.")

    def _close_group(self) -> Iterator[Instruction]:
        if len(self.groups) == 1:
            raise _Malformed("unmatched ')'", self.position, r"Remove it, or write '\)' for a parenthesis.")
        group = self.groups.pop()
        yield from self._close(group)
        self.position += 1
        group.is_open = False
        if group.look is not None:
            self.num_looks -= 1
            self.num_behind -= group.look.is_behind
            self._read_no_quantifier("a lookbehind" if group.look.is_behind else "")
        yield from self._read_quantifier()

    def _close(self, group: _Group) -> Iterator[Instruction]:
        yield postfix.Join(group.items)
        if group.alternatives:
            yield postfix.Choose(group.alternatives + 1)
        if group.look is not None:
            yield group.look
        if group.number is not None and self.has_marks:
            yield postfix.Mark(group.number)
            yield postfix.Join(3)

    def _read_no_quantifier(self, refused: str) -> None:
        """Refuse a quantifier after an assertion, or note it after a lookahead, where `refused` is empty."""
        if _QUANTIFIER.match(self.pattern, self.position) is None:
            return
        if refused:
            raise _Malformed(f"a quantifier after {refused}, which has no width", self.position, "Remove it.")
        self.loose["a quantifier after a lookahead"] = None

    def _read_quantifier(self) -> Iterator[Instruction]:
        """Count the item that was just read, and repeat it if a quantifier follows."""
        self.groups[-1].items += 1
        found = _QUANTIFIER.match(self.pattern, self.position)
        if found is None:
            return
        if found[1] is None:
            lo, hi = _COUNTS[found[0][0]]
        else:
            lo = self._count(found[1])
            hi = lo if found[2] is None else self._count(found[3]) if found[3] else None
            if hi is not None and hi < lo:
                problem = f"counts out of order in {found[0]!r}"
                raise _Malformed(problem, self.position, "Write the smaller count first.")
        yield postfix.Loop(lo, hi, is_lazy=found[0].endswith("?") and found[0] != "?")
        self.position = found.end()

    def _count(self, digits: str) -> int:
        digits = digits.lstrip("0") or "0"
        if len(digits) > len(str(MAX_COUNT)) or int(digits) > MAX_COUNT:
            raise _Malformed(f"a count above {MAX_COUNT:,}", self.position, "Leave the bound out, as in '{3,}'.")
        return int(digits)

    def _read_atom(self, sign: str) -> Iterator[Instruction]:
        start = self.position
        if sign in "*+?" or (sign == "{" and _QUANTIFIER.match(self.pattern, start)):
            advice = "Write a backslash before it for the character itself."
            raise _Malformed(f"nothing to repeat before {sign!r}", start, advice)
        if sign == "[":
            yield postfix.Character(self._read_class())
        elif self.pattern.startswith((r"\b", r"\B"), start):
            self.position += 2
            self._read_no_quantifier(repr(self.pattern[start : start + 2]).replace("\\\\", "\\"))
            yield from postfix.boundary(self._in_both_cases(ASCII_WORD), is_inside=self.pattern[start + 1] == "B")
        elif sign == "\\" and (reference := self._read_reference()) is not None:
            yield from reference
        elif sign == "\\":
            yield postfix.Character(self._in_both_cases(self._read_escape()))
        elif sign == ".":
            self.position += 1
            yield postfix.Character(ALL_CHARACTERS if "s" in self.groups[-1].flags else invert(_LINE_ENDS))
        else:
            yield from self._read_run()
        yield from self._read_quantifier()

    def _read_reference(self) -> tuple[Instruction, ...] | None:
        r"""Read a back-reference (`\1`, `\k<name>`); None if there is none."""
        start = self.position
        found = _REFERENCE.match(self.pattern, start)
        if found is None:
            if self.pattern.startswith(r"\k", start) and self._group_names:
                advice = r"Write '\k<name>', or 'k' for the letter."
                raise _Malformed(r"'\k' without the name of a group", start, advice)
            return None
        if found[2] is not None and not self._group_names:
            return None  # without named groups, annex B reads the letter
        numbers = self._group_names.get(_unescaped(found[2]), []) if found[1] is None else [int(found[1][:9])]
        if not numbers or numbers[0] > len(self._captures):
            problem = f"a back-reference ('{found[0]}') to a group that the pattern does not have"
            raise _Malformed(problem, start, r"Correct it, or write a character by its code, as in '\x01'.")
        self.position = found.end()
        ignores_case = "i" in self.groups[-1].flags
        read: list[Instruction] = [
            postfix.Reference(number, ignores_case) for number in numbers if not self._is_unset(number)
        ]
        # Of groups with one name at most one has matched, and the others add nothing.
        return (*(read or [postfix.Text("")]), *([postfix.Join(len(read))] if len(read) > 1 else []))

    def _is_in_another_alternative(self, group: _Group) -> bool:
        """Whether no text matches both a group that was read and one that begins here."""
        return _is_in_other(_closed_around(group))

    def _is_unset(self, number: int) -> bool:
        """Whether a group certainly has not matched where a back-reference to it stands, which therefore matches the empty text.

        It has not inside itself, before itself (what it matched in an earlier iteration is forgotten), in another alternative, and after
        a negative lookaround around it. In a lookbehind, which is matched from its end, only the first is decided here, and nothing of a
        group that is too deep in others.
        """
        group = self.captures.get(number)
        if group is not None and group.is_open:
            return True
        if self.num_behind or group is None:
            return group is None and not self.num_behind
        around = _closed_around(group)
        return any(one.look is not None and one.look.is_negative for one in around) or _is_in_other(around)

    def _read_run(self) -> Iterator[Instruction]:
        """Read plain characters, without the last one where it is repeated."""
        found = _RUN.match(self.pattern, self.position)
        end = self.position + 1 if found is None else found.end()
        if end - self.position > 1 and _QUANTIFIER.match(self.pattern, end):
            end -= 1
        run, self.position = self.pattern[self.position : end], end
        if run in _LONELY:
            self.loose[f"a lone '{run}'"] = None
        if "i" not in self.groups[-1].flags:
            yield postfix.Text(run)
            return
        for sign in run:
            yield postfix.Character(self._in_both_cases(single(ord(sign))))
        self.groups[-1].items += len(run) - 1

    def _in_both_cases(self, written: Ranges) -> Ranges:
        return in_both_cases(written) if "i" in self.groups[-1].flags else written

    def _read_class(self) -> Ranges:
        start = self.position
        negated = self.pattern.startswith("[^", start)
        self.position += 2 if negated else 1
        sets: list[Ranges] = []
        while not self.pattern.startswith("]", self.position):
            if self.position >= len(self.pattern):
                raise _Malformed("unclosed class", start, r"Close it with ']', or write '\[' for a bracket.")
            sets.append(self._read_class_range())
        self.position += 1
        found = self._in_both_cases(union(sets))
        return invert(found) if negated else found

    def _read_class_range(self) -> Ranges:
        start = self.position
        first = self._read_class_member()
        following = self.pattern[self.position : self.position + 2]
        if not following.startswith("-") or following in ("-]", "-"):
            return first
        self.position += 1
        last = self._read_class_member()
        if not (_is_single(first) and _is_single(last)):
            self.loose["'-' beside a class"] = None
            return union((first, single(ord("-")), last))
        if last[0][0] < first[0][0]:
            problem = f"range out of order: {self.pattern[start : self.position]!r}"
            raise _Malformed(problem, start, "Write the lower character first.")
        return ((first[0][0], last[0][0]),)

    def _read_class_member(self) -> Ranges:
        sign = self.pattern[self.position]
        if sign != "\\":
            self.position += 1
            return single(ord(sign))
        found = {"-": 0x2D, "b": 0x08}.get(self.pattern[self.position + 1 : self.position + 2])
        if found is not None:
            self.position += 2
            return single(found)
        return self._read_escape()

    def _read_escape(self) -> Ranges:
        """Read one character or a set of them, in the case in which it is written."""
        start = self.position
        sign = self.pattern[start + 1 : start + 2]
        self.position += 2
        if sign and sign in "dDwWsS":
            found = {"d": ASCII_DIGITS, "w": self._in_both_cases(ASCII_WORD), "s": ecma_space()}[sign.lower()]
            return invert(found) if sign.isupper() else found
        if sign in ("p", "P") and _PROPERTY.match(self.pattern, self.position):
            return self._read_property(sign == "P")
        if sign in _CONTROLS:
            return single(_CONTROLS[sign])
        if sign in ("x", "u", "c", "0") and (code_point := self._read_code_point(sign)) is not None:
            return single(code_point)
        if sign and sign in _SYNTAX:
            return single(ord(sign))
        return single(self._read_loose_escape(start, sign))

    def _read_loose_escape(self, start: int, sign: str) -> int:
        """Read an escape that the `u` flag does not allow."""
        if not sign:
            raise _Malformed("a backslash at the end", start, r"Write '\\' for a backslash itself.")
        if sign in ("A", "Z", "z"):
            advice = "Write '^' for the start of the text and '$' for its end."
            raise _Malformed(rf"'\{sign}' is not part of ECMA-262", start, advice)
        self.loose[rf"'\{sign}'"] = None
        if (octal := _OCTAL.match(self.pattern, start + 1)) is not None:
            self.position = octal.end()
            return int(octal[0], 8)
        if sign == "c":  # without a letter after it, the backslash is a literal one
            self.position = start + 1
            return ord("\\")
        return ord(sign)

    @cached_property
    def _captures(self) -> list[str | None]:
        """The names of all groups that capture, or None for each."""
        return [_unescaped(found[2]) for found in _CAPTURES.finditer(self.pattern) if found[1] is not None]

    @cached_property
    def _group_names(self) -> dict[str | None, list[int]]:
        found = dict[str | None, list[int]]()
        for number, name in enumerate(self._captures, 1):
            if name is not None:
                found.setdefault(name, []).append(number)
        return found

    def _read_property(self, negated: bool) -> Ranges:
        name = _PROPERTY.match(self.pattern, self.position)
        assert name is not None
        self.position = name.end()
        found = unicode_property(name[1])
        if found is None:
            raise _Malformed(f"no Unicode property is named {name[1]!r}", name.start(), advice_for_property(name[1]))
        return invert(found) if negated else found

    def _read_code_point(self, sign: str) -> int | None:
        r"""Read the rest of `\xHH`, `\uHHHH`, `\u{H...}`, a surrogate pair, `\cX` or `\0`; None if it is none of these."""
        rest = self.pattern[self.position : self.position + 1]
        if sign == "0":
            return None if rest.isdigit() and rest.isascii() else 0
        if sign == "c":
            if not (rest.isalpha() and rest.isascii()):
                return None
            self.position += 1
            return ord(rest) % 32
        if sign == "u" and rest == "{":
            return self._read_braced()
        found = (_HEX2 if sign == "x" else _HEX4).match(self.pattern, self.position)
        if found is None:
            return None
        self.position = found.end()
        return self._join_surrogates(int(found[0], 16))

    def _read_braced(self) -> int | None:
        found = _BRACED_HEX.match(self.pattern, self.position)
        digits = found[1].lstrip("0") if found else ""
        if found is None or len(digits) > 6 or int(digits or "0", 16) > MAX_CODE_POINT:
            return None
        self.position = found.end()
        return int(digits or "0", 16)

    def _join_surrogates(self, unit: int) -> int:
        low = _LOW_SURROGATE.match(self.pattern, self.position) if 0xD800 <= unit <= 0xDBFF else None
        if low is None:
            return unit
        self.position = low.end()
        return 0x10000 + ((unit - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)


def _unescaped(name: str | None) -> str | None:
    """The name of a group without escapes; one that is no character stays, and is no identifier."""
    return name and _NAME_ESCAPE.sub(lambda found: chr(min(int(found[1] or found[2], 16), MAX_CODE_POINT)), name)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
