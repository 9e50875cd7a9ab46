"""`CaseFinder`: splits the values of a schema into cases, the disjunctive normal form of the keywords that apply schemas to one value.

A case is a conjunction of places that apply no other schema to the value. Negation is pushed inwards, keyword by keyword (negation normal
form), so only automata of patterns, formats and keys are complemented. Cases are found by a depth-first search over the choices of `anyOf`,
`oneOf`, `if` and negations, with an explicit stack and a cache. Above budgets of cases and steps, negations and multiplying keywords are
left out of the cases, which then allow too much, and the value is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import prod
from typing import Literal, NamedTuple

from fsm.schema.documents.disjoint import are_disjoint
from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Keyword, NoNegation, Part, Role
from fsm.schema.keywords.value import schemas_listed, types_at, values_at
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.terms import work_budget as work

MAX_EXACT = 200  # cases of one value where negations make them
MAX_JOINED = 4_000  # the weight of all places in the cases of one value that keywords beside one another multiply
_MAX_MULTIPLIED = 32  # cases of one value that such keywords make where the rest is left to a check
_MAX_APART = 60  # branches of `oneOf` that are told from each other one by one
_HEAVY_WEIGHT = 10  # of a place with one of these; of others: 1
_STEP_WORK = 3
_FEW_STEPS = 500
MAX_STEPS = 3_000  # of the search for the cases of one value
MAX_SPENT = (
    6_000  # steps through negated schemas, for all values; each case that they make costs as much as some of them
)
_CASE_COST = 10
_MAX_SMALL = 16  # schemas that a negation leads to, where only small ones are worked out
_MAX_KEPT = 20_000  # cases that are remembered
_MAX_SUBSETS = 6  # of the branches of an `anyOf` whose annotations count

Choice = list[Conjunction]


class _Chosen(NamedTuple):
    """A choice on the way to a case: where, of how many, and whether this or one before multiplied others."""

    place: Place
    num_options: int
    is_multiplied: bool


class _PartialCase(NamedTuple):
    """A case that is not complete: the places that are done and to come, what was seen, the types that are left, the choices made."""

    done: Conjunction
    todo: Conjunction
    seen: frozenset[object]
    types: frozenset[str]
    made: tuple[_Chosen, ...]


class TooManyCases(Exception):
    """The exact cases of a value are too many; looser ones and a check are to be used instead."""


class TooCostly(Exception):
    """Pushing all negations inwards takes too long; the document is to be compiled with fewer of them."""


Negations = Literal["all", "small", "none"]
"""Which negations (of `not`, `if`, and of branches of `oneOf` that may hold together) are worked out; the others are checked.

