"""`multiples`: the multiples of a decimal step as JSON text (`9.9`, `9.90` and `10` for 0.05), by the DFA of divisibility, made lazily. A
state is the remainder of the digits so far, their number, and whether all are zeros. The divisor grows with the decimals read: it is the
step in units of its last decimal, over its gcd with the power of ten still to come (0.25: 1, 5, then 25). Dead states are left out by
arithmetic; the number of digits is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from fsm.schema.scalars.number_range import MAX_DIGITS, fraction
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Node

State = tuple[int, int, int, bool]
"""The number of digits before the point; that of decimals (-1: before the point); the remainder; whether all digits are zeros."""

_POINT = 1 << ord(".")


def common_multiple(steps: list[Fraction]) -> Fraction:
    """The least common multiple of numbers."""
    scale = lcm(*(step.denominator for step in steps))
    return Fraction(lcm(*(int(step * scale) for step in steps)), scale)


def multiples(step: Fraction, decimals: int, digits: int) -> Node:
    """Zero and the multiples of a step, of either sign, with at most `decimals` decimals.

    Args:
        step: any number above zero.
        decimals: the most decimals of a multiple, with trailing zeros; at most `digits`.
        digits: a multiple with a point has at most `digits - decimals` digits before it.

    Cost: 10 arcs per state, made when reached; for each number of digits as many states as there are remainders.
    """
    step = common_multiple([step, Fraction(1, 10**decimals)])
    above_zero = _above_zero(step, decimals, digits) if decimals else _whole(step.numerator)
    zero = nodes.concat(nodes.literal(b"0"), fraction(decimals, digits=nodes.literal(b"0")))
    return nodes.alternation((zero, above_zero, nodes.concat(nodes.literal(b"-"), above_zero)))


def _whole(divisor: int) -> Node:
    firsts: dict[int, int] = {}
    for digit in range(1, 10):
        firsts[digit % divisor] = firsts.get(digit % divisor, 0) | _digit(digit)
    return nodes.alternation(
        nodes.concat(nodes.byte_set(mask), nodes.divisible(divisor, remainder, MAX_DIGITS - 1))
        for remainder, mask in firsts.items()
    )


def _above_zero(step: Fraction, decimals: int, digits: int) -> Node:
    exact = 0
    while 10**exact % step.denominator:
        exact += 1
    units = int(step * 10**exact)
    divisors = tuple(units // gcd(units, 10 ** (exact - read)) for read in range(exact + 1))
    machine, start = _Multiple(divisors, decimals, digits - decimals), (0, -1, 0, True)
    return nodes.machine(machine, start, is_plain=True) if machine.leads_on(start) else EMPTY


def _digit(value: int) -> int:
    return 1 << (ord("0") + value)


@dataclass(frozen=True, slots=True)
class _Multiple:
    """The machine for multiples above zero; each of its states leads to acceptance.

    Attributes:
        divisors: by the number of decimals read, the divisor of the digits so far if only zeros follow.
        decimals: the most decimals.
        room: the most digits before a point.
    """

    divisors: tuple[int, ...]
    decimals: int
    room: int

    def is_accepting(self, state: State) -> bool:
        """True when the digits so far are a multiple above zero."""
        _, read, remainder, is_zero = state
        return remainder == 0 and not is_zero and read != 0

    def parts(self, state: State) -> tuple[Node, ...]:
        """No terms: the steps are arithmetic."""
        return ()

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per digit, and one for the point."""
        for mask, target in self._steps(state):
            if self.leads_on(target):
                yield mask, nodes.machine(self, target, is_plain=True)

    def _steps(self, state: State) -> Iterator[tuple[int, State]]:
        count, read, remainder, is_zero = state
        if read < 0:
            if count and self.decimals and (is_zero or count <= self.room):
                yield _POINT, (0, 0, remainder, is_zero)
            if count < MAX_DIGITS and not (count and is_zero):
                for digit in range(10):
                    after = (10 * remainder + digit) % self.divisors[0]
                    yield _digit(digit), (count + 1, -1, after, digit == count == 0)
        elif read < self.decimals:
            exact = len(self.divisors) - 1
            for digit in range(10 if read < exact else 1):
                divisor = self.divisors[min(read + 1, exact)]
                number = 10 * remainder + digit if read < exact else remainder
                yield _digit(digit), (0, read + 1, number % divisor, is_zero and digit == 0)

    def leads_on(self, state: State) -> bool:
        """True when some text from this state on is accepted."""
        count, read, remainder, is_zero = state
        if read >= 0:
            return self._ends_in_fraction(read, remainder, is_zero, 0)
        more = 0 if count and is_zero else MAX_DIGITS - count
        if any(self._reaches(0, remainder, is_zero, n) for n in range(more + 1)):
            return True
        if not self.decimals:
            return False
        least = 0 if count else 1
        most = max(0 if is_zero and count else self.room - count, least)
        return any(self._ends_in_fraction(0, remainder, is_zero, n) for n in range(least, most + 1))

    def _ends_in_fraction(self, read: int, remainder: int, is_zero: bool, whole: int) -> bool:
        """True when `whole` digits before the point, and then some after it, make a multiple."""
        exact = len(self.divisors) - 1
        if read >= exact:
            return remainder == 0 and not is_zero and (read > 0 or self.decimals > 0)
        return any(self._reaches(n, remainder, is_zero, whole + n - read) for n in range(max(read, 1), exact + 1))

    def _reaches(self, read: int, remainder: int, is_zero: bool, more: int) -> bool:
        """True when `more` digits, of which the last is decimal number `read`, make a multiple above zero."""
        divisor = self.divisors[read]
        power: int = 10**more
        missing = -remainder * power % divisor
        return (missing or (divisor if is_zero else 0)) < power
