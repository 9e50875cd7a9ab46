"""Copies of the tree, and pytest in processes forked from this one: torch and the like are imported once."""

from __future__ import annotations

import compileall
import ctypes
import importlib
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

MAX_MEMORY_BYTES = 6 * 2**30
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
OURS = ("fsm", "outlines_cont", "tests")
HEAVY = ("numpy", "lark", "pydantic", "hypothesis", "pytest", "torch", "transformers", "tokenizers", "jsonschema", "coverage")


def copy_tree(root: Path, target: Path) -> None:
    """Copy what belongs to the repository; bytecode of it is checked by contents, as a changed file may be as long and as old."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    for package in OURS[:2]:
        compileall.compile_dir(target / package, quiet=2, invalidation_mode=mode)


def import_heavy() -> None:
    """Import what the tests need and the code under test is not part of; what is not installed is left out."""
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")
    for name in HEAVY:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


class Job:
    """A function that runs in a process of its own, in a copy of the tree.

    It may hold `MAX_MEMORY_BYTES` of data and no more, as may each process that it starts: a change may make a loop that appends for
    ever.

    Args:
        tree: the copy.
        work: what to do there; the process ends with the number that it returns.
        seconds: how long it may take, processes that it has started included.
    """

    def __init__(self, tree: Path, work: Callable[[], int], seconds: float) -> None:
        self.tree = tree
        self._end = time.monotonic() + seconds
        self.pid = os.fork()
        if not self.pid:
            _run(tree, work)
        lead_group(self.pid)

    def poll(self) -> int | str | None:
        """What it ended with: a number, `"hangs"`, or `"dies"` (of a signal); None while it runs."""
        return ended(self.pid, self._end)

    def wait(self) -> Generator[None, None, int | str]:
        """Wait for the end in steps, and return what it ended with. It is ended if nobody waits any longer."""
        try:
            while (result := self.poll()) is None:
                yield
            return result
        except GeneratorExit:
            self.stop()
            raise

    def stop(self) -> None:
        """End it."""
        _end_group(self.pid)


def lead_group(pid: int) -> None:
    """Make a child the leader of a group of its own, as it does itself: it may have to be ended before it comes to that."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def ended(pid: int, end: float) -> int | str | None:
    """What a child ended with: a number, `"hangs"` (it ran until `end`, and was ended), or `"dies"` (of a signal); None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found and time.monotonic() < end:
        return None
    _end_group(pid)
    if not found:
        os.waitpid(pid, 0)
        return "hangs"
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else "dies"


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """End this process when the one that forked it ends; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def _run(tree: Path, work: Callable[[], int]) -> None:
    """Become a process that knows only the copy; does not return."""
    code = 70
    try:
        os.setpgid(0, 0)
        die_with_parent()
        # What is written to counts, so no other than the address space: threads reserve much more of that than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        sys.dont_write_bytecode = True
        log = os.open(tree / "mutation.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        root = os.getcwd()
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", root))]
        os.environ["PYTHONPATH"] = str(tree)
        os.chdir(tree)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
