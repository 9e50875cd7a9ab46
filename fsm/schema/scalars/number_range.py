"""`between`: the numbers in a range as a term, in plain digits without exponent or signed zero, by digit dynamic programming. Numbers with
as many digits before the point as a bound are compared with it digit by digit (state: equal so far to the lower bound, the upper, both,
neither); numbers of lengths in between need no comparison. The number of decimals is bounded, and that of digits where no bound does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, EPSILON, Node

MAX_DIGITS = 40  # before the point of a number without bounds, and after it
MAX_DOUBLE_DIGITS = 308  # before the point of a double

DIGIT = nodes.byte_range(0x30, 0x39)
NONZERO = nodes.byte_range(0x31, 0x39)
MINUS = nodes.literal(b"-")
POINT = nodes.literal(b".")
ZERO = nodes.literal(b"0")


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Decimal
    inclusive: bool


_AT_ZERO = Bound(Decimal(0), True)
_ABOVE_ZERO = Bound(Decimal(0), False)


def plain(value: Decimal) -> str:
    """The text of a decimal without exponent, trailing zeros or signed zero."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text in ("-0", "") else text


def scaled(units: int, decimals: int) -> Decimal:
    """`units` divided by ten to the power of `decimals`, exactly, independent of the precision of the decimal context."""
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -decimals))


def between(low: Bound | None, high: Bound | None, decimals: int = MAX_DIGITS, digits: int | None = None) -> Node:
    """The numbers in a range.

    Args:
        low: the lower bound, if any.
        high: the upper bound, if any.
        decimals: the most decimals of a number; trailing zeros count.
        digits: a number with a point has at most `digits - decimals` (one or more) digits before it; None: no such bound.

    Cost: linear in the digits of the bounds, once per range.
    """
    if decimals < MAX_DIGITS:
        low, high = _to_decimals(low, decimals, ceil), _to_decimals(high, decimals, floor)
    return _between(low, high, decimals, None if digits is None else digits - decimals)


def higher(one: Bound | None, other: Bound) -> Bound:
    """The stricter of two lower bounds."""
    return other if one is None else max(one, other, key=lambda b: (b.value, not b.inclusive))


def lower(one: Bound | None, other: Bound) -> Bound:
    """The stricter of two upper bounds."""
    return other if one is None else min(one, other, key=lambda b: (b.value, b.inclusive))


def _to_decimals(bound: Bound | None, decimals: int, to_whole: Callable[[Fraction], int]) -> Bound | None:
    """The extreme number with at most `decimals` decimals that a bound allows, as an inclusive bound."""
    if bound is None:
        return None
    return Bound(scaled(in_units(bound, decimals, to_whole), decimals), True)


def in_units(bound: Bound, decimals: int, to_whole: Callable[[Fraction], int]) -> int:
    """The extreme number that a bound allows (`ceil`: the lowest, `floor`: the highest), in units of its last decimal."""
    exact = Fraction(bound.value) * 10**decimals
    units = to_whole(exact)
    if units == exact and not bound.inclusive:
        units += 1 if to_whole is ceil else -1
    return units


@lru_cache(maxsize=1_000)
def _between(low: Bound | None, high: Bound | None, decimals: int, room: int | None) -> Node:
    parts = []
    if high is None or high.value > 0 or high == _AT_ZERO:
        parts.append(_magnitudes(low if low is not None and low.value >= 0 else _AT_ZERO, high, decimals, room))
    if low is None or low.value < 0:
        least = Bound(high.value.copy_negate(), high.inclusive) if high is not None and high.value < 0 else _ABOVE_ZERO
        most = None if low is None else Bound(low.value.copy_negate(), low.inclusive)
        parts.append(nodes.concat(MINUS, _magnitudes(least, most, decimals, room)))
    return nodes.alternation(parts)


def _split(value: Decimal) -> tuple[str, str]:
    whole, _, decimals = plain(value).partition(".")
    return whole, decimals


def _magnitudes(low: Bound, high: Bound | None, decimals: int, room: int | None) -> Node:
    """Unsigned numbers from `low` to `high`; with a point they have at most `room` digits before it."""
    if not decimals or room is None or (high is not None and len(_split(high.value)[0]) <= room):
        return _all_magnitudes(low, high, decimals)
    shortest, free = len(_split(low.value)[0]), nodes.sequence((NONZERO, nodes.repeat(DIGIT, room, MAX_DIGITS - 1)))
    if high is not None or shortest > room:
        above = higher(_to_decimals(low, 0, ceil), Bound(scaled(10**room, 0), True))
        free = _all_magnitudes(above, _to_decimals(high, 0, floor), 0)
    if shortest > room:
        return free
    parts = [_same_length(low, None, shortest, decimals)]
    if room > shortest:
        parts.append(nodes.sequence((NONZERO, nodes.repeat(DIGIT, shortest, room - 1), fraction(decimals))))
    return nodes.alternation((*parts, free))


