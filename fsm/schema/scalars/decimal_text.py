"""`decimal_text`: values of `Decimal` as the inside of a JSON string, in plain digits as in pydantic's JSON output, such as `9.90`. The
term is an intersection of a range, a divisibility automaton and bounds on digits. Left out are values that `str` writes with exponent
(`1E+3`, `1E-7`, and so seven zeros after the point), a signed zero, and more than 40 digits before or after the point. With `multiple_of`
there are at most 28 digits, as in Python's default decimal context.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from fsm.schema.scalars import number_range as ranges
from fsm.schema.scalars.multiple import multiples
from fsm.schema.scalars.number_range import DIGIT, MAX_DIGITS, ZERO, Bound, fraction
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Node

_CONTEXT_DIGITS = 28
_PLAIN_DECIMALS = 6  # the most zeros after the point that `str` writes without an exponent
_ZEROS = nodes.literal(b"0." + b"0" * _PLAIN_DECIMALS)
_WITH_EXPONENT = nodes.sequence((nodes.optional(ranges.MINUS), _ZEROS, nodes.repeat(DIGIT, 1)))


def decimal_text(
    low: Bound | None = None,
    high: Bound | None = None,
    step: Decimal | None = None,
    max_digits: int | None = None,
    decimal_places: int | None = None,
) -> Node:
    """The inside of the strings.

    Args:
        low, high: bounds.
        step: the number is a multiple of it.
        max_digits: the most digits, not counting a zero before the point.
        decimal_places: the most digits after the point.
    """
    decimals = _decimals(step, max_digits, decimal_places)
    whole = MAX_DIGITS if step is None else _CONTEXT_DIGITS - decimals  # the most digits before the point
    if max_digits is not None:
        whole = min(whole, max(max_digits - (decimal_places or 0), 0))
    if whole < MAX_DIGITS:
        most = ranges.scaled(10 ** (whole + decimals) - 1, decimals)
        low, high = ranges.higher(low, Bound(most.copy_negate(), True)), ranges.lower(high, Bound(most, True))
    parts = [
        ranges.between(low, high, decimals)
        if step is None
        else multiples(Fraction(step), decimals, whole + decimals, low, high)
    ]
    if max_digits is not None and whole + decimals > max_digits:
        parts.append(_of_digits(max_digits, decimals))
    if max_digits is not None and not whole:  # pydantic counts a zero that is the only digit before the point
        parts.append(nodes.complement(ZERO))
    if decimals > _PLAIN_DECIMALS:
        parts.append(nodes.complement(_WITH_EXPONENT))
    return nodes.intersection(parts)


def _decimals(step: Decimal | None, max_digits: int | None, decimal_places: int | None) -> int:
    """The most digits after the point."""
    most = MAX_DIGITS if decimal_places is None else decimal_places
    most = most if max_digits is None else min(most, max_digits)
    if step is None:
        return min(most, MAX_DIGITS)
    written = max(-int(step.as_tuple().exponent), 1)
    return min(most, written if decimal_places is None else _CONTEXT_DIGITS // 2, _CONTEXT_DIGITS)


def _of_digits(most: int, decimals: int) -> Node:
    """Plain numbers of at most `most` digits; a zero before the point does not count."""
    found = nodes.concat(ZERO, fraction(min(decimals, most)))
    for count in range(1, min(most, MAX_DIGITS) + 1):
        rest = nodes.repeat(DIGIT, count - 1, count - 1)
        found = nodes.alternation(
            (found, nodes.sequence((ranges.NONZERO, rest, fraction(min(decimals, most - count)))))
        )
    return nodes.concat(nodes.optional(ranges.MINUS), found) if most > 0 else EMPTY
