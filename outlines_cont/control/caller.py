"""`Caller`: a daemon thread that makes the calls of one program in order, a `Round` of them at a time. A thread cannot be killed, so a call
that takes too long is abandoned with its thread: its result is ignored, and a new thread makes the calls after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from outlines_cont.errors import ScriptError


class Call:
    """One call of a driver.

    Attributes:
        result: what it has returned.
        error: what it has raised.
        is_over: whether it has ended, or was abandoned.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.is_over = False
        self._function: Callable[[], Any] | None = function
        self._started: float | None = None
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far; 0 before it begins."""
        return 0.0 if self._started is None else (self._ended or perf_counter()) - self._started

    def run(self) -> tuple[Any, Exception | None]:
        """Call the function, once; return its result and its error."""
        # An error refers to the frames above it, and so to this call: the function must not live as long.
        function, self._function = self._function, None
        assert function is not None
        self._started = perf_counter()
        try:
            return function(), None
        except Exception as error:
            return None, error
        except BaseException as error:  # such as `sys.exit()`: it must not end the thread, for which others wait
            told = f"expected a controller to return or to raise an Exception, but it raised {error!r}"
            return None, ScriptError(told)
        finally:
            self._ended = perf_counter()

    def close(self, result: Any, error: Exception | None) -> None:
        """Set the outcome of the call."""
        self.result, self.error, self.is_over = result, error, True


class Round:
    """Calls that are made one after the other; `notify` is called, by their thread, when all are over.

    Attributes:
        calls: in their order.
        is_started: whether it was passed to a thread.
    """

    def __init__(self, calls: Sequence[Call], notify: Callable[[], None]) -> None:
        self.calls = list(calls)
        self.is_started = False
        self._notify = notify
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._owner: object = None

    @property
    def present(self) -> Call | None:
        """The call that is being made, or is the next; None when all are over."""
        return next((call for call in self.calls if not call.is_over), None)

    def wait(self, seconds: float) -> bool:
        """Wait until all calls are over, at most `seconds`; return whether they are."""
        return self._over.wait(seconds)

    def run(self, owner: object) -> None:
        """Make the calls that are not over yet, until another thread, which is another `owner`, runs the round."""
        with self._lock:
            self._owner = owner
        while (call := self.present) is not None:
            result, error = call.run()
            with self._lock:
                if self._owner is not owner:
                    return
                call.close(result, error)
        self._over.set()
        self._notify()

    def abandon(self) -> None:
        """Make no more calls after the present one, whose result is ignored."""
        with self._lock:
            self._owner = None
            for call in self.calls:
                call.is_over = True

    def abandon_call(self, call: Call, error: Exception) -> bool:
        """Abandon a call, which may still run; return False if it was over already."""
        with self._lock:
            if call.is_over:
                return False
            self._owner = None
            call.close(None, error)
            if self.present is None:
                self._over.set()
            return True


class Caller:
    """A daemon thread that makes calls, started when it is first needed."""

    def __init__(self) -> None:
        self._rounds: SimpleQueue[Round | None] | None = None

    def start(self, calls: Round) -> None:
        """Begin to make the calls of a round, unless they were begun before."""
        if not calls.is_started:
            self._queue(calls)
            calls.is_started = True

    def abandon_call(self, calls: Round, call: Call, error: Exception) -> None:
        """Abandon a call of a round with its thread; a new thread makes the other calls."""
        if calls.abandon_call(call, error):
            self.close()
            if calls.present is not None:
                self._queue(calls)

    def close(self) -> None:
        """End the thread after its present call."""
        if self._rounds is not None:
            self._rounds.put(None)
            self._rounds = None

    def _queue(self, calls: Round) -> None:
        if self._rounds is None:
            rounds: SimpleQueue[Round | None] = SimpleQueue()
            threading.Thread(target=_work, args=(rounds,), name="outlines-cont-control", daemon=True).start()
            self._rounds = rounds  # after the thread has started, wherever this is interrupted
        self._rounds.put(calls)


def _work(rounds: SimpleQueue[Round | None]) -> None:
    owner = object()
    while (calls := rounds.get()) is not None:
        calls.run(owner)
        del calls  # the results must not live until the next round
