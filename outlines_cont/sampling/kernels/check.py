"""Checks of options: what is out of range is named, with what was expected."""

from __future__ import annotations

from outlines_cont.errors import OptionError


def check(option: str, value: object, holds: bool, expected: str) -> None:
    """Raise `OptionError`, which says what was `expected` as `option`, unless the check `holds`."""
    if not holds:
        raise OptionError(f"expected {expected} as `{option}`, got {value!r}", option)


def is_int(value: object) -> bool:
    """Return whether a value is an int, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float, and no bool; NaN is one, too."""
    return isinstance(value, int | float) and not isinstance(value, bool)
