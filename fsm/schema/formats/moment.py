"""Formats of dates, times and durations, as regular expressions after the grammars of RFC 3339. Days that a month does not have are
excluded, and February 29 except in leap years. Left out are the year 0000 and the leap second 60, which most parsers reject, and more than
9 digits of a fraction of a second. `clock`, `local_date_time`: without an offset, 6 digits.
"""

from __future__ import annotations

from fsm.schema.formats.parts import DIGIT, either, joined, one_of, text, times, two_digits
from fsm.terms import node as nodes
from fsm.terms.node import Node


def date() -> Node:
    """RFC 3339 full-date."""
    pairs = nodes.words(b"%02d" % n for n in range(4, 100, 4))
    leap_year = either(joined(times(DIGIT, 2), pairs), joined(pairs, text("00")))
    year = either(*(joined(times(text("0"), n), one_of("123456789"), times(DIGIT, 3 - n)) for n in range(4)))
    long_months, short_months = "01 03 05 07 08 10 12", "04 06 09 11"
    days = either(
        joined(either(*map(text, long_months.split())), text("-"), two_digits(1, 31)),
        joined(either(*map(text, short_months.split())), text("-"), two_digits(1, 30)),
        joined(text("02-"), two_digits(1, 28)),
    )
    return either(joined(year, text("-"), days), joined(leap_year, text("-02-29")))


def clock(fraction_digits: int = 6) -> Node:
    """Hours, minutes, seconds and an optional fraction."""
    fraction = nodes.optional(joined(text("."), times(DIGIT, 1, fraction_digits)))
    return joined(two_digits(0, 23), text(":"), two_digits(0, 59), text(":"), two_digits(0, 59), fraction)


def _offset() -> Node:
    return either(one_of("Zz"), joined(one_of("+-"), two_digits(0, 23), text(":"), two_digits(0, 59)))


def time() -> Node:
    """RFC 3339 full-time."""
    return joined(clock(9), _offset())


def date_time() -> Node:
    """RFC 3339 date-time."""
    return joined(date(), one_of("Tt"), clock(9), _offset())


def local_date_time() -> Node:
    """RFC 3339 date-time without the offset."""
    return joined(date(), text("T"), clock())


def duration() -> Node:
    """RFC 3339 appendix A: years, months, days, hours, minutes and seconds without a gap between them, or weeks."""
    second = _count("S")
    minute = joined(_count("M"), nodes.optional(second))
    hour = joined(_count("H"), nodes.optional(minute))
    clock_part = joined(text("T"), either(hour, minute, second))
    day = _count("D")
    month = joined(_count("M"), nodes.optional(day))
    year = joined(_count("Y"), nodes.optional(month))
    days = joined(either(year, month, day), nodes.optional(clock_part))
    return joined(text("P"), either(days, clock_part, _count("W")))


def _count(unit: str) -> Node:
    return joined(nodes.repeat(DIGIT, 1), text(unit))
