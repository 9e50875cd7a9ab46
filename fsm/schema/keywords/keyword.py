"""`Keyword`: all facts about one keyword of JSON Schema, as one object, and `Registry`: all keywords by name. The default of each attribute
is correct, if less exact: without a term the keyword is checked when the value is complete; its negation is "the values of its types that
it does not accept" (left to a check where only the builders know it); it is blamed if no value that satisfies it begins with the text.

So a new keyword needs a name, a shape, the types that it can reject, and a predicate on values:

    Keyword("maxBytes", COUNT, frozenset({"string"}), accepts=lambda most, text: len(text.encode()) <= most)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from fsm.limits import Limits
from fsm.schema.keywords.place import (
    COUNT,
    JSON_TYPES,
    WATCHERS,
    Conjunction,
    Inside,
    NegatedKeyword,
    Place,
    Schema,
    Scope,
    Shape,
    is_number,
    values_of,
)
from fsm.terms.node import Node

ALL_TYPES = frozenset(JSON_TYPES)
NUMERIC = frozenset({"integer", "number"})
STRING = frozenset({"string"})
ARRAY = frozenset({"array"})
OBJECT = frozenset({"object"})

DRAFTS = ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
"""The drafts to which keywords were added, oldest first."""
PYTHON_TYPE = "python"
"""Instead of a draft, for a keyword that only the schemas of Python types have; their own code validates where no term is exact."""

Part = Schema | NegatedKeyword | Place
Failure = tuple[Part, ...]
"""One way to fail a keyword: schemas that the value then satisfies; a `Place` where it is a part of the schema itself."""


class NoNegation(Exception):
    """A keyword cannot be negated here, so that its negation is left to a check; `args[0]` is the keyword."""


class Role(Enum):
    """How a keyword takes part when the values of a schema are split into cases."""

    ANNOTATION = auto()  # it rejects nothing
    ASSERTION = auto()  # it constrains the value, or its parts
    VALUES = auto()  # it lists the allowed values
    REFERENCE = auto()  # it refers to a schema that the value must satisfy, too
    ALL = auto()  # the value must satisfy all of its schemas
    NOT = auto()  # the value must not satisfy its schema
    BRANCHES = auto()  # the value must satisfy one or more of its schemas
    CONDITION = auto()  # which schema the value must satisfy depends on the value
    CONSEQUENCE = auto()  # a part of a condition, without a meaning of its own

    __hash__ = object.__hash__  # that of an `Enum` is a function in Python, and roles are looked up often


Name = str | int | None
"""The key of a member, None for one that no keyword names, or the index of an item."""
Matches = Callable[[str, str | None], bool | None]
"""Whether a pattern is found in a key; None: that is unknown."""
Make = Callable[..., Schema]
"""Interns a schema that is not in the document, given a key: the same object at every call (`Document.make`)."""
Find = Callable[..., tuple[Schema, Scope]]
"""The schema that a reference names, given the resources, the reference, its scope and its pointer; a method of `Resources`."""


def negated(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """Yield one way to fail: a value of the keyword's types that it does not accept."""
    yield (NegatedKeyword(keyword.name, value, keyword.types),)


def default_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """Yield the same, for a keyword that its own term or a check enforces.

    Raises:
        NoNegation: only a builder of terms enforces it, which may not know its negation.
    """
    if keyword.language is None and not keyword.checked_types:
        raise NoNegation(keyword.name)
    return negated(keyword, place, value)


def no_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """Yield nothing: another keyword, of which this one is a companion, yields them."""
    return iter(())


