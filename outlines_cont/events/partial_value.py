"""`PartialValue`: partial JSON parsing: the value so far of incomplete JSON, as a type of pydantic (such as a model with the fields that
are complete, and open strings), by `OpenJSON` and `PartialType`; the same object as long as it is equal. Parts that fail validation are
left out; an open object or array of a union until its members rule out all types but one. After a retraction all text is scanned again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from outlines_cont.events.open_json import OpenContainer, OpenJSON
from outlines_cont.events.partial_type import MISSING, PartialShape, PartialType
from outlines_cont.user_code import shielded


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
        return bool(self._json.open[0].members)

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
