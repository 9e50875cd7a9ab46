"""`number_node`: the JSON numbers that satisfy all keywords and formats of some places, as a range of digits, or
multiples in a range. `json.loads` reads every text of the language, and none with a point or an exponent overflows a double; with a
divisor a number has no exponent. Left to checks (`NotRegular`): divisors with more than 14 decimals, unless bounds leave few
multiples, and more than three negated divisors.

- an integer (`type: integer`) is `0`, or an optional `-` and at most 40 digits without a leading zero; never `-0`, `1.0` or `1e3`;
- a number is an integer, or an optional `-`, an integer part as above, then a fraction of 1 to 40 digits, an exponent (`e`, an optional
  sign), or both. A positive exponent is at most 307 after one digit and 99 after more, a negative one has at most three digits. `-0.0`
  belongs to it, `-0` does not;
- with a bound a number has an exponent only below -4 or above 15, after one digit other than zero; none is too small for a double;
- with a divisor zero has no sign, with a bound it may be `-0.0`; a bound of more than 40 digits allows as many digits as it has;
- with a divisor a number has at most as many decimals as the divisor is written with, at least one: `multipleOf: 0.01` allows `9.9`,
  `9.90` and `10.00`, `multipleOf: 2` allows `4` and `4.0`. The same applies to a listed number (`const: 10` allows `10.0`);
- the remainder of a negation (no multiple of, none of, not whole) has at most six decimals, or as many as what is negated.

Trailing zeros are spellings of the same value: bounds, divisors and exclusions apply to all of them. Bounds are compared exactly, as
decimals; a float means the decimal that Python prints for it. Since a reader may round a number to the nearest double, an exclusive bound
other than zero excludes everything that rounds to it, and where divisors, listed values or negations must distinguish numbers, one with a
fraction has at most 15 digits: no two of those are the same double.
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
from fsm.schema.keywords.place import (
    MAX_SINGLE,
    Conjunction,
    excluded_values,
    is_number,
    negated_values_of,
    to_decimal,
    values_of,
)
from fsm.schema.scalars import number_range as ranges
from fsm.schema.scalars.number_range import (
    DIGIT,
    MAX_DIGITS,
    MINUS,
    NONZERO,
    POINT,
    ZERO,
    Bound,
    common_multiple,
    multiples,
    plain,
    scaled,
)
from fsm.terms import node as nodes
from fsm.terms.node import Node

MAX_NOT_DIVISORS = 3  # negated divisors: their combinations multiply
MAX_LISTED = 1_000  # multiples in a range that are listed as words
MAX_EXACT_DIGITS = 15  # any number with so many significant digits survives the conversion to a double and back
_SOME_DECIMALS = 6  # of the remainder of a negation


def _digits(lo: int, hi: int) -> Node:
    return nodes.repeat(DIGIT, lo, hi)


def _number(most: int, together: int, digits: int) -> Node:
    """Any number; an exponent is at most `most` after one digit, and `together` after up to `digits` of them."""
    some_fraction = nodes.concat(POINT, _digits(1, MAX_DIGITS))
    fraction = nodes.optional(some_fraction)
    e, plus, small = nodes.literal(b"e"), nodes.optional(nodes.literal(b"+")), nodes.concat(MINUS, _digits(1, 3))
    long, short = (nodes.concat(plus, _exponent(value)) for value in (most, together))
    long_exponent, short_exponent = (nodes.concat(e, nodes.alternation((small, large))) for large in (long, short))
    after_one = nodes.concat(fraction, nodes.optional(long_exponent))
    after_some = nodes.sequence((_digits(1, digits - 1), fraction, nodes.optional(short_exponent)))
    after_more = nodes.sequence((_digits(digits, MAX_DIGITS - 3), fraction)) if digits < MAX_DIGITS - 3 else nodes.EMPTY
    nonzero = nodes.concat(NONZERO, nodes.alternation((after_one, after_some, after_more)))
    zero = nodes.concat(ZERO, after_one)
    after_zero = nodes.concat(some_fraction, nodes.optional(long_exponent))
    signed_zero = nodes.concat(ZERO, nodes.alternation((after_zero, long_exponent)))
    return nodes.alternation((nonzero, zero, nodes.concat(MINUS, nodes.alternation((nonzero, signed_zero)))))


def _exponent(most: int) -> Node:
    """Up to `most` (two or three digits), with at most one zero before a single digit."""
    if most == 99:
        return _digits(1, 2)
    tens, last = divmod(most, 10)
    top = nodes.concat(nodes.literal(b"%d" % tens), nodes.byte_range(0x30, 0x30 + last))
    if tens < 10:
        two = nodes.concat(nodes.byte_range(0x31, 0x30 + tens - 1), DIGIT) if tens > 1 else nodes.EMPTY
        return nodes.alternation((nodes.concat(nodes.optional(ZERO), DIGIT), two, top))
    hundreds = nodes.concat(nodes.byte_range(0x31, 0x30 + tens // 10 - 1), _digits(2, 2))
    return nodes.alternation((_digits(1, 2), hundreds, top))


_POSITIVE = nodes.concat(NONZERO, _digits(0, MAX_DIGITS - 1))
INTEGER = nodes.alternation((ZERO, _POSITIVE, nodes.concat(MINUS, _POSITIVE)))
NUMBER = _number(307, 99, MAX_DIGITS)
_SIGNED_ZERO = nodes.literal(b"-0.0")  # as Python and others write it
_SINGLE = _number(37, 19, 18)  # a float of 32 bits


@dataclass(frozen=True, slots=True)
class Demand:
    """The conjunction of the keywords on numbers at some places.

    Attributes:
        low: the highest lower bound.
        high: the lowest upper bound.
        divisor: the number must be a multiple of it.
        not_divisors: the number must not be a multiple of one of these.
        excluded: the number must not be one of these.
        decimals: the most decimals with which a divisor is written.
    """

    low: Bound | None = None
    high: Bound | None = None
    divisor: Fraction | None = None
    not_divisors: tuple[Fraction, ...] = ()
    excluded: frozenset[Decimal] = frozenset()
    decimals: int = 0

    def allows(self, value: Decimal) -> bool:
        """True when a number satisfies all of it."""
        if value in self.excluded or any((Fraction(value) / d).denominator == 1 for d in self.not_divisors):
            return False
        at = Bound(value, True)
        if ranges.higher(self.low, at) != at or ranges.lower(self.high, at) != at:
            return False
        return self.divisor is None or (Fraction(value) / self.divisor).denominator == 1


def check_digits(value: int | float | Decimal, pointer: str, limits: Limits) -> Decimal:
    """Convert a number in a schema to a decimal.

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


