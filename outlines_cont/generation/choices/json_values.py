"""`FieldFinder`: where a value of JSON begins that may have few texts, such as an enum, a boolean or a small number, and which these are.

They are found by a search of the automaton of the language. A value has none here where the language also allows an object, a list or
other text in its place, or more than `MAX_VALUES` texts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fsm.automaton.lazy_dfa import Automaton

MAX_VALUES = 128
"""The most texts of a value."""
MAX_BYTES = 4_096
"""The most bytes that they may have together."""

_NUM_STATES = 4_096  # whose values are remembered
_SPACE, _DIGITS = b" \t\r\n", frozenset(b"0123456789.eE+-")
_FIRST = frozenset(b'"-0123456789tfn')
_WHOLE = re.compile(rb'"(?:[^"\\]|\\.)*"|true|false|null', re.DOTALL)
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Value(NamedTuple):
    """A text of a value.

    Attributes:
        rest: what is still to be written of it, up to its last byte.
        text: the whole text, without white space before it.
        state: the state of the automaton after it.
        is_open: whether it ends with the next byte: a number, which might go on with another digit.
    """

    rest: bytes
    text: bytes
    state: int
    is_open: bool


class Place(NamedTuple):
    """Where in a JSON text a value may begin.

    Attributes:
        in_string: whether the text ends inside of a string.
        num_open: how many bytes of that string there are, without its quote.
    """

    in_string: bool
    num_open: int


def place_of(text: bytes) -> Place | None:
    """Return the place at the end of a text; None where no value begins: inside of a number or an escape, or after a value."""
    rest = _STRING.sub(b"0", text)
    before, quote, inside = rest.partition(b'"')
    if quote:
        is_escape = (len(inside) - len(inside.rstrip(b"\\"))) % 2
        return None if is_escape else Place(True, len(inside))
    before = before.rstrip(_SPACE)
    return Place(False, 0) if not before or before[-1:] in b":,[" else None


class FieldFinder:
    """The values that may follow in the states of an automaton, each searched once."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._found = lru_cache(_NUM_STATES)(self._search)

    def may_begin(self, state: int) -> bool:
        """Return whether a value of few texts might begin in a state, or go on in one as a string."""
        return bool(self._found(state, in_string=True) or self._found(state, in_string=False))

    def values(self, state: int, *, in_string: bool) -> tuple[Value, ...]:
        """Return the texts of the value that begins in a state, two or more, in byte order; none where no value of few texts begins.

        With `in_string`, its opening quote is written.

        Cost: the first time some steps of the automaton for each text, or up to 128 where there are too many.
        """
        return self._found(state, in_string=in_string)

    def _search(self, state: int, *, in_string: bool) -> tuple[Value, ...]:
        automaton, quote = self._automaton, b'"' if in_string else b""
        found, stack, num_steps = list[Value](), [(b"", state)], 0
        while stack:
            rest, at = stack.pop()
            text = quote + rest if in_string else rest.lstrip(_SPACE)
            moves = automaton.moves(at)
            if _WHOLE.fullmatch(text):
                if b":"[0] in moves:  # the key of a member
                    return ()
                found.append(Value(rest, text, at, False))
                moves = {}
            elif automaton.is_accepting(at) or (not text and not moves.keys() <= _FIRST.union(_SPACE)):
                return ()
            elif _NUMBER.fullmatch(text):
                if not moves.keys() <= _DIGITS:
                    found.append(Value(rest, text, at, True))
                moves = {byte: to for byte, to in moves.items() if byte in _DIGITS}
            num_steps += 1
            stack += [(rest + bytes([byte]), to) for byte, to in moves.items()]
            if len(found) + len(stack) > MAX_VALUES or num_steps > MAX_BYTES:
                return ()
        is_choice = len({value.text for value in found}) > 1 and sum(len(value.text) for value in found) <= MAX_BYTES
        return tuple(sorted(found)) if is_choice else ()
