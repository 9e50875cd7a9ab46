"""`freeze_modules`: has Python's collector of reference cycles leave out the objects that exist before the first model is opened.

These are mostly the functions, classes and code of torch and transformers: some 390,000 objects, which live as long as the process. A full
collection visits them one by one, for 250 ms; terms of constraints are many small objects, and so full collections are frequent. The
network, its tokenizer and all that is made later is collected as ever, and at the end of the process everything is: extension modules
(nanobind, in Triton) report what was not freed by then as leaked.
"""

from __future__ import annotations

import atexit
import gc

_is_first = iter((True,))


def freeze_modules(is_wanted: bool) -> None:
    """Collect, then freeze (`gc.freeze`) what is left, if that is wanted and the collector is enabled; nothing but at the first call."""
    if next(_is_first, False) and is_wanted and gc.isenabled():
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)
