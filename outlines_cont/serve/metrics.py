"""`Metrics`: what Prometheus reads at `/metrics`, in a registry of each server. All of it has the label `model`: the name of the model that
a request is for, empty for one that is for none.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._made(Counter, "requests", "Requests by path and status.", "path", "status")
        self.tokens = self._made(Counter, "tokens", "Tokens of prompts and of texts.", "kind")
        self.seconds = self._made(Histogram, "request_seconds", "Time of a request, up to its last byte.", "path")
        self.first = self._made(Histogram, "first_event_seconds", "Time from a request to the first token.")
        self._running = self._made(Gauge, "running_rows", "Rows that run in the engine.")
        cancelled = "Requests whose client went away before the end."
        self.cancelled = self._made(Counter, "cancelled_requests", cancelled)

    def watch(self, name: str, engine: Any) -> None:
        """Report the rows of the engine of a model, and its counters from 0 on."""
        self._running.labels(name).set_function(lambda: float(engine.num_running))
        self.cancelled.labels(name)
        self.first.labels(name)

    def _made(self, kind: Any, name: str, told: str, *labels: str) -> Any:
        return kind(f"outlines_cont_{name}", told, ["model", *labels], registry=self._registry)

    def text(self) -> bytes:
        """Return all of them in Prometheus' format."""
        return generate_latest(self._registry)
