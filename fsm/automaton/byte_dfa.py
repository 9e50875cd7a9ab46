"""`ByteDFA`: the protocol of a DFA over bytes (transitions as a mapping, acceptance). Also `FEW_BYTES`: a state with more next bytes is
wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

FEW_BYTES = 24
"""The most next bytes of a state, or bytes of a class, that is called narrow: best walked byte by byte. One with more is wide."""


class ByteDFA(Protocol):
    """A DFA over bytes with numbered states."""

    initial_state: int

    def moves(self, state: int) -> Mapping[int, int]:
        """The next state by byte; bytes that lead nowhere are absent."""

    def is_accepting(self, state: int) -> bool:
        """Whether a text may end in a state."""
