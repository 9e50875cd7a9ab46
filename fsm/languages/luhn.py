"""`luhn`: numbers of `lo` to `hi` digits that end in a Luhn check digit, as payment cards do, by a lazy DFA over digit sums. Every second
digit from the right is doubled, the digits of all are added, and the sum ends in 0. Read from the left it is not known which these are, so
a state is the number of digits so far and the sum modulo 10 of either case: at most 100 per length. The first digit is not 0.

Source: ISO/IEC 7812-1, annex B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsm.terms import node as nodes
from fsm.terms.node import Node

_DOUBLED = tuple(sum(divmod(2 * digit, 10)) for digit in range(10))

State = tuple[int, int, int]
"""How many digits were read, and their sum modulo 10 if an even number of digits, or an odd one, is all there is."""


@dataclass(frozen=True, slots=True)
class Luhn(nodes.Machine):
    """Reads between `lo` and `hi` digits, the first of which is not 0; every state leads to an accepted number."""

    lo: int
    hi: int

    def is_accepting(self, state: State) -> bool:
        """True when the digits so far are a whole number with the right check digit."""
        count, even, odd = state
        return count >= self.lo and (odd if count % 2 else even) == 0

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per digit; the last possible digit is the check digit itself."""
        count, even, odd = state
        if count == self.hi:
            return
        for digit in range(0 if count else 1, 10):
            twice = _DOUBLED[digit]
            left, right = (digit, twice) if count % 2 else (twice, digit)
            after = (count + 1, (even + left) % 10, (odd + right) % 10)
            if count + 1 < self.hi or self.is_accepting(after):
                yield 1 << (48 + digit), nodes.machine(self, after, is_plain=True)


def luhn(lo: int, hi: int) -> Node:
    """The numbers of `lo` to `hi` digits (1 < lo <= hi) with a valid check digit. Cost: 10 arcs per state, when reached."""
    return nodes.machine(Luhn(lo, hi), (0, 0, 0), is_plain=True)
