"""Programs in processes forked from one that has imported torch and the packages: each begins as in a fresh interpreter, but for that.

It is a program of its own, as a process that runs tests has threads, and cannot be forked safely. All workers of pytest-xdist share
one, which imports torch when it is first asked for something.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NoReturn, Self

ROOT = Path(__file__).parents[1]
ADDRESS = "OUTLINES_CONT_PAGE_SERVER"


class PageServer:
    """Runs programs, one after the other, in forks of the server at the address in the environment. Use it in a `with` of `serving`."""

    def run(self, script: Path) -> tuple[int, str, str]:
        """Run a program in its folder: its exit status, and what it wrote to the standard output and error."""
        self.start(script)
        code = self.wait()
        return code, *(script.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".out", ".err"))

    def start(self, script: Path) -> int:
        """Begin to run a program in its folder: the number of its process. What it writes goes to files beside it, or pipes with a name."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[ADDRESS])
            self._stream = connection.makefile("rw", encoding="utf-8")
        print(json.dumps(str(script)), file=self._stream, flush=True)
        return int(self._stream.readline())

    def wait(self) -> int:
        """The exit status of the program that was started, when it has ended."""
        with self._stream:
            return int(self._stream.readline())


class Serving:
    """The server, from the beginning of a block to its end; its address is in the environment."""

    def __enter__(self) -> Self:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._folder = TemporaryDirectory()
        address = os.environ[ADDRESS] = str(Path(self._folder.name, "s"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            command = [sys.executable, "-m", "tests.page_server", str(listener.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # as no file, so that programs may write to pipes
                env=environment,
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._folder.cleanup()
        del os.environ[ADDRESS]


def _serve(listener: socket.socket) -> None:
    """Fork for everyone who connects, until the standard input ends with the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the tests ends them, and so this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for programs
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        _import_heavy()
        if not os.fork():
            _keep(connection)
        connection.close()


@cache
def _import_heavy() -> None:
    """Import once what programs need, and leave it out of their garbage collections: each would look through all of torch, and copy it."""
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import outlines_cont.cli.chat
    import outlines_cont.cli.model
    import outlines_cont.generate
    import outlines_cont.models  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _keep(connection: socket.socket) -> NoReturn:
    """Run the program that is asked for, and tell its number and its end; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        script = Path(json.loads(stream.readline()))
        pid = os.fork()
        if not pid:
            _run(script)
        print(pid, file=stream, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=stream, flush=True)
    os._exit(0)


def _run(script: Path) -> NoReturn:
    """Become the program; does not return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(script.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(script.parent)
        sys.path[0] = str(script.parent)
        sys.argv = [str(script)]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # without taking torch down, which takes seconds
