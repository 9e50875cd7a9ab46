"""`Window`: many tasks on one engine (continuous batching). Whoever wants results for a stream of inputs gives an `Entry` for each, and
takes the entries back, in order, after their tasks have ended. A task that ends makes room for the next; a `Room` bounds how many run, in
all windows that share it, of any threads.

After an error of a whole step, such as lack of memory, half of the tasks are closed, to be started anew later, and the window is halved
for good; a task that runs alone is given the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

from fsm.process_fork import lock
from outlines_cont.engine.job import Step, Task


class Entry(Protocol):
    """What runs as a task, and keeps its result."""

    def task(self) -> Task:
        """Return a new task, which yields nothing but steps."""


class Room:
    """How many tasks run at once, those of all windows that share it; a window without any may begin one.

    Attributes:
        size: the most tasks.
        taken: those of each window.
        lock: held while a window takes room.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken: dict[Window, int] = {}
        self.lock = lock()


class Window:
    """Entries whose tasks run together; a window is used once.

    At most `ahead` entries are kept, from the first one on that has not ended. New ones begin when a quarter of the room is free, so that
    one forward prefills several prompts. `retried` are the errors of whole steps after which tasks are started anew.
    """

    def __init__(
        self, entries: Iterable[Any], room: Room, ahead: int, retried: tuple[type[Exception], ...] = ()
    ) -> None:
        self._source = iter(entries)
        self._room = room
        self._width = room.size
        self._ahead = ahead
        self._retried = retried
        self._kept: deque[Entry] = deque()  # in order
        self._waiting: deque[Entry] = deque()  # those of them that have not begun
        self._running: dict[Entry, Task] = {}

    def task(self) -> Task:
        """Return the window as one task, whose items are the entries, in order, each after its task has ended."""
        try:
            while self._begin():
                steps = self._resume()
                while self._kept and self._kept[0] not in self._running and self._kept[0] not in self._waiting:
                    yield self._kept.popleft()
                if not steps:
                    continue
                first, *others = steps.values()
                first.caught, first.error = self._retried, None
                yield first
                for step in others:
                    step.note()
                if first.error is not None:
                    self._narrow([entry for entry, step in steps.items() if not step.is_over], first.error)
        finally:
            for task in self._running.values():
                task.close()
            self._room.taken.pop(self, None)

    def _begin(self) -> bool:
        """Begin the entries that there is room for; return whether any is left."""
        running, waiting, room = self._running, self._waiting, self._room
        with room.lock:
            room.taken[self] = len(running)
            free = min(self._width - len(running), room.size - sum(room.taken.values()))
            if running and free < max(self._width // 4, 1):
                free = 0
            count = min(max(free, not running), len(waiting) + self._ahead - len(self._kept))
            room.taken[self] += count
        new = [*islice(self._source, max(count - len(waiting), 0))]
        self._kept += new
        waiting += new
        for entry in [*islice(waiting, count)]:
            running[entry] = entry.task()
            waiting.popleft()
        return bool(running or self._kept)

    def _resume(self) -> dict[Entry, Step]:
        """Run each task to the next step that it awaits, and return these."""
        steps = {entry: next(task, None) for entry, task in self._running.items()}
        self._running = {entry: self._running[entry] for entry, step in steps.items() if step is not None}
        return {entry: step for entry, step in steps.items() if step is not None}

    def _narrow(self, entries: list[Entry], error: Exception) -> None:
        """After an error of a whole step close half of the tasks and halve the width; a single task is given the error."""
        half = len(entries) // 2
        for entry in entries[half:]:
            task = self._running.pop(entry)
            if half:
                task.close()
                self._waiting.append(entry)
            else:
                with suppress(StopIteration):
                    task.throw(error)
        if half:
            self._width = max(self._width // 2, 1)
