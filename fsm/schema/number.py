"""Numbers as JSON text, and ranges of them, digit by digit.

The language, so that every text is one `json.loads` reads and no text overflows a double:

- an integer is `0`, or an optional `-` and at most 40 digits without a leading zero; never `-0`, `1.0` or `1e3`;
- a number is an integer, or an optional `-`, an integer part as above, then a fraction of 1 to 40 digits, an exponent
  (`e`, an optional sign), or both. A positive exponent is at most 307 after one digit and 99 after more, a negative one
  has at most three digits. `-0.0` belongs to it, `-0` does not;
- with a bound or a divisor a number has no exponent and zero has no sign; a bound of more than 40 digits allows its own number
  of digits.

Bounds are compared exactly, as decimals. A bound given as float means the decimal that Python prints for it. Since a reader may
round a number to the nearest double, an exclusive bound other than zero excludes everything that rounds to it.
What is left of a negation (no multiple of, none of, not whole) speaks of numbers of at most nine digits before the point and six
after it, the last one above zero: no two of those are one double.
Not regular here: `multipleOf` a fraction whose multiples are not a whole number of steps to 1 (0.3, 2.5), unless bounds leave few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import inf, lcm, nextafter
from typing import Any

from fsm import node as nodes
from fsm.errors import NotRegular
from fsm.limits import Limits
from fsm.node import EMPTY, EPSILON, Node
from fsm.schema.keyword import Made, is_number
from fsm.schema.place import Conjunction, Place, values_of

MAX_DIGITS = 40
MAX_DOUBLE_DIGITS = 308
MAX_NOT_DIVISORS = 3  # numbers that a number is no multiple of: their remainders multiply
MAX_LISTED = 10_000  # multiples in a range that are listed as words rather than counted

DIGIT = nodes.byte_range(0x30, 0x39)
_NONZERO = nodes.byte_range(0x31, 0x39)
_MINUS = nodes.literal(b"-")
_POINT = nodes.literal(b".")
_ZERO = nodes.literal(b"0")


def _digits(lo: int, hi: int) -> Node:
    return nodes.repeat(DIGIT, lo, hi)


def _number() -> Node:
    fraction = nodes.optional(nodes.concat(_POINT, _digits(1, MAX_DIGITS)))
    small = nodes.concat(nodes.literal(b"-"), _digits(1, 3))
    plus = nodes.optional(nodes.literal(b"+"))
    large = nodes.alternation(
        (
            _digits(1, 2),
            nodes.concat(nodes.byte_range(0x31, 0x32), _digits(2, 2)),
            nodes.concat(nodes.literal(b"30"), nodes.byte_range(0x30, 0x37)),
        )
    )
    e = nodes.literal(b"e")
    long_exponent = nodes.sequence((e, nodes.alternation((small, nodes.concat(plus, large)))))
    short_exponent = nodes.sequence((e, nodes.alternation((small, nodes.concat(plus, _digits(1, 2))))))
    after_one = nodes.concat(fraction, nodes.optional(long_exponent))
    after_more = nodes.sequence((_digits(1, MAX_DIGITS - 1), fraction, nodes.optional(short_exponent)))
    nonzero = nodes.concat(_NONZERO, nodes.alternation((after_one, after_more)))
    zero = nodes.concat(_ZERO, after_one)
    some_fraction = nodes.concat(_POINT, _digits(1, MAX_DIGITS))
    signed_zero = nodes.concat(
        _ZERO,
        nodes.alternation((nodes.concat(some_fraction, nodes.optional(long_exponent)), long_exponent)),
    )
    return nodes.alternation((nonzero, zero, nodes.concat(_MINUS, nodes.alternation((nonzero, signed_zero)))))


_POSITIVE = nodes.concat(_NONZERO, _digits(0, MAX_DIGITS - 1))
INTEGER = nodes.alternation((_ZERO, _POSITIVE, nodes.concat(_MINUS, _POSITIVE)))
"""Any integer."""
NUMBER = _number()
"""Any number."""
_PLAIN_FRACTION = nodes.sequence(
    (
        nodes.optional(_MINUS),
        nodes.alternation((_ZERO, nodes.concat(_NONZERO, _digits(0, 8)))),
        _POINT,
        _digits(0, 5),
        _NONZERO,
    )
)
"""Numbers that are not whole, each in one spelling that no other number rounds to."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Decimal
    inclusive: bool


