"""Checks of plain options: `checked_bool`, `check`, and `is_int` and `is_number`, which take no bool for a number."""

from __future__ import annotations

from typing import TypeGuard

from outlines_cont.errors import OptionError


def checked_bool(value: object, option: str) -> bool:
    """Return the value of an option that is True or False; a text such as "no" would count as true.

    Raises:
        OptionError: it is something else.
    """
    if not isinstance(value, bool):
        raise OptionError(f"expected True or False as `{option}`, got {value!r}", option)
    return value


def check(option: str, value: object, holds: bool, expected: str) -> None:
    """Raise `OptionError`, which says what was `expected` as `option`, unless the check `holds`."""
    if not holds:
        raise OptionError(f"expected {expected} as `{option}`, got {value!r}", option)


def is_int(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an int and not a bool, `least` or larger, `most` or smaller."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
