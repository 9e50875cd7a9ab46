"""`stacklevel_of_user`: the `stacklevel` with which a warning points at the line of the user: at the first stack frame that is neither of
these packages nor of torch or of a few modules of the standard library, such as `contextlib` and `asyncio`.
"""

from __future__ import annotations

from sys import _getframe

# Ours, and those with frames between ours: decorators of torch, context managers, threads.
_PACKAGES = frozenset(
    {"fsm", "outlines_cont", "torch", "functools", "contextlib", "threading", "concurrent", "asyncio"}
)


def stacklevel_of_user() -> int:
    """Return the `stacklevel` with which the calling function is to warn, so that the warning points at the line of the user."""
    level, frame = 1, _getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
