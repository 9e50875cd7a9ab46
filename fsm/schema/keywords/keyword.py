"""`Keyword`: all facts about one keyword of JSON Schema, as one object, and `Registry`: all keywords by name.

The default of each attribute is safe, if less exact: without a term the keyword is checked when the value is complete; its negation is
"the values of its types that it does not accept"; it is blamed if no value that satisfies it begins with the text. So a new keyword needs
a name, a shape, the types that it can reject, and a predicate on values:

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
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place, values_of
from fsm.schema.places.shape import COUNT, JSON_TYPES, Inside, Schema, Shape, is_number
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
"""Schemas that hold together when a value fails in this way; a `Place` where it is a part of the schema itself."""


class NoNegation(Exception):
    """A keyword cannot be negated here, so that its negation is left to a check; `args[0]` is the keyword."""


class Role(Enum):
    """How a keyword takes part when the values of a schema are split into cases."""

    ANNOTATION = auto()
    """It rejects nothing."""
    ASSERTION = auto()
    """It constrains the value, or its parts."""
    VALUES = auto()
    """It lists values."""
    REFERENCE = auto()
    """It refers to a schema that must be satisfied, too."""
    ALL = auto()
    """All of its schemas must be satisfied, too."""
    NOT = auto()
    """Its schema must not be satisfied."""
    BRANCHES = auto()
    """Some of its schemas must be satisfied."""
    CONDITION = auto()
    """Which schema must be satisfied depends on the value."""
    CONSEQUENCE = auto()
    """A part of a condition, which has no meaning alone."""


Name = str | int | None
"""The key of a member, None for one that no keyword names, or the number of an item."""
Matches = Callable[[str, str | None], bool | None]
"""Whether a pattern is found in a key; None: that is unknown."""
Make = Callable[..., Schema]
"""Interns a schema that is not in the document, given a key: the same object at every call."""


def negated(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """One way to fail: a value of the keyword's types that it does not accept."""
    yield (NegatedKeyword(keyword.name, value, keyword.types),)


def default_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """The same, where terms or checks are sure to enforce it.

    Raises:
        NoNegation: what builds the terms of the keyword may not know its negation.
    """
    if keyword.language is None and not keyword.checked_types:
        raise NoNegation(keyword.name)
    return negated(keyword, place, value)


def no_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    """None: the keyword beside which it counts tells them."""
    return iter(())


def unless_trivial(trivial: Any) -> Any:
    """The default, but for the one value of a keyword that rejects nothing."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        return iter(()) if value is trivial else default_failures(keyword, place, value)

    return failures


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword.

    Attributes:
        name: the keyword itself.
        shape: its well-formed values, and where schemas are in them.
        types: the types of the values that it can reject.
        role: how it takes part in the cases of a value.
        since: the first draft that has it; None: no draft, so that the validator is told what it accepts.
        merge: makes one value of those that several schemas for the same value have; None: each of them holds by itself.
        failures: yields the ways to fail it, given this object, a place and the value there.
        language: the insides of the JSON strings that it accepts, given its value, a pointer and limits; it may raise `NotRegular`, and
            None says that it leaves strings alone.
        accepts: whether it accepts a value of its types, given its own value; for `enum` and `const`, and for checks.
        is_built: whether what builds the terms of its types holds it, or says what it leaves out.
        is_heavy: whether its term costs more than others where it is joined to them.
        parts: gives the places for a member or an item, given a place, the value there, the name, and what tells whether a pattern is
            found in a key.
        patterns: gives the regular expressions in its value; None: there are none.
        cases: yields the choices that a condition makes, given a place, the value there, and what makes schemas; one of each holds.
        is_negating: whether the cases deny a schema in it.
        is_exclusive: of branches, whether only one of them holds.
        is_blamed: whether it is to blame where no value that satisfies it, and `type` beside it, begins with a text; False: it counts
            with another keyword, or where no other explains it.
        companions: keywords that count with it.
        spelling: what is never written though it allows it, in a sentence, given its value; None: nothing.
    """

    name: str
    shape: Shape
    types: frozenset[str] = ALL_TYPES
    role: Role = Role.ASSERTION
    since: str | None = None
    merge: Callable[[Iterable[Any]], Any] | None = None
    failures: Callable[[Keyword, Place, Any], Iterator[Failure]] = default_failures
    language: Callable[[Any, str, Limits], Node | None] | None = None
    accepts: Callable[[Any, Any], bool] | None = None
    is_built: bool = False
    is_heavy: bool = False
    parts: Callable[[Place, Any, Name, Matches], Iterable[Place]] | None = None
    patterns: Callable[[Any], Iterable[str]] | None = None
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
            raise ValueError(f"`{self.name}` is in no draft: give `accepts`, which tells whether it accepts a value")
        if self.is_built or self.role not in (Role.ASSERTION, Role.CONDITION):
            raise ValueError(f"`{self.name}` is in no draft: it is an assertion or a condition, and not `is_built`")

    @property
    def checked_types(self) -> frozenset[str]:
        """The types of values for which no term enforces it."""
        if self.is_built or (self.since is not None and self.role is not Role.ASSERTION):
            return frozenset()
        return self.types if self.language is None else self.types - STRING

    def takes(self, value: Any, instance: Any) -> bool:
        """Whether it accepts a value of any type, given its own value; only of a keyword with `accepts`."""
        assert self.accepts is not None
        return type_of(instance) not in self.types or self.accepts(value, instance)

    def merged(self, places: Conjunction, default: Any = None) -> Any:
        """The one value that stands for those of all places, as a whole number; the default where no place has it."""
        assert self.merge is not None
        values = [int(value) for _, value in values_of(places, self.name)]
        return self.merge(values) if values else default


