"""`between`: the numbers in a range as a term, in plain digits without exponent or signed zero, by digit dynamic programming. Numbers with
as many digits before the point as a bound are compared with it digit by digit (state: equal so far to the lower bound, the upper, both,
neither); numbers of lengths in between need no comparison. The number of decimals is bounded, and that of digits where no bound does it.

`with_exponent`: those in a range that have an exponent, one digit other than zero before the point, as a writer of doubles spells small and
large ones; digits and exponent are compared with those of the bounds.

`multiples`: the numbers in a range that are multiples of a decimal step (`9.9`, `9.90` and `10` for 0.05), of no denied step, and not
excluded, as JSON text. All numbers are counted in units of the last decimal. A state is what was read: the number of digits before the
point, that of decimals, and the number itself, or the least one that continues in the same way. Whether some text completes it is counted,
as numbers in ranges, and never searched; so the size of a step does not matter.

`decimal_text`: values of `Decimal` as the inside of a JSON string, spelled as by `str` and in pydantic's JSON output, such as `9.90`,
`1E-7` and `1.5E+3`. The term is an intersection of a range, a divisibility automaton and bounds on digits. Left out are more than 40 digits
before or after the point, and exponents that no double has. With `multiple_of` there are at most 28 digits, as in Python's default decimal
context, no exponent and no signed zero.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import ceil, floor, gcd, lcm

from fsm.schema.scalars import number_range as ranges
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


_SMALL = Bound(Decimal("5e-324"), True), Bound(Decimal("1e-4"), False)  # what is smaller may be read as zero
_LARGE = Bound(Decimal("1e16"), True), Bound(Decimal("1e308"), False)


@lru_cache(maxsize=1_000)
def with_exponent(low: Bound | None, high: Bound | None) -> Node:
    """The numbers in a range, below 1e-4 or from 1e16 on, as `1.5e-7`: no double overflows, and none is read as zero.

    Cost: linear in the digits of the bounds, once per range.
    """
    above, below = _scientific_signs(low, high, (_SMALL, _LARGE), _exponents)
    return nodes.alternation((above, nodes.concat(MINUS, below)))


Exponents = Callable[[int, int], Node]
"""The texts of the exponents in a range."""


def _scientific_signs(
    low: Bound | None, high: Bound | None, intervals: Iterable[tuple[Bound, Bound]], exponents: Exponents
) -> tuple[Node, Node]:
    """The positive numbers in a range, of which some intervals are written with an exponent; and the negative ones, without their sign."""
    least = None if high is None else Bound(high.value.copy_negate(), high.inclusive)
    most = None if low is None else Bound(low.value.copy_negate(), low.inclusive)
    above = [_scientific(higher(low, start), lower(high, end), exponents) for start, end in intervals]
    below = [_scientific(higher(least, start), lower(most, end), exponents) for start, end in intervals]
    return nodes.alternation(above), nodes.alternation(below)


@lru_cache(maxsize=1_000)
def _scientific(low: Bound, high: Bound, exponents: Exponents) -> Node:
    """Unsigned numbers from `low`, above zero, to `high`: for the exponents of the bounds the digits are compared, too.

    Args:
        low, high: the bounds.
        exponents: the texts of the exponents in a range.
    """
    if low.value > high.value:
        return EMPTY
    first, last = low.value.adjusted(), high.value.adjusted()
    start, end = (Bound(bound.value.scaleb(-at, _EXACT), bound.inclusive) for bound, at in ((low, first), (high, last)))
    if first == last:
        return nodes.concat(_all_magnitudes(start, end, MAX_DIGITS), exponents(first, last))
    parts = (
        nodes.concat(_same_length(start, None, 1, MAX_DIGITS), exponents(first, first)),
        _between_powers(first + 1, last - 1, exponents),
        nodes.concat(_all_magnitudes(_FROM_ONE, end, MAX_DIGITS), exponents(last, last)),
    )
    return nodes.alternation(parts)


_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_FROM_ONE = Bound(Decimal(1), True)


@lru_cache(maxsize=1_000)
def _between_powers(first: int, last: int, exponents: Exponents) -> Node:
    """Any digits, and an exponent in a range."""
    return nodes.concat(nodes.concat(NONZERO, fraction(MAX_DIGITS)), exponents(first, last))


@lru_cache(maxsize=1_000)
def _exponents(first: int, last: int) -> Node:
    """An `e` and a whole number in a range; `e+22` and `e-07` are spellings of Python and others."""
    if first > last:
        return EMPTY
    parts = []
    if last >= 0:
        sign = nodes.optional(nodes.literal(b"+"))
        parts.append(nodes.concat(sign, _padded(max(first, 0), last)))
    if first < 0:
        parts.append(nodes.concat(MINUS, _padded(max(-last, 1), -first)))
    return nodes.concat(nodes.literal(b"e"), nodes.alternation(parts))


def _padded(first: int, last: int) -> Node:
    """Whole numbers in a range; a single digit may have a zero before it."""
    some = _all_magnitudes(Bound(Decimal(first), True), Bound(Decimal(last), True), 0)
    single = nodes.byte_range(0x30 + first, 0x30 + min(last, 9)) if first < 10 else EMPTY
    return nodes.alternation((some, nodes.concat(ZERO, single)))


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


State = tuple[int, int, int]
"""The number of digits before the point (0: none yet, or the point was read), that of decimals (-1: before the point), and the number."""

_START: State = (0, -1, 0)
_POINT = 1 << ord(".")


def common_multiple(steps: Iterable[Fraction]) -> Fraction:
    """The least common multiple of numbers."""
    steps = list(steps)
    scale = lcm(*(step.denominator for step in steps))
    return Fraction(lcm(*(int(step * scale) for step in steps)), scale)


def multiples(
    step: Fraction,
    decimals: int,
    digits: int,
    low: Bound | None = None,
    high: Bound | None = None,
    denied: Iterable[Fraction] = (),
    excluded: Iterable[Fraction] = (),
) -> Node:
    """The multiples of a step in a range, of either sign, with at most `decimals` decimals.

    Args:
        step: any number above zero.
        decimals: the most decimals of a multiple, with trailing zeros; at most `digits`.
        digits: a multiple with a point has at most `digits - decimals` (one or more) digits before it.
        low, high: bounds.
        denied: the numbers of which it must not be a multiple, few.
        excluded: the numbers that it must not be.

    Cost: 10 arcs per state, made when reached, 5 to 50 us each.
    """
    unit = Fraction(1, 10**decimals)
    steps = [int(common_multiple([one, unit]) / unit) for one in (step, *denied)]
    least = None if low is None else in_units(low, decimals, ceil)
    most = None if high is None else in_units(high, decimals, floor)
    without = [int(value / unit) for value in excluded if (value / unit).denominator == 1]
    parts = []
    for sign, start, end in (
        (1, least, most),
        (-1, None if most is None else -most, None if least is None else -least),
    ):
        start = max(start or 0, int(sign < 0))
        if end is None or start <= end:
            machine = Multiples(start, end, steps, [sign * value for value in without], decimals, digits - decimals)
            if machine.leads_on(_START):
                node = nodes.machine(machine, _START, is_plain=True)
                parts.append(node if sign > 0 else nodes.concat(nodes.literal(b"-"), node))
    return nodes.alternation(parts) if parts else EMPTY


class Multiples(nodes.Content, nodes.Machine):
    """The machine of unsigned multiples; each state that an arc leads to can be completed.

    Args:
        low, high: the least and the greatest number (None: as many digits as a number may have), in units as all others.
        steps: the step, then those that are denied.
        excluded: numbers that are not accepted.
        decimals: the most decimals.
        room: the most digits before a point.
    """

    def __init__(
        self, low: int, high: int | None, steps: list[int], excluded: Iterable[int], decimals: int, room: int
    ) -> None:
        step, *denied = steps
        self.decimals, self.room, self.unit = decimals, max(room, 1), 10**decimals
        longest = max(MAX_DIGITS, _length(low // self.unit)) if high is None else _length(high // self.unit)
        self.longest = min(longest, MAX_DOUBLE_DIGITS) if decimals else longest
        self.low, self.high = low, 10**self.longest * self.unit - 1 if high is None else high
        self.period = lcm(*steps)
        allowed = sorted(n for n in set(excluded) if n % step == 0 and all(n % other for other in denied))
        super().__init__(self.low, self.high, *steps, decimals, room, tuple(allowed))
        self._marks = (self.low, self.high, *allowed)
        self._known_marks: dict[tuple[int, int], list[int]] = {}
        # By whether it is whole: signed steps, the sum of whose multiples counts a number once (inclusion and exclusion).
        self._signed = {
            is_whole: (
                [
                    (lcm(step, unit, *some), (-1) ** count)
                    for count in range(len(denied) + 1)
                    for some in combinations(denied, count)
                ],
                [n for n in allowed if n % unit == 0],
            )
            for is_whole, unit in ((False, 1), (True, self.unit))
        }

    def is_accepting(self, state: State) -> bool:
        """True when the number read so far is one of them."""
        _, read, number = state
        number *= 10 ** (self.decimals - max(read, 0))
        return state != _START and read != 0 and self._has_any(number, number, is_whole=False)

    def distance(self, state: State) -> int:
        """About how many bytes complete a number: those of the shortest one without a point, or else of any one."""
        return 0 if self.is_accepting(state) else min(self._whole_lengths(state), default=self.decimals + 1)

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per digit, and one for the point."""
        for mask, target in self._steps(state):
            if self.leads_on(target):
                yield mask, nodes.machine(self, self._least(target), is_plain=True)

    def _steps(self, state: State) -> Iterator[tuple[int, State]]:
        count, read, number = state
        if read < 0 and count and self.decimals and count <= self.room:
            yield _POINT, (0, 0, number)
        is_open = count < self.longest and (number > 0 or not count) if read < 0 else read < self.decimals
        for digit in range(10 if is_open else 0):
            after = 10 * number + digit
            yield 1 << (ord("0") + digit), (count + 1, -1, after) if read < 0 else (0, read + 1, after)

    def leads_on(self, state: State) -> bool:
        """True when some text from this state on is accepted."""
        count, read, number = state
        if state == _START:
            return any(self.leads_on(target) for _, target in self._steps(state))
        if read >= 0:
            width = 10 ** (self.decimals - read)
            return self._has_any(number * width, (number + 1) * width - 1, is_whole=False)
        if any(self._whole_lengths(state)) or self._has_any(number * self.unit, number * self.unit, is_whole=True):
            return True
        most = self.room - count if number else 0
        widths = (self.unit * 10**more for more in range(most + 1) if self.decimals)
        return any(self._has_any(number * width, (number + 1) * width - 1, is_whole=False) for width in widths)

    def _whole_lengths(self, state: State) -> Iterator[int]:
        """The numbers of digits, one or more, that complete a whole number; those likely to do so first."""
        count, read, number = state
        for more in range(self.longest - count if number and read < 0 else 0, 0, -1):
            width = self.unit * 10**more
            if self._has_any(number * width, (number + 1) * width - 1, is_whole=True):
                yield more

    def _has_any(self, least: int, most: int, *, is_whole: bool) -> bool:
        """True when some number of a range is accepted."""
        least, most = max(least, self.low), min(most, self.high)
        signed, excluded = self._signed[is_whole]
        found = sum(sign * (most // step - (least - 1) // step) for step, sign in signed) if least <= most else 0
        return found > bisect_right(excluded, most) - bisect_left(excluded, least) if found else False

    def _least(self, state: State) -> State:
        """The state with the least number that continues in the same way: the same remainder, and between the same marks."""
        count, read, number = state
        marks = self._marks_at(count, read)
        place = bisect_right(marks, number)
        if not number or (place and marks[place - 1] == number):
            return state
        first = marks[place - 1] + 1 if place else 0
        period = self.period // gcd(self.period, 10 ** (self.decimals - max(read, 0)))
        return count, read, first + (number - first) % period

    def _marks_at(self, count: int, read: int) -> list[int]:
        """The beginnings of the bounds and excluded numbers, ascending, with as many digits as a state has read."""
        known = self._known_marks.get((count, read))
        if known is None:
            if read >= 0:
                found = {mark // 10 ** (self.decimals - read) for mark in self._marks} | {0}
            else:
                whole = [mark // self.unit for mark in self._marks]
                found = {mark // 10 ** (_length(mark) - count) for mark in whole if _length(mark) >= count}
                found.add(10 ** (count - 1) - 1)
            known = self._known_marks[count, read] = sorted(found)
        return known


def _length(number: int) -> int:
    return len(str(number))


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
    plain_texts = _plain_text(low, high, step, max_digits, decimal_places)
    scientific = _scientific_text(low, high, max_digits, decimal_places) if step is None else EMPTY
    return nodes.alternation((plain_texts, scientific, _zeros(low, high, max_digits, decimal_places)))


def _plain_text(
    low: Bound | None, high: Bound | None, step: Decimal | None, max_digits: int | None, decimal_places: int | None
) -> Node:
    """The texts without an exponent, and without a signed zero."""
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


_SMALLEST, _LARGEST = -324, 308  # the exponents of doubles
_SMALL_TEXT = Bound(Decimal((0, (1,), _SMALLEST)), True), Bound(Decimal("1e-6"), False)
_LARGE_TEXT = Bound(Decimal(10), True), Bound(Decimal((0, (1,), _LARGEST + 1)), False)


def _scientific_text(low: Bound | None, high: Bound | None, max_digits: int | None, decimal_places: int | None) -> Node:
    """The texts with an exponent, except zeros: below -6, or above the number of decimals that are written before it."""
    after_sign = _scientific_digits(max_digits, decimal_places)
    if after_sign is EMPTY or low is high is None:
        return nodes.concat(nodes.optional(MINUS), after_sign)
    above, below = _scientific_signs(low, high, (_SMALL_TEXT, _LARGE_TEXT), _signed_exponents)
    negative = nodes.concat(MINUS, nodes.intersection((below, after_sign)))
    return nodes.alternation((nodes.intersection((above, after_sign)), negative))


@lru_cache(maxsize=1_000)
def _scientific_digits(max_digits: int | None, decimal_places: int | None) -> Node:
    """Unsigned texts such as `1.5E+3`, of any range, whose exponent fits to the number of their decimals: built from the last decimal."""
    small = min(most for most in (MAX_DIGITS - _SMALLEST, max_digits, decimal_places) if most is not None)
    large = _LARGEST if max_digits is None else min(_LARGEST, max_digits - (decimal_places or 0) - 1)
    found = EMPTY
    for decimals in range(MAX_DIGITS, -1, -1):
        below = _signed_exponents(-min(small - decimals, -_SMALLEST), -_PLAIN_DECIMALS - 1)
        more = found if decimals else nodes.concat(POINT, found)
        found = nodes.alternation((below, _signed_exponents(decimals + 1, large), more))
        found = nodes.concat(DIGIT if decimals else NONZERO, found)
    return found


def _zeros(low: Bound | None, high: Bound | None, max_digits: int | None, decimal_places: int | None) -> Node:
    """The zeros of a range but `0`: without decimals where there is room for a digit before the point, with decimals always."""
    if higher(low, _AT_ZERO) != _AT_ZERO or lower(high, _AT_ZERO) != _AT_ZERO:
        return EMPTY
    # pydantic counts no zeros at the end, so these are as good as without constraints.
    ends = [
        nodes.concat(POINT, nodes.repeat(ZERO, 1, _PLAIN_DECIMALS)),
        _signed_exponents(_SMALLEST, -_PLAIN_DECIMALS - 1),
    ]
    found = list[Node]()
    if max_digits is None or max_digits > (decimal_places or 0):
        ends.append(_signed_exponents(1, _LARGEST))
        found.append(nodes.literal(b"-0"))
    return nodes.alternation((*found, nodes.sequence((nodes.optional(MINUS), ZERO, nodes.alternation(ends)))))


@lru_cache(maxsize=1_000)
def _signed_exponents(first: int, last: int) -> Node:
    """An `E`, a sign and a whole number in a range, other than zero."""
    parts = []
    for sign, least, most in ((b"E+", max(first, 1), last), (b"E-", max(-last, 1), -first)):
        if least <= most:
            texts = _all_magnitudes(Bound(Decimal(least), True), Bound(Decimal(most), True), 0)
            parts.append(nodes.concat(nodes.literal(sign), texts))
    return nodes.alternation(parts)


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
