"""Locks that a child of `os.fork` can use: a fork copies the forking thread alone, so what another thread held would never be released.

`lock` and `rlock` make locks of objects that are free in a child; those of modules are found there; `reset_in_child` registers what else an
object does. A fork waits for the locks that are made with `is_awaited`, so that the child finds what they protect between two changes;
not for others, whose data are complete after every instruction. `os.register_at_fork` calls this module; if there is no `fork`, nothing
does. It imports nothing of ours.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakMethod, WeakSet

PATIENCE = 5.0
"""How many seconds a fork waits for awaited locks, in all: their threads may in turn wait for the one that forks."""
_PAUSE = 0.001
_LOCKS = type(threading.Lock()), type(threading.RLock())

_locks: WeakSet[Any] = WeakSet()
_awaited: WeakSet[Any] = WeakSet()
_methods: list[WeakMethod[Callable[[], None]]] = []


class _Forking(threading.local):
    """The awaited locks that this thread has taken for its fork."""

    def __init__(self) -> None:
        self.taken: list[Any] = []


_forking = _Forking()
_num_forking = 0


def lock() -> threading.Lock:
    """Return a new lock, which is free in the child of a fork."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock(*, is_awaited: bool = False) -> threading.RLock:
    """Return a new reentrant lock, which only the thread that has forked may still hold in the child; a fork waits for one `is_awaited`."""
    made = threading.RLock()
    (_awaited if is_awaited else _locks).add(made)
    return made


def reset_in_child(method: Callable[[], None]) -> None:
    """Call a method of an object in the child of every fork, when all locks are free; the object is referenced weakly."""
    _methods[:] = [known for known in _methods if known() is not None]
    _methods.append(WeakMethod(method))


def give_way() -> None:
    """Let a fork that waits take an awaited lock; called before it is taken by a thread that has just released it, and would win."""
    if _num_forking:
        time.sleep(_PAUSE)


def _before() -> None:
    global _num_forking
    _num_forking += 1
    deadline = time.monotonic() + PATIENCE
    for awaited in list(_awaited):
        if awaited.acquire(timeout=max(deadline - time.monotonic(), 0)):
            _forking.taken.append(awaited)


def _in_parent() -> None:
    global _num_forking
    _num_forking -= 1
    while _forking.taken:
        _forking.taken.pop().release()


def _in_child() -> None:
    global _num_forking
    _num_forking = 0
    while _forking.taken:
        _forking.taken.pop().release()
    for held in [*_locks, *_awaited, *_locks_of_modules()]:
        if not getattr(held, "_is_owned", bool)():
            held._at_fork_reinit()
    for known in list(_methods):
        if (method := known()) is not None:
            method()


def _locks_of_modules() -> list[Any]:
    """Return the locks in variables of our modules, and those of cached properties, which have one for all objects before Python 3.12."""
    found, classes = list[Any](), set[type]()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("fsm", "outlines_cont"):
            values = list(vars(module).values())
            found += [value for value in values if isinstance(value, _LOCKS)]
            classes.update(value for value in values if isinstance(value, type))
    members = (value for one in classes for value in list(vars(one).values()) if isinstance(value, cached_property))
    return [*found, *(value.lock for value in members if hasattr(value, "lock"))]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
