"""`outlines-cont serve` as a process: it answers, and Ctrl-C ends it after the request that is being answered."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any, Self

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


def test_the_command_serves_and_ends(page_server: PageServer, tmp_path: Path) -> None:
    limits = ["--max-choices", "2", "--max-body-bytes", "20000", "--max-schema-work", "2000", "--max-mask-work", "300"]
    limits += ["--kv-budget-bytes", "2000000"]
    key = {"Authorization": "Bearer secret"}
    with _Command(page_server, tmp_path, *limits, "--model", f"small={save_model(tmp_path)}", key="secret") as command:
        url = command.url
        assert httpx.get(f"{url}/v1/models").status_code == 401
        body: Any = {"model": "ours", "prompt": "Due: ", "temperature": 0, "structured_outputs": {"regex": "[0-9]{300}"}, "max_tokens": 900}
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
        code = command.ended_by(signal.SIGINT)
        asking.join()
        assert len(found[0].json()["choices"][0]["text"]) == 300
    assert code in (0, 130)
    assert "POST /v1/completions 200" in command.logged
    assert "secret" not in command.logged
    assert "Due" not in command.logged


def test_sigterm_ends_it_by_the_signal(page_server: PageServer, tmp_path: Path) -> None:
    with _Command(page_server, tmp_path) as command:
        assert command.ended_by(signal.SIGTERM) == -signal.SIGTERM  # which shells show as 143


class _Command:
    """`outlines-cont serve` in a process of its own, which serves in the block and is killed at its end if it still runs."""

    def __init__(self, page_server: PageServer, folder: Path, *options: str, key: str | None = None) -> None:
        arguments = ["serve", "bundled", "--port", "0", "--name", "ours", *options]
        environment = {} if key is None else {"OUTLINES_CONT_API_KEY": key}
        self._server, self._script = page_server, folder / "serve.py"
        self._script.write_text(
            "import os, sys\nfrom outlines_cont.cli.__main__ import main\n"
            f"os.environ.update({environment!r})\nsys.argv[1:] = {arguments!r}\nmain()\n"
        )

    def __enter__(self) -> Self:
        self._pid: int | None = self._server.start(self._script)
        wait_until(lambda: _URL.search(self.logged) is not None, 120)
        found = _URL.search(self.logged)
        assert found is not None
        self.url = found[1]
        wait_until(self._answers, 120)
        return self

    def __exit__(self, *error: object) -> None:
        if self._pid is not None:
            self.ended_by(signal.SIGKILL)

    @property
    def logged(self) -> str:
        """What it has written to the standard error."""
        log = self._script.with_suffix(".err")
        return log.read_text() if log.exists() else ""

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def ended_by(self, signum: int) -> int:
        """Send a signal and wait for the end: its exit status."""
        assert self._pid is not None
        os.kill(self._pid, signum)
        self._pid = None
        return self._server.wait()


def test_a_port_that_is_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"free to listen on, got '127.0.0.1' with port {port}: .*in use"):
            run(models.tiny(), "ours", host="127.0.0.1", port=port, limits=ServerLimits(), api_key=None)
