"""`shielded`: calls code of the user (validators, samplers, policies) and turns a `SystemExit` or another `BaseException` into a
`UserCodeError`, the error of one row; an `Exception` is raised as it is. So is a `KeyboardInterrupt` by a signal (Ctrl-C) in the main
thread; one that the code raises is recognised by its bytecode, and is an error like any other.

Any thread may take a step, for the rows of all calls, so a `SystemExit` would end a call that did not cause it.
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Callable
from traceback import walk_tb
from typing import ParamSpec, TypeVar

from outlines_cont.errors import UserCodeError

P = ParamSpec("P")
T = TypeVar("T")


def shielded(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Call code of a user.

    Raises:
        UserCodeError: it raised something that is not an `Exception`, unless the user pressed Ctrl-C.
    """
    try:
        return function(*arguments, **options)
    except Exception:
        raise
    except BaseException as error:
        if _is_signal(error):
            raise
        raise user_code_error(error) from error


def user_code_error(error: BaseException) -> UserCodeError:
    """Return the error of a row whose user code raised `error`."""
    return UserCodeError(
        f"expected a check, a validator, a policy or a sampler to return or to raise an Exception, but it raised "
        f"{error!r}{place_of(error)}. A check rejects a value by raising `ValueError`."
    )


def place_of(error: BaseException) -> str:
    """Return the innermost line outside of this package that an error passed, such as `, in 'draft.py', line 7`, or an empty string."""
    places = [
        f", in {frame.f_code.co_filename!r}, line {line}"
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("fsm", "outlines_cont")
    ]
    return places[-1] if places else ""


def _is_signal(error: BaseException) -> bool:
    """Return whether an error was caused by a signal, not by a `raise`; Python handles signals in the main thread only."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next  # the innermost frame
    return place is None or dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] != "RAISE_VARARGS"
