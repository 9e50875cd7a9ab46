"""`OpenJSON`: an incremental JSON scanner: one pass over text that grows, with a stack of the objects and arrays that are open
(`OpenContainer`), for each the extents of its complete members, and the open string. It does not check that the text is well-formed; a
number or literal is complete only when something follows it, as `12` may become `128`.

`PartialValue`: partial JSON parsing: the value so far of incomplete JSON, as a type of pydantic (such as a model with the fields that
are complete, and open strings), by `OpenJSON` and `PartialType`; the same object as long as it is equal. Parts that fail validation are
left out; an open object or array of a union until its members rule out all types but one. After a retraction all text is scanned again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from outlines_cont.events.partial_type import MISSING, PartialShape, PartialType
from outlines_cont.user_code import shielded

_STRING_END = re.compile(r'["\\]')
_SCALAR = re.compile(r'[^\s{}\[\]",:]+')


@dataclass(slots=True, eq=False)
class OpenContainer:
    """An object or an array (`opening` is `{` or `[`) that is incomplete.

    Attributes:
        members: the complete members: the key (None in an array), and the start and stop of the text of the value.
        key: in an object, the key of the incomplete member; None before the key is complete.
        start: where the text of the container begins.
    """

    opening: str
    members: list[tuple[str | None, int, int]] = field(default_factory=list)
    key: str | None = None
    start: int = 0

    @property
    def is_at_key(self) -> bool:
        """Whether a string that begins here is a key."""
        return self.opening == "{" and self.key is None

    def close_member(self, start: int, stop: int) -> None:
        """Record a member whose value is complete."""
        self.members.append((self.key, start, stop))
        self.key = None


class OpenJSON:
    """A scanner of JSON text that grows at its end.

    Attributes:
        text: all text so far.
        open: the open containers, the outermost first. The first is a virtual array around the whole text.
    """

    def __init__(self, text: str = "") -> None:
        self.text = ""
        self.open = [OpenContainer("[")]
        self._at = 0  # up to which the text was scanned
        self._start: int | None = None  # that of the open string or other scalar
        self._is_string = False
        self.push(text)

    def push(self, text: str) -> None:
        """Scan more text, up to the end of the value. Cost: its length."""
        self.text += text
        while self._at < len(self.text) and not self.is_whole:
            if self._start is not None and self._is_string:
                self._read_string()
            else:
                self._read_mark()

    @property
    def is_whole(self) -> bool:
        """Whether the value is complete; a number is when something follows it."""
        return bool(self.open[0].members)

    @property
    def rest(self) -> str:
        """The text that was not scanned, as it follows the value."""
        return self.text[self._at :]

    @property
    def open_string(self) -> str | None:
        """The text so far of the open string; None if no string is open, or it is a key. Cost: its length."""
        if self._start is None or not self._is_string or self.open[-1].is_at_key:
            return None
        try:
            return str(from_json(self.text[self._start :], allow_partial="trailing-strings"))
        except ValueError:  # half of a surrogate pair
            return None

    def _read_string(self) -> None:
        found = _STRING_END.search(self.text, self._at)
        if found is None:
            self._at = len(self.text)
        elif found[0] == '"':
            self._at = found.end()
            self._close_scalar(self._at)
        else:
            self._at = found.end() + 1  # after the escaped character, which may not be there yet

    def _read_mark(self) -> None:
        scalar = _SCALAR.match(self.text, self._at)
        if scalar is not None:
            self._start = self._at if self._start is None else self._start
            self._is_string, self._at = False, scalar.end()
            return
        if self._start is not None:
            self._close_scalar(self._at)
        mark = self.text[self._at]
        if mark in "{[":
            self.open.append(OpenContainer(mark, start=self._at))
        elif mark in "}]" and len(self.open) > 1:
            closed = self.open.pop()
            self.open[-1].close_member(closed.start, self._at + 1)
        elif mark == '"':
            self._start, self._is_string = self._at, True
        self._at += 1

    def _close_scalar(self, stop: int) -> None:
        start, container = self._start, self.open[-1]
        assert start is not None
        self._start = None
        if container.is_at_key:
            container.key = json.loads(self.text[start:stop])
        else:
            container.close_member(start, stop)


class PartialValue:
    """The value so far of one row, of type `kind`.

    Invariants: a complete part is validated by itself, once, and appears in every later value. A part that fails is left out. A
    string of a text field grows; a number appears once something follows it.
    """

    def __init__(self, kind: PartialType) -> None:
        self._kind = kind
        self._begin("")
        self._value: Any = MISSING
        self._is_retracted = False  # since the value was read last

    def push(self, text: str) -> None:
        """Append text. Cost: its length."""
        self._json.push(text)

    def take_back(self, count: int) -> None:
        """Remove the last `count` characters. Cost: the length of all text, which is scanned again."""
        if count:
            self._begin(self._json.text[:-count])
            self._is_retracted = True

    @property
    def is_whole(self) -> bool:
        """Whether the value is complete; a number is when something follows it."""
        return self._json.is_whole

    @property
    def rest(self) -> str:
        """The text that follows the complete value; empty until there is one."""
        return self._json.rest

    @property
    def value(self) -> Any:
        """The value so far, or `MISSING`; the same object as long as it is equal. An invalid complete value does not change it.

        Cost: validation of the members that have become complete, each alone, and again with its container if that is complete;
        a copy of the members of every open container; the open string.
        """
        found = self._read()
        if found is not MISSING or not self.is_whole:
            self._set(found)
        return self._value

    def close(self, value: Any) -> Any:
        """Set the final value and return it; where the last value so far is equal, that object is returned."""
        self._set(value)
        return self._value

    def _set(self, value: Any) -> None:
        # After a retraction an equal value may still be another one: True and 1.
        if not _is_same(value, self._value) or (self._is_retracted and not _is_alike(value, self._value)):
            self._value = value
        self._is_retracted = False

    def _begin(self, text: str) -> None:
        self._json = OpenJSON(text)
        whole = PartialShape(lambda values: [*map(self._kind.shown, values)], lambda _: (0, self._kind))
        self._readings = [_Readings(self._json.open[0], [_Reading(whole)])]

    def _read(self) -> Any:
        """Return the value so far: descend through the open containers, then build the values from the innermost outwards."""
        path: list[tuple[_Reading, OpenContainer]] = []
        kind: PartialType | None = self._kind
        del self._readings[len(self._json.open) :]
        for depth, container in enumerate(self._json.open):
            if len(self._readings) == depth or self._readings[depth].container is not container:
                assert kind is not None
                shapes = kind.shapes[container.opening]
                self._readings[depth:] = [_Readings(container, [_Reading(shape) for shape in shapes])]
            reading = self._readings[depth].read(self._json.text)
            kind = None
            if reading is None:
                break
            path.append((reading, container))
            kind = reading.open_member(container)
            if kind is None:
                break
        text = self._json.open_string if kind is not None else None
        value: Any = MISSING if text is None or kind is None else kind.open_text(text)
        for reading, container in reversed(path):
            value = reading.value(container, value)
        return value[0] if value else MISSING


@dataclass(slots=True, eq=False)
class _Reading:
    """An open container in one of its interpretations: its complete members by name (by number in an array), and if one was invalid."""

    shape: PartialShape
    values: dict[Any, Any] = field(default_factory=dict)
    has_failed: bool = False

    def take(self, key: Any, text: str) -> None:
        """Add a complete member."""
        member = self.shape.member(key)
        value = MISSING if member is None else member[1].closed(text)
        if member is None or value is MISSING:
            self.has_failed = True
        else:
            self.values[member[0]] = value

    def open_member(self, container: OpenContainer) -> PartialType | None:
        """Return the type of the incomplete member; None if it has none, or no key yet."""
        member = self._open(container)
        return None if member is None else member[1]

    def value(self, container: OpenContainer, last: Any) -> Any:
        """Return the value so far, with the value `last` of the incomplete member, unless it is MISSING."""
        member = self._open(container)
        values = self.values if member is None or last is MISSING else {**self.values, member[0]: last}
        try:
            return self.shape.build(values if container.opening == "{" else [*values.values()])
        except TypeError:  # a set of unhashable values
            return MISSING

    def _open(self, container: OpenContainer) -> tuple[Any, PartialType] | None:
        key = container.key if container.opening == "{" else len(container.members)
        return None if key is None or not self.shape.shows_open else self.shape.member(key)


@dataclass(slots=True, eq=False)
class _Readings:
    """An open container, all its interpretations, and how many of its members were read."""

    container: OpenContainer
    readings: list[_Reading]
    num_read: int = 0

    def read(self, text: str) -> _Reading | None:
        """Read the new members; return the interpretation of the container, or None if several are possible, or none is."""
        for number, (key, start, stop) in enumerate(self.container.members[self.num_read :], self.num_read):
            for reading in self.readings:
                reading.take(number if self.container.opening == "[" else key, text[start:stop])
        self.num_read = len(self.container.members)
        possible = self.readings if len(self.readings) == 1 else [one for one in self.readings if not one.has_failed]
        return possible[0] if len(possible) == 1 else None


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are of one type, and equal; False if the comparison raises."""
    try:
        return type(value) is type(other) and bool(shielded(lambda: value == other))
    except Exception:  # the `__eq__` of a user's class may need all fields
        return False


def _is_alike(value: Any, other: Any) -> bool:
    """Return whether two equal values also have the same types, signs of zero and orders of keys. Cost: their size."""
    stack = [(value, other)]
    while stack:
        one, two = stack.pop()
        if one is two:
            continue
        if type(one) is not type(two):
            return False
        if isinstance(one, BaseModel):
            stack += [(one.__dict__, two.__dict__), (one.__pydantic_extra__, two.__pydantic_extra__)]
        elif isinstance(one, dict):
            if list(one) != list(two):
                return False
            stack += [(list(one), list(two)), (list(one.values()), list(two.values()))]
        elif isinstance(one, list | tuple):
            if len(one) != len(two):  # the `__eq__` of a user's class may ignore fields
                return False
            stack += zip(one, two, strict=True)
        elif type(one) in (float, Decimal) and str(one) != str(two):
            return False
    return True
