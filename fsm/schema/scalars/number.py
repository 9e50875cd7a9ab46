"""`number_node`: the JSON numbers that satisfy all keywords and formats of some places, as an intersection of digit automata.

The language, so that every text is one `json.loads` reads and no text overflows a double:

- an integer (`type: integer`) is `0`, or an optional `-` and at most 40 digits without a leading zero; never `-0`, `1.0` or `1e3`;
- a number is an integer, or an optional `-`, an integer part as above, then a fraction of 1 to 40 digits, an exponent
  (`e`, an optional sign), or both. A positive exponent is at most 307 after one digit and 99 after more, a negative one
  has at most three digits. `-0.0` belongs to it, `-0` does not;
- with a bound or a divisor a number has no exponent and zero has no sign; a bound of more than 40 digits allows its own number
  of digits;
- with a divisor a number has at most as many decimals as the divisor is written with, at least one: `multipleOf: 0.01` allows
  `9.9`, `9.90` and `10.00`, `multipleOf: 2` allows `4` and `4.0`. The same applies to a listed number (`const: 10` allows `10.0`);
- what is left of a negation (no multiple of, none of, not whole) has at most six decimals, or as many as what is negated.

Trailing zeros are spellings of one value: bounds, divisors and exclusions apply to all of them.
Bounds are compared exactly, as decimals. A bound given as float means the decimal that Python prints for it. Since a reader may
round a number to the nearest double, an exclusive bound other than zero excludes everything that rounds to it, and where divisors,
listed values or negations are to be told apart, a number with a fraction has at most 15 digits: no two of those are one double.
Left to checks: divisors with more than 14 decimals, unless bounds leave few, and more than three negated ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from math import inf, nextafter
from typing import Any

from fsm.errors import NotRegular
from fsm.limits import Limits
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.place import Conjunction, excluded_values, negated_values_of, values_of
from fsm.schema.places.shape import is_number, to_decimal
from fsm.schema.scalars.multiple import common_multiple, multiples
from fsm.schema.scalars.number_range import (
    DIGIT,
    MAX_DIGITS,
    MINUS,
    NONZERO,
    POINT,
    ZERO,
    Bound,
    between,
    higher,
    lower,
    plain,
    scaled,
)
from fsm.terms import node as nodes
from fsm.terms.node import Node

MAX_NOT_DIVISORS = 3  # numbers that a number is no multiple of: their remainders multiply
MAX_LISTED = 1_000  # multiples in a range that are listed as words rather than counted
MAX_EXACT_DIGITS = 15
"""Digits that a double keeps, whichever they are."""
_SOME_DECIMALS = 6  # of what is left of a negation


def _digits(lo: int, hi: int) -> Node:
    return nodes.repeat(DIGIT, lo, hi)


def _number(most: int, together: int, digits: int) -> Node:
    """Any number; an exponent is at most `most` after one digit, and `together` after up to `digits` of them."""
    fraction = nodes.optional(nodes.concat(POINT, _digits(1, MAX_DIGITS)))
    e, plus, small = nodes.literal(b"e"), nodes.optional(nodes.literal(b"+")), nodes.concat(MINUS, _digits(1, 3))
    long, short = (nodes.concat(plus, _exponent(value)) for value in (most, together))
    long_exponent, short_exponent = (nodes.concat(e, nodes.alternation((small, large))) for large in (long, short))
    after_one = nodes.concat(fraction, nodes.optional(long_exponent))
    after_some = nodes.sequence((_digits(1, digits - 1), fraction, nodes.optional(short_exponent)))
    after_more = nodes.sequence((_digits(digits, MAX_DIGITS - 3), fraction)) if digits < MAX_DIGITS - 3 else nodes.EMPTY
    nonzero = nodes.concat(NONZERO, nodes.alternation((after_one, after_some, after_more)))
    zero = nodes.concat(ZERO, after_one)
    some_fraction = nodes.concat(POINT, _digits(1, MAX_DIGITS))
    signed_zero = nodes.concat(
        ZERO, nodes.alternation((nodes.concat(some_fraction, nodes.optional(long_exponent)), long_exponent))
    )
    return nodes.alternation((nonzero, zero, nodes.concat(MINUS, nodes.alternation((nonzero, signed_zero)))))


def _exponent(most: int) -> Node:
    """Up to `most` (two or three digits), with at most one zero before a single digit."""
    tens, last = divmod(most, 10)
    if most == 99:
        return _digits(1, 2)
    if tens < 10:
        two = nodes.concat(nodes.byte_range(0x31, 0x30 + tens - 1), DIGIT) if tens > 1 else nodes.EMPTY
        small = nodes.concat(nodes.optional(ZERO), DIGIT)
        return nodes.alternation(
            (small, two, nodes.concat(nodes.literal(b"%d" % tens), nodes.byte_range(0x30, 0x30 + last)))
        )
    hundreds = nodes.concat(nodes.byte_range(0x31, 0x30 + tens // 10 - 1), _digits(2, 2))
    top = nodes.concat(nodes.literal(b"%d" % tens), nodes.byte_range(0x30, 0x30 + last))
    return nodes.alternation((_digits(1, 2), hundreds, top))


_POSITIVE = nodes.concat(NONZERO, _digits(0, MAX_DIGITS - 1))
INTEGER = nodes.alternation((ZERO, _POSITIVE, nodes.concat(MINUS, _POSITIVE)))
"""Any integer."""
NUMBER = _number(307, 99, MAX_DIGITS)
"""Any number."""
_SINGLE = _number(37, 19, 18)
"""Any number that a float of 32 bits holds."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The conjunction of the keywords on numbers at some places.

    Attributes:
        low: the highest of the lower bounds.
        high: the lowest of the upper bounds.
        divisor: a number that it is a multiple of.
        not_divisors: numbers that it is no multiple of.
        excluded: numbers that are not allowed.
        decimals: with how many the divisors are written, at the most.
    """

    low: Bound | None = None
    high: Bound | None = None
    divisor: Fraction | None = None
    not_divisors: tuple[Fraction, ...] = ()
    excluded: frozenset[Decimal] = frozenset()
    decimals: int = 0

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


def check_digits(value: int | float | Decimal, pointer: str, limits: Limits) -> Decimal:
    """Convert a number of a schema.

    Raises:
        BudgetExceeded: it has too many digits when written out.
    """
    if isinstance(value, int):
        digits = value.bit_length() * 301 // 1000 + 1
        limits.check("max_number_digits", digits, "digits of a number", pointer)
    decimal = to_decimal(value)
    _, digits_of, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)  # finite: the shape was checked
    reached = max(len(digits_of) + exponent, -exponent, len(digits_of))
    limits.check("max_number_digits", reached, "digits of a number written out", pointer)
    return decimal


_MAX_SINGLE = Decimal((2**24 - 1) * 2**104)  # the bounds of the format `float`
_SINGLE_DEMAND = Demand(Bound(_MAX_SINGLE.copy_negate(), True), Bound(_MAX_SINGLE, True))


def decimals_of(value: Decimal) -> int:
    """How many decimals a number is written with."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # finite: the shape was checked
    return max(-exponent, 0)


