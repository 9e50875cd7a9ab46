"""The defaults of everything public are those that were released: one that changes is a change of meaning.

New names and new options are no matter here. Where a default is to change, change it in `defaults.json`, and say so in the changelog;
`python -m tests.golden.test_defaults` writes the file anew.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fsm
import outlines_cont
from outlines_cont import control, generate, models, policies, samplers

FILE = Path(__file__).with_name("defaults.json")


def public() -> Iterator[tuple[str, Any]]:
    """Everything that is public, by its name."""
    for module in (fsm, outlines_cont, generate, samplers, policies, control, models):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if not isinstance(thing, ModuleType):
                yield f"{module.__name__}.{name}", thing


def defaults() -> dict[str, Any]:
    """The defaults of functions, of classes and of their public methods."""
    found: dict[str, Any] = {}
    for name, thing in public():
        parts = {"": thing}
        if isinstance(thing, type):
            parts |= {f".{part}": getattr(thing, part) for part in vars(thing) if not part.startswith("_")}
        for part, function in parts.items():
            if not callable(function):
                continue
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            for one in parameters:
                if isinstance(one.default, bool | int | float | str | None):
                    found[f"{name}{part}({one.name})"] = one.default
    return found


def test_no_default_has_changed() -> None:
    now = defaults()
    released = json.loads(FILE.read_text(encoding="utf-8"))
    assert len(released) > 300
    assert {name: value for name, value in released.items() if now.get(name, "gone") != value} == {}


if __name__ == "__main__":
    FILE.write_text(json.dumps(defaults(), indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
