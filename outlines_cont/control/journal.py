"""`Journal`: record and replay: the requests of a script with their answers, in order, so that a fork can run the script again from its
beginning to the same point. A request that differs from the recorded one is answered with `ReplayError`; answers are deep copies.
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
    """One question and its answer.

    Attributes:
        question: the `repr` of the request.
        value: what was answered.
        error: what was raised instead.
    """

    question: str
    value: Any = None
    error: Exception | None = None

    def answer(self) -> Any:
        """Return a copy of the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.value)


class Journal:
    """The entries of one fork, in order, and how many of them were read since its script has begun."""

    def __init__(self, entries: tuple[JournalEntry, ...] = ()) -> None:
        self._entries = list(entries)
        self._read = 0

    @property
    def is_replaying(self) -> bool:
        """Whether the next question has a recorded answer."""
        return self._read < len(self._entries)

    def fork(self, entry: JournalEntry) -> Journal:
        """Return the journal of a fork: the same entries and one more, to be read from the beginning."""
        return Journal((*self._entries, entry))

    def add(self, entry: JournalEntry) -> JournalEntry:
        """Note an answer that was given just now, and return it."""
        self._entries.append(entry)
        self._read += 1
        return entry

    def next(self, question: str) -> JournalEntry:
        """Return the recorded entry of a question; one with a `ReplayError` where another question was recorded."""
        entry = self._entries[self._read]
        if entry.question != question:
            error = ReplayError(
                f"expected the script to ask {entry.question} again, as before the fork, but it asked {question}. "
                "A script must do the same when it is run again: take what changes (time, random numbers, files) from outside as "
                "an argument, or do it once and share it."
            )
            return JournalEntry(question, error=error)
        self._read += 1
        return entry

    def once(self, question: str, act: Callable[[], T]) -> T:
        """Return the recorded answer; where there is none, call `act` and record its result or error."""
        if self.is_replaying:
            entry = self.next(question)
        else:
            try:
                entry = self.add(JournalEntry(question, copy.deepcopy(act())))
            except Exception as error:
                entry = self.add(JournalEntry(question, error=error))
        answer: T = entry.answer()
        return answer
