"""Tests depend on nothing outside of the clone: what `conftest` refuses, and what it lets through."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# 203.0.113.0/24 and 2001:db8::/32 are for documentation: nobody has these addresses.
ELSEWHERE = ["203.0.113.1", "2001:db8::1"]


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("how", ["connect", "connect_ex", "sendto", "create_connection"])
def test_a_connection_to_another_machine_is_refused(host: str, how: str, refused: list[str]) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if how == "sendto" else socket.SOCK_STREAM
    with (
        socket.socket(family, kind) as one,
        pytest.raises(AssertionError, match=f"loopback address alone, got '{host}'"),
    ):
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


def test_a_test_fails_also_where_the_error_is_caught(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, socket\n"
        "def test_it():\n"
        "    assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
        "    try: socket.create_connection(('203.0.113.1', 80), timeout=1)\n"
        "    except Exception: pass\n"
        "def test_that():\n    pass\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, timeout=120
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "loopback address alone, got ['203.0.113.1']" in done.stdout
