"""`format_of`: the language of the texts of a Python type (int, float, Decimal, bool, dates and times, UUID, Enum, Literal), with a
parser. An int has at most 19 digits, a float at most 15 before and 15 after the point, a Decimal 19 and 19; dates that do not exist are
excluded. Any other type is an `OptionError`.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import fsm
from fsm import Expression
from outlines_cont.checks import check
from outlines_cont.errors import OptionError

_LEAP_CENTURY = "(?:[02468][048]|[13579][26])00"
_LEAP_YEAR = "[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    f"(?:[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    f"|(?:{_LEAP_CENTURY}|{_LEAP_YEAR})-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
_HEX = "[0-9a-f]"
_BOOLEANS = ("true", "false", "True", "False")


@dataclass(frozen=True, slots=True)
class Format:
    """The language of the texts of a type, the function from such a text to the value, and the texts, if these are listed."""

    expression: Expression
    parse: Callable[[str], Any]
    texts: tuple[str, ...] = ()


def format_of(kind: Any) -> Format:
    """Return the language of a type.

    `int`: up to 19 digits. `float`: up to 15 digits, a fraction, an exponent of two digits. `Decimal`: up to 19 digits, a fraction of 19,
    of which none is lost. `bool`: true or false. Dates and
    times: ISO 8601 with seconds, optionally a zone, and only dates that exist. `Enum` and `Literal`: the values, as `str`
    shows them.

    Raises:
        OptionError: another type, or one with two values that have the same text.
    """
    if get_origin(kind) is Literal:
        return _options([(str(value), value) for value in get_args(kind)], kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _options([(str(member.value), member) for member in kind], kind)
    build = _FORMATS.get(kind) if isinstance(kind, type) else None
    known = ", ".join(known.__name__ for known in _FORMATS)
    check("type", kind, build is not None, f"{known}, an Enum or a Literal", "For anything else use `generate.json`.")
    assert build is not None
    return build()


def _options(pairs: list[tuple[str, Any]], kind: Any) -> Format:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise OptionError(f"expected values that differ as text, got {[text for text, _ in pairs]} in {kind!r}", "type")
    return Format(fsm.choice(list(values)), values.__getitem__, tuple(values))


def _date(pattern: str) -> Expression:
    # Python's calendar begins with the year 1.
    return fsm.regex(pattern) & ~fsm.regex("0000-.*")


_FORMATS: dict[type, Callable[[], Format]] = {
    int: lambda: Format(fsm.regex("0|-?[1-9][0-9]{0,18}"), int),
    float: lambda: Format(fsm.regex(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:e[+-]?[0-9]{1,2})?"), float),
    Decimal: lambda: Format(fsm.regex(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?"), Decimal),
    bool: lambda: Format(fsm.choice(_BOOLEANS), lambda text: text.lower() == "true", _BOOLEANS),
    datetime.date: lambda: Format(_date(_DATE), datetime.date.fromisoformat),
    datetime.time: lambda: Format(fsm.regex(_TIME + _ZONE), datetime.time.fromisoformat),
    datetime.datetime: lambda: Format(_date(f"{_DATE}T{_TIME}{_ZONE}"), datetime.datetime.fromisoformat),
    uuid.UUID: lambda: Format(fsm.regex(f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"), uuid.UUID),
}
