"""`Metrics`: what Prometheus reads at `/metrics`, in a registry of each server."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counters of one server."""

    def __init__(self, engine: Any) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "outlines_cont_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self.tokens = Counter("outlines_cont_tokens", "Tokens of prompts and of texts.", ["kind"], registry=registry)
        self.seconds = Histogram(
            "outlines_cont_request_seconds", "Time of a request, up to its last byte.", ["path"], registry=registry
        )
        self.first = Histogram(
            "outlines_cont_first_event_seconds", "Time from a request to the first token.", registry=registry
        )
        running = Gauge("outlines_cont_running_rows", "Rows that run in the engine.", registry=registry)
        running.set_function(lambda: float(engine.num_running))
        cancelled = "Requests whose client went away before the end."
        self.cancelled = Counter("outlines_cont_cancelled_requests", cancelled, registry=registry)

    def text(self) -> bytes:
        """Return all of them in Prometheus' format."""
        return generate_latest(self._registry)
