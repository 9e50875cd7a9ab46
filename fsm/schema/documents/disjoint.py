"""`are_disjoint`: whether no value satisfies two branches of a `oneOf`, so that it is equivalent to `anyOf`; a sufficient test only.

Branches are abstracted to signatures, joined and met through `allOf`, `anyOf` and `$ref`, and compared pairwise: they are disjoint by their
types, by listed values, by the values of a key that one of them requires (a tag such as `kind`), or where such a key is not allowed in the
other. Patterns, lengths, bounds and items are not compared, and nesting is limited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations
from typing import Any

from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Role, type_of
from fsm.schema.keywords.value import identity, types_at, values_at
from fsm.schema.places.place import Place
from fsm.terms import work_budget as work

_MAX_PAIRS = 20_000
_PAIR_WORK = 1
_MAX_DEPTH = 4  # of schemas for the same value, one in the other
_MAX_BRANCHES = 50
_MAX_LEVELS = 2  # of members that are looked into for a difference


@dataclass(frozen=True, slots=True)
class _Signature:
    """An abstraction of the values of a branch: facts that all of them satisfy.

    Attributes:
        types: their types.
        values: the only ones, where they are listed and scalars.
        required: keys that an object has.
        tags: by key, the values that it may have where it is there, if those are scalars.
        speakers: places that hold and say something of members.
    """

    types: frozenset[str] = ALL_TYPES
    values: frozenset[Any] | None = None
    required: frozenset[str] = frozenset()
    tags: dict[str, frozenset[Any]] = field(default_factory=dict)
    speakers: tuple[Place, ...] = ()

    def meet(self, other: _Signature) -> _Signature:
        """What is sure where both hold."""
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        tags = {**self.tags, **other.tags}
        tags |= {name: self.tags[name] & other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        required, speakers = self.required | other.required, (*self.speakers, *other.speakers)
        return _Signature(self.types & other.types, values, required, tags, speakers)

    def join(self, other: _Signature) -> _Signature:
        """What is sure where one of the two holds."""
        values = None if self.values is None or other.values is None else self.values | other.values
        tags = {name: self.tags[name] | other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        return _Signature(self.types | other.types, values, self.required & other.required, tags)

    def is_void(self) -> bool:
        """True when it is sure that no value is left."""
        return not self.types or (self.values is not None and not self.values)


class _Comparison:
    """Signatures of the branches of one `oneOf` and of their members, each read once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[tuple[object, ...], _Signature] = {}

    def signature(self, place: Place, depth: int = 0) -> _Signature:
        """What a normalized place says by itself, and by other schemas for the same value."""
        key = (*place.key, depth)
        if key not in self._known:
            self._known[key] = self._read(place, depth)
        return self._known[key]

    def _read(self, place: Place, depth: int) -> _Signature:
        found = _own_signature(place, self._document)
        if depth >= _MAX_DEPTH:
            return found

        def below(schemas: Any, keyword: str) -> Iterable[_Signature]:
            for number, schema in enumerate(schemas if isinstance(schemas, list) else ()):
                yield self.signature(self._document.normalize_draft(place.beside(schema, keyword, number)), depth + 1)

        for referred in self._document.referred(place):
            found = found.meet(self.signature(self._document.normalize_draft(referred), depth + 1))
        for keyword in KEYWORDS.with_roles(place, Role.BRANCHES, Role.ALL):
            schemas = place.get(keyword.name)
            if keyword.role is Role.ALL:
                found = reduce(_Signature.meet, below(schemas, keyword.name), found)
            elif isinstance(schemas, list) and 0 < len(schemas) <= _MAX_BRANCHES:
                found = found.meet(reduce(_Signature.join, below(schemas, keyword.name)))
        return found

    def are_apart(self, one: _Signature, other: _Signature, depth: int = 0) -> bool:
        """True when no value has both signatures; first by what costs least."""
        types = one.types & other.types
        if not types:
            return True
        if one.values is not None and other.values is not None and one.values.isdisjoint(other.values):
            return True
        if types != {"object"}:
            return False
        required = one.required | other.required
        shared = required & one.tags.keys() & other.tags.keys()
        if any(one.tags[name].isdisjoint(other.tags[name]) for name in shared):
            return True
        return depth < _MAX_LEVELS and any(self._differ_in(name, one, other, depth) for name in sorted(required))

    def _differ_in(self, name: str, one: _Signature, other: _Signature, depth: int) -> bool:
        """True when no value of the key `name` suits both."""
        left, right = self._member(one, name), self._member(other, name)
        return left.is_void() or right.is_void() or self.are_apart(left, right, depth + 1)

    def _member(self, owner: _Signature, name: str) -> _Signature:
        found = _Signature()
        for place in owner.speakers:
            for below in KEYWORDS.parts(place, name, partial(self._document.is_found, place)):
                found = found.meet(self.signature(self._document.normalize_draft(below)))
        return found


def _own_signature(place: Place, document: Document) -> _Signature:
    if isinstance(place.schema, bool):
        return _Signature() if place.schema else _Signature(frozenset())
    names, properties = place.get("required"), place.get("properties")
    required = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    tags = dict[str, frozenset[Any]]()
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        below = place.below(schema, "properties", name)
        listed = _scalars(document.normalize_draft(below)) if isinstance(schema, dict) else None
        if listed is not None:
            tags[name] = listed
    types, values = types_at(place), _scalars(place)
    if values is not None:
        types &= frozenset(type_of(value) for _, value in values)
    return _Signature(types, values, required, tags, (place,) if place.has_any(KEYWORDS.of_members) else ())


def _scalars(place: Place) -> frozenset[Any] | None:
    values = values_at(place)
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset(identity(value) for value in values)


def are_disjoint(owner: Place, branches: list[Place], document: Document) -> bool:
    """True when it is sure that no value of `owner`, and of the places that led to it, satisfies two of its branches.

    False may mean that it was not found out.
    """
    if len(branches) * (len(branches) - 1) > 2 * _MAX_PAIRS:
        return False
    comparison = _Comparison(document)
    own = reduce(_Signature.meet, (_own_signature(place, document) for place in owner.holding()))
    signatures = [own.meet(comparison.signature(branch)) for branch in branches if branch.schema is not False]
    for one, other in combinations(signatures, 2):
        work.add(_PAIR_WORK)
        work.check()
        if not comparison.are_apart(one, other):
            return False
    return True
