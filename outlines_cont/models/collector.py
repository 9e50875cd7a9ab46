"""`freeze_modules`: has Python's collector of reference cycles leave out the objects that exist before the first model is opened.

These are mostly the functions, classes and code of torch and transformers: some 390,000 objects, which live as long as the process. A full
collection visits them one by one, for 250 ms; terms of constraints are many small objects, and so full collections are frequent. The
network, its tokenizer and all that is made later is collected as ever, and at the end of the process everything is: extension modules
(nanobind, in Triton) report what was not freed by then as leaked.

`IdleCollections`: has it visit all objects when nothing runs, rather than in the middle of a batch. A full collection stops all threads for
0.1 s for each 200,000 objects, and a constraint that was hard to follow leaves millions for a while. Reference counts free nearly all.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable
from typing import Self

_EVERY_SECONDS = 0.25
_MANY = 2_000
"""Collections of the middle generation after which a full one happens in any case, 7,000 new objects each; ten by default."""

_is_first = iter((True,))


def freeze_modules(is_wanted: bool) -> None:
    """Collect, then freeze (`gc.freeze`) what is left, if that is wanted and the collector is enabled; nothing but at the first call."""
    if next(_is_first, False) and is_wanted and gc.isenabled():
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)


class IdleCollections:
    """A context of the process. The middle and the youngest generation are collected as ever."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        """Collect when `is_idle` returns True twice, a quarter of a second apart."""
        self._is_idle = is_idle
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="outlines-cont-collector", daemon=True)
        self._before = gc.get_threshold()

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()  # what was made before the first request lives as long as the process
        gc.set_threshold(*self._before[:2], _MANY)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collect(self) -> None:
        was_idle = False
        while not self._ended.wait(_EVERY_SECONDS):
            is_idle = self._is_idle()
            if is_idle and was_idle and gc.get_count()[2] >= self._before[2]:
                gc.collect()
            was_idle = is_idle
