"""`ByteDFA`: a deterministic automaton over bytes, as algorithms on one see it; `Automaton` is built of terms and is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

FEW_BYTES = 24
"""A state, or a class of bytes, with at most so many bytes to come first is narrow: best walked byte by byte. One with more is wide."""


class ByteDFA(Protocol):
    """States by number, and where each byte leads."""

    initial_state: int

    def moves(self, state: int) -> Mapping[int, int]:
        """The next state by byte; bytes that lead nowhere are absent."""

    def is_accepting(self, state: int) -> bool:
        """Whether a text may end in a state."""
