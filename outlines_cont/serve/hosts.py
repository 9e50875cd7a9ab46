"""`KnownHosts`: the names and addresses by which a server may be reached. `is_loopback`: whether an address is of this machine alone."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from outlines_cont.serve.protocols.api_error import APIError


class KnownHosts:
    """The names and addresses by which a server may be reached: those of this machine itself, and some more.

    A page of another site can let its own name point to 127.0.0.1 (DNS rebinding): the browser sends that name as `Host`, or as `Origin`.
    """

    def __init__(self, names: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(name.strip("[]").lower() for name in names)}
        self._origins = {origin.rstrip("/").lower() for origin in origins}

    def check(self, request: Request) -> None:
        """Raise `APIError` for a request with another `Host`, or from a page with another `Origin`; its port may be any."""
        given = [(kind, value) for kind in ("host", "origin") for value in request.headers.getlist(kind)]
        for kind, value in given:
            if kind == "origin" and not self._origins.isdisjoint({"*", value.rstrip("/").lower()}):
                continue
            if not self._has(value if kind == "origin" else f"//{value}"):
                advice = "Start the server with `--allow-host NAME` for a name of its own, or `--cors-origin` for pages of another site."
                raise APIError(
                    403, f"expected a known `{kind.title()}`, got {value[:200]!r}. {advice}", None, "unknown_host"
                )

    def _has(self, url: str) -> bool:
        try:
            name = (urlsplit(url).hostname or "").rstrip(".")
            return name in self._names or ip_address(name).is_loopback
        except ValueError:
            return False


def is_loopback(host: str) -> bool:
    """Return whether an address is one that only this machine reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
