"""Which URLs of images are fetched, and that what answers badly is an error in time: redirects, sizes, slow and lying hosts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from outlines_cont.errors import OptionError
from outlines_cont.serve.image_urls import ImageHosts
from outlines_cont.serve.protocols.api_error import APIError

LOCAL = "127.0.0.1"


class Peer:
    """A host that answers each connection with what a function writes to it."""

    def __init__(self, parts: Sequence[bytes], pause: float = 0.0) -> None:
        self._parts, self._pause = parts, pause
        self._server = socket.create_server((LOCAL, 0))
        self.port = self._server.getsockname()[1]
        self.asked: list[bytes] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                try:
                    self.asked.append(client.recv(4096))
                    for part in self._parts:
                        client.sendall(part)
                        time.sleep(self._pause)
                except OSError:
                    continue

    def close(self) -> None:
        self._server.close()


@contextmanager
def peer(*parts: bytes, pause: float = 0.0) -> Iterator[Peer]:
    found = Peer(parts, pause)
    try:
        yield found
    finally:
        found.close()


def ok(body: bytes, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


def fetch(found: Peer, path: str = "/a.png", *, names: Sequence[str] = (), most: int = 1000, seconds: float = 60.0) -> bytes:
    hosts = ImageHosts(names or [f"{LOCAL}:{found.port}"])
    return hosts.fetch(f"http://{LOCAL}:{found.port}{path}", most, seconds)


def test_a_named_host_is_fetched_from() -> None:
    with peer(ok(b"abc", b"Content-Length: 3\r\n")) as found:
        assert fetch(found, "/a.png?x=1#y") == b"abc"
    assert found.asked[0].startswith(b"GET /a.png?x=1 HTTP/1.1\r\n")
    assert f"Host: {LOCAL}:{found.port}".encode() in found.asked[0]
    with peer(ok(b"abc")) as until_it_closes:
        assert fetch(until_it_closes) == b"abc"
    with peer(ok(b"3\r\nabc\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\n")) as chunked:
        assert fetch(chunked) == b"abc"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://other.example/a", "none of those"),
        ("http://images.example:8080/a", "none of those"),
        ("http://images.example.evil.example/a", "none of those"),
        ("http://images.example@evil.example/a", "user"),
        ("http://u:p@images.example/a", "user"),
        ("http://images.example\\@evil.example/a", "user"),
        ("ftp://images.example/a", "only http and https"),
        ("file:///etc/hostname", "only http and https"),
        ("http:///a", "only http and https"),
        ("http://images.example/a b", "characters"),
        ("http://images.example/a\r\nX: y", "characters"),
        ("http://imag\u00e9s.example/a", "characters"),
        ("http://[::1/a", "cannot be read"),
        ("http://images.example:99999/a", "cannot be read"),
        ("http://images.example:x/a", "cannot be read"),
        ("http://2130706433/a", "none of those"),
        ("HTTP://127.1/a", "none of those"),
    ],
)
def test_a_url_that_is_not_of_a_named_host_is_refused_before_a_look_up(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: pytest.fail("looked up"))
    with pytest.raises(APIError, match=message) as refused:
        ImageHosts(["images.example"]).fetch(url, 10, 1.0)
    assert (refused.value.status, refused.value.code) == (400, "invalid_image")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.7",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:1::",
    ],
)
def test_a_name_that_points_into_a_private_network_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    monkeypatch.setattr(socket, "create_connection", lambda *args, **options: pytest.fail("connected"))
    with pytest.raises(APIError, match="private network"):
        ImageHosts(["images.example"]).fetch("http://images.example/a", 10, 1.0)


def test_the_connection_is_made_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that points to a private address with the second look-up (DNS rebinding)."""
    answers = iter(["93.184.215.14", "127.0.0.1"])
    reached: list[Any] = []

    def look_up(*args: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 80))]

    def connect(address: Any, timeout: float) -> Any:
        reached.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(APIError, match="does not answer"):
        ImageHosts(["images.example"]).fetch("http://images.example/a", 10, 1.0)
    assert reached == [("93.184.215.14", 80)]


def test_redirects_lead_to_named_hosts_alone() -> None:
    with peer(ok(b"abc", b"Content-Length: 3\r\n")) as last:
        to = f"HTTP/1.1 302 Found\r\nLocation: http://{LOCAL}:{last.port}/b\r\nContent-Length: 0\r\n\r\n".encode()
        with peer(to) as first:
            assert fetch(first, names=[f"{LOCAL}:{first.port}", f"{LOCAL}:{last.port}"]) == b"abc"
            with pytest.raises(APIError, match="none of those"):
                fetch(first)
    assert len(last.asked) == 1
    moved = b"HTTP/1.1 301 Moved\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
    with peer(moved) as ring, pytest.raises(APIError, match="redirected more than 3 times"):
        fetch(ring)
    assert len(ring.asked) == 4


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the status 404"),
        (ok(b"", b"Content-Length: 2000\r\n"), "at most 1,000"),
        (ok(b"x" * 3000), "more than 1,000 bytes"),
        (ok(b"x" * 9, b"Content-Length: 99\r\n"), "ended before its last byte"),
        (ok(b"zz\r\nabc", b"Transfer-Encoding: chunked\r\n"), "IncompleteRead|ValueError"),
        (b"", "RemoteDisconnected|Connection"),
        (b"\x00\xff" * 99, "BadStatusLine"),
        (ok(b"", b"X: y\r\n" * 200), "headers"),
    ],
)
def test_what_answers_badly_is_an_error_of_the_request(reply: bytes, message: str) -> None:
    with peer(reply) as found, pytest.raises(APIError, match=message):
        fetch(found)


def test_https_needs_a_peer_that_speaks_it() -> None:
    with peer(ok(b"abc")) as found, pytest.raises(APIError, match="SSL"):
        ImageHosts([f"{LOCAL}:{found.port}"]).fetch(f"https://{LOCAL}:{found.port}/a.png", 100, 60.0)


@pytest.mark.parametrize("parts", [[ok(b"", b"Content-Length: 100\r\n"), *[b"x"] * 100], [b"HTTP/1.1 200 OK\r\n", *[b"X"] * 100]])
def test_a_host_that_drips_is_cut_in_time(parts: list[bytes]) -> None:
    with peer(*parts, pause=0.05) as found, pytest.raises(APIError, match="not there within 0.3 s|does not answer"):
        fetch(found, seconds=0.3)


@pytest.mark.parametrize("name", ["", "http://a.example", "a.example/x", "a b:x", "*.example", "u@a.example", "[::1"])
def test_hosts_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="--allow-image-urls"):
        ImageHosts([name])
