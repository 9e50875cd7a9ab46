"""Deprecated names of public modules (`announce_moved`, a finder at the head of `sys.meta_path`) and of names in them (`moved_names`, a
module `__getattr__`): using one warns, and returns the object under its new name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def announce_moved(homes: Mapping[str, str]) -> None:
    """Make modules importable by their old names, with a `DeprecationWarning`; `homes` are the full new names by the full old ones."""
    sys.meta_path.insert(0, _MovedModules(homes))


def moved_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the function `__getattr__` of a module with moved names: they still work, with a `DeprecationWarning`.

    `module` is its full name; `homes` are the full new names by the old ones.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = homes[name].rpartition(".")
        _warn(f"{module}.{name}", homes[name])
        return getattr(import_module(home), new)

    return find


class _MovedModules(MetaPathFinder, Loader):
    """The finder and loader of old names; it is the first, since others would load a folder of old compiled files as the package."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self._homes else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the module to the import system; `exec_module` replaces it by the real one."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = self._homes[old]
        _warn(old, new)
        sys.modules[old] = import_module(new)


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"`{old}` is now `{new}`; the next version removes the old name. Import public names from the package itself.",
        DeprecationWarning,
        stacklevel=3,  # frames of the import system are not counted
    )