ZERO = Bound(Decimal(0), True)
_ABOVE_ZERO = Bound(Decimal(0), False)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the keywords of some places ask of a number together."""

    low: Bound | None = None
    high: Bound | None = None
    divisor: Fraction | None = None
    not_divisors: tuple[Fraction, ...] = ()
    excluded: frozenset[Decimal] = frozenset()

    def allows(self, value: Decimal) -> bool:
        """True when `value` is within the bounds and divisible as it must be, and not one of the excluded."""
        if value in self.excluded or any((Fraction(value) / d).denominator == 1 for d in self.not_divisors):
            return False
        low, high = self.low, self.high
        if low is not None and not (value > low.value or (value == low.value and low.inclusive)):
            return False
        if high is not None and not (value < high.value or (value == high.value and high.inclusive)):
            return False
        return self.divisor is None or (Fraction(value) / self.divisor).denominator == 1


def to_decimal(value: int | float | Decimal) -> Decimal:
    """The decimal that a number in a schema stands for."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def check_digits(value: int | float | Decimal, place: Place, keyword: str, limits: Limits) -> Decimal:
    """Convert a number of a schema.

    Raises:
        BudgetExceeded: it has too many digits when written out.
    """
    if isinstance(value, int):
        digits = value.bit_length() * 301 // 1000 + 1
        limits.check("max_number_digits", digits, "digits of a number", place.at(keyword))
    decimal = to_decimal(value)
    _, digits_of, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)  # finite: the shape was checked
    reached = max(len(digits_of) + exponent, -exponent, len(digits_of))
    limits.check("max_number_digits", reached, "digits of a number written out", place.at(keyword))
    return decimal


def demand_of(places: Conjunction, *, integers: bool, limits: Limits) -> Demand:
    """Read bounds and divisors of all places together."""
    lows, highs, divisors = list[Bound](), list[Bound](), list[Fraction]()
    for keyword, bounds, inclusive in (
        ("minimum", lows, True),
        ("exclusiveMinimum", lows, False),
        ("maximum", highs, True),
        ("exclusiveMaximum", highs, False),
    ):
        for place, value in values_of(places, keyword):
            bound = Bound(check_digits(value, place, keyword, limits), inclusive)
            bounds.append(bound if integers else _for_doubles(bound, upwards=bounds is lows))
    for place, value in values_of(places, "multipleOf"):
        divisors.append(Fraction(check_digits(value, place, "multipleOf", limits)))
    not_divisors = [
        Fraction(check_digits(value, place, "multipleOf", limits))
        for place, value in values_of(places, Made.NOT_MULTIPLE)
    ]
    excluded = [to_decimal(v) for _, values in values_of(places, Made.NOT_IN) for v in values if is_number(v)]
    return Demand(
        max(lows, key=lambda b: (b.value, not b.inclusive), default=None),
        min(highs, key=lambda b: (b.value, b.inclusive), default=None),
        _common_multiple(divisors),
        tuple(not_divisors),
        frozenset(excluded),
    )


def _common_multiple(divisors: list[Fraction]) -> Fraction | None:
    if not divisors:
        return None
    scale = lcm(*(d.denominator for d in divisors))
    return Fraction(lcm(*(int(d * scale) for d in divisors)), scale)


def _for_doubles(bound: Bound, *, upwards: bool) -> Bound:
    """Tighten a bound so that a text within it is within it for a reader that rounds to doubles, too.

    Rounding never changes the order, so an inclusive bound that prints as itself stays. From 2**53 on a double is a whole
    number that its shortest spelling may miss.
    """
    value = bound.value
    if not value or abs(value) > Decimal("1.7e308"):
        return bound
    nearest, outwards = float(value), inf if upwards else -inf
    if not bound.inclusive:
        return Bound(to_decimal(nextafter(nearest, outwards)), True)
    if abs(value) < 2**53:
        return bound
    if (Decimal(nearest) < value) == upwards and Decimal(nearest) != value:
        nearest = nextafter(nearest, outwards)
    return Bound((max if upwards else min)(value, Decimal(nearest)), True)


def number_node(places: Conjunction, types: frozenset[str], limits: Limits) -> Node:
    """The numbers that satisfy all places.

    Args:
        places: what holds together.
        types: `integer` for whole numbers, `number` for others, or both.
        limits: bounds of compiling.

    Raises:
        NotRegular: a `multipleOf` that is not supported.
        BudgetExceeded: a bound has too many digits.
    """
    integers = "number" not in types
    demand = demand_of(places, integers=integers, limits=limits)
    node = _positive(replace(demand, not_divisors=(), excluded=frozenset()), integers, places)
    if "integer" in types and not demand.not_divisors and not demand.excluded:
        return node
    if len(demand.not_divisors) > MAX_NOT_DIVISORS:
        raise _refusal(places)
    parts = [node, *(nodes.complement(_multiples(Demand(), d, integers, places)) for d in demand.not_divisors)]
    if demand.excluded:
        parts.append(nodes.complement(nodes.words(plain(value).encode() for value in demand.excluded)))
    if not integers:
        parts.append(nodes.alternation((INTEGER, _PLAIN_FRACTION)) if "integer" in types else _PLAIN_FRACTION)
    return nodes.intersection(parts)


