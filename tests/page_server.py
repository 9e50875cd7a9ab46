"""Programs in processes forked from one that has imported torch and the packages: each begins as in a fresh interpreter, but for that.

It is a program of its own, as a process that runs tests has threads, and cannot be forked safely.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[1]


class PageServer:
    """Runs programs, one after the other. Use it with `with`."""

    def __enter__(self) -> Self:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-m", "tests.page_server"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, script: Path) -> tuple[int, str, str]:
        """Run a program in its folder: its exit status, and what it wrote to the standard output and error."""
        self.start(script)
        code = self.wait()
        return code, *(script.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".out", ".err"))

    def start(self, script: Path) -> int:
        """Begin to run a program in its folder: the number of its process. What it writes goes to files beside it, or pipes with a name."""
        assert self._process.stdin is not None
        print(json.dumps(str(script)), file=self._process.stdin, flush=True)
        return self._number()

    def wait(self) -> int:
        """The exit status of the program that was started, when it has ended."""
        return self._number()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _serve() -> None:
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import outlines_cont.commands.extractor
    import outlines_cont.generate
    import outlines_cont.models  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the tests ends them, and so this process

    for line in sys.stdin:
        script = Path(json.loads(line))
        pid = os.fork()
        if not pid:
            _run(script)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(script: Path) -> None:
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
    _serve()
    os._exit(0)  # without taking torch down, which takes seconds