def demand_of(places: Conjunction, *, integers: bool, limits: Limits) -> Demand:
    """Read bounds, divisors and formats of all places together."""
    low = high = None
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        for place, value in KEYWORDS.values_of(places, keyword):
            upwards = keyword in ("minimum", "exclusiveMinimum")
            bound = Bound(check_digits(value, place.at(keyword), limits), keyword in ("minimum", "maximum"))
            if not integers:
                bound = _for_doubles(bound, upwards=upwards)
            elif isinstance(value, float):
                bound = _for_both_readings(bound, value, upwards=upwards)
            low, high = (higher(low, bound), high) if upwards else (low, lower(high, bound))
    steps = [
        check_digits(value, place.at("multipleOf"), limits) for place, value in KEYWORDS.values_of(places, "multipleOf")
    ]
    denied = negated_values_of(places, "multipleOf")
    not_divisors = [Fraction(check_digits(value, place.at("multipleOf"), limits)) for place, value in denied]
    excluded = [to_decimal(value) for value in excluded_values(places) if is_number(value)]
    return Demand(
        low,
        high,
        common_multiple(list(map(Fraction, steps))) if steps else None,
        tuple(not_divisors),
        frozenset(excluded),
        max(map(decimals_of, steps), default=0),
    )


def _for_both_readings(bound: Bound, value: float, *, upwards: bool) -> Bound:
    """A bound that holds for the digits that a float is printed with, and for the number that it is."""
    return (
        Bound((max if upwards else min)(bound.value, Decimal(value)), bound.inclusive) if abs(value) >= 2**53 else bound
    )


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


def number_node(places: Conjunction, types: frozenset[str], *, limits: Limits, loosely: bool = False) -> Node:
    """The numbers that satisfy all places.

    Args:
        places: a conjunction.
        types: `integer` for whole numbers, `number` for others, or both.
        limits: bounds of compiling.
        loosely: whether to leave divisors out.

    Raises:
        NotRegular: a `multipleOf` that is not supported.
        BudgetExceeded: a bound has too many digits.
    """
    integers = "number" not in types
    demand = demand_of(places, integers=integers, limits=limits)
    if loosely:
        demand = replace(demand, divisor=None, not_divisors=())
    if len(demand.not_divisors) > MAX_NOT_DIVISORS:
        raise _refusal(places)
    if "integer" not in types:
        demand = replace(demand, not_divisors=(*demand.not_divisors, Fraction(1)))
    if demand == Demand():
        return INTEGER if integers else NUMBER
    if demand == _SINGLE_DEMAND and not integers:
        return _SINGLE
    decimals = 0 if integers else _decimals(demand)
    if decimals is not None and decimals >= MAX_EXACT_DIGITS:
        listed = _listed(demand, decimals)
        if listed is None:
            raise _refusal(places)
        return listed
    node = _positive(demand, decimals)
    excluded = (
        [nodes.words(t for value in demand.excluded for t in spellings(value, decimals or 0))]
        if demand.excluded
        else []
    )
    denied = [multiples(d, decimals or 0, MAX_EXACT_DIGITS) for d in demand.not_divisors]
    return nodes.intersection((node, *map(nodes.complement, (*excluded, *denied)))) if excluded or denied else node


