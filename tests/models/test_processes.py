"""What a process does: threads that wait asleep, and tests that reach no other machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from outlines_cont.waiting import SpinWatch

ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="cores are assigned, and preemptions counted, on Linux alone")
# As a user has it: what these tests' own process has set is not inherited.
AS_FOUND = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}

# Runs 16 rows with two threads on two cores, in turns alone and beside two busy loops, which end by themselves after two minutes.
BESIDE_LOOPS = """
import json, os, signal, subprocess, sys, time, warnings
import FIRST
import outlines_cont, torch
from outlines_cont import generate, models

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
torch.set_num_threads(1)
loop = "import time; end = time.monotonic() + 120\\nwhile time.monotonic() < end: pass"
model = models.tiny(prefix_cache_bytes=0)
write = generate.regex(model, "[a-z ]{LENGTH}")
prompts = [f"Message: {number} lamps, please.\\nKind: " for number in range(16)]
torch.set_num_threads(2)

def seconds():
    started = time.perf_counter()
    write(prompts, max_tokens=LENGTH)
    return time.perf_counter() - started

found = {"alone": [], "beside": []}
loops = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(2)]
try:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds()
        for _ in range(60):
            if ENOUGH:
                break
            for signum, name in ((signal.SIGSTOP, "alone"), (signal.SIGCONT, "beside")):
                for process in loops:
                    process.send_signal(signum)
                found[name].append(seconds())
finally:
    for process in loops:
        process.kill()
        process.wait()
print(json.dumps({**found, "warnings": [str(one.message) for one in caught if one.category is RuntimeWarning]}))
"""


def beside_loops(first: str, length: int, enough: str) -> dict[str, list[float]]:
    program = BESIDE_LOOPS.replace("FIRST", first).replace("LENGTH", str(length)).replace("ENOUGH", enough)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=AS_FOUND, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@on_linux
def test_rows_beside_two_busy_loops_take_at_most_three_times_as_long() -> None:
    """The scheduler shares the cores fairly, which doubles the time; with threads that spin it takes 9 to 80 times as long."""
    found = beside_loops("outlines_cont", 12, "found['beside'] and min(found['beside']) <= 3 * min(found['alone'])")
    assert min(found["beside"]) <= 3 * min(found["alone"]), found
    assert not found["warnings"]


@on_linux
def test_the_first_slow_forward_warns_once_where_torch_was_imported_before() -> None:
    found = beside_loops("torch", 2, "caught")
    (warning,) = found["warnings"]
    assert "Write `import outlines_cont` before `import torch`, or set OMP_WAIT_POLICY=PASSIVE in the environment." in str(warning)


@pytest.mark.parametrize(
    ("environment", "first", "policy", "spins"),
    [
        ({}, "outlines_cont", "PASSIVE", False),
        ({}, "torch", "PASSIVE", True),  # for processes that it starts
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "outlines_cont", "ACTIVE", False),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "torch", "PASSIVE", False),
        ({"GOMP_SPINCOUNT": "5"}, "torch", None, False),
    ],
)
def test_threads_wait_passively_unless_the_user_says_otherwise(
    environment: dict[str, str], first: str, policy: str | None, spins: bool
) -> None:
    program = (
        f"import sys, types; sys.modules.update({{'torch': types.ModuleType('torch')}} if {first == 'torch'} else {{}})\n"
        "import os, outlines_cont.waiting\n"
        "print([os.environ.get('OMP_WAIT_POLICY'), outlines_cont.waiting.spin_watch.is_on])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=AS_FOUND | environment, cwd=ROOT, check=True)
    assert str([policy, spins and sys.platform == "linux"]) == done.stdout.strip()


@on_linux
@pytest.mark.parametrize(
    ("seconds", "processor", "preemptions"),
    [(0.09, 0.01, 90), (2.0, 1.1, 90), (2.0, 0.1, 0)],
    ids=["it was short", "it computed", "it read a file, nobody took the processor away"],
)
def test_other_forwards_warn_of_nothing(seconds: float, processor: float, preemptions: int) -> None:
    watch = SpinWatch(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.note(seconds, processor, preemptions)
        SpinWatch(False).note(2.0, 0.1, 90)
    assert watch.is_on
    with pytest.warns(RuntimeWarning, match=r"took 2.00 s, and its thread had a processor for 0.10 s"):
        watch.note(2.0, 0.1, 90)
    assert not watch.is_on


# 203.0.113.0/24 and 2001:db8::/32 are for documentation: nobody has these addresses.
ELSEWHERE = ["203.0.113.1", "2001:db8::1"]


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("how", ["connect", "connect_ex", "sendto", "create_connection"])
def test_a_connection_to_another_machine_is_refused(host: str, how: str, refused: list[str]) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if how == "sendto" else socket.SOCK_STREAM
    with socket.socket(family, kind) as one, pytest.raises(AssertionError, match=f"loopback address alone, got '{host}'"):
        match how:
            case "create_connection":
                socket.create_connection((host, 80), timeout=1)
            case "sendto":
                one.sendto(b"x", (host, 80))
            case _:
                getattr(one, how)((host, 80))
    assert refused == [host]
    refused.clear()


def test_names_of_other_machines_are_not_looked_up(refused: list[str]) -> None:
    with pytest.raises(AssertionError, match="got 'huggingface.co'"):
        socket.getaddrinfo("huggingface.co", 443)
    refused.clear()


def test_this_machine_is_reached(tmp_path: Path) -> None:
    for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, str(tmp_path / "s"))):
        with socket.socket(family) as listener, socket.socket(family) as caller:
            listener.bind(address)
            listener.listen()
            caller.connect(listener.getsockname())
            listener.accept()[0].close()
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"x")
        assert right.recv(1) == b"x"
    assert socket.getaddrinfo("localhost", 80)


def test_a_test_fails_also_where_the_error_is_caught_and_where_it_leaves_something_changed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, socket\n"
        "def test_it():\n"
        "    assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
        "    try: socket.create_connection(('203.0.113.1', 80), timeout=1)\n"
        "    except Exception: pass\n"
        "def test_that():\n    pass\n"
        "def test_left():\n    os.environ['LEFT'] = 'x'\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT), "TEST_LEFTOVERS": "1"}, timeout=120
    )
    assert "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "loopback address alone, got ['203.0.113.1']" in done.stdout
    assert "os.environ LEFT: nothing is now 'x'" in done.stdout
