"""`Source`: choices read from bytes, so that a fuzzer that changes bytes changes choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Reads choices from bytes, one byte each; where the bytes end, every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    @property
    def is_empty(self) -> bool:
        """True when all bytes were read."""
        return self._position >= len(self._data)

    def below(self, count: int) -> int:
        """A number from 0 to count - 1; count is at most 256."""
        if self.is_empty:
            return 0
        self._position += 1
        return self._data[self._position - 1] % count

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def pieces(self, options: Sequence[str], most: int) -> str:
        """Up to so many of the options, one after the other."""
        return "".join(self.choice(options) for _ in range(self.below(most + 1)))
