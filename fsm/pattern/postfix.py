"""Regular expressions in postfix order: the instructions of a stack machine, into which the parsers of both dialects (`python_pattern.py`,
`ecma_pattern.py`) turn a pattern: `ab|c*` is Text(ab) Text(c) Loop(0, None) Choose(2). `evaluated` runs them on an explicit stack, without
recursion, with callbacks that make the values (`lookaround.py`, `leftmost_first.py`). `boundary` writes a word boundary as lookarounds at
one character; `NotSupported` is the internal error for refused constructs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from fsm.terms.characters import Ranges, invert

Value = TypeVar("Value")


class Anchor(Enum):
    """A condition on the text before or after a position."""

    TEXT_START = auto()
    LINE_START = auto()
    LINE_END = auto()
    LAST_LINE_END = auto()  # at the end of the text, or before a newline that ends it
    TEXT_END = auto()


@dataclass(frozen=True, slots=True)
class Text:
    """Push exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Character:
    """Push one character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Assert:
    """Push the empty text where the anchor matches."""

    anchor: Anchor


@dataclass(frozen=True, slots=True)
class Join:
    """Replace the last `count` by their concatenation."""

    count: int


@dataclass(frozen=True, slots=True)
class Choose:
    """Replace the last `count` by their union."""

    count: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Replace the last one by its repetition, `lo` to `hi` times (None: no bound); `is_lazy`: fewer are tried first."""

    lo: int
    hi: int | None
    is_lazy: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Replace the last one by the condition that one of its texts follows (or precedes), or that none does."""

    is_behind: bool = False
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Push the empty text, on either side of the group with a number, counted from 1; only for the matcher of back-references."""

    number: int


@dataclass(frozen=True, slots=True)
class Reference:
    """Push the text that a group matched last, the empty text where it did not; with `ignores_case` also a text equal to it."""

    number: int
    ignores_case: bool = False


Leaf = Text | Character | Assert
Combination = Join | Choose | Loop | Look
Instruction = Leaf | Combination
WithReferences = Instruction | Mark | Reference


class NotSupported(Exception):
    """A construct that is not regular, or not exact here; `python_pattern.py` and `ecma_pattern.py` make it a public error."""

    def __init__(self, construct: str, advice: str) -> None:
        super().__init__(construct, advice)
        self.construct = construct
        self.advice = advice


def evaluated(
    program: Iterable[Any], leaf: Callable[[Any], Value], combine: Callable[[Combination, list[Value]], Value]
) -> Value:
    """Run a well-formed pattern on a stack, and return its value, made by `leaf` and by `combine` from the values of its operands.

    Besides its combinations it has leaves: those above, or others of a notation that has more (`gbnf.py`).
    """
    stack: list[Value] = []
    for step in program:
        if isinstance(step, Join | Choose | Loop | Look):
            first = len(stack) - (step.count if isinstance(step, Join | Choose) else 1)
            stack[first:] = [combine(step, stack[first:])]
        else:
            stack.append(leaf(step))
    (whole,) = stack
    return whole


def boundary(word: Ranges, *, is_inside: bool, matches_empty: bool = True) -> Iterator[Instruction]:
    r"""Push `\b`, or `\B` with `is_inside`: a word character on one side, or on both sides or none.

    `matches_empty`: whether `\B` matches in the empty text.
    """
    other = invert(word)
    sides: list[tuple[Ranges, bool, Ranges, bool]] = [(word, False, word, True), (word, True, word, False)]
    if is_inside:
        sides = [(word, False, word, False), (word, True, word, True)]
        if not matches_empty:
            sides[1:] = [(other, False, word, True), (word, True, other, False)]
    for before, none_before, after, none_after in sides:
        yield Character(before)
        yield Look(is_behind=True, is_negative=none_before)
        yield Character(after)
        yield Look(is_negative=none_after)
        yield Join(2)
    yield Choose(len(sides))