def unless_trivial(trivial: Any) -> Any:
    """The default, but no failures for the value of a keyword with which it rejects nothing."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        return iter(()) if value is trivial else default_failures(keyword, place, value)

    return failures


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword. An instance is the JSON value that is validated; a keyword's value is the one in the schema.

    Attributes:
        name: the keyword itself.
        shape: which values are well-formed, and where they contain schemas.
        types: the types of instances that it can reject.
        role: how it takes part in the cases of a schema.
        since: the first draft that has it; None: no draft, so the validator gets `accepts`.
        failures: yields the ways to fail it, given this object, a place and the value there.
        language: returns the term of the accepted strings, without their quotes, given the value, its pointer and limits; None for a
            value that does not constrain strings; it may raise `NotRegular`.
        accepts: whether it accepts an instance of its types, given the value and the instance; for listed values and for checks.
        is_built: whether the builders of terms (`object.py`, `array.py`, `scalars/`) enforce it, or report what they leave out.
        is_heavy: whether its term is costly to combine with others.
        parts: returns the places that apply to a member or an item, given a place, the value there, the name, and `Matches`.
        names: returns the names of members that the value declares, in order.
        remarks: yields notes for the report on how the value was read, given the value and limits.
        ignored: returns why a value rejects nothing, None if it does reject, given the value and whether formats are asserted.
        stands_for: returns an equivalent schema of other keywords, empty if there is none, for the instances outside of `language`.
        is_single: for keywords that list values: whether the value is the only one, and not a list.
        find: for references: the schema that it names.
        is_dynamic: for references: whether that depends on the dynamic scope.
        cases: for conditions: yields choices, given a place, the value there and `Make`; an instance satisfies one option of each choice.
        is_negating: for conditions: whether some case negates the schema in the value.
        is_exclusive: for branches: whether exactly one of them must be satisfied.
        is_blamed: whether it is blamed for a text with which no value begins that satisfies it, and `type` next to it; False: another
            keyword is blamed, or it is blamed only if none else explains the text.
        companions: keywords in the same schema that change its meaning.
        spelling: returns a sentence on the accepted values that are never generated, given the value; None: there are none.
    """

    name: str
    shape: Shape
    types: frozenset[str] = ALL_TYPES
    role: Role = Role.ASSERTION
    since: str | None = None
    failures: Callable[[Keyword, Place, Any], Iterator[Failure]] = default_failures
    language: Callable[[Any, str, Limits], Node | None] | None = None
    accepts: Callable[[Any, Any], bool] | None = None
    is_built: bool = False
    is_heavy: bool = False
    parts: Callable[[Place, Any, Name, Matches], Iterable[Place]] | None = None
    names: Callable[[Any], Iterable[str]] | None = None
    remarks: Callable[[Any, Limits], Iterable[str]] | None = None
    ignored: Callable[[Any, bool], str | None] | None = None
    stands_for: Callable[[Any], dict[str, Any]] | None = None
    is_single: bool = False
    find: Find | None = None
    is_dynamic: bool = False
    cases: Callable[[Place, Any, Make], Iterator[list[Conjunction]]] | None = None
    is_negating: bool = False
    is_exclusive: bool = False
    is_blamed: bool = True
    companions: tuple[str, ...] = ()
    spelling: Callable[[Any], str | None] | None = None

    def __post_init__(self) -> None:
        """Refuse a keyword that nothing would enforce."""
        if self.since is not None or self.role is Role.ANNOTATION:
            return
        if self.accepts is None:
            raise ValueError(f"`{self.name}` is in no draft: give `accepts`, which returns whether it accepts a value")
        if self.is_built or self.role not in (Role.ASSERTION, Role.CONDITION):
            raise ValueError(f"`{self.name}` is in no draft: it is an assertion or a condition, and not `is_built`")

    @property
    def checked_types(self) -> frozenset[str]:
        """The types of instances for which no term enforces it."""
        if self.is_built or (self.since is not None and self.role is not Role.ASSERTION):
            return frozenset()
        return self.types if self.language is None else self.types - STRING

    def takes(self, value: Any, instance: Any) -> bool:
        """Whether a keyword with `accepts` accepts an instance of any type."""
        assert self.accepts is not None
        return type_of(instance) not in self.types or self.accepts(value, instance)

    def branches(self, place: Place, *, negated: bool = False) -> list[Place]:
        """The places of the schemas in its value at a place, for the same instance."""
        schemas = self.shape.schemas(place.get(self.name))
        return [place.beside(schema, self.name, *tokens, negated=negated) for tokens, schema in schemas]


