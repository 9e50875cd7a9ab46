"""Full collections of garbage happen while nobody waits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from outlines_cont.models import collector
from outlines_cont.models.collector import IdleCollections
from tests.serve.running import wait_until


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def a_quick_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = gc.get_threshold()
    monkeypatch.setattr(collector, "_EVERY_SECONDS", 0.001)
    yield
    gc.set_threshold(*before)


def test_it_waits_for_an_idle_moment_and_leaves_the_collector_as_it_was(a_quick_collector: None) -> None:
    before, idle, asked = gc.get_threshold(), [False], [0]

    def is_idle() -> bool:
        asked[0] += 1
        return idle[0]

    with IdleCollections(is_idle):
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 10 * before[2]
        grown = [_Cycle() for _ in range(10)]
        gc.collect(1)
        old = [weakref.ref(one) for one in grown]
        gc.collect(1)
        grown.clear()  # garbage in the oldest generation: only a full collection finds it
        for _ in range(2 * before[2]):
            gc.collect(1)
        goal = asked[0] + 10
        wait_until(lambda: asked[0] > goal)
        assert all(one() is not None for one in old)
        idle[0] = True
        wait_until(lambda: all(one() is None for one in old))
    assert gc.get_threshold() == before
