"""`Journal`: record and replay: the requests of a script (as `repr`) with their answers, in order, so that a fork can run the script again
from its beginning to the same point. A request that differs from the recorded one gets a `ReplayError`; answers are deep copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from outlines_cont.errors import ReplayError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request, as its `repr`, and its answer: a value, or an error to raise."""

    request: str
    value: Any = None
    error: Exception | None = None

    def answer(self) -> Any:
        """Return a copy of the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.value)


class Journal:
    """The entries of one fork, in order, and how many of them were replayed since its script has begun."""

    def __init__(self, entries: tuple[JournalEntry, ...] = ()) -> None:
        self._entries = list(entries)
        self._read = 0

    @property
    def is_replaying(self) -> bool:
        """Whether the next request has a recorded answer."""
        return self._read < len(self._entries)

    def fork(self, entry: JournalEntry) -> Journal:
        """Return the journal of a fork: the same entries and one more, to be replayed from the beginning."""
        return Journal((*self._entries, entry))

    def add(self, entry: JournalEntry) -> JournalEntry:
        """Record a new answer, and return it."""
        self._entries.append(entry)
        self._read += 1
        return entry

    def next(self, request: str) -> JournalEntry:
        """Return the recorded entry of a request; one with a `ReplayError` if another request was recorded."""
        entry = self._entries[self._read]
        if entry.request != request:
            error = ReplayError(
                f"expected the script to request {entry.request} again, as before the fork, but it requested {request}. "
                "A script must do the same when it is run again: take what changes (time, random numbers, files) from outside as "
                "an argument, or do it once and share it."
            )
            return JournalEntry(request, error=error)
        self._read += 1
        return entry

    def once(self, request: str, act: Callable[[], T]) -> T:
        """Return the recorded answer; if there is none, call `act` and record its result or error."""
        if self.is_replaying:
            entry = self.next(request)
        else:
            try:
                entry = self.add(JournalEntry(request, copy.deepcopy(act())))
            except Exception as error:
                entry = self.add(JournalEntry(request, error=error))
        answer: T = entry.answer()
        return answer
