"""`ImageHosts`: fetches images by http and https, from hosts that the operator has named and from no other, within limits of bytes and
time.

A name is looked up once, and the connection is made to the address that was checked, so that a name cannot point elsewhere afterwards
(DNS rebinding). Addresses of private networks are refused, unless the address itself is named. A redirect is followed to a named host
alone. Proxies of the environment are not used, as they would look up the name themselves.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, urljoin, urlsplit

from outlines_cont.errors import OptionError, shortened
from outlines_cont.serve.protocols.api_error import APIError

_PORTS = {"http": 80, "https": 443}
# Addresses of version 6 that lead to one of version 4: mapped ones, NAT64, Teredo, 6to4.
_INSIDE = [*map(ip_network, ("::ffff:0:0/96", "64:ff9b::/96", "2001::/32", "2002::/16"))]
_MOST_REDIRECTS = 3
_CHUNK = 1 << 16
_MAX_DIGITS = 19  # of a length


class ImageHosts:
    """The hosts from which images are fetched.

    Args:
        names: names or addresses, with the port of the scheme, or with `:PORT`; none fetches nothing.

    Raises:
        OptionError: one is not a host.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._known = {_named(name) for name in names}

    def check(self, url: str) -> tuple[SplitResult, str, int]:
        """Return a URL with its host and port; raise `APIError` for one that is not fetched. Nothing is looked up."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError as error:
            raise _refused(url, f"it cannot be read: {error}") from error
        default = _PORTS.get(parts.scheme)
        if default is None or not host or parts.username is not None or parts.password is not None:
            raise _refused(url, "only http and https are fetched, without a user or a password")
        if any(ord(c) <= ord(" ") or ord(c) > ord("~") for c in url):
            raise _refused(url, "it has characters that are to be written as %XX")
        port = default if port is None else port
        if not self._known:
            raise _refused(url, "this server fetches nothing: send a `data:` URL, such as 'data:image/png;base64,...'")
        if (host, port) not in self._known and ((host, None) not in self._known or port != default):
            raise _refused(url, "its host is none of those from which this server fetches (`--allow-image-urls HOST`)")
        return parts, host, port

    def fetch(self, url: str, max_bytes: int, seconds: float) -> bytes:
        """Return what is at a URL; raise `APIError` if it is not fetched, too large, or takes too long. Blocks."""
        end = time.monotonic() + seconds
        for _ in range(_MOST_REDIRECTS + 1):
            parts, host, port = self.check(url)
            connection = self._connected(url, host, port, end)
            try:
                target, data = _Exchange(connection, parts, host, end).run(max_bytes)
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = str(error) if isinstance(error, _Unfit) else f"{type(error).__name__}: {error}"
                why = f"it was not there within {seconds:g} s" if time.monotonic() >= end else why
                raise _refused(url, why) from error
            finally:
                connection.close()
            if target is None:
                return data
            url = urljoin(url, target)
        raise _refused(url, f"it is redirected more than {_MOST_REDIRECTS} times")

    def _connected(self, url: str, host: str, port: int, end: float) -> socket.socket:
        """Return a connection to the first address of a host that may be used."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise _refused(url, "its host has no address") from error
        addresses = [str(address[0]) for *_, address in found]
        usable = [one for one in addresses if self._may_reach(one, port)]
        if not usable:
            raise _refused(url, "its host has an address of a private network, which is not named by itself")
        try:
            return socket.create_connection((usable[0], port), timeout=max(end - time.monotonic(), 0.001))
        except OSError as error:
            raise _refused(url, "its host does not answer") from error

    def _may_reach(self, address: str, port: int) -> bool:
        found = ip_address(address.partition("%")[0])
        is_public = found.is_global and not found.is_multicast and not any(found in net for net in _INSIDE)
        return is_public or not {(str(found), None), (str(found), port)}.isdisjoint(self._known)


class _Unfit(ValueError):
    """A reply that is no image within the limits."""


class _Exchange:
    """One request on a connection, which is closed at a point in time, however slowly the other side writes."""

    def __init__(self, connection: socket.socket, parts: SplitResult, host: str, end: float) -> None:
        self._socket, self._parts, self._host, self._end = connection, parts, host, end

    def run(self, max_bytes: int) -> tuple[str | None, bytes]:
        """Return where it is redirected to, or None and its bytes."""
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=self._host, do_handshake_on_connect=False)
        timer = threading.Timer(max(self._end - time.monotonic(), 0), self._cut)
        timer.daemon = True
        timer.start()
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
            return self._asked(max_bytes)
        finally:
            timer.cancel()
            self._socket.close()

    def _cut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _asked(self, max_bytes: int) -> tuple[str | None, bytes]:
        default = _PORTS[self._parts.scheme]
        client = http.client.HTTPConnection(self._host, default if self._parts.port is None else self._parts.port)
        client.default_port = default  # which the header `Host` leaves out
        client.sock = self._socket
        path, query = self._parts.path or "/", self._parts.query
        headers = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "outlines-cont"}
        client.request("GET", f"{path}?{query}" if query else path, headers=headers)
        with client.getresponse() as reply:
            location = reply.getheader("Location")
            if reply.status in (301, 302, 303, 307, 308) and location:
                return location, b""
            if reply.status != 200:
                raise _Unfit(f"it has the status {reply.status}")
            length = reply.getheader("Content-Length", "")
            if length.isdecimal() and len(length) < _MAX_DIGITS and int(length) > max_bytes:
                raise _Unfit(f"it has {length} bytes, and at most {max_bytes:,} are read (`--max-image-bytes`)")
            return None, self._read(reply, max_bytes)

    def _read(self, reply: http.client.HTTPResponse, max_bytes: int) -> bytes:
        data = bytearray()
        while chunk := reply.read1(_CHUNK):
            data += chunk
            if len(data) > max_bytes:
                raise _Unfit(f"it has more than {max_bytes:,} bytes, the most that are read (`--max-image-bytes`)")
        if time.monotonic() >= self._end or reply.length:  # cut, by the timer or by the other side
            raise ConnectionError("it ended before its last byte")
        return bytes(data)


def _named(name: str) -> tuple[str, int | None]:
    """Return the host of `HOST` or `HOST:PORT`, and its port, None for that of the scheme."""
    host, port, is_host = "", None, False
    try:
        parts = urlsplit(f"//{f'[{name}]' if name.count(':') > 1 and '[' not in name else name}")
        host, port = (parts.hostname or "").rstrip("."), parts.port
        is_host = bool(host) and "*" not in host and not (parts.path or parts.query or parts.username is not None)
    except ValueError:
        pass
    if not is_host:
        raise OptionError(
            f"expected a host as `--allow-image-urls`, such as 'images.example' or '10.0.0.7:8080', got {name!r}",
            "image_hosts",
        )
    return host, port


def _refused(url: str, why: str) -> APIError:
    return APIError(400, f"the image at {shortened(repr(url), 120)} cannot be used: {why}", "messages", "invalid_image")