def count_bounds(least: str, most: str, types: frozenset[str]) -> tuple[Keyword, Keyword]:
    """The two bounds of a count, of characters, items or members. The tightest holds; one fails where the opposite bound holds."""

    def below(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        if value > 0:
            yield ({"type": [*types], most: int(value) - 1},)

    def above(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        yield ({"type": [*types], least: int(value) + 1},)

    bound = partial(Keyword, shape=COUNT, types=types, since="draft-04", is_built=True)
    return bound(least, merge=max, failures=below), bound(most, merge=min, failures=above)


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
    """Keywords by name, and sets of names that are used often.

    Attributes:
        enforced: the keywords that reject values.
        annotations: those that reject nothing.
        own: those that constrain the value itself, or list values.
        apart: those that apply other schemas to the value, or list values.
        always: those whose schemas must be satisfied, or must not, in every case.
        splitting: those that make several cases.
        heavy: those whose terms cost much.
        of_members: those that give schemas to members of objects.
        only_checked: those that no term enforces, for some types of values.
        of_strings: those that constrain strings and not all types.
        of_any_type: those that may reject a value of any type, but for `type` and `enum`.
        of_python_types: those that only the schemas of Python types have.
        listing: those that list values.
        besides_type: those that reject values, but for `type`.
        with_accepts: those that must be added to the validator.
        with_language: those that are a language of strings.
        with_patterns: those that contain regular expressions, each with a function that finds them in its value.
    """

    def add(self, keywords: Iterable[Keyword]) -> None:
        """Know these keywords from now on."""
        self.update({keyword.name: keyword for keyword in keywords})
        self._sort()

    @contextmanager
    def adding(self, keyword: Keyword) -> Iterator[None]:
        """Know one more keyword in the schemas that are compiled, explained and checked inside."""
        assert keyword.name not in self, "it is known already"
        self.add((keyword,))
        try:
            yield
        finally:
            del self[keyword.name]
            self._sort()

    def _sort(self) -> None:
        self.annotations = self._with_role(Role.ANNOTATION)
        self.enforced = frozenset(self) - self.annotations
        self.listing = self._with_role(Role.VALUES)
        self.own = self._with_role(Role.ASSERTION) | self.listing
        self.apart = self.enforced - self._with_role(Role.ASSERTION)
        self.always = self._with_role(Role.REFERENCE, Role.ALL, Role.NOT)
        self.splitting = self._with_role(Role.BRANCHES, Role.VALUES, Role.CONDITION)
        self._by_role = {role: [one for one in self.values() if one.role is role] for role in Role}
        self.heavy = self._those(lambda one: one.is_heavy)
        self.of_members = self._those(lambda one: one.parts is not None and one.types == OBJECT)
        self._parts = tuple((name, one.parts) for name, one in self.items() if one.parts is not None)
        self.only_checked = self._those(lambda one: bool(one.checked_types))
        self.of_strings = self._those(lambda one: "string" in one.types != ALL_TYPES)
        any_type = self._those(lambda one: one.types == ALL_TYPES and one.role is not Role.CONSEQUENCE)
        self.of_any_type = any_type - {"type", "enum"}
        self.of_python_types = self._those(lambda one: one.since == PYTHON_TYPE)
        self.besides_type = self.enforced - {"type"}
        self.with_accepts = tuple(one for one in self.values() if one.accepts is not None)
        self.with_patterns = tuple((name, one.patterns) for name, one in self.items() if one.patterns is not None)
        self.with_language = tuple(one for one in self.values() if one.language is not None)
        self._unknown = {draft: self._since(DRAFTS[number + 1 :]) for number, draft in enumerate(DRAFTS)}

    def with_roles(self, place: Place, *roles: Role) -> list[Keyword]:
        """The keywords of a place with these roles, those with the first role first."""
        return [keyword for role in roles for keyword in self._by_role[role] if place.has(keyword.name)]

    def _those(self, test: Callable[[Keyword], bool]) -> frozenset[str]:
        return frozenset(name for name, keyword in self.items() if test(keyword))

    def _with_role(self, *roles: Role) -> frozenset[str]:
        return self._those(lambda one: one.role in roles)

    def _since(self, drafts: tuple[str, ...]) -> frozenset[str]:
        return self._those(lambda one: one.since in drafts)

    def unknown_to(self, draft: str) -> frozenset[str]:
        """The keywords that a draft does not have."""
        return self._unknown.get(draft, frozenset())

    def inside(self, name: str) -> Inside:
        """What the value of a keyword contains."""
        return self[name].shape.inside if name in self else Inside.DATA

    def parts(self, place: Place, name: Name, matches: Matches) -> Iterator[Place]:
        """The places that the keywords of one give to a member, or to an item; see `Keyword.parts`."""
        schema = place.schema
        if isinstance(schema, dict):
            for keyword, parts in self._parts:
                if keyword in schema:
                    yield from parts(place, schema[keyword], name, matches)

    def strings_with(self, pattern: str, pointer: str, limits: Limits) -> Node:
        """The inside of the strings in which a pattern is found: the language of `pattern`, with its errors."""
        make = self["pattern"].language
        found = None if make is None else make(pattern, pointer, limits)
        assert found is not None, "`pattern` has a term"
        return found

    def subschemas(self, place: Place) -> Iterator[Place]:
        """The places of the schemas that a normalized place holds in its keywords, references aside."""
        if isinstance(place.schema, dict):
            for name, value in place.schema.items():
                if name in self.enforced:
                    for tokens, schema in self[name].shape.schemas(value):
                        yield place.below(schema, name, *tokens)


KEYWORDS = Registry()
"""All keywords; the `__init__` of this room, which Python runs before any of its modules, adds them from the files of their kinds."""
