"""`are_disjoint`: whether no value satisfies two branches of a `oneOf`, so that it is equivalent to `anyOf`; a sufficient test only. Each
branch is abstracted to facts that all of its values satisfy, through `allOf`, `anyOf`, `oneOf` and references. Compared pairwise, branches
are disjoint by their types, by listed values, by the values of a key that one of them requires (a tag such as `kind`), or where such a key
is not allowed in the other. `pattern`, lengths, bounds and items are not compared, and nesting is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations
from typing import Any

from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Role, type_of
from fsm.schema.keywords.place import Place
from fsm.schema.keywords.value import identity, types_at, values_at
from fsm.terms import work

_MAX_PAIRS = 20_000
_PAIR_WORK = 1
_MAX_DEPTH = 4  # of schemas for the same value inside one another
_MAX_BRANCHES = 50
_MAX_LEVELS = 2  # of members that are compared


@dataclass(frozen=True, slots=True)
class _Facts:
    """An abstraction of the values of a branch: facts that all of them satisfy.

    Attributes:
        types: they have one of these types.
        values: they are among these scalars; None: not known.
        required: objects have these keys.
        tags: by key, the scalars that the member may be if it is present.
        places: they satisfy these places, which constrain members of objects.
    """

    types: frozenset[str] = ALL_TYPES
    values: frozenset[Any] | None = None
    required: frozenset[str] = frozenset()
    tags: dict[str, frozenset[Any]] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def meet(self, other: _Facts) -> _Facts:
        """The facts about values that satisfy both."""
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        tags = {**self.tags, **other.tags}
        tags |= {name: self.tags[name] & other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        types = frozenset[str]() if values is not None and not values else self.types & other.types
        return _Facts(types, values, self.required | other.required, tags, (*self.places, *other.places))

    def join(self, other: _Facts) -> _Facts:
        """The facts about values that satisfy one or both."""
        values = None if self.values is None or other.values is None else self.values | other.values
        tags = {name: self.tags[name] | other.tags[name] for name in self.tags.keys() & other.tags.keys()}
        return _Facts(self.types | other.types, values, self.required & other.required, tags)


class _Comparison:
    """The facts about the branches of one `oneOf` and about their members, cached."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[tuple[object, ...], _Facts] = {}

    def facts(self, place: Place, depth: int = 0) -> _Facts:
        """The facts that a place implies by itself, and by the schemas that it applies to the same value."""
        place = self._document.normalize_draft(place)
        key = (*place.key, depth)
        if key not in self._known:
            found = self.own_facts(place)
            for other in self._applied(place, depth + 1) if depth < _MAX_DEPTH else ():
                found = found.meet(other)
            self._known[key] = found
        return self._known[key]

    def _applied(self, place: Place, depth: int) -> Iterator[_Facts]:
        """Yield facts for the references, `allOf`, `anyOf` and `oneOf` of a place."""
        for keyword in KEYWORDS.with_roles(place, Role.REFERENCE):
            if not keyword.is_dynamic:  # resolving one that is marks the document
                yield self.facts(self._document.resolve(place, keyword.name), depth)
        for keyword in KEYWORDS.with_roles(place, Role.BRANCHES, Role.ALL):
            branches = keyword.branches(place) if isinstance(place.get(keyword.name), list) else []
            if keyword.role is Role.ALL:
                yield from (self.facts(branch, depth) for branch in branches)
            elif 0 < len(branches) <= _MAX_BRANCHES:
                yield reduce(_Facts.join, (self.facts(branch, depth) for branch in branches))

    def own_facts(self, place: Place) -> _Facts:
        """The facts that a place implies by itself."""
        if isinstance(place.schema, bool):
            return _Facts() if place.schema else _Facts(frozenset())
        names, properties = place.get("required"), place.get("properties")
        required = frozenset(name for name in (names if isinstance(names, list) else ()) if isinstance(name, str))
        tags = dict[str, frozenset[Any]]()
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            if isinstance(schema, dict):
                listed = _scalars(self._document.normalize_draft(place.below(schema, "properties", name)))
                tags |= {} if listed is None else {name: listed}
        types, values = types_at(place), _scalars(place)
        if values is not None:
            types &= frozenset(type_of(value) for _, value in values)
        return _Facts(types, values, required, tags, (place,) if place.has_any(KEYWORDS.of_members) else ())

    def are_apart(self, one: _Facts, other: _Facts, depth: int = 0) -> bool:
        """True when the facts contradict each other; the cheapest tests first."""
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
        if depth >= _MAX_LEVELS:
            return False
        members = ((self._member(one, name), self._member(other, name)) for name in sorted(required))
        return any(
            not left.types or not right.types or self.are_apart(left, right, depth + 1) for left, right in members
        )

    def _member(self, owner: _Facts, name: str) -> _Facts:
        found = _Facts()
        for place in owner.places:
            for below in KEYWORDS.parts(place, name, partial(self._document.is_found, place)):
                found = found.meet(self.facts(below))
        return found


def _scalars(place: Place) -> frozenset[Any] | None:
    values = values_at(place)
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset(identity(value) for value in values)


def are_disjoint(owner: Place, branches: list[Place], document: Document) -> bool:
    """True when it is certain that no value of `owner`, and of the places that led to it, satisfies two of its branches."""
    if len(branches) * (len(branches) - 1) > 2 * _MAX_PAIRS:
        return False
    comparison = _Comparison(document)
    own = reduce(_Facts.meet, map(comparison.own_facts, owner.holding()))
    facts = [own.meet(comparison.facts(branch)) for branch in branches if branch.schema is not False]
    for one, other in combinations(facts, 2):
        work.add(_PAIR_WORK)
        work.check()
        if not comparison.are_apart(one, other):
            return False
    return True
