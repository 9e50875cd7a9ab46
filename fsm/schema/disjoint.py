"""Tells when no value satisfies two branches of `oneOf`, so that it means the same as `anyOf`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from fsm.schema.enumeration import identity, values_at
from fsm.schema.keyword import JSON_TYPES, Made
from fsm.schema.place import Place

_MAX_PAIRS = 20_000


class _Signature:
    """What is sure of the values of a branch: their types, and the values of required constant properties."""

    def __init__(self, place: Place, resolve: Callable[[Place], Place]) -> None:
        self.types = frozenset(JSON_TYPES)
        self.tags: dict[str, set[Any]] = {}
        while True:
            self._read(place, resolve)
            if not place.has("$ref"):
                break
            place = resolve(place)

    def _read(self, place: Place, resolve: Callable[[Place], Place]) -> None:
        self.types &= types_at(place)
        required, properties = place.get("required"), place.get("properties")
        if isinstance(required, list) and isinstance(properties, dict):
            for name in required:
                if isinstance(name, str) and isinstance(properties.get(name), dict):
                    values = _scalars(Place(properties[name], place.pointer))
                    if values is not None:
                        self.tags[name] = values

    def is_apart_from(self, other: _Signature) -> bool:
        shared = self.types & other.types
        if not shared:
            return True
        return shared == {"object"} and any(
            self.tags[name].isdisjoint(other.tags[name]) for name in self.tags.keys() & other.tags.keys()
        )


_ALL_TYPES = frozenset(JSON_TYPES)


def types_at(place: Place) -> frozenset[str]:
    """The JSON types that `type` of a place allows; `number` stands for numbers that are not whole."""
    names = place.get("type")
    found = _ALL_TYPES
    if names is not None:
        found = frozenset((names,) if isinstance(names, str) else (n for n in names if isinstance(n, str)))
        found |= {"integer"} if "number" in found else set()
    made: frozenset[str] | None = place.get(Made.TYPES)
    return found if made is None else found & made


def _scalars(place: Place) -> set[Any] | None:
    values = values_at(place) if not place.has("enum") or isinstance(place.get("enum"), list) else None
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return {identity(value) for value in values}


def are_disjoint(branches: list[Place], resolve: Callable[[Place], Place]) -> bool:
    """True when it is sure that no value satisfies two of the branches; False may mean that it was not found out."""
    if len(branches) * (len(branches) - 1) > 2 * _MAX_PAIRS:
        return False
    signatures = [_Signature(branch, resolve) for branch in branches if branch.schema is not False]
    return all(a.is_apart_from(b) for a, b in combinations(signatures, 2))
