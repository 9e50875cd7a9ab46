"""`PartialValue`: partial JSON parsing: the value so far of JSON that is being written, as a type of pydantic (such as a model with the
fields that are complete), by `OpenJSON` and `PartialType`. Parts that fail validation are left out; after text was taken back, all of
it is scanned again.
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
        self._was_taken_back = False  # since the value was read last

    def push(self, text: str) -> None:
        """Add text at the end. Cost: its length."""
        self._json.push(text)

    def take_back(self, count: int) -> None:
        """Remove the last `count` characters. Cost: the length of all text, which is scanned again."""
        if count:
            self._begin(self._json.text[:-count])
            self._was_taken_back = True

    @property
    def is_whole(self) -> bool:
        """Whether the value is complete; a number is once something follows it."""
        return bool(self._json.open[0].members)

    @property
    def value(self) -> Any:
        """The value so far, or `MISSING`; the same object as long as it is equal. An invalid complete value does not change it.

        Cost: the members that have become complete, each validated alone, and again with its container, where that has become complete;
        a copy of the members of every container that is open; the string that is open.
        """
        found = self._read()
        is_refused = found is MISSING and bool(self._json.open[0].members)  # whole, and not valid
        if not is_refused:
            self._take(found)
        return self._value

    def close(self, value: Any) -> Any:
        """Set the final value and return it; where the last value so far is equal, that object is returned."""
        self._take(value)
        return self._value

    def _take(self, value: Any) -> None:
        # What was written in the place of other text may be equal to it, and yet another value: True and 1.
        if not _is_same(value, self._value) or (self._was_taken_back and not _is_alike(value, self._value)):
            self._value = value
        self._was_taken_back = False

    def _begin(self, text: str) -> None:
        self._json = OpenJSON(text)
        whole = PartialShape(lambda values: [*map(self._kind.shown, values)], lambda _: (0, self._kind))
        self._readings = [_Readings(self._json.open[0], [_Reading(whole)])]

    def _read(self) -> Any:
        """Return the value so far: go down the open containers, then build the values from the innermost outwards."""
        path: list[tuple[_Reading, OpenContainer]] = []
        kind: PartialType | None = self._kind
        del self._readings[len(self._json.open) :]
        for depth, container in enumerate(self._json.open):
            if len(self._readings) == depth or self._readings[depth].container is not container:
                assert kind is not None
                shapes = kind.shapes(container.opening)
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
    """An open container in one of its interpretations: its complete members by name (by number in an array), and if one was not valid."""

    shape: PartialShape
    values: dict[Any, Any] = field(default_factory=dict)
    has_failed: bool = False

    def take(self, key: Any, text: str) -> None:
        """Take a member that is whole."""
        member = self.shape.member(key)
        value = MISSING if member is None else member[1].closed(text)
        if member is None or value is MISSING:
            self.has_failed = True
        else:
            self.values[member[0]] = value

    def open_member(self, container: OpenContainer) -> PartialType | None:
        """Return the type of the member that is being written, None where that has none or was not named yet."""
        member = self._open(container)
        return None if member is None else member[1]

    def value(self, container: OpenContainer, last: Any) -> Any:
        """Return the value so far, with that of the member that is being written, unless it is MISSING."""
        member = self._open(container)
        values = self.values if member is None or last is MISSING else {**self.values, member[0]: last}
        try:
            return self.shape.build(values if container.opening == "{" else [*values.values()])
        except TypeError:  # a set of what has no hash
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
        """Read the new members; return the interpretation of the container, None while several are possible, or none is."""
        for number, (key, start, stop) in enumerate(self.container.members[self.num_read :], self.num_read):
            for reading in self.readings:
                reading.take(number if self.container.opening == "[" else key, text[start:stop])
        self.num_read = len(self.container.members)
        possible = self.readings if len(self.readings) == 1 else [one for one in self.readings if not one.has_failed]
        return possible[0] if len(possible) == 1 else None


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are equal, and of one type; those that cannot be compared are not."""
    try:
        return type(value) is type(other) and bool(shielded(lambda: value == other))
    except Exception:  # a class of the user may have an `__eq__` that needs all fields
        return False


def _is_alike(value: Any, other: Any) -> bool:
    """Return whether two values that are equal also have the same types, signs of zero and orders of keys. Cost: all that is in them."""
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
            if len(one) != len(two):  # a class of the user may have an `__eq__` that leaves fields out
                return False
            stack += zip(one, two, strict=True)
        elif type(one) in (float, Decimal) and str(one) != str(two):
            return False
    return True
