"""Deprecated names of public modules: importing one warns, and gives the module that has its contents now."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def announce_moved(homes: Mapping[str, str]) -> None:
    """Let modules be imported by their old names, with a `DeprecationWarning`.

    Args:
        homes: the full name of the module that now has the contents, by the full old name.
    """
    sys.meta_path.insert(0, _MovedModules(homes))


class _MovedModules(MetaPathFinder, Loader):
    """Asked first: a folder of old compiled files would be taken for the package."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load an old name; None for any other name."""
        return ModuleSpec(name, self) if name in self._homes else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the module to the import system; `exec_module` puts the real one in its place."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that now has the contents under the old name, and warn."""
        old = module.__name__
        new = self._homes[old]
        warnings.warn(
            f"`{old}` is now `{new}`; the old name goes with the next version. Public names are best imported from the package itself.",
            DeprecationWarning,
            stacklevel=2,  # frames of the import system are not counted
        )
        sys.modules[old] = import_module(new)
