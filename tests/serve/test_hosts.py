"""Which hosts and origins a server answers, and keys that are not ASCII: by HTTP, as browsers and proxies send it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from outlines_cont import models
from outlines_cont.serve import app as serving
from outlines_cont.serve.limits import ServerLimits
from tests.serve.running import Running

OWN = ["localhost", "localhost:8000", "LocalHost.", "127.0.0.1", "127.0.0.1:1", "127.8.9.1", "[::1]", "[::1]:8000", "models.example:80"]
FOREIGN = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example@localhost.x", "192.168.0.1"),
    *(
        "0.0.0.0",
        "[::]",
        "[fe80::1]",
        "xlocalhost",
        "local host",
        "[::1",
        "2130706433",
        "other.models.example",
        "localhost:80@evil.example",
    ),
]


@pytest.fixture(scope="module")
def local() -> Any:
    with Running(models.tiny(), hosts=["Models.example"]) as running:
        yield running


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics"])
@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_refused(local: Running, host: str, path: str) -> None:
    found = httpx.get(local.url + path, headers={"Host": host})
    assert found.status_code in ({400, 403} if " " in host else {403})
    if found.status_code == 403:
        assert "--allow-host" in found.json()["error"]["message"]


@pytest.mark.parametrize("host", OWN)
def test_an_own_host_is_answered(local: Running, host: str) -> None:
    assert httpx.get(f"{local.url}/v1/models", headers={"Host": host}).status_code == 200
    origin = {"Origin": f"http://{host}"}
    assert local.post("/inspect/run", {"prompt": "a", "steps": []}, Host=host, **origin).status_code == 200


@pytest.mark.parametrize(
    "origin", ["null", "", "file://", "https://evil.example", "http://evil.example:8000", "http://localhost.evil.example"]
)
def test_a_foreign_origin_is_refused(local: Running, origin: str) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    for path in ("/v1/completions", "/inspect/run"):
        assert local.post(path, body, Origin=origin).status_code == 403
    assert local.post("/v1/completions", body).status_code == 200


def test_a_server_for_all_hosts_answers_each(served: Running) -> None:
    for host in (*OWN, "evil.example"):
        assert httpx.get(f"{served.url}/v1/models", headers={"Host": host, "Origin": "null"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("127.0.0.1", (), ["127.0.0.1"]),
        ("localhost", (), ["localhost"]),
        ("::1", ("a.example",), ["::1", "a.example"]),
        ("0.0.0.0", (), None),
        ("::", (), None),
        ("0.0.0.0", ("a.example",), ["0.0.0.0", "a.example"]),
    ],
)
def test_a_loopback_address_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch, host: str, allowed: Any, expected: Any) -> None:
    made: list[Any] = []

    def make_app(*_: Any, hosts: Any, **__: Any) -> Any:
        made.append(hosts)
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "make_app", make_app)
    with pytest.raises(KeyboardInterrupt):
        serving.run(models.tiny(), "a", host=host, port=0, limits=ServerLimits(), api_key=None, allow_hosts=allowed)
    assert made == [expected]


@pytest.mark.parametrize("key", ["schlüssel", "密鑰", "a\udcfcb", "plain"])
def test_a_key_is_compared_by_its_bytes(key: str) -> None:
    sent = b"Bearer " + key.encode(errors="surrogateescape")
    with Running(models.tiny(), key=key) as running:
        for given, status in ((sent, 200), (sent + b"x", 401), (b"Bearer \xff", 401), (b"", 401)):
            assert httpx.get(f"{running.url}/v1/models", headers={b"Authorization": given}).status_code == status