def decimals_in(places: Conjunction, types: frozenset[str], limits: Limits) -> tuple[int | None, bool]:
    """How many decimals the numbers of some places have at most (None: as many as any), and whether they have bounds."""
    if "number" not in types:
        return 0, False
    demand = demand_of(places, integers=False, limits=limits)
    if "integer" not in types:
        demand = replace(demand, not_divisors=(*demand.not_divisors, Fraction(1)))
    return _decimals(demand), demand not in (Demand(), _SINGLE_DEMAND)


def _decimals(demand: Demand) -> int | None:
    """How many decimals a number has at most; None: as many as any number without an exponent."""
    if demand.divisor is not None:
        return max(demand.decimals, 1)
    if not demand.excluded and not demand.not_divisors:
        return None
    written = [decimals_of(value) for value in demand.excluded]
    written += [decimals_of(value) for d in demand.not_divisors if (value := _exact_decimal(d)) is not None]
    return min(max(_SOME_DECIMALS, *written), MAX_EXACT_DIGITS - 1)


def _positive(demand: Demand, decimals: int | None) -> Node:
    """The numbers that satisfy bounds and divisors; exclusions and negated divisors are left out."""
    if decimals is None:
        return between(demand.low, demand.high)
    inside = between(demand.low, demand.high, decimals, MAX_EXACT_DIGITS)
    if demand.divisor is None or (Fraction(1, 10**decimals) / demand.divisor).denominator == 1:
        return inside
    listed = _listed(replace(demand, not_divisors=(), excluded=frozenset()), decimals)
    if listed is not None:
        return listed
    node = multiples(demand.divisor, decimals, MAX_EXACT_DIGITS)
    return node if demand.low is demand.high is None else nodes.intersection((node, inside))


def _refusal(places: Conjunction) -> NotRegular:
    place, value = next(chain(values_of(places, "multipleOf"), negated_values_of(places, "multipleOf")))
    return NotRegular(
        f"`multipleOf` {value!r} over so many numbers is not supported yet: it has more than {MAX_EXACT_DIGITS - 1} decimals, or there are "
        "too many of its kind. Use type 'integer', a divisor such as 0.01, or a narrower range",
        place.at("multipleOf"),
    )


def _listed(demand: Demand, decimals: int) -> Node | None:
    """List the multiples in a range, or return None where they are too many."""
    if demand.low is None or demand.high is None or demand.divisor is None:
        return None
    divisor = demand.divisor if decimals else Fraction(demand.divisor.numerator)
    first = -(-Fraction(demand.low.value) // divisor)
    last = Fraction(demand.high.value) // divisor
    if last - first > MAX_LISTED:
        return None
    found = (_exact_decimal(n * divisor) for n in range(first, last + 1))
    return nodes.words(
        t for value in found if value is not None and demand.allows(value) for t in spellings(value, decimals)
    )


def _exact_decimal(value: Fraction) -> Decimal | None:
    """A fraction as a decimal, if it has at most a thousand digits after the point."""
    scale = 0
    while value.denominator != 1 and scale < 1_000:
        value, scale = value * 10, scale + 1
    if value.denominator != 1:
        return None
    return scaled(value.numerator, scale)


def spellings(value: Decimal, decimals: int) -> list[bytes]:
    """A number in plain digits, and with zeros up to so many decimals where a reader that rounds to doubles reads the same."""
    text = plain(value)
    found = [text]
    whole, _, fraction = text.partition(".")
    if (
        fraction
        or len(whole.lstrip("-")) <= MAX_EXACT_DIGITS
        or (len(whole) <= MAX_DIGITS and Decimal(float(whole)) == value)
    ):
        found += [f"{whole}.{fraction.ljust(count, '0')}" for count in range(len(fraction) + 1, decimals + 1)]
    return [text.encode() for text in found]


def number_texts(values: Iterable[Any], decimals: int | None) -> dict[Decimal, list[bytes]]:
    """The spellings of each number of an `enum`, by value: plain digits where it is whole and not longer than 40 digits.

    Args:
        values: the numbers.
        decimals: how many the divisors beside them have; None: zeros are not written.
    """
    texts = dict[Decimal, list[bytes]]()
    for value in values:
        decimal = to_decimal(value)
        if isinstance(value, int) or (is_whole(decimal) and decimal.adjusted() < MAX_DIGITS):
            short = plain(decimal)
        else:
            short = repr(value if isinstance(value, float) else float(decimal))
            short = short if Decimal(short) == decimal else plain(decimal)
        found = texts.setdefault(decimal, [])
        more = () if "e" in short or decimals is None else spellings(decimal, max(decimals, decimals_of(decimal), 1))
        found += [text for text in (short.encode(), *more) if text not in found]
    return texts


def is_whole(value: Decimal) -> bool:
    """True for a number without a fraction."""
    return value == value.to_integral_value()
