"""`Shape`: the syntax of a keyword's value: a test of whether it is well-formed, and where it contains subschemas. Also here are the shapes
that keywords share, errors (`expected`), JSON pointer tokens (`escape`, `part_at`), and numbers as decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum, auto
from math import isfinite
from typing import Any

from fsm.errors import SchemaError, shorten

Schema = dict[str, Any] | bool
JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
Check = Callable[[Any, str], None]
"""Raises `SchemaError` for a value that is malformed, given the pointer to it."""


def escape(token: str) -> str:
    """Escape a key for use in a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def part_at(value: Any, token: str) -> Any:
    """The part of a value that one token of a JSON pointer names.

    Raises:
        KeyError: there is none; its argument is the name that the token spells.
    """
    name = token.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    raise KeyError(name)


def is_number(value: object) -> bool:
    """True for a finite number; a bool is not a number."""
    if isinstance(value, float | Decimal):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


MAX_SINGLE = (2**24 - 1) * 2**104
"""The largest float of 32 bits."""


def to_decimal(value: int | float | Decimal) -> Decimal:
    """The decimal value of a number in a schema: of a float, the decimal that Python prints."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


class Inside(Enum):
    """What the value of a keyword contains: data, JSON values, or one, a list or a map of schemas."""

    DATA = auto()  # names, numbers, flags
    VALUES = auto()  # JSON values, which are never read as schemas
    SCHEMA = auto()
    SCHEMA_LIST = auto()
    SCHEMA_MAP = auto()


@dataclass(frozen=True, slots=True)
class Shape:
    """The well-formed values of a keyword.

    Attributes:
        check: raises for all other values.
        inside: what a well-formed value contains.
    """

    check: Check
    inside: Inside = Inside.DATA

    def fits(self, value: Any) -> bool:
        """True when a value is well-formed."""
        try:
            self.check(value, "")
        except SchemaError:
            return False
        return True

    def schemas(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
        """Yield the schemas in a value, each with the pointer tokens to it."""
        if self.inside is Inside.SCHEMA:
            yield (), value
        elif self.inside is Inside.SCHEMA_LIST:
            for position, schema in enumerate(value):
                yield (position,), schema
        elif self.inside is Inside.SCHEMA_MAP:
            for name, schema in value.items():
                yield (name,), schema


def expected(what: str, value: object, pointer: str = "", advice: str = "Correct the schema") -> SchemaError:
    """The error for a malformed value."""
    return SchemaError(f"expected {what}, received {shorten(value)}. {advice}", pointer)


def check_schema(value: object, pointer: str) -> None:
    """A schema: an object, true or false."""
    if not isinstance(value, dict | bool):
        raise expected("a schema (an object, true or false)", value, pointer)


def check_text(value: object, pointer: str) -> None:
    """A string without lone surrogates, so that it has UTF-8."""
    if not isinstance(value, str):
        raise expected("a string", value, pointer)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise SchemaError(f"{shorten(value)} has a lone surrogate, which has no UTF-8. Remove it", pointer)


def _plain(what: str, test: Callable[[Any], bool]) -> Shape:
    """The values that pass a test; `what` describes them in messages."""

    def check(value: Any, pointer: str) -> None:
        if not test(value):
            raise expected(what, value, pointer)

    return Shape(check)


def _list_of(what: str, check_item: Check, least: int = 0) -> Check:
    def check(value: Any, pointer: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise expected(what, value, pointer)
        for position, item in enumerate(value):
            check_item(item, f"{pointer}/{position}")

    return check


def _map_of(what: str, check_item: Check) -> Check:
    def check(value: Any, pointer: str) -> None:
        if not isinstance(value, dict):
            raise expected(what, value, pointer)
        for key, item in value.items():
            check_text(key, pointer)
            check_item(item, f"{pointer}/{escape(key)}")

    return check


def _check_types(value: object, pointer: str) -> None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise expected(f"one of {', '.join(JSON_TYPES)}, or a list of them", value, pointer)
    for name in names:
        if name not in JSON_TYPES:
            near = get_close_matches(str(name), JSON_TYPES, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            problem = f"expected a JSON type ({', '.join(JSON_TYPES)}), received {shorten(name)}.{hint}"
            raise SchemaError(problem, pointer)


def _check_value(value: object, pointer: str) -> None:
    """A JSON value whose strings have UTF-8, so that it can be written."""
    if isinstance(value, str) and value.isascii():
        return
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
    """Any value."""


_check_texts = _list_of("a list of strings", check_text)

SCHEMA = Shape(check_schema, Inside.SCHEMA)
SCHEMA_LIST = Shape(_list_of("a list of at least one schema", check_schema, 1), Inside.SCHEMA_LIST)
SCHEMA_MAP = Shape(_map_of("an object whose values are schemas", check_schema), Inside.SCHEMA_MAP)
TEXT = Shape(check_text)
TEXTS = Shape(_check_texts)
TYPES = Shape(_check_types)
NUMBER = _plain("a finite number", is_number)
DIVISOR = _plain("a number above zero", lambda value: is_number(value) and value > 0)
COUNT = _plain("a whole number of at least zero", lambda value: is_number(value) and value >= 0 and value == int(value))
FLAG = _plain("true or false", lambda value: isinstance(value, bool))
NAME_LISTS = Shape(_map_of("an object whose values are lists of names", _check_texts))
VALUE = Shape(_check_value, Inside.VALUES)
VALUES = Shape(_list_of("a list of values", _check_value), Inside.VALUES)
ANYTHING = Shape(_check_nothing)
ANY_VALUES = Shape(_check_nothing, Inside.VALUES)
ANY_SCHEMA_MAP = Shape(_check_nothing, Inside.SCHEMA_MAP)