def count_bounds(least: str, most: str, types: frozenset[str]) -> tuple[Keyword, Keyword]:
    """The lower and the upper bound of a count of characters, items or members; the tightest wins; each negates to the other."""

    def below(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        if value > 0:
            yield ({"type": [*types], most: int(value) - 1},)

    def above(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        yield ({"type": [*types], least: int(value) + 1},)

    bound = partial(Keyword, shape=COUNT, types=types, since="draft-04", is_built=True)
    return bound(least, failures=below), bound(most, failures=above)


def counts_at(places: Conjunction, noun: str) -> tuple[int, int | None]:
    """The tightest bounds of a count at some places: those of the characters of a string for `Length`, for example."""
    least = [int(value) for _, value in values_of(places, f"min{noun}")]
    most = [int(value) for _, value in values_of(places, f"max{noun}")]
    return max(least) if least else 0, min(most) if most else None


def type_of(instance: Any) -> str:
    """The JSON type of a value; a number without a fraction is an integer."""
    if isinstance(instance, bool):
        return "boolean"
    if is_number(instance):
        return "integer" if instance == int(instance) else "number"
    if isinstance(instance, str):
        return "string"
    return "array" if isinstance(instance, list) else "object" if isinstance(instance, dict) else "null"


class Registry(dict[str, Keyword]):
    """Keywords by name; `_sort` makes sets of their names, and tuples of keywords with some attribute, which are used often."""

    def add(self, keywords: Iterable[Keyword]) -> None:
        """Register these keywords."""
        self.update({keyword.name: keyword for keyword in keywords})
        self._sort()

    @contextmanager
    def adding(self, keyword: Keyword) -> Iterator[None]:
        """Register one more keyword for the schemas that are compiled, explained and checked inside of a `with` block."""
        assert keyword.name not in self, "it is registered already"
        self.add((keyword,))
        try:
            yield
        finally:
            del self[keyword.name]
            self._sort()

    def _sort(self) -> None:
        self._by_role = {role: [one for one in self.values() if one.role is role] for role in Role}
        self.annotations = self._with_role(Role.ANNOTATION)
        self.enforced = frozenset(self) - self.annotations
        self.checks = {name: self[name].shape.check for name in self.enforced}
        self.never_null = self._those(lambda one: not one.shape.fits(None))
        self.listing = self._with_role(Role.VALUES)
        self.assertions = self._with_role(Role.ASSERTION)
        self.own = self.assertions | self.listing  # they constrain the value itself
        self.applying = self.enforced - self.assertions  # they apply other schemas to the same value, or list values
        self.conjunctive = self._with_role(Role.REFERENCE, Role.ALL, Role.NOT)  # their schemas count in every case
        self.splitting = self._with_role(Role.BRANCHES, Role.VALUES, Role.CONDITION)  # they make several cases
        self.static_references = self._those(lambda one: one.role is Role.REFERENCE and not one.is_dynamic)
        self.heavy = self._those(lambda one: one.is_heavy)
        self.of_members = self._those(lambda one: one.parts is not None and one.types == OBJECT)
        self.with_names = tuple((name, one.names) for name, one in self.items() if one.names is not None)
        self.naming = frozenset(name for name, _ in self.with_names)
        # They apply schemas, in some schema or other, to members that they do not name.
        self.of_other_members = (self.of_members - self.naming) | frozenset(WATCHERS)
        self.only_checked = self._those(lambda one: bool(one.checked_types))  # no term enforces them for some types
        self.of_strings = self._those(lambda one: "string" in one.types != ALL_TYPES)
        any_type = self._those(lambda one: one.types == ALL_TYPES and one.role is not Role.CONSEQUENCE)
        self.of_any_type = any_type - {"type", "enum"}
        self.of_python_types = self._those(lambda one: one.since == PYTHON_TYPE)
        self.besides_type = self.enforced - {"type"}
        self.unknown_to = {
            draft: frozenset(name for name, one in self.items() if one.since in DRAFTS[number + 1 :])
            for number, draft in enumerate(DRAFTS)
        }
        self._with_parts = tuple((name, one.parts) for name, one in self.items() if one.parts is not None)
        self.with_accepts = tuple(one for one in self.values() if one.accepts is not None)
        self.with_language = tuple(one for one in self.values() if one.language is not None)
        self.with_remarks = tuple((name, one.remarks) for name, one in self.items() if one.remarks is not None)
        self.with_ignored = tuple((name, one.ignored) for name, one in self.items() if one.ignored is not None)
        self.with_equivalent = tuple((name, one.stands_for) for name, one in self.items() if one.stands_for is not None)

    def _those(self, test: Callable[[Keyword], bool]) -> frozenset[str]:
        return frozenset(name for name, keyword in self.items() if test(keyword))

    def _with_role(self, *roles: Role) -> frozenset[str]:
        return self._those(lambda one: one.role in roles)

    def with_roles(self, place: Place, *roles: Role) -> list[Keyword]:
        """The keywords of a place with these roles, those with the first role first."""
        return [keyword for role in roles for keyword in self._by_role[role] if place.has(keyword.name)]

    def values_of(self, places: Conjunction, name: str) -> Iterator[tuple[Place, Any]]:
        """The places that have a keyword, each with its value, and those with another keyword whose value stands for it."""
        yield from values_of(places, name)
        for other, stands_for in self.with_equivalent:
            for place, value in values_of(places, other):
                if name in (found := stands_for(value)):
                    yield place, found[name]

    def inside(self, name: str) -> Inside:
        """What the value of a keyword contains."""
        return self[name].shape.inside if name in self else Inside.DATA

    def schemas_inside(self, root: Any) -> Iterator[dict[str, Any]]:
        """Yield the schema objects of a document as it is written, in any draft; each may be changed before its parts are looked at.

        What unknown keywords and lists contain counts as schemas, since references may name it; listed values and defaults do not.
        """
        stack: list[tuple[Any, bool]] = [(root, True)]
        while stack:
            part, is_schema = stack.pop()
            if isinstance(part, list):
                stack += ((item, True) for item in part)
            elif isinstance(part, dict):
                if is_schema:
                    yield part
                for key, value in part.items():
                    inside = self.inside(key) if is_schema else Inside.SCHEMA
                    if inside is not Inside.VALUES:
                        stack.append((value, inside is not Inside.SCHEMA_MAP))

    def parts(self, place: Place, name: Name, matches: Matches) -> list[Place]:
        """The places that the keywords of a place apply to a member or an item; see `Keyword.parts`."""
        schema, found = place.schema, list[Place]()
        if isinstance(schema, dict):
            for keyword, parts in self._with_parts:
                if keyword in schema:
                    found += parts(place, schema[keyword], name, matches)
        return found

    def strings_with(self, pattern: str, pointer: str, limits: Limits) -> Node:
        """The strings, without quotes, in which a pattern is found: the language of `pattern`, with its errors."""
        make = self["pattern"].language
        found = None if make is None else make(pattern, pointer, limits)
        assert found is not None, "`pattern` has a term"
        return found

    def subschemas(self, place: Place) -> Iterator[Place]:
        """The places of the schemas that the keywords of a normalized place contain, without those that are only referred to."""
        if isinstance(place.schema, dict):
            for name, value in place.schema.items():
                if name in self.enforced:
                    for tokens, schema in self[name].shape.schemas(value):
                        yield place.below(schema, name, *tokens)


KEYWORDS = Registry()
"""All keywords; the `__init__` of this room, which Python runs before any of its modules, adds them from the files of their kinds."""
