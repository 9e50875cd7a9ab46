"""Options that are True or False: `checked_bool`."""

from __future__ import annotations

from outlines_cont.errors import OptionError


def checked_bool(value: object, option: str) -> bool:
    """Return the value of an option that is True or False; a text such as "no" would count as true.

    Raises:
        OptionError: it is something else.
    """
    if not isinstance(value, bool):
        raise OptionError(f"expected True or False as `{option}`, got {value!r}", option)
    return value
