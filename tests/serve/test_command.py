"""`outlines-cont serve` as a process: it answers, and Ctrl-C ends it after the request that is being answered."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlines_cont import models
from outlines_cont.errors import OptionError
from outlines_cont.serve.app import run
from outlines_cont.serve.limits import ServerLimits
from tests.page_server import PageServer
from tests.saved_model import save_model
from tests.serve.running import wait_until

_WIDE = {"type": "object", "properties": {f"key{i}": {"type": ["string", "integer", "null"]} for i in range(400)}}
_TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"n": 3}, "at most 2 texts"),
    ({"prompt": "x" * 30_000}, "at most 20000 bytes"),
    ({"structured_outputs": {"json": _WIDE}}, "max_work"),
    ({"structured_outputs": {"regex": "(?:(?!a.{20}b).)*c"}}, "max_mask_work"),
    ({"prompt": "lamp " * 500}, "within the budget of 2000000 bytes"),
]
"""What is over a limit of the server below, and what the reply says."""

_URL = re.compile(r"serving 'ours'(?:, 'small')? at (http://127\.0\.0\.1:[1-9][0-9]*)/v1,")


def test_the_command_serves_and_ends(tmp_path: Path) -> None:
    limits = ["--max-choices", "2", "--max-body-bytes", "20000", "--max-schema-work", "2000", "--max-mask-work", "300"]
    limits += ["--kv-budget-bytes", "2000000"]
    command = [sys.executable, "-m", "outlines_cont.cli", "serve", "bundled", "--port", "0", "--name", "ours", *limits]
    command += ["--model", f"small={save_model(tmp_path)}"]
    environment = os.environ | {"OUTLINES_CONT_API_KEY": "secret"}
    key = {"Authorization": "Bearer secret"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = _printed_url(process.stderr)
            _wait_for(url, lambda: process.poll() is None)
            assert httpx.get(f"{url}/v1/models").status_code == 401
            body: Any = {
                "model": "ours",
                "prompt": "Due: ",
                "temperature": 0,
                "structured_outputs": {"regex": "[0-9]{300}"},
                "max_tokens": 900,
            }
            for refused, said in _TOO_MUCH:
                reply = httpx.post(f"{url}/v1/completions", json=body | refused, headers=key, timeout=90)
                assert (reply.status_code, said in reply.text) == (413 if "at most 20000 bytes" in said else 400, True), reply.text
            small = body | {"model": "small", "structured_outputs": {"regex": "[0-9]{4}"}}
            assert len(httpx.post(f"{url}/v1/completions", json=small, headers=key, timeout=90).json()["choices"][0]["text"]) == 4
            found: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/v1/completions", json=body, headers=key, timeout=90)))
            asking.start()
            while 'outlines_cont_running_rows{model="ours"} 1.0' not in httpx.get(f"{url}/metrics", headers=key).text:
                assert asking.is_alive()
            process.send_signal(signal.SIGINT)
            asking.join()
            assert len(found[0].json()["choices"][0]["text"]) == 300
            _, logged = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (0, 130)
    assert "POST /v1/completions 200" in logged
    assert "secret" not in logged
    assert "Due" not in logged


def test_sigterm_ends_it_by_the_signal(page_server: PageServer, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "import sys\nfrom outlines_cont.cli.__main__ import main\n"
        "sys.argv[1:] = ['serve', 'bundled', '--port', '0', '--name', 'ours']\nmain()\n"
    )
    log, pid = script.with_suffix(".err"), page_server.start(script)
    wait_until(lambda: log.exists() and _URL.search(log.read_text()) is not None, 120)
    _wait_for(_printed_url([log.read_text()]), lambda: True)
    os.kill(pid, signal.SIGTERM)
    assert page_server.wait() == -signal.SIGTERM  # which shells show as 143


def _printed_url(lines: Iterable[str]) -> str:
    """Return the address that the server prints, without what follows the port."""
    for line in lines:
        found = _URL.search(line)
        if found is not None:
            return found[1]
    raise AssertionError("the server has ended without printing its address")


def test_a_port_that_is_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"free to listen on, got '127.0.0.1' with port {port}: .*in use"):
            run(models.tiny(), "ours", host="127.0.0.1", port=port, limits=ServerLimits(), api_key=None)


def _wait_for(url: str, runs: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert runs(), "the server has ended"
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server has not started")
