"""`EngineModel`: what all models of the engine have in common: meters, derived values, and the logits after rows of a state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from outlines_cont.immutable import Immutable
from outlines_cont.meter import Meter, MeterBoard


class EngineModel(Immutable):
    """The part of a model that does not depend on what computes its logits."""

    def __init__(self) -> None:
        self._meters = MeterBoard()
        # A cache of values derived from the model, such as its vocabulary and its token FSMs.
        self.memo: dict[object, Any] = {}

    def meter(self) -> AbstractContextManager[Meter]:
        """Count what the model does inside a `with` block; see `Meter`. A token counts once, however often a function gets it."""
        return self._meters.open()

    def count(self, counts: Meter) -> None:
        """Add the work of a step to every open meter."""
        self._meters.add(counts)

    def prefilled(self, rows: Sequence[Any]) -> list[Any]:
        """Return rows of a state with the logits after them known; see `LanguageModel.prefilled`."""
        # The one import upwards: the engine is loaded when it is first asked for.
        found: list[Any] = import_module("outlines_cont.engine.prefill").prefilled(self, rows)
        return found
