"""Shapes of keywords: which values of a keyword are well-formed, and where in them schemas are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum, auto
from math import isfinite
from reprlib import Repr
from typing import Any

from fsm.errors import SchemaError

Schema = dict[str, Any] | bool
JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 2, 3, 4
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shorten(value: object) -> str:
    """A value for an error message, however large or deeply nested."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"a very long {type(value).__name__}"


def escape(token: str) -> str:
    """Escape a key for use in a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def is_number(value: object) -> bool:
    """True for a finite JSON number; a bool is not a number."""
    if isinstance(value, float | Decimal):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def to_decimal(value: int | float | Decimal) -> Decimal:
    """The decimal that a number in a schema stands for."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


class Inside(Enum):
    """What the value of a keyword holds."""

    DATA = auto()
    """Names, numbers, flags."""
    VALUES = auto()
    """JSON values, which are never read as schemas."""
    SCHEMA = auto()
    SCHEMA_LIST = auto()
    SCHEMA_MAP = auto()


@dataclass(frozen=True, slots=True)
class Shape:
    """The well-formed values of a keyword.

    Attributes:
        check: raises `SchemaError` for a value that is malformed, given the pointer to it.
        inside: what such a value holds.
    """

    check: Callable[[Any, str], None]
    inside: Inside = Inside.DATA

    def fits(self, value: Any) -> bool:
        """True when a value is well-formed."""
        try:
            self.check(value, "")
        except SchemaError:
            return False
        return True

    def schemas(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
        """Yield the schemas in a value, each with the tokens that lead to it."""
        if self.inside is Inside.SCHEMA:
            yield (), value
        elif self.inside is Inside.SCHEMA_LIST:
            for position, schema in enumerate(value):
                yield (position,), schema
        elif self.inside is Inside.SCHEMA_MAP:
            for name, schema in value.items():
                yield (name,), schema


def expected(what: str, value: object, pointer: str) -> SchemaError:
    """The error for a malformed value."""
    return SchemaError(f"expected {what}, received {shorten(value)}. Correct the schema", pointer)


def check_schema(value: object, pointer: str) -> None:
    """A schema: an object, true or false."""
    if not isinstance(value, dict | bool):
        raise expected("a schema (an object, true or false)", value, pointer)


def _check_schema_list(value: object, pointer: str) -> None:
    if not isinstance(value, list) or not value:
        raise expected("a list of at least one schema", value, pointer)
    for position, item in enumerate(value):
        check_schema(item, f"{pointer}/{position}")


def _check_schema_map(value: object, pointer: str) -> None:
    if not isinstance(value, dict):
        raise expected("an object whose values are schemas", value, pointer)
    for key, item in value.items():
        check_text(key, pointer)
        check_schema(item, f"{pointer}/{escape(key)}")


def check_text(value: object, pointer: str) -> None:
    """A string that has UTF-8."""
    if not isinstance(value, str):
        raise expected("a string", value, pointer)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise SchemaError(f"{shorten(value)} holds a lone surrogate, which has no UTF-8. Remove it", pointer)


def _check_texts(value: object, pointer: str) -> None:
    if not isinstance(value, list):
        raise expected("a list of strings", value, pointer)
    for position, item in enumerate(value):
        check_text(item, f"{pointer}/{position}")


def _check_types(value: object, pointer: str) -> None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise expected(f"one of {', '.join(JSON_TYPES)}, or a list of them", value, pointer)
    for name in names:
        if name not in JSON_TYPES:
            near = get_close_matches(str(name), JSON_TYPES, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SchemaError(
                f"expected a JSON type ({', '.join(JSON_TYPES)}), received {shorten(name)}.{hint}", pointer
            )


def _check_number(value: object, pointer: str) -> None:
    if not is_number(value):
        raise expected("a finite number", value, pointer)


def _check_divisor(value: Any, pointer: str) -> None:
    if not is_number(value) or value <= 0:
        raise expected("a number above zero", value, pointer)


def _check_count(value: Any, pointer: str) -> None:
    if not is_number(value) or value < 0 or value != int(value):
        raise expected("a whole number of at least zero", value, pointer)


def _check_values(value: object, pointer: str) -> None:
    if not isinstance(value, list):
        raise expected("a list of values", value, pointer)
    for position, item in enumerate(value):
        if not isinstance(item, str) or not item.isascii():
            _check_value(item, f"{pointer}/{position}")


def _check_flag(value: object, pointer: str) -> None:
    if not isinstance(value, bool):
        raise expected("true or false", value, pointer)


def _check_name_lists(value: object, pointer: str) -> None:
    if not isinstance(value, dict):
        raise expected("an object whose values are lists of names", value, pointer)
    for key, names in value.items():
        check_text(key, pointer)
        _check_texts(names, f"{pointer}/{escape(key)}")


def _check_value(value: object, pointer: str) -> None:
    """Every text inside a value has UTF-8, so that the value can be written, or left out."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            check_text(part, pointer)
        elif isinstance(part, dict):
            stack += [*part, *part.values()]
        elif isinstance(part, list):
            stack += part


def _check_nothing(value: object, pointer: str) -> None:
    """Whatever stands there."""


SCHEMA = Shape(check_schema, Inside.SCHEMA)
SCHEMA_LIST = Shape(_check_schema_list, Inside.SCHEMA_LIST)
SCHEMA_MAP = Shape(_check_schema_map, Inside.SCHEMA_MAP)
TEXT = Shape(check_text)
TEXTS = Shape(_check_texts)
TYPES = Shape(_check_types)
NUMBER = Shape(_check_number)
DIVISOR = Shape(_check_divisor)
COUNT = Shape(_check_count)
FLAG = Shape(_check_flag)
NAME_LISTS = Shape(_check_name_lists)
VALUE = Shape(_check_value, Inside.VALUES)
VALUES = Shape(_check_values, Inside.VALUES)
ANYTHING = Shape(_check_nothing)
ANY_VALUE = Shape(_check_nothing, Inside.VALUES)
ANY_SCHEMA_MAP = Shape(_check_nothing, Inside.SCHEMA_MAP)