def _positive(demand: Demand, integers: bool, places: Conjunction) -> Node:
    if demand == Demand():
        return INTEGER if integers else NUMBER
    if demand.divisor is not None:
        return _multiples(demand, demand.divisor, integers, places)
    return _whole(demand) if integers else between(demand.low, demand.high, fractions=True)


def _whole(demand: Demand) -> Node:
    low, high = _whole_bounds(demand)
    return between(low, high, fractions=False)


def _whole_bounds(demand: Demand) -> tuple[Bound | None, Bound | None]:
    low, high = demand.low, demand.high
    if low is not None:
        least = low.value.to_integral_value(ROUND_CEILING)
        low = Bound(Decimal(int(least) + (least == low.value and not low.inclusive)), True)
    if high is not None:
        most = high.value.to_integral_value(ROUND_FLOOR)
        high = Bound(Decimal(int(most) - (most == high.value and not high.inclusive)), True)
    return low, high


def _multiples(demand: Demand, divisor: Fraction, integers: bool, places: Conjunction) -> Node:
    if integers:
        divisor = Fraction(divisor.numerator)  # a whole multiple of p/q in lowest terms is a multiple of p
    listed = _listed(demand, divisor, places)
    if listed is not None:
        return listed
    if divisor.denominator == 1:
        node = _whole_multiples(divisor.numerator)
        return node if demand.low is demand.high is None else nodes.intersection((node, _whole(demand)))
    if divisor.numerator != 1 or 10**MAX_DIGITS % divisor.denominator:
        raise _refusal(places)
    node = _steps_of(divisor.denominator, places)
    if demand.low is demand.high is None:
        return node
    return nodes.intersection((node, between(demand.low, demand.high, fractions=True)))


def _refusal(places: Conjunction) -> NotRegular:
    place, value = next(chain(values_of(places, "multipleOf"), values_of(places, Made.NOT_MULTIPLE)))
    return NotRegular(
        f"`multipleOf` {value!r} over so many numbers is not supported yet: its multiples do not come back to whole numbers at every 1, "
        "or are too many. Use type 'integer', a divisor such as 0.01 or 0.5, or a narrower range",
        place.at("multipleOf"),
    )


