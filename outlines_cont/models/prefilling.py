"""`prefilled`: logits behind rows of a state, read by the engine; the one import upwards, by name, when they are first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def prefilled(model: object, rows: Sequence[Any]) -> list[Any]:
    """Return rows of a state with the logits after them known; see `LanguageModel.prefilled`."""
    found: list[Any] = import_module("outlines_cont.engine.prefill").prefilled(model, rows)
    return found
