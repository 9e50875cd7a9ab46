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
    """One call of a driver: `outcome` is its result and its error, None until it has ended or was abandoned."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.outcome: tuple[Any, Exception | None] | None = None
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


class Round:
    """Calls that are made one after the other; `notify` is called, by their thread, when all are over."""

    def __init__(self, calls: Sequence[Call], notify: Callable[[], None]) -> None:
        self.calls = list(calls)
        self.is_started = False  # whether it was passed to a thread
        self._notify = notify
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._owner: object = None

    @property
    def present(self) -> Call | None:
        """The call that is being made, or is the next; None when all are over."""
        return next((call for call in self.calls if call.outcome is None), None)

    def wait(self, seconds: float) -> bool:
        """Wait until all calls are over, at most `seconds`; return whether they are."""
        return self._over.wait(seconds)

    def run(self, owner: object) -> None:
        """Make the calls that are not over yet, until another thread, which is another `owner`, runs the round."""
        with self._lock:
            self._owner = owner
        while (call := self.present) is not None:
            outcome = call.run()
            with self._lock:
                if self._owner is not owner:
                    return
                call.outcome = outcome
        self._over.set()
        self._notify()

    def abandon(self, calls: Sequence[Call], error: Exception | None = None) -> bool:
        """End calls with an error, though one of them may still run; return False if all were over already."""
        with self._lock:
            open_calls = [call for call in calls if call.outcome is None]
            if open_calls:
                self._owner = None
            for call in open_calls:
                call.outcome = None, error
            if self.present is None:
                self._over.set()
            return bool(open_calls)


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
        if calls.abandon([call], error):
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
