"""`decimal_text`: values of `Decimal` as the inside of a JSON string, in plain digits as in pydantic's JSON output, such as `9.90`.

The term is an intersection of a range, a divisibility automaton and bounds on digits.

Left out is what `str` writes with an exponent (`1E+3`, `1E-7`, so also seven zeros after the point), a signed zero, and more than 40 digits
before or after the point. With `multiple_of` there are at most 28 digits, as the arithmetic of Python has.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from fsm.schema.scalars.multiple import multiples
from fsm.schema.scalars.number_range import (
    DIGIT,
    MAX_DIGITS,
    MINUS,
    NONZERO,
    ZERO,
    Bound,
    between,
    fraction,
    higher,
    lower,
    scaled,
)
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Node

_CONTEXT_DIGITS = 28
_PLAIN_DECIMALS = 6  # so many zeros after the point `str` writes without an exponent


def decimal_text(
    low: Bound | None = None,
    high: Bound | None = None,
    step: Decimal | None = None,
    max_digits: int | None = None,
    decimal_places: int | None = None,
) -> Node:
    """The inside of the strings.

    Args:
        low: the lower bound.
        high: the upper bound.
        step: what the number is a multiple of.
        max_digits: of all digits but a zero before the point.
        decimal_places: digits after the point at most.
    """
    decimals = _decimals(step, max_digits, decimal_places)
    whole = MAX_DIGITS if step is None else _CONTEXT_DIGITS - decimals  # digits before the point at most
    if max_digits is not None:
        whole = min(whole, max(max_digits - (decimal_places or 0), 0))
    if whole < MAX_DIGITS:
        most = scaled(10 ** (whole + decimals) - 1, decimals)
        low, high = higher(low, Bound(most.copy_negate(), True)), lower(high, Bound(most, True))
    parts = [between(low, high, decimals)]
    if step is not None:
        parts.append(multiples(Fraction(step), decimals, whole + decimals))
    if max_digits is not None and whole + decimals > max_digits:
        parts.append(_of_digits(max_digits, decimals))
    if max_digits is not None and not whole:  # pydantic counts a zero before the point where it stands alone
        parts.append(nodes.complement(ZERO))
    if decimals > _PLAIN_DECIMALS:
        parts.append(nodes.complement(_with_exponent()))
    return nodes.intersection(parts)


def _decimals(step: Decimal | None, max_digits: int | None, decimal_places: int | None) -> int:
    """Digits after the point at most."""
    most = MAX_DIGITS if decimal_places is None else decimal_places
    most = most if max_digits is None else min(most, max_digits)
    if step is None:
        return min(most, MAX_DIGITS)
    written = max(-int(step.as_tuple().exponent), 1)
    return min(most, written if decimal_places is None else _CONTEXT_DIGITS // 2, _CONTEXT_DIGITS)


def _of_digits(most: int, decimals: int) -> Node:
    """Plain numbers of at most so many digits; a zero before the point does not count."""
    found = nodes.concat(ZERO, fraction(min(decimals, most)))
    for count in range(1, min(most, MAX_DIGITS) + 1):
        rest = nodes.repeat(DIGIT, count - 1, count - 1)
        found = nodes.alternation((found, nodes.sequence((NONZERO, rest, fraction(min(decimals, most - count))))))
    return nodes.concat(nodes.optional(MINUS), found) if most > 0 else EMPTY


def _with_exponent() -> Node:
    """What `str` would write with an exponent."""
    zeros = nodes.literal(b"0." + b"0" * _PLAIN_DECIMALS)
    return nodes.sequence((nodes.optional(MINUS), zeros, nodes.repeat(DIGIT, 1)))
