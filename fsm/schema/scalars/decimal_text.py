"""`Decimal` as the inside of a JSON string, as pydantic writes it in JSON: the plain digits of `str(value)`, such as `9.90`.

Left out is what `str` writes with an exponent (`1E+3`, `1E-7`, so also seven zeros after the point), a signed zero, and more than 40 digits
before or after the point. With `multiple_of` there are at most 28 digits, as the arithmetic of Python has.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from fsm.schema.scalars.multiple import multiples
from fsm.schema.scalars.number_range import DIGIT, MAX_DIGITS, Bound, between, fraction, higher, lower, scaled
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Node

_CONTEXT_DIGITS = 28
_PLAIN_DECIMALS = 6  # so many zeros after the point `str` writes without an exponent


@dataclass(frozen=True, slots=True)
class DecimalText:
    """The constraints of a type on a decimal.

    Attributes:
        low: the lower bound.
        high: the upper bound.
        step: what it is a multiple of.
        max_digits: of all digits but a zero before the point.
        decimal_places: digits after the point at most.
    """

    low: Bound | None = None
    high: Bound | None = None
    step: Decimal | None = None
    max_digits: int | None = None
    decimal_places: int | None = None

    def node(self) -> Node:
        """The inside of the strings."""
        decimals = self._decimals
        whole = self._whole(decimals)
        low, high = self.low, self.high
        if whole < MAX_DIGITS:
            most = scaled(10 ** (whole + decimals) - 1, decimals)
            low, high = higher(low, Bound(most.copy_negate(), True)), lower(high, Bound(most, True))
        parts = [between(low, high, decimals)]
        if self.step is not None:
            parts.append(multiples(Fraction(self.step), decimals, whole + decimals))
        if self.max_digits is not None and whole + decimals > self.max_digits:
            parts.append(_of_digits(self.max_digits, decimals))
        if (
            self.max_digits is not None and not whole
        ):  # pydantic takes a zero before the point as a digit where it stands alone
            parts.append(nodes.complement(nodes.literal(b"0")))
        if decimals > _PLAIN_DECIMALS:
            parts.append(nodes.complement(_with_exponent()))
        return nodes.intersection(parts)

    @property
    def _decimals(self) -> int:
        most = MAX_DIGITS if self.decimal_places is None else self.decimal_places
        if self.max_digits is not None:
            most = min(most, self.max_digits)
        if self.step is None:
            return min(most, MAX_DIGITS)
        written = max(-int(self.step.as_tuple().exponent), 1)
        return min(most, written if self.decimal_places is None else _CONTEXT_DIGITS // 2, _CONTEXT_DIGITS)

    def _whole(self, decimals: int) -> int:
        """Digits before the point at most."""
        most = MAX_DIGITS if self.step is None else _CONTEXT_DIGITS - decimals
        if self.max_digits is not None:
            most = min(most, max(self.max_digits - (self.decimal_places or 0), 0))
        return most


def _of_digits(most: int, decimals: int) -> Node:
    """Plain numbers of at most so many digits; a zero before the point does not count."""
    nonzero = nodes.byte_range(0x31, 0x39)
    found = nodes.concat(nodes.literal(b"0"), fraction(min(decimals, most)))
    for count in range(1, min(most, MAX_DIGITS) + 1):
        rest = nodes.repeat(DIGIT, count - 1, count - 1)
        found = nodes.alternation((found, nodes.sequence((nonzero, rest, fraction(min(decimals, most - count))))))
    return nodes.concat(nodes.optional(nodes.literal(b"-")), found) if most > 0 else EMPTY


def _with_exponent() -> Node:
    """What `str` would write with an exponent."""
    zeros = nodes.literal(b"0." + b"0" * _PLAIN_DECIMALS)
    return nodes.sequence((nodes.optional(nodes.literal(b"-")), zeros, nodes.repeat(DIGIT, 1)))