def _all_magnitudes(low: Bound, high: Bound | None, decimals: int) -> Node:
    """Unsigned numbers from `low` to `high`."""
    shortest = len(_split(low.value)[0])
    if decimals and high is not None and len(_split(high.value)[0]) > MAX_DOUBLE_DIGITS:
        high = None
    if decimals and shortest > MAX_DOUBLE_DIGITS:
        return EMPTY
    if high is not None and (high.value < low.value or (high.value == low.value and not high.inclusive)):
        return EMPTY
    longest = max(MAX_DIGITS, shortest) if high is None else len(_split(high.value)[0])
    if high is not None and longest == shortest:
        return _same_length(low, high, shortest, decimals)
    parts = [_same_length(low, None, shortest, decimals)]
    free = longest if high is None else longest - 1
    if free > shortest:
        parts.append(nodes.sequence((NONZERO, nodes.repeat(DIGIT, shortest, free - 1), fraction(decimals))))
    if high is not None:
        parts.append(_same_length(Bound(scaled(10 ** (longest - 1), 0), True), high, longest, decimals))
    return nodes.alternation(parts)


def fraction(decimals: int, read: int = 0, digits: Node = DIGIT) -> Node:
    """What may follow `read` digits of a fraction (0: it begins with the point), with all digits out of one set."""
    if read:
        return nodes.repeat(digits, 0, max(decimals - read, 0))
    return nodes.optional(nodes.concat(POINT, nodes.repeat(digits, 1, decimals))) if decimals else EPSILON


def _nonzero_fraction(decimals: int, read: int) -> Node:
    """What may follow `read` digits of a fraction if some later digit must be above zero."""
    rest = decimals - read
    if rest <= 0:
        return EMPTY
    if decimals >= MAX_DIGITS:  # a smaller term, which allows some digits more
        some = nodes.sequence((nodes.repeat(ZERO, 0, rest - 1), NONZERO, nodes.repeat(DIGIT, 0, rest - 1)))
    else:
        some = EMPTY
        for more in range(rest):
            some = nodes.alternation((nodes.concat(NONZERO, nodes.repeat(DIGIT, 0, more)), nodes.concat(ZERO, some)))
    return some if read else nodes.concat(POINT, some)


def _same_length(low: Bound, high: Bound | None, length: int, decimals: int) -> Node:
    """Numbers whose integer part has `length` digits, as those of `low` and `high` have."""
    low_whole, low_fraction = _split(low.value)
    high_whole, high_fraction = ("9" * length, "") if high is None else _split(high.value)
    width = max(len(low_fraction), len(high_fraction)) if decimals else 0
    walk = _Walk(
        low_whole + low_fraction.ljust(width, "0")[:width],
        high_whole + high_fraction.ljust(width, "0")[:width],
        low.inclusive,
        high is None or high.inclusive,
        length,
        decimals,
    )
    return walk.node(has_high=high is not None)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The digits of both bounds, equally many, with which a number is compared; the point is after `length` digits."""

    low: str
    high: str
    low_inclusive: bool
    high_inclusive: bool
    length: int
    decimals: int

    def node(self, *, has_high: bool) -> Node:
        """Build from the last digit to the first; a mode is whether the digits so far equal those of the lower and upper bound."""
        modes = [(False, False), (True, False), (False, True), (True, True)]
        rest = {mode: self._at_end(*mode) for mode in modes}
        for position in reversed(range(len(self.low))):
            rest = {mode: self._step(position, mode, rest) for mode in modes}
        return rest[True, has_high]

    def _at_end(self, at_low: bool, at_high: bool) -> Node:
        read = len(self.low) - self.length
        if at_high:
            if not self.high_inclusive or (at_low and not self.low_inclusive):
                return EMPTY
            return fraction(self.decimals, read, ZERO)
        if at_low and not self.low_inclusive:
            return _nonzero_fraction(self.decimals, read)
        return fraction(self.decimals, read)

    def _may_stop(self, position: int, at_low: bool, at_high: bool) -> bool:
        """Whether the number may end before `position`, as if zeros followed."""
        if at_low and (self.low[position:].strip("0") or not self.low_inclusive):
            return False
        return not at_high or bool(self.high[position:].strip("0")) or self.high_inclusive

    def _step(self, position: int, mode: tuple[bool, bool], rest: dict[tuple[bool, bool], Node]) -> Node:
        at_low, at_high = mode
        least = int(self.low[position]) if at_low else 0
        most = int(self.high[position]) if at_high else 9
        masks: dict[tuple[bool, bool], int] = {}
        for digit in range(least, most + 1):
            after = (at_low and digit == least, at_high and digit == most)
            masks[after] = masks.get(after, 0) | 1 << (48 + digit)
        body = nodes.alternation(nodes.concat(nodes.byte_set(m), rest[after]) for after, m in masks.items())
        if position < self.length:
            return body
        if position == self.length:
            body = nodes.concat(POINT, body)
        return nodes.optional(body) if self._may_stop(position, at_low, at_high) else body
