"""`Running`: a server on a free port of this machine, in a thread, with its model, and clients for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import httpx
import openai
import uvicorn

from outlines_cont import engine_of
from outlines_cont.policies.constraint import KeptConstraints, vocabulary_of_model
from outlines_cont.serve.app import make_app
from outlines_cont.serve.limits import ServerLimits
from tests import leftovers


class _Lent:
    """A model that a server has, which sets how much the model may keep; other tests may have it, too."""

    def __init__(self, model: Any) -> None:
        self._model, self._prefixes = model, model.prefix_cache.max_bytes
        self._constraints = KeptConstraints.of(model).max_bytes
        self._masks = vocabulary_of_model(model).masks.max_bytes
        leftovers.lend(model)

    def put_back(self) -> None:
        """Let the model keep as much as before."""
        leftovers.take_back(self._model)
        if self._model.prefix_cache.max_bytes != self._prefixes:
            self._model.prefix_cache.max_bytes = self._prefixes
        KeptConstraints.of(self._model).max_bytes = self._constraints
        vocabulary_of_model(self._model).bound(2 * self._masks)


class Running:
    """A context manager. At its end the limits of its models are what they were."""

    def __init__(
        self,
        model: Any,
        *,
        others: Mapping[str, Callable[[], Any]] | None = None,
        key: str | None = None,
        hosts: Sequence[str] | None = None,
        cors_origins: Sequence[str] = (),
        image_hosts: Sequence[str] = (),
        **limits: Any,
    ) -> None:
        self.model, self._lent = model, [_Lent(model)]
        others = {name: self._lending(opened) for name, opened in (others or {}).items()}
        given: dict[str, Any] = {"hosts": hosts, "cors_origins": cors_origins, "image_hosts": image_hosts}
        app = make_app(model, "tiny", others=others, limits=ServerLimits(**limits), api_key=key, **given)
        self._server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._key = key or "none"

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self._key, max_retries=0)
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        for lent in reversed(self._lent):
            lent.put_back()

    def _lending(self, opened: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function that opens a model, which notes its limits then."""

        def call() -> Any:
            model = opened()
            self._lent.append(_Lent(model))
            return model

        return call

    def async_client(self) -> openai.AsyncOpenAI:
        """Return an asynchronous client, which belongs into `async with`."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self._key, max_retries=0)

    @property
    def num_running(self) -> int:
        """The rows that run in the engine."""
        return engine_of(self.model).num_running

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send a request as it is."""
        sent = {"Authorization": f"Bearer {self._key}", **headers}
        return httpx.post(f"{self.url}{path}", json=body, headers=sent, timeout=60)

    def send(self, path: str, text: str | bytes, **headers: str) -> httpx.Response:
        """Send a text as the JSON of a request, which may be none."""
        sent = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", **headers}
        return httpx.post(f"{self.url}{path}", content=text, headers=sent, timeout=60)

    def wait_until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait until something holds."""
        wait_until(holds, seconds)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not hold"
        time.sleep(0.01)
