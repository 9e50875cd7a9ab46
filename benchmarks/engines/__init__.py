"""The engines that are compared, behind one protocol; `engine` finds one by name."""

from __future__ import annotations

from importlib import import_module

from benchmarks.engines.protocol import Cursor, Engine

ENGINES = ("ours", "llguidance", "xgrammar", "outlines-core")

__all__ = ["ENGINES", "Cursor", "Engine", "engine"]


def engine(name: str) -> Engine:
    """Import and make the engine called `name`; imports happen here, so that they can be measured."""
    made: Engine = import_module(f"benchmarks.engines.{name.replace('-', '_')}").make()
    return made
