"""Tells when no value satisfies two branches of `oneOf`, so that it means the same as `anyOf`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from typing import Any, Protocol

from fsm.automaton import Automaton
from fsm.errors import NotRegular
from fsm.limits import Limits
from fsm.schema.enumeration import identity, values_at
from fsm.schema.keyword import JSON_TYPES, Made
from fsm.schema.place import Place
from fsm.schema.string import pattern_node, spelled

_MAX_PAIRS = 20_000
_MAX_DEPTH = 4  # of schemas for the same value, one in the other
_MAX_BRANCHES = 50
_ALL_TYPES = frozenset(JSON_TYPES)


class Reader(Protocol):
    """What is needed of a document."""

    @property
    def limits(self) -> Limits:
        """Bounds of compiling."""

    def settle(self, place: Place) -> Place:
        """The place in the words of the latest draft."""

    def follow(self, place: Place) -> Place:
        """The settled place that `$ref` of `place` names."""


@dataclass(frozen=True, slots=True)
class _Signature:
    """What is sure of the values of a branch.

    Attributes:
        types: their types.
        required: keys that an object has.
        tags: by key, the values that it may have where it is there, if those are scalars.
        closed: places that allow no keys but those that they name.
    """

    types: frozenset[str] = _ALL_TYPES
    required: frozenset[str] = frozenset()
    tags: dict[str, frozenset[Any]] = field(default_factory=dict)
    closed: tuple[Place, ...] = ()

    def meet(self, other: _Signature) -> _Signature:
        """What is sure where both hold."""
        tags = {**self.tags, **other.tags}
        tags |= {name: self.tags[name] & other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        return _Signature(self.types & other.types, self.required | other.required, tags, (*self.closed, *other.closed))

    def join(self, other: _Signature) -> _Signature:
        """What is sure where one of the two holds."""
        tags = {name: self.tags[name] | other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        return _Signature(self.types | other.types, self.required & other.required, tags)

    def is_apart_from(self, other: _Signature, limits: Limits) -> bool:
        """True when no value has both signatures."""
        types = self.types & other.types
        if types != {"object"}:
            return not types
        required = self.required | other.required
        shared = required & self.tags.keys() & other.tags.keys()
        if any(self.tags[name].isdisjoint(other.tags[name]) for name in shared):
            return True
        return any(_forbids(place, name, limits) for place in (*self.closed, *other.closed) for name in required)


def _signature(place: Place, reader: Reader, depth: int = 0) -> _Signature:
    """Read what a settled place says by itself, and by other schemas for the same value."""
    found = _own_signature(place)
    if depth >= _MAX_DEPTH:
        return found

    def below(schemas: Any, keyword: str) -> Iterable[_Signature]:
        for number, schema in enumerate(schemas if isinstance(schemas, list) else ()):
            yield _signature(reader.settle(place.beside(schema, keyword, number)), reader, depth + 1)

    if place.has("$ref"):
        found = found.meet(_signature(reader.follow(place), reader, depth + 1))
    for part in below(place.get("allOf"), "allOf"):
        found = found.meet(part)
    for keyword in ("anyOf", "oneOf"):
        schemas = place.get(keyword)
        if isinstance(schemas, list) and 0 < len(schemas) <= _MAX_BRANCHES:
            found = found.meet(reduce(_Signature.join, below(schemas, keyword)))
    return found


def _own_signature(place: Place) -> _Signature:
    names, properties = place.get("required"), place.get("properties")
    required = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    tags = dict[str, frozenset[Any]]()
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        values = _scalars(Place(schema, place.pointer)) if isinstance(schema, dict) else None
        if values is not None:
            tags[name] = values
    closed = (place,) if place.get("additionalProperties") is False else ()
    return _Signature(types_at(place), required, tags, closed)


def _forbids(place: Place, name: str, limits: Limits) -> bool:
    """True when it is sure that a closed place allows no such key."""
    properties, patterns = place.get("properties") or {}, place.get("patternProperties") or {}
    if not isinstance(properties, dict) or not isinstance(patterns, dict) or name in properties:
        return False
    return not any(_may_match(pattern, name, place, limits) for pattern in patterns)


def _may_match(pattern: str, name: str, place: Place, limits: Limits) -> bool:
    try:
        node = pattern_node(pattern, place.at("patternProperties"), limits)
    except NotRegular:
        return True
    return Automaton(node).accepts(spelled(name)[1:-1])


def types_at(place: Place) -> frozenset[str]:
    """The JSON types that `type` of a place allows; `number` stands for numbers that are not whole."""
    names = place.get("type")
    found = _ALL_TYPES
    if names is not None:
        found = frozenset((names,) if isinstance(names, str) else (n for n in names if isinstance(n, str)))
        found |= {"integer"} if "number" in found else set()
    made: frozenset[str] | None = place.get(Made.TYPES)
    return found if made is None else found & made


def _scalars(place: Place) -> frozenset[Any] | None:
    values = values_at(place) if not place.has("enum") or isinstance(place.get("enum"), list) else None
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset(identity(value) for value in values)


def around(owner: Place) -> Iterable[Place]:
    """A place, and those that apply it to the same value and hold for it themselves."""
    place: Place | None = owner
    while place is not None and not place.negated:
        yield place
        place = place.via


def are_disjoint(owner: Place, branches: list[Place], reader: Reader) -> bool:
    """True when it is sure that no value of `owner`, and of the places that led to it, satisfies two of its branches.

    False may mean that it was not found out.
    """
    if len(branches) * (len(branches) - 1) > 2 * _MAX_PAIRS:
        return False
    own = reduce(_Signature.meet, map(_own_signature, around(owner)))
    signatures = [own.meet(_signature(branch, reader)) for branch in branches if branch.schema is not False]
    return all(a.is_apart_from(b, reader.limits) for a, b in combinations(signatures, 2))
