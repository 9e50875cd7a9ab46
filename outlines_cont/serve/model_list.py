"""`ModelList`: the models of a server by name: one that is there, and others that are opened when a request first asks for them, one at a
time. All of them share the bytes of what is kept for later requests in equal parts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from fsm.process_fork import reset_in_child
from outlines_cont.serve.limits import CacheShares, ServerLimits
from outlines_cont.serve.metrics import Metrics
from outlines_cont.serve.protocols.api_error import APIError

_log = logging.getLogger("outlines_cont.serve")
_RETRY_SECONDS = 30.0  # after which a model that could not be opened is tried again


class Served(Protocol):
    """A model that is open: `ServedModel`, in tests others."""

    name: str
    engine: Any
    created: int

    def bound(self, shares: CacheShares) -> None:
        """Set how many bytes it may keep."""


S = TypeVar("S", bound=Served)


class ModelList(Generic[S]):
    """The models of a server.

    Args:
        served: makes what requests need of a model and its name.
        model, name: the first model, and what requests call it.
        others: functions that open the other models, by name. An error of one concerns its model alone.
        limits: of the server and of each request.
        metrics: those of the server.

    Attributes:
        first: the first model.
    """

    def __init__(
        self,
        served: Callable[[Any, str], S],
        model: Any,
        name: str,
        others: Mapping[str, Callable[[], Any]],
        limits: ServerLimits,
        metrics: Metrics,
    ) -> None:
        self._served, self._metrics, self._openings = served, metrics, {**others}
        self._shares = CacheShares.of(limits, model.prefix_cache.max_bytes)
        self._open: dict[str, S] = {}
        self._failed: dict[str, float] = {}
        self._created = int(time.time())
        self.names = [name, *(other for other in others if other != name)]
        self.first = self._added(model, name)
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        """Begin without a thread: the child of a fork has none."""
        self._opening: dict[str, asyncio.Task[None]] = {}
        # One thread, as transformers sets the default float type of the whole process while it makes a network.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlines-cont-open")

    def check(self, name: str) -> None:
        """Raise `APIError` for a model that is not one of these."""
        if name not in self.names:
            one = f"the model {self.names[0]!r}"
            known = one if len(self.names) == 1 else f"one of the models {', '.join(map(repr, self.names))}"
            raise APIError(404, f"expected {known}, got {name[:200]!r}", "model", "model_not_found")

    async def get(self, name: str) -> S:
        """Return a model; wait until it is open. A caller that is cancelled does not end its opening.

        Raises:
            APIError: there is no such model, or it cannot be opened; that is tried again after half a minute.
        """
        self.check(name)
        if name not in self._open and not self._has_failed(name):
            if name not in self._opening:
                self._opening[name] = asyncio.create_task(self._opened(name))
            await asyncio.shield(self._opening[name])
        if name not in self._open:
            told = f"the model {name!r} could not be opened, and the log of the server says why; others answer"
            raise APIError(500, f"{told}. It is tried again {_RETRY_SECONDS:.0f} s later", "model", "model_not_loaded")
        return self._open[name]

    def cards(self) -> list[dict[str, Any]]:
        """Return what clients are told about each model; if there are several, also whether it is open."""
        return [self.card(name) for name in self.names]

    def card(self, name: str) -> dict[str, Any]:
        """Return what is told of one model, which may be `loaded`, `loading`, `unloaded` or `failed`."""
        self.check(name)
        found = self._open.get(name)
        created = self._created if found is None else found.created
        told = {"id": name, "object": "model", "created": created, "owned_by": "outlines-cont"}
        date = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told |= {"type": "model", "display_name": name, "created_at": date}  # as clients of Anthropic read it
        return told | ({"status": self._status(name)} if len(self.names) > 1 else {})

    def _status(self, name: str) -> str:
        if name in self._open:
            return "loaded"
        if name in self._opening:
            return "loading"
        return "failed" if name in self._failed else "unloaded"

    def _has_failed(self, name: str) -> bool:
        """Whether it could not be opened a short time ago."""
        return name in self._failed and time.monotonic() - self._failed[name] < _RETRY_SECONDS

    async def _opened(self, name: str) -> None:
        start = time.monotonic()
        try:
            model = await asyncio.get_running_loop().run_in_executor(self._thread, self._openings[name])
            await asyncio.to_thread(self._added, model, name)
            self._failed.pop(name, None)
            _log.info("opened %r in %.1f s", name, time.monotonic() - start)
        except Exception as error:
            self._failed[name] = time.monotonic()
            _log.error("the model %r cannot be opened", name, exc_info=error)
        finally:
            del self._opening[name]

    def _added(self, model: Any, name: str) -> S:
        """Add a model, and share the bytes out anew."""
        served = self._served(model, name)
        self._metrics.watch(name, served.engine)
        now = [*self._open.values(), served]
        for one in now:
            one.bound(self._shares.part(len(now)))
        self._open[name] = served
        return served
