"""Doors: functions that send a request, and return the status and the body of its reply.

`application_door`: to an ASGI application in this process, without a socket. `server_door`: to a server that runs already, such as one of
Ray Serve with replicas on many machines; if it is busy (status 429 or 503), the request is sent again.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from outlines_cont.pipelines.outcome import InputError, SetupError

Door = Callable[[str, Any], Awaitable[tuple[int, bytes]]]
"""From a path and a body to the status and the body of the reply."""
Reply = tuple[int, bytes, float]
"""Status, body, and the seconds after which to ask again."""
Application = Callable[..., Awaitable[None]]

_BUSY = (429, 503)
_LONGEST_WAIT = 60.0  # seconds before a request is sent again


def application_door(app: Application) -> Door:
    """Return the door to an application of ASGI; a request that is cancelled counts as one whose client has gone away."""

    async def ask(path: str, body: Any) -> tuple[int, bytes]:
        data = json.dumps(body).encode()
        unread = [{"type": "http.request", "body": data}]
        found: list[bytes] = []
        status = 500
        never = asyncio.Event()

        async def receive() -> MutableMapping[str, Any]:
            if unread:
                return unread.pop()
            await never.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            found.append(message.get("body", b""))

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*headers, (b"content-length", str(len(data)).encode())],
            "client": None,
            "server": ("localhost", 80),
            "state": {},
        }
        try:
            await app(scope, receive, send)
        except Exception:
            if not found:  # an application may raise what it has answered with status 500
                raise
        return status, b"".join(found)

    return ask


def server_door(url: str, key: str | None) -> Door:
    """Return the door to a server, by HTTP, with a thread for each request.

    Raises:
        SetupError: the address is none of HTTP.
        InputError: from the door: the server cannot be reached.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SetupError(f"expected the address of a server as --url, such as http://127.0.0.1:8000, got {url!r}")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})

    def send(path: str, data: bytes) -> Reply:
        request = Request(base + path, data, headers, method="POST")
        try:
            with urlopen(request) as reply:
                return reply.status, reply.read(), 0.0
        except HTTPError as error:
            with error:
                return error.code, error.read(), _seconds(error.headers.get("Retry-After"))
        except (URLError, HTTPException, OSError) as error:
            why = getattr(error, "reason", error)
            raise InputError(
                f"expected a server at {base!r}, but it cannot be reached: {why}. Replies so far are written; run the same command with "
                "--resume when it runs again."
            ) from error

    async def ask(path: str, body: Any) -> tuple[int, bytes]:
        data = json.dumps(body).encode()
        wait = 0.5
        while True:
            status, found, asked = await _in_thread(lambda: send(path, data))
            if status not in _BUSY:
                return status, found
            wait = min(2 * wait, _LONGEST_WAIT)
            await asyncio.sleep(min(asked or wait, _LONGEST_WAIT))

    return ask


async def _in_thread(call: Callable[[], Reply]) -> Reply:
    """Return what a function returns in a thread, which ends with the process: an interrupt does not wait for the reply of a server."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Reply] = loop.create_future()

    def tell(call: Callable[[], object]) -> None:
        if not future.done():
            call()

    def run() -> None:
        try:
            told = partial(future.set_result, call())
        except Exception as error:
            told = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tell, told)

    threading.Thread(target=run, name="outlines-cont-batch", daemon=True).start()
    return await future


def _seconds(text: str | None) -> float:
    """Return the seconds of `Retry-After`; 0 if there is none."""
    return float(text) if text is not None and text.isdecimal() and len(text) < 9 else 0.0
