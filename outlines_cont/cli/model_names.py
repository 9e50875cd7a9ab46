"""`models_by_name`: the models of `serve` and `batch` by the names that requests call them, of options such as `small=./folder`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outlines_cont.pipelines.outcome import SetupError

BUNDLED = "bundled"
_BUNDLED_NAME = "tiny"


def models_by_name(given: Sequence[str | None], name: str | None = None) -> dict[str, str | None]:
    """Return hub ids or paths by name, in their order; None is the bundled model.

    Args:
        given: a hub id, a path, `NAME=` with one of these behind it, or None or `bundled`.
        name: the name of the first in requests, if it has none of its own.

    Raises:
        SetupError: two have the same name, a name or a model is empty, or a folder does not exist.
    """
    found: dict[str, str | None] = {}
    for index, one in enumerate(given):
        named, source = _split(one)
        if not index and name is not None:
            if named is not None:
                raise SetupError(f"expected --name, or a name in --model, got {name!r} and {one!r}")
            named = name
        source = None if source == BUNDLED else source
        called = _called(source) if named is None else named
        if called in found:
            raise SetupError(
                f"expected a name of its own for each model, got {called!r} for two. Write --model NAME={source or BUNDLED}"
            )
        if source is not None and source[:1] in ("/", ".", "~") and not Path(source).exists():
            raise SetupError(f"expected an existing folder for the model {called!r}, got {source!r}")
        found[called] = source
    return found


def _split(given: str | None) -> tuple[str | None, str | None]:
    """Return the name, if there is one, and the model."""
    if given is None or ("=" not in given and given) or (given and Path(given).exists()):
        return None, given
    name, _, source = given.partition("=")
    if not name or not source:
        raise SetupError(
            f"expected a model as --model, or NAME=MODEL, got {given!r}. The model of this package is {BUNDLED!r}."
        )
    return name, source


def _called(source: str | None) -> str:
    if source is None:
        return _BUNDLED_NAME
    return Path(source).name if Path(source).exists() else source
