"""International bank account numbers: the length of each country, and the check digits.

After the first four characters (country and check digits) are moved to the end and every letter is written as a number
(A = 10 to Z = 35), an account number is 1 modulo 97. The rest of each country's own structure (where it has letters,
national check digits) is left out: any capital letters and digits may stand there.
Source: ISO 13616-1, ISO/IEC 7064 (MOD 97-10); the lengths are those of the public registry of IBAN formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from fsm.terms import node as nodes
from fsm.terms.node import Node

LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
"""The countries that have account numbers of this form, by the number of characters."""

_MODULUS = 97
_HEAD_DIGITS = 6  # what the country (two letters) and the check digits take at the end

State = tuple[int, int, int]
"""Characters still to read, the remainder of those read, and the remainder that all of them must have."""


@cache
def _steps() -> tuple[tuple[int, int, int], ...]:
    """Each digit and letter: its byte, the power of ten that its number takes, and the number."""
    digits = ((48 + n, 10, n) for n in range(10))
    letters = ((55 + n, 100, n) for n in range(10, 36))
    return (*digits, *letters)


@cache
def _hopeful(left: int, wanted: int) -> frozenset[int]:
    """The remainders from which `left` more characters can reach `wanted`; all of them from 3 characters on."""
    if left == 0:
        return frozenset((wanted,))
    after = _hopeful(min(left, 3) - 1, wanted)
    return frozenset(r for r in range(_MODULUS) if any((r * ten + n) % _MODULUS in after for _, ten, n in _steps()))


@dataclass(frozen=True, slots=True)
class Account(nodes.Machine):
    """Reads the characters after the check digits; every state leads to an accepted number."""

    def is_accepting(self, state: State) -> bool:
        """True after the last character, where the remainder is right."""
        left, remainder, wanted = state
        return left == 0 and remainder == wanted

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per remainder that can still become the right one."""
        left, remainder, wanted = state
        if left == 0:
            return
        masks: dict[int, int] = {}
        for byte, ten, number in _steps():
            after = (remainder * ten + number) % _MODULUS
            masks[after] = masks.get(after, 0) | 1 << byte
        for after, mask in masks.items():
            if after in _hopeful(left - 1, wanted):
                yield mask, nodes.machine(self, (left - 1, after, wanted), is_plain=True)


@dataclass(frozen=True, slots=True)
class CheckDigits(nodes.Machine):
    """Reads the two check digits, 02 to 98, and then `length` characters that agree with them and with the country.

    A state is what was read of the check digits: nothing, or the first.
    """

    country: int
    length: int

    def is_accepting(self, state: str) -> bool:
        """Never: the account follows."""
        return False

    def arcs(self, state: str, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per digit."""
        for digit in map(str, range(10)):
            if not state:
                yield 1 << ord(digit), nodes.machine(self, digit, is_plain=True)
            elif 2 <= int(state + digit) <= 98:
                head = self.country * 100 + int(state + digit)
                wanted = (1 - head) * pow(10, -_HEAD_DIGITS, _MODULUS) % _MODULUS
                yield 1 << ord(digit), nodes.machine(Account(), (self.length, 0, wanted), is_plain=True)


def iban() -> Node:
    """The account numbers of all countries, capital letters without spaces. Cost: at most 97 arcs per state, when reached."""
    options = []
    for length, countries in LENGTHS.items():
        for country in countries.split():
            number = int("".join(str(ord(letter) - 55) for letter in country))
            rest = nodes.machine(CheckDigits(number, length - 4), "", is_plain=True)
            options.append(nodes.concat(nodes.literal(country.encode()), rest))
    return nodes.alternation(options)