`small`: those of schemas that lead to at most `_MAX_SMALL` others, and not back to themselves.
"""


@dataclass(frozen=True, slots=True)
class Cases:
    """The ways to satisfy some places.

    Attributes:
        alternatives: each a conjunction of places that apply no other schema to the same value any more.
        missing: places and keywords that were left out, so that some alternative allows too much.
        cost: what making terms of them costs, of what may be spent on negations.
        key: their hashable identity.
    """

    alternatives: list[Conjunction]
    missing: tuple[tuple[Place, str], ...] = ()
    cost: int = 0
    key: tuple[tuple[tuple[object, ...], ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        key = tuple(tuple(place.key for place in places) for places in self.alternatives)
        if self.missing:
            key = (*key, tuple((*place.key, keyword) for place, keyword in self.missing))
        object.__setattr__(self, "key", key)


class CaseFinder:
    """The cases of the places of one document, each found once.

    Args:
        document: where the places are.
        negations: which of them are worked out.
        is_coarse: whether to make few cases and leave more to checks, where everything together was too much.

    Attributes:
        can_be_coarser: whether something was met that costs less then.
        has_negated: whether a negated place was met.
        listed: the places that stand for one with listed values, by its schema.
    """

    def __init__(self, document: Document, negations: Negations = "all", *, is_coarse: bool = False) -> None:
        self.document, self.is_coarse = document, is_coarse
        self.can_be_coarser = self.has_negated = False
        self._negations = negations
        self._left: int | None = None if negations == "none" else MAX_SPENT
        self._small: dict[tuple[object, ...], bool] = {}
        self._disjoint: dict[tuple[object, ...], bool] = {}
        self.listed: dict[int, tuple[Place, ...]] = {}
        self._known: dict[tuple[object, ...], Cases | str] = {}
        self._num_kept = 0

    def find(self, places: Conjunction, *, loosely: bool = False) -> Cases:
        """The ways to satisfy all places.

        Places without keywords of their own are left out, so that `()` means any value; no alternative at all: no value.

        Args:
            places: a conjunction.
            loosely: leave out `not`, read `oneOf` and `if` as `anyOf`, and leave out an `anyOf` that would multiply the cases of others
                too often, where the exact cases would be too many.

        Raises:
            SchemaError: a place is malformed, or a reference leads nowhere, or back to itself for the same value.
            BudgetExceeded: there are more than `max_alternatives`.
            TooManyCases: the exact cases are not worth their number.
            TooCostly: negations took too much work.
        """
        if len(places) == 1 and (simple := self._single(places[0])) is not None:
            return simple
        if any(place.via is not None for place in places):  # then more counts than what they say themselves
            return _Search(self, places, loosely).run()
        key = (loosely, *(place.key for place in places))
        known = self._known.get(key)
        if isinstance(known, str):
            raise TooManyCases(known)
        if known is not None:
            return known
        try:
            cases = _Search(self, places, loosely).run()
        except TooManyCases as reason:
            self._known[key] = str(reason)  # the exception would keep the frames that it came through
            raise
        if self._num_kept < _MAX_KEPT:
            self._num_kept += len(cases.alternatives)
            self._known[key] = cases
        return cases

    def _single(self, place: Place) -> Cases | None:
        """The one case of a place that applies no other schema to its value; the most common of all."""
        place = self.document.normalize_draft(place)
        schema = place.schema
        if (
            place.negated
            or not isinstance(schema, dict)
            or not (KEYWORDS.enforced - KEYWORDS.assertions).isdisjoint(schema)
        ):
            return None
        self.document.check_keywords(place)
        return Cases([(place,) if place.has_any(KEYWORDS.own) else ()])

    def branches(self, places: Conjunction) -> Conjunction | None:
        """The branches of a place that says nothing but `anyOf`: each can be compiled for itself."""
        place = self.document.normalize_draft(places[0]) if len(places) == 1 else None
        if place is None or place.negated or place.watches_branches or not place.has_any(KEYWORDS.splitting):
            return None
        assert isinstance(place.schema, dict)
        (name, *others) = place.schema.keys() - KEYWORDS.annotations
        keyword = KEYWORDS.get(name)
        if others or keyword is None or keyword.role is not Role.BRANCHES or keyword.is_exclusive:
            return None
        self.document.check_keywords(place)
        return tuple(map(self.document.dereference, _branches(place, keyword)))  # `anyOf` alone says no more of them

    def spend(self, cost: int) -> None:
        """Take something from what may be spent on negations.

        Raises:
            TooCostly: nothing is left.
        """
        if self._left is not None:
            self._left -= cost
            if self._left < 0:
                raise TooCostly

    def disable_budget(self) -> None:
        """Lift the bound on negations: what is compiled later is the same again, for another depth."""
        self._left = None

    def leaves_out(self, places: Iterable[Place]) -> bool:
        """Whether the negations of some places are left to a check."""
        return self._negations == "none" or (self._negations == "small" and not all(map(self._is_small, places)))

    def _is_small(self, place: Place) -> bool:
        """True where a negation of the place leads to few other schemas, and not back to one that it came from."""
        if place.key not in self._small:
            self._small[place.key] = self._leads_to_few(place)
        return self._small[place.key]

    def _leads_to_few(self, place: Place) -> bool:
        """A depth-first walk over the schemas that a place leads to, which ends at the first that is on the way to itself."""
        around, seen = set[tuple[object, ...]](), set[tuple[object, ...]]()
        stack: list[tuple[Place, bool]] = [(place, True)]
        while stack:
            one, is_new = stack.pop()
            key = (id(one.schema), one.scope)
            if not is_new:
                around.remove(key)
                continue
            if key in around:
                return False
            if key in seen or isinstance(one.schema, bool):
                continue
            around.add(key)
            seen.add(key)
            if len(seen) > _MAX_SMALL:
                return False
            stack.append((one, False))
            normalized = self.document.normalize_draft(one)
            stack += [(below, True) for below in KEYWORDS.subschemas(normalized)]
            stack += [(below._replace(via=None), True) for below in self.document.referred(normalized)]
        return True

    def are_disjoint(self, place: Place, branches: list[Place]) -> bool:
        """Asked once for each place and those around it, as values that share a schema ask again and again."""
        key = tuple(outer.key for outer in place.holding())
        if key not in self._disjoint:
            self._disjoint[key] = are_disjoint(place, branches, self.document)
        return self._disjoint[key]


class _Search:
    """One search for the ways to satisfy some places.

    Args:
        finder: of the document.
        places: a conjunction.
        loosely: see `CaseFinder.find`.
    """

    def __init__(self, finder: CaseFinder, places: Conjunction, loosely: bool) -> None:
        self._finder, self._document = finder, finder.document
        self._places, self._loosely = places, loosely
        self._pointer = places[0].pointer if places else ""
        self._found: dict[tuple[object, ...], Conjunction] = {}
        self._missing: dict[tuple[int, str], tuple[Place, str]] = {}
        self._num_steps = self._num_negated = self._joined = 0

    def run(self) -> Cases:
        """The cases."""
        stack = [_PartialCase((), self._places, frozenset(), ALL_TYPES, ())]
        while stack:
            case = stack.pop()
            self._count_step(len(stack))
            if not case.types:
                continue
            if case.todo:
                stack.extend(reversed(self._extended(case)))
            else:
                self._finish(case, len(stack))
        cost = _CASE_COST * len(self._found) if self._num_negated else 0
        return Cases(list(self._found.values()), tuple(self._missing.values()), cost)

    def _count_step(self, num_open: int) -> None:
        """Give up on exact cases where negations multiply them; plain alternatives may be as many as the limits say.

        Raises:
            TooManyCases: they do.
        """
        self._num_steps += 1
        work.add(_STEP_WORK)
        work.check()
        is_many = self._num_steps > MAX_STEPS or (
            self._num_steps > _FEW_STEPS and len(self._found) + num_open > MAX_EXACT
        )
        if is_many and not self._loosely and self._finder.has_negated:
            raise TooManyCases(f"more than {MAX_EXACT} cases for one value (at '#{self._pointer}')")

    def _finish(self, case: _PartialCase, num_open: int) -> None:
        """Keep a case."""
        self._found.setdefault(tuple(p.key for p in case.done), case.done)
        self._limit_alternatives(len(self._found) + num_open, self._pointer)
        if case.made and case.made[-1].is_multiplied:
            self._joined += sum(map(_weight, case.done))
        if not self._loosely:
            self._limit_joined(self._joined, self._pointer)

    def _extended(self, case: _PartialCase) -> list[_PartialCase]:
        """The cases to which the next place of one extends it."""
        done, (first, *rest), seen, types, made = case
        place = self._document.normalize_draft(first)
        if isinstance(place.schema, bool) and place.schema == place.negated:
            return []
        if isinstance(place.schema, bool) or (place.key in seen and not place.is_watched):
            return [_PartialCase(done, tuple(rest), seen, types, made)]
        self._document.check_keywords(place)
        if place.negated:
            self._num_negated += 1
            self._finder.spend(1)
        factor = self._factor(place, made)
        own, always, choices = self._parts(place, factor)
        if own is not None:
            done, types = (*done, own), types & types_at(own)
        if len(choices) > 1:
            self._finder.can_be_coarser |= bool(made)
            is_multiplied = factor > 1 or (bool(made) and made[-1].is_multiplied)
            made = (*made, _Chosen(place, len(choices), is_multiplied))
        return [_PartialCase(done, (*chosen, *always, *rest), seen | {place.key}, types, made) for chosen in choices]

    def _factor(self, place: Place, made: tuple[_Chosen, ...]) -> int:
        """How often each choice of a place is combined with others: those of places beside it, not of those around it."""
        if not made or self._finder.is_coarse:
            return prod(choice.num_options for choice in made)
        outer = set(map(id, place.lineage()))
        return prod(choice.num_options for choice in made if id(choice.place) not in outer)

    def _limit_joined(self, joined: int, pointer: str) -> None:
        """Give up on exact cases where keywords beside one another multiply them.

        Raises:
            TooManyCases: they do.
        """
        if joined > (MAX_JOINED // 20 if self._finder.is_coarse else MAX_JOINED):
            raise TooManyCases(f"too many combinations of cases for one value (at '#{pointer}')")

    def _limit_alternatives(self, count: int, pointer: str) -> None:
        self._document.limits.check("max_alternatives", count, "alternatives for one value", pointer)

    def _leave_out(self, place: Place, keyword: str) -> None:
        """Note a keyword that no case holds."""
        self._missing[id(place.schema), keyword] = place, keyword

    def _leaves_out(self, places: Iterable[Place]) -> bool:
        return self._loosely or self._finder.leaves_out(places)

    def _parts(self, place: Place, factor: int) -> tuple[Place | None, Conjunction, Choice]:
        """What a place says itself, what holds beside it, and the cases that it makes, each to be combined with `factor` others."""
        if place.negated:
            self._finder.has_negated = self._finder.can_be_coarser = True
            return None, (), self._failures(place)
        own: Place | None = place if isinstance(place.schema, NegatedKeyword) or place.has_any(KEYWORDS.own) else None
        always = tuple(self._always(place)) if place.has_any(KEYWORDS.conjunctive) else ()
        if not place.has_any(KEYWORDS.splitting):
            return own, always, [()]
        listing = KEYWORDS.with_roles(place, Role.VALUES)
        if len(listing) > 1:
            return None, self._separated(place, listing), [()]
        choices = self._choices(place)
        if listing and any(isinstance(value, dict | list) for value in values_at(place) or ()):
            others, *cases = self._value_cases(place)
            own = None
            choices.append((listing[0], [(others, case) for case in cases]))
        return own, always, self._combined(place, choices, factor)

    def _combined(self, place: Place, choices: list[tuple[Keyword, Choice]], factor: int) -> Choice:
        """All combinations of the choices of a place; where it is read loosely, some keywords are left out before these are too many."""
        combined: Choice = [()]
        for keyword, options in choices:
            count = len(combined) * len(options)
            is_multiplied = len(options) > 1 and (factor > 1 or len(combined) > 1)
            self._finder.can_be_coarser |= is_multiplied
            if is_multiplied and not self._loosely:
                self._limit_joined(count * len(choices), place.pointer)
            may_leave = keyword.role is Role.BRANCHES and not place.watches_branches
            most = 4 if self._finder.is_coarse else _MAX_MULTIPLIED
            if is_multiplied and self._loosely and may_leave and factor * count > most:
                self._leave_out(place, keyword.name)
                continue
            self._limit_alternatives(count, place.pointer)
            combined = [(*left, *right) for left in combined for right in options]
        return combined

    def _always(self, place: Place) -> Iterator[Place]:
        """The places that hold beside this one: by references, `allOf` and `not`."""
        yield from self._document.referred(place)
        for keyword in KEYWORDS.with_roles(place, Role.ALL, Role.NOT):
            held = _branches(place, keyword, negated=keyword.role is Role.NOT)
            if keyword.role is Role.NOT and self._leaves_out(held):
                self._leave_out(place, keyword.name)
            else:
                yield from held

    def _choices(self, place: Place) -> list[tuple[Keyword, Choice]]:
        """The cases that `anyOf`, `oneOf`, `if` and the dependencies of a place make, each with its keyword."""
        choices: list[tuple[Keyword, Choice]] = []
        for keyword in KEYWORDS.with_roles(place, Role.BRANCHES):
            choices.append((keyword, (self._one_of if keyword.is_exclusive else self._any_of)(place, keyword)))
        for keyword in KEYWORDS.with_roles(place, Role.CONDITION):
            value = place.get(keyword.name)
            denied = (place.beside(value, keyword.name),) if keyword.is_negating else ()
            if self._loosely or keyword.cases is None or (denied and self._leaves_out(denied)):
                self._leave_out(place, keyword.name)
            else:
                choices += [(keyword, choice) for choice in keyword.cases(place, value, self._document.make)]
        return choices

    def _any_of(self, place: Place, keyword: Keyword) -> Choice:
        """Each branch; where it decides what counts as evaluated which ones hold, every set of branches, the largest first."""
        branches = _branches(place, keyword)
        if not place.watches_branches:
            return [(branch,) for branch in branches]
        if len(branches) > _MAX_SUBSETS:
            self._leave_out(place, keyword.name)
            return [(branch,) for branch in branches]
        return list(chain.from_iterable(combinations(branches, size) for size in range(len(branches), 0, -1)))

    def _one_of(self, place: Place, keyword: Keyword) -> Choice:
        """Each branch, and where another may hold with it, the negations of all others."""
        branches = _branches(place, keyword)
        normalized = list(map(self._document.normalize_draft, branches))
        for branch in normalized:
            self._document.check_keywords(branch)
        if len(branches) == 1 or self._finder.are_disjoint(place, normalized):
            return [(branch,) for branch in branches]
        if self._leaves_out(normalized):
            self._leave_out(place, keyword.name)
            return [(branch,) for branch in branches]
        if len(branches) > _MAX_APART:
            raise TooManyCases(
                f"more than {_MAX_APART} branches that may hold together (at '#{place.at(keyword.name)}')"
            )
        others = _branches(place, keyword, negated=True)
        return [(b, *(o for m, o in enumerate(others) if m != n)) for n, b in enumerate(branches)]

    def _failures(self, place: Place) -> Choice:
        """The ways to fail a place, a keyword at a time: negation is pushed inwards, and no automaton complemented."""
        found: Choice = [(referred,) for referred in self._document.referred(place)]
        try:
            if self._leaves_out(()):
                raise NoNegation("not")
            found += self._ways_to_fail(place)
        except NoNegation as problem:
            self._leave_out(place, problem.args[0])
            return [()]
        return found

    def _ways_to_fail(self, place: Place) -> Iterator[Conjunction]:
        """Yield the ways to fail the keywords of a place, references aside.

        Raises:
            NoNegation: one of them cannot be told.
        """
        assert isinstance(place.schema, dict)
        number = 0
        for name, value in place.schema.items():
            for failure in KEYWORDS[name].failures(KEYWORDS[name], place, value) if name in KEYWORDS.enforced else ():
                yield tuple(self._part(place, part, number, n) for n, part in enumerate(failure))
                number += 1

    def _part(self, place: Place, part: Part, number: int, position: int) -> Place:
        """A part of a failure of a place, as a place."""
        if isinstance(part, Place):
            return part
        return place.beside(self._document.make(part, "way", id(place.schema), number, position))

    def _value_cases(self, place: Place) -> tuple[Place, ...]:
        """The place without its listed values, then places for its scalars and for each list and object."""
        known = self._finder.listed.get(id(place.schema))
        if known is not None:
            return known
        assert isinstance(place.schema, dict)
        rest = {key: value for key, value in place.schema.items() if key in KEYWORDS.assertions}
        cases = (
            place._replace(schema=rest, origin=place.schema),
            # `via` is None, as listed values evaluate nothing, though their schemas name properties and items.
            *(place._replace(schema=schema, pointer=at, via=None) for schema, at in schemas_listed(place)),
        )
        parts = chain.from_iterable(map(KEYWORDS.subschemas, cases[1:]))
        for part in (*cases, *parts):  # the report has the keyword that lists them, and not these
            self._document.make(part.schema, "part", id(part.schema))
        self._finder.listed[id(place.schema)] = cases
        return cases

    def _separated(self, place: Place, listing: list[Keyword]) -> tuple[Place, ...]:
        """A place with several keywords that list values, as one with the first of them and all else, and one for each other."""
        assert isinstance(place.schema, dict)
        others = {keyword.name: {keyword.name: place.schema[keyword.name]} for keyword in listing[1:]}
        rest = {key: value for key, value in place.schema.items() if key not in others}
        parts = {"rest": rest, **others}
        return tuple(place.beside(self._document.make(part, name, id(place.schema))) for name, part in parts.items())


def _branches(place: Place, keyword: Keyword, *, negated: bool = False) -> list[Place]:
    """The places of the schemas in a keyword, for the same value."""
    schemas = keyword.shape.schemas(place.get(keyword.name))
    return [place.beside(schema, keyword.name, *tokens, negated=negated) for tokens, schema in schemas]


def _weight(place: Place) -> int:
    """What it costs to join a place to others."""
    is_heavy = (
        place.schema.types != ALL_TYPES if isinstance(place.schema, NegatedKeyword) else place.has_any(KEYWORDS.heavy)
    )
    return _HEAVY_WEIGHT if is_heavy else 1