def _listed(demand: Demand, divisor: Fraction, places: Conjunction) -> Node | None:
    """List the multiples in a range, or return None where they are too many."""
    if demand.low is None or demand.high is None:
        return None
    first = -(-Fraction(demand.low.value) // divisor)
    last = Fraction(demand.high.value) // divisor
    if last - first > MAX_LISTED:
        return None
    found = (Fraction(n) * divisor for n in range(first, last + 1))
    texts = []
    for value in found:
        decimal = _exact_decimal(value)
        if decimal is None:
            raise _refusal(places)
        if demand.allows(decimal):
            texts.append(plain(decimal).encode())
    return nodes.words(texts)


def _exact_decimal(value: Fraction) -> Decimal | None:
    """A fraction as a decimal, if it has at most a thousand digits after the point."""
    scale = 0
    while value.denominator != 1 and scale < 1_000:
        value, scale = value * 10, scale + 1
    if value.denominator != 1:
        return None
    digits = tuple(int(d) for d in str(abs(value.numerator)))
    return Decimal((int(value < 0), digits, -scale))  # exact whatever the precision of the context


def _whole_multiples(divisor: int) -> Node:
    firsts: dict[int, int] = {}
    for digit in range(1, 10):
        firsts[digit % divisor] = firsts.get(digit % divisor, 0) | 1 << (48 + digit)
    positive = nodes.alternation(
        nodes.concat(nodes.byte_set(mask), nodes.divisible(divisor, remainder, MAX_DIGITS - 1))
        for remainder, mask in firsts.items()
    )
    return nodes.alternation((_ZERO, positive, nodes.concat(_MINUS, positive)))


def _steps_of(denominator: int, places: Conjunction) -> Node:
    """The multiples of 1/denominator, a divisor of a power of ten."""
    if denominator > MAX_LISTED:
        raise _refusal(places)
    decimals = (_exact_decimal(Fraction(n, denominator)) for n in range(1, denominator))
    fraction = nodes.words(plain(d)[1:].encode() for d in decimals if d is not None)
    some = nodes.concat(nodes.alternation((_ZERO, _POSITIVE)), fraction)
    return nodes.alternation((INTEGER, some, nodes.concat(_MINUS, some)))


def plain(value: Decimal) -> str:
    """A decimal without exponent, trailing zeros or signed zero."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text in ("-0", "") else text


@lru_cache(maxsize=1_000)
def between(low: Bound | None, high: Bound | None, *, fractions: bool) -> Node:
    """The numbers in a range, without exponent. Cost: linear in the digits of the bounds, once per range."""
    parts = []
    if high is None or high.value > 0 or high == ZERO:
        parts.append(_magnitudes(low if low is not None and low.value >= 0 else ZERO, high, fractions))
    if low is None or low.value < 0:
        least = Bound(high.value.copy_negate(), high.inclusive) if high is not None and high.value < 0 else _ABOVE_ZERO
        most = None if low is None else Bound(low.value.copy_negate(), low.inclusive)
        parts.append(nodes.concat(_MINUS, _magnitudes(least, most, fractions)))
    return nodes.alternation(parts)


def _split(value: Decimal) -> tuple[str, str]:
    whole, _, fraction = plain(value).partition(".")
    return whole, fraction


def _magnitudes(low: Bound, high: Bound | None, fractions: bool) -> Node:
    """Unsigned numbers from `low` to `high`."""
    shortest = len(_split(low.value)[0])
    if fractions and high is not None and len(_split(high.value)[0]) > MAX_DOUBLE_DIGITS:
        high = None
    if fractions and shortest > MAX_DOUBLE_DIGITS:
        return EMPTY
    if high is not None and (high.value < low.value or (high.value == low.value and not high.inclusive)):
        return EMPTY
    longest = max(MAX_DIGITS, shortest) if high is None else len(_split(high.value)[0])
    if high is not None and longest == shortest:
        return _same_length(low, high, shortest, fractions)
    parts = [_same_length(low, None, shortest, fractions)]
    free = longest if high is None else longest - 1
    if free > shortest:
        parts.append(nodes.sequence((_NONZERO, _digits(shortest, free - 1), _fraction(0) if fractions else EPSILON)))
    if high is not None:
        parts.append(_same_length(Bound(Decimal((0, (1,), longest - 1)), True), high, longest, fractions))
    return nodes.alternation(parts)


def _fraction(read: int, digits: Node = DIGIT) -> Node:
    """What may follow `read` digits of a fraction (none: the point is still to come), all digits out of one set."""
    if read:
        return nodes.repeat(digits, 0, max(MAX_DIGITS - read, 0))
    return nodes.optional(nodes.concat(_POINT, nodes.repeat(digits, 1, MAX_DIGITS)))


def _nonzero_fraction(read: int) -> Node:
    """What may follow `read` digits of a fraction if some digit of it is to be above zero."""
    rest = MAX_DIGITS - read - 1
    if rest < 0:
        return EMPTY
    some = nodes.sequence((nodes.repeat(_ZERO, 0, rest), _NONZERO, _digits(0, rest)))
    return some if read else nodes.concat(_POINT, some)


def _same_length(low: Bound, high: Bound | None, length: int, fractions: bool) -> Node:
    """Numbers whose integer part has `length` digits, from `low` (which has as many) to `high` (so has it, if given)."""
    low_whole, low_fraction = _split(low.value)
    high_whole, high_fraction = ("9" * length, "") if high is None else _split(high.value)
    width = max(len(low_fraction), len(high_fraction)) if fractions else 0
    walk = _Walk(
        low_whole + low_fraction.ljust(width, "0")[:width],
        high_whole + high_fraction.ljust(width, "0")[:width],
        low.inclusive,
        high is None or high.inclusive,
        length,
        fractions,
    )
    return walk.node(has_high=high is not None)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Two digit strings of equal length, compared digit by digit; the point stands after `length` digits."""

    low: str
    high: str
    low_inclusive: bool
    high_inclusive: bool
    length: int
    fractions: bool

    def node(self, *, has_high: bool) -> Node:
        """Build from the last digit to the first; a mode says to which bounds the digits so far are equal."""
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
            return _fraction(read, _ZERO) if self.fractions else EPSILON
        if at_low and not self.low_inclusive:
            return _nonzero_fraction(read) if self.fractions else EMPTY
        return _fraction(read) if self.fractions else EPSILON

    def _may_stop(self, position: int, at_low: bool, at_high: bool) -> bool:
        """Tell whether the number may end before `position`, as if zeros followed."""
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
            body = nodes.concat(_POINT, body)
        return nodes.optional(body) if self._may_stop(position, at_low, at_high) else body


def number_texts(values: Iterable[Any]) -> dict[Decimal, bytes]:
    """The spelling of each number of an `enum`, by value: plain digits where it is whole and not longer than 40 digits."""
    texts = {}
    for value in values:
        decimal = to_decimal(value)
        whole = decimal == decimal.to_integral_value()
        if isinstance(value, int) or (whole and decimal.adjusted() < MAX_DIGITS):
            texts[decimal] = str(int(decimal)).encode()
        elif isinstance(value, float):
            texts[decimal] = repr(value).encode()
        else:
            short = repr(float(decimal))
            texts[decimal] = (short if Decimal(short) == decimal else plain(decimal)).encode()
    return texts
