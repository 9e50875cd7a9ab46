"""`iban`: international bank account numbers, with the length of each country, as a lazy automaton that computes modulo 97. A state is how
many characters are left, the remainder so far, and the one that the check digits demand; only remainders that can still become that are
followed, so every state leads to a valid number. Capital letters and digits are allowed anywhere after the check digits: the rest of each
country's structure (where it has letters, national check digits) is left out.

After the first four characters (country and check digits) are moved to the end and every letter is written as a number (A = 10 to Z = 35),
an account number is 1 modulo 97.

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
"""Characters still to read, the number that those before make (modulo 97 behind the check digits), and the remainder wanted in the end."""

_UNKNOWN = -1  # as long as the check digits are read


@cache
def _steps() -> tuple[tuple[int, int, int], ...]:
    """Each digit and letter: its byte, the power of ten that its number takes, and the number."""
    digits = ((48 + n, 10, n) for n in range(10))
    letters = ((55 + n, 100, n) for n in range(10, 36))
    return (*digits, *letters)


@cache
def _completable(left: int, wanted: int) -> frozenset[int]:
    """The remainders from which `left` more characters can reach `wanted`; all of them from 3 characters on."""
    if left == 0:
        return frozenset((wanted,))
    after = _completable(min(left, 3) - 1, wanted)
    return frozenset(r for r in range(_MODULUS) if any((r * ten + n) % _MODULUS in after for _, ten, n in _steps()))


@dataclass(frozen=True, slots=True)
class Account(nodes.Machine):
    """Reads two check digits, 02 to 98, and then `length` characters that agree with them and with the country."""

    length: int

    def is_accepting(self, state: State) -> bool:
        """True after the last character, where the remainder is right."""
        left, remainder, wanted = state
        return left == 0 and remainder == wanted

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per check digit, then one per remainder that can still become the right one."""
        left, read, wanted = state
        if wanted == _UNKNOWN:
            for digit in range(10):
                head, after = 10 * read + digit, _UNKNOWN
                if left == self.length + 1:
                    if not 2 <= head % 100 <= 98:
                        continue
                    head, after = 0, (1 - head) * pow(10, -_HEAD_DIGITS, _MODULUS) % _MODULUS
                yield 1 << (48 + digit), nodes.machine(self, (left - 1, head, after), is_plain=True)
        elif left:
            masks: dict[int, int] = {}
            for byte, ten, number in _steps():
                remainder = (read * ten + number) % _MODULUS
                masks[remainder] = masks.get(remainder, 0) | 1 << byte
            for remainder, mask in masks.items():
                if remainder in _completable(left - 1, wanted):
                    yield mask, nodes.machine(self, (left - 1, remainder, wanted), is_plain=True)


def iban() -> Node:
    """The account numbers of all countries, capital letters without spaces. Cost: at most 97 arcs per state, when reached."""
    options = []
    for length, countries in LENGTHS.items():
        for country in countries.split():
            number = int("".join(str(ord(letter) - 55) for letter in country))
            rest = nodes.machine(Account(length - 4), (length - 2, number, _UNKNOWN), is_plain=True)
            options.append(nodes.concat(nodes.literal(country.encode()), rest))
    return nodes.alternation(options)
