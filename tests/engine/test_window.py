"""`Window` without an engine: entries that end after given numbers of steps, of which some fail as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.engine.job import Step, Task
from outlines_cont.generation.tasks.window import Room, Window


class Count:
    """An entry that ends after some steps, or with an error that it is given."""

    def __init__(self, number: int, steps: int, running: set[Any]) -> None:
        self.number, self.steps, self.running = number, steps, running
        self.result: Any = None

    def task(self) -> Task:
        assert self.result is None
        job: Any = SimpleNamespace(is_over=False)
        self.running.add(self)
        try:
            for _ in range(self.steps):
                yield Step(job)
            self.result = self.number
        except MemoryError as error:
            self.result = error
        finally:
            self.running.discard(self)


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 9), st.integers(1, 4), st.lists(st.booleans(), max_size=60))
def test_entries_come_in_order_within_the_bounds(steps: list[int], size: int, batches: int, failing: list[bool]) -> None:
    running: set[Count] = set()
    read: list[Count] = []

    def entries() -> Iterator[Count]:
        for number, count in enumerate(steps):
            read.append(Count(number, count, running))
            yield read[-1]

    room = Room(size)
    task = Window(entries(), room, ahead=batches * size, retried=(MemoryError,)).task()
    fails = iter(failing)
    found: list[Count] = []
    for item in task:
        assert len(running) <= size
        assert len(read) - len(found) <= batches * size
        if isinstance(item, Step):
            if next(fails, False):
                item.error = MemoryError()
        else:
            found.append(item)
    assert found == read
    assert [entry.number for entry in found] == [*range(len(steps))]
    failed = [entry.number for entry in found if entry.result != entry.number]
    assert len(failed) <= sum(failing)
    assert not running
    assert not room.taken


def test_windows_share_their_room_and_give_it_back() -> None:
    running: set[Count] = set()
    room = Room(4)
    first = Window((Count(i, 50, running) for i in range(9)), room, ahead=9).task()
    other = Window((Count(i, 50, running) for i in range(9)), room, ahead=9).task()
    next(first)
    assert len(running) == 4
    next(other)
    assert len(running) == 5  # a window without any may begin one
    first.close()
    next(other)
    assert len(running) == 4
    other.close()
    assert not running
    assert not room.taken


def test_an_error_that_is_not_to_be_retried_ends_the_window() -> None:
    running: set[Count] = set()
    task = Window([Count(0, 3, running)], Room(1), ahead=1).task()
    step = next(task)
    assert step.caught == ()
    with pytest.raises(ZeroDivisionError):
        task.throw(ZeroDivisionError())
    assert not running
