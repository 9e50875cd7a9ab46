"""Tells when no value satisfies two branches of `oneOf`, so that it means the same as `anyOf`.

Branches are apart by their types, by listed values, by the values of a key that one of them requires (`kind`, `type`), or because such
a key is not allowed in the other. What is not looked at: patterns, lengths, bounds, items.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations
from typing import Any, Protocol

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import NotRegular
from fsm.limits import Limits
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Role, type_of
from fsm.schema.keywords.value import identity, types_at, values_at
from fsm.schema.places.place import Place
from fsm.terms import work_budget as work
from fsm.terms.characters import json_text

_MAX_PAIRS = 20_000
_PAIR_WORK = 1
_MAX_DEPTH = 4  # of schemas for the same value, one in the other
_MAX_BRANCHES = 50
_MAX_LEVELS = 2  # of members that are looked into for a difference


class Reader(Protocol):
    """What is needed of a document."""

    @property
    def limits(self) -> Limits:
        """Bounds of compiling."""

    def normalize_draft(self, place: Place) -> Place:
        """The place with the keywords of draft 2020-12."""

    def follow(self, place: Place) -> Place:
        """The normalized place that `$ref` of `place` names."""


@dataclass(frozen=True, slots=True)
class _Signature:
    """What is sure of the values of a branch.

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

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[object, ...], _Signature] = {}
        self._matches: dict[tuple[str, str], bool | None] = {}

    def signature(self, place: Place, depth: int = 0) -> _Signature:
        """What a normalized place says by itself, and by other schemas for the same value."""
        key = (*place.key, depth)
        if key not in self._known:
            self._known[key] = self._read(place, depth)
        return self._known[key]

    def _read(self, place: Place, depth: int) -> _Signature:
        found = _own_signature(place, self._reader)
        if depth >= _MAX_DEPTH:
            return found

        def below(schemas: Any, keyword: str) -> Iterable[_Signature]:
            for number, schema in enumerate(schemas if isinstance(schemas, list) else ()):
                yield self.signature(self._reader.normalize_draft(place.beside(schema, keyword, number)), depth + 1)

        if place.has("$ref"):
            found = found.meet(self.signature(self._reader.follow(place), depth + 1))
        for keyword in KEYWORDS.combining:
            schemas = place.get(keyword)
            if KEYWORDS[keyword].role is Role.ALL:
                found = reduce(_Signature.meet, below(schemas, keyword), found)
            elif isinstance(schemas, list) and 0 < len(schemas) <= _MAX_BRANCHES:
                found = found.meet(reduce(_Signature.join, below(schemas, keyword)))
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
            for below in self._schemas_of(place, name):
                found = found.meet(self.signature(self._reader.normalize_draft(below)))
        return found

    def _schemas_of(self, place: Place, name: str) -> Iterable[Place]:
        """The places that are sure to hold for the key `name` of an object of `place`."""
        assert isinstance(place.schema, dict)
        for keyword, value in place.schema.items():
            parts = KEYWORDS[keyword].parts if keyword in KEYWORDS.of_members else None
            if parts is not None:
                yield from parts(place, value, name, partial(self._does_match, place))

    def _does_match(self, place: Place, pattern: str, name: str) -> bool | None:
        """Whether a pattern is found in a name; None: unknown."""
        if (pattern, name) not in self._matches:
            try:
                node = KEYWORDS.strings_with(pattern, place.at("patternProperties"), self._reader.limits)
                self._matches[pattern, name] = Automaton(node).accepts(json_text(name))
            except NotRegular:
                self._matches[pattern, name] = None
        return self._matches[pattern, name]


def _own_signature(place: Place, reader: Reader) -> _Signature:
    if isinstance(place.schema, bool):
        return _Signature() if place.schema else _Signature(frozenset())
    names, properties = place.get("required"), place.get("properties")
    required = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    tags = dict[str, frozenset[Any]]()
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        listed = (
            _scalars(reader.normalize_draft(place.below(schema, "properties", name)))
            if isinstance(schema, dict)
            else None
        )
        if listed is not None:
            tags[name] = listed
    types, values = types_at(place), _scalars(place)
    if values is not None:
        types &= frozenset(type_of(value) for _, value in values)
    return _Signature(types, values, required, tags, (place,) if place.says(KEYWORDS.of_members) else ())


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
    comparison = _Comparison(reader)
    own = reduce(_Signature.meet, (_own_signature(place, reader) for place in around(owner)))
    signatures = [own.meet(comparison.signature(branch)) for branch in branches if branch.schema is not False]
    for one, other in combinations(signatures, 2):
        work.add(_PAIR_WORK)
        work.check()
        if not comparison.are_apart(one, other):
            return False
    return True
