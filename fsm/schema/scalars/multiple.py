"""`multiples`: the numbers in a range that are multiples of a decimal step (`9.9`, `9.90` and `10` for 0.05), of no denied step, and not
excluded, as JSON text. All numbers are counted in units of the last decimal. A state is what was read: the number of digits before the
point, that of decimals, and the number itself, or the least one that continues in the same way. Whether some text completes it is counted,
as numbers in ranges, and never searched; so the size of a step does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from math import ceil, floor, gcd, lcm

from fsm.schema.scalars.number_range import MAX_DIGITS, MAX_DOUBLE_DIGITS, Bound, in_units
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Node

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
