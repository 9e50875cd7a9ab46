"""Lines of a text that has changed since: where each stood before."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


class MovedLines:
    """Where the lines of a text stood in an older form of it.

    A line that is new stands for those that it replaces, and for the lines before and behind.

    Args:
        before: the older text.
        after: the text.
    """

    def __init__(self, before: str, after: str) -> None:
        old, new = before.splitlines(), after.splitlines()
        self._blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()

    def earlier(self, lines: Iterable[int]) -> set[int]:
        """The numbers that some lines had, all from 1 on."""
        wanted, found = set(lines), set[int]()
        for kind, start, stop, first, last in self._blocks:
            here = [line for line in wanted if first < line <= last]
            if kind == "equal":
                found.update(line - first + start for line in here)
            elif here:
                found.update(range(start, stop + 2))
        return found
