"""`TemplateProcess`: a subprocess, shared by all threads, that renders templates on request (JSON lines over pipes), limited in the length
of a text, and by the operating system in processor time (`setitimer`) and memory (`RLIMIT_AS`, on Linux). A wall-clock timer kills it after
30 times the limit of time (without `setitimer`, as on Windows, after the limit itself); the next row starts a new process.

It renders in `Sandbox`, Jinja's immutable sandbox, which bounds only the results of `*` and `**` inside of an expression. Templates can
make huge results in more ways than an allow-list of operators and filters could cover, and run for minutes inside of Python's own
functions, where only the operating system can stop them. The process is started with the first row.

Cost: 0.1 s to start, 0.2 ms for a row (2.5 GHz Xeon); a row that is stopped costs a new process.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

from jinja2.environment import Template
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.runtime import Context

from outlines_cont.jinja_sandbox import BoundedSandbox
from outlines_cont.pipelines.rows.errors import TemplateError, listed

_HAS_TIMER = hasattr(signal, "setitimer")
# Wall-clock limit, as a multiple of the processor time: a machine may be busy with something else.
_PATIENCE = 30 if _HAS_TIMER else 1
_NUM_TEMPLATES = 64
_TOO_SLOW = (
    "expected a template that is filled in within {:g} s of processor time, the limit `max_seconds`, but it runs longer. Leave out "
    "nested loops and expressions with huge results, or raise the limit: `PromptTemplate(source, max_seconds=...)`."
)
_TOO_LARGE = (
    "expected a template that is filled in with {:,} bytes of memory, the limit `max_memory_bytes`, but it takes more. Leave out "
    "expressions with huge results, or raise the limit: `PromptTemplate(source, max_memory_bytes=...)`."
)


class Sandbox(BoundedSandbox):
    """The sandbox of prompt templates: repetition by `*` beyond a limit raises, as huge powers do."""

    def __init__(self, max_characters: int) -> None:
        super().__init__()
        self._max_characters = max_characters

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result would be huge."""
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if hasattr(sized, "__len__") and isinstance(count, int) and len(sized) * count > self._max_characters:
                    raise SecurityError(
                        f"repeating a value of length {len(sized)} {count} times exceeds the limit of "
                        f"{self._max_characters} characters"
                    )
        return super().call_binop(context, operator, left, right)


def filled(template: Template, values: Mapping[str, Any], max_characters: int) -> str:
    """Return the text of a template with the values of a row.

    Raises:
        TemplateError: a name is missing, the text is too long, or an expression fails.
        MemoryError: there is no memory left.
    """
    parts, length = [], 0
    try:
        for part in template.generate(values):
            parts.append(part)
            length += len(part)
            if length > max_characters:
                raise TemplateError(
                    f"expected a prompt of at most {max_characters} characters, the limit `max_characters`, but the "
                    "text is longer. Shorten the template or the row."
                )
    except (TemplateError, MemoryError):
        raise
    except UndefinedError as error:
        raise TemplateError(f"{error.message}; the row has {listed(values)}") from error
    except Exception as error:  # expressions of a template may raise anything that Python can
        raise TemplateError(f"the template fails on this row with {type(error).__name__}: {error}") from error
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """The limits of rendering one row: length of the text, processor time, and memory beyond that in use before the row."""

    max_characters: int
    max_seconds: float
    max_memory_bytes: int


class TemplateProcess:
    """The subprocess, started at the first row, and again after it was killed. A lock serialises the threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def fill(self, source: str, values: Mapping[str, Any], limits: TemplateLimits) -> str:
        """Return the text of a template; `TemplateError` where it fails or exceeds a limit, or a value of the row is not JSON."""
        try:
            request = json.dumps([source, dict(values), *astuple(limits)])
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(
                f"expected a row of values that JSON can hold, got one that it cannot: {error}"
            ) from error
        with self._lock:
            answer = self._answer(request.encode() + b"\n", limits)
        if "error" in answer:
            raise TemplateError(str(answer["error"]))
        return str(answer["text"])

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        process.wait()

    def _answer(self, request: bytes, limits: TemplateLimits) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(limits.max_seconds * _PATIENCE, process.kill)
        clock.daemon = True
        try:
            clock.start()
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
        except BrokenPipeError:
            pass
        except BaseException:
            self.close()  # the next request must not read the answer to this one
            raise
        finally:
            clock.cancel()
        self.close()
        return {"error": _TOO_SLOW.format(limits.max_seconds)}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            self._owner, self._process = os.getpid(), _start_process()
        return self._process


def _start_process() -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer_requests; answer_requests()"
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise TemplateError(f"expected to begin a process for templates with {sys.executable!r}: {error}") from error
    assert process.stdout is not None
    if not process.stdout.readline():
        process.kill()
        process.communicate()
        raise TemplateError(
            f"expected to begin a process for templates with {sys.executable!r}, but it ended immediately"
        )
    return process


SHARED = TemplateProcess()
"""The one subprocess of this process."""
atexit.register(SHARED.close)


# -- in the subprocess ----------------------------------------------------------------------------------------------------


def answer_requests() -> None:
    """Answer requests from the standard input until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    compiled = lru_cache(_NUM_TEMPLATES)(lambda source, max_characters: Sandbox(max_characters).from_string(source))
    _send({})
    for line in sys.stdin.buffer:
        source, values, max_characters, max_seconds, max_memory_bytes = json.loads(line)
        _limit_memory(max_memory_bytes)
        _limit_time(max_seconds)
        try:
            answer = {"text": filled(compiled(source, max_characters), values, max_characters)}
        except (RecursionError, SyntaxError) as error:  # of Python's compiler
            answer = {"error": f"the template cannot be compiled: {type(error).__name__}: {error}"}
        except TemplateError as error:
            answer = {"error": str(error)}
        except MemoryError:
            answer = {"error": _TOO_LARGE.format(max_memory_bytes)}
        _limit_time(0)
        _send(answer)


def _send(answer: dict[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _limit_time(seconds: float) -> None:
    """Limit the processor time of this process; 0 is no limit."""
    if _HAS_TIMER:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(limit: int) -> None:
    """Limit the memory of this process to `limit` bytes more than it uses now, on systems with `/proc`."""
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        return