_SINGLE_DEMAND = Demand(Bound(to_decimal(-MAX_SINGLE), True), Bound(to_decimal(MAX_SINGLE), True))  # the format `float`


def decimals_of(value: Decimal) -> int:
    """The number of decimals that a number is written with."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # finite: the shape was checked
    return max(-exponent, 0)


def demand_of(places: Conjunction, *, integers: bool, limits: Limits) -> Demand:
    """Combine the bounds, divisors and formats of all places."""
    low = high = None
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        for place, value in KEYWORDS.values_of(places, keyword):
            upwards = keyword in ("minimum", "exclusiveMinimum")
            bound = Bound(check_digits(value, place.at(keyword), limits), keyword in ("minimum", "maximum"))
            if not integers:
                bound = _for_doubles(bound, upwards=upwards)
            elif isinstance(value, float):
                bound = _for_both_readings(bound, value, upwards=upwards)
            low, high = (ranges.higher(low, bound), high) if upwards else (low, ranges.lower(high, bound))
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
    """Tighten a bound given as a float so that it is right for its printed digits and for its exact value."""
    if abs(value) < 2**53:
        return bound
    return Bound((max if upwards else min)(bound.value, Decimal(value)), bound.inclusive)


def _for_doubles(bound: Bound, *, upwards: bool) -> Bound:
    """Tighten a bound so that a number within it is still within it when it is rounded to a double.

    Rounding never changes the order, so an inclusive bound that prints as itself is kept. From 2**53 on, the shortest spelling of a
    double may differ from its value.
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
        loosely: whether to ignore divisors.

    Raises:
        NotRegular: a `multipleOf` is not supported.
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
    return _in_decimals(demand, decimals)


def decimals_in(places: Conjunction, types: frozenset[str], limits: Limits) -> tuple[int | None, bool]:
    """The most decimals of the numbers of some places (None: not bounded by them), and whether they are constrained."""
    if "number" not in types:
        return 0, False
    demand = demand_of(places, integers=False, limits=limits)
    if "integer" not in types:
        demand = replace(demand, not_divisors=(*demand.not_divisors, Fraction(1)))
    return _decimals(demand), demand not in (Demand(), _SINGLE_DEMAND)


def _decimals(demand: Demand) -> int | None:
    """The most decimals of a number; None: as many as any number without an exponent."""
    if demand.divisor is not None:
        return max(demand.decimals, 1)
    if not demand.excluded and not demand.not_divisors:
        return None
    written = [decimals_of(value) for value in demand.excluded]
    written += [decimals_of(value) for d in demand.not_divisors if (value := _exact_decimal(d)) is not None]
    return min(max(_SOME_DECIMALS, *written), MAX_EXACT_DIGITS - 1)


def _in_decimals(demand: Demand, decimals: int | None) -> Node:
    """The numbers that satisfy a demand, with at most so many decimals; None: of bounds only."""
    if decimals is None:
        low, high = demand.low, demand.high
        signed_zero = _SIGNED_ZERO if demand.allows(Decimal(0)) else nodes.EMPTY
        return nodes.alternation((ranges.between(low, high), ranges.with_exponent(low, high), signed_zero))
    unit = Fraction(1, 10**decimals)
    step = unit if demand.divisor is None else demand.divisor
    if (unit / step).denominator == 1 and not demand.not_divisors:
        inside = ranges.between(demand.low, demand.high, decimals, MAX_EXACT_DIGITS)
        without = nodes.words(t for value in demand.excluded for t in spellings(value, decimals))
        return nodes.intersection((inside, nodes.complement(without)))
    listed = _listed(demand, decimals)
    if listed is not None:
        return listed
    excluded = map(Fraction, demand.excluded)
    return multiples(step, decimals, MAX_EXACT_DIGITS, demand.low, demand.high, demand.not_divisors, excluded)


def _refusal(places: Conjunction) -> NotRegular:
    place, value = next(chain(values_of(places, "multipleOf"), negated_values_of(places, "multipleOf")))
    return NotRegular(
        f"`multipleOf` {value!r} over so many numbers is not supported yet: it has more than {MAX_EXACT_DIGITS - 1} decimals, or there are "
        "too many of its kind. Use type 'integer', a divisor such as 0.01, or a narrower range",
        place.at("multipleOf"),
    )


def _listed(demand: Demand, decimals: int) -> Node | None:
    """The multiples in a range as a list of words; None if they are too many."""
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
    """A fraction as a decimal, if it has at most a thousand decimals."""
    scale = 0
    while value.denominator != 1 and scale < 1_000:
        value, scale = value * 10, scale + 1
    return scaled(value.numerator, scale) if value.denominator == 1 else None


def spellings(value: Decimal, decimals: int) -> list[bytes]:
    """A number in plain digits, and with zeros up to `decimals` decimals where it is the same number as a double."""
    found = [plain(value)]
    whole, _, fraction = found[0].partition(".")
    is_short = len(whole.lstrip("-")) <= MAX_EXACT_DIGITS
    if fraction or is_short or (len(whole) <= MAX_DIGITS and Decimal(float(whole)) == value):
        found += [f"{whole}.{fraction.ljust(count, '0')}" for count in range(len(fraction) + 1, decimals + 1)]
    return [text.encode() for text in found]


def number_texts(values: Iterable[Any], decimals: int | None) -> dict[Decimal, list[bytes]]:
    """The spellings of each listed number, by value: plain digits where it is whole and not longer than 40 digits.

    Args:
        values: the numbers.
        decimals: the most decimals of divisors at the same places; None: no trailing zeros.
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
        is_short = "e" in short or decimals is None
        more = [] if is_short else spellings(decimal, max(decimals or 0, decimals_of(decimal), 1))
        if isinstance(value, float) and decimals is not None:
            more += _exponent_spellings(repr(value))
        found += [text for text in (short.encode(), *more) if text not in found]
    return texts


def _exponent_spellings(text: str) -> list[bytes]:
    """The spellings of a float that Python prints with an exponent: `1e-07` and `1e-7`, `1e+22` and `1e22`."""
    digits, _, exponent = text.partition("e")
    return [text.encode(), f"{digits}e{int(exponent)}".encode()] if exponent else []


def is_whole(value: Decimal) -> bool:
    """True for a number without a fraction."""
    return value == value.to_integral_value()
