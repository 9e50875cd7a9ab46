"""`CaseFinder`: splits the values of a schema into cases, the disjunctive normal form of the keywords that apply schemas to one value. A
case is a conjunction of subschemas (places) that apply no other to the same value. A depth-first search finds them, over the choices of
`anyOf`, `oneOf`, `if`, dependencies, and negations pushed inwards. Above budgets of cases and steps (`TooManyCases`, `TooCostly`),
negations and multiplying keywords are left out of the cases, which then allow too much, and the value is checked.

So only terms of scalars and keys are complemented. The search has an explicit stack and a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod
from typing import Literal, NamedTuple

from fsm.schema.documents.disjoint import are_disjoint
from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Keyword, NoNegation, Part, Role
from fsm.schema.keywords.place import Conjunction, NegatedKeyword, Place
from fsm.schema.keywords.value import schemas_listed, types_at, values_at
from fsm.terms import work

MAX_EXACT = 200  # cases of one value where negations multiply them
MAX_JOINED = 4_000  # the weight of all places in the cases of one value if several keywords multiply them
_MAX_MULTIPLIED = 32  # cases of one value that such keywords make where the rest is left to a check
_MAX_APART = 60  # branches of `oneOf`, each combined with the negations of the others
_HEAVY_WEIGHT = 10  # of a place with a heavy keyword; of others: 1
_STEP_WORK = 3
_FEW_STEPS = 500
MAX_STEPS = 3_000  # of the search for the cases of one value
MAX_SPENT = 6_000  # steps through negated schemas, for all values; each case that they make costs `_CASE_COST` of them
_CASE_COST = 10
_MAX_SMALL = 16  # schemas inside of a negation that counts as small
_MAX_KEPT = 20_000  # cases in the cache
_MAX_SUBSETS = 6  # branches of an `anyOf` of which each subset is a case, as their annotations count

Choice = list[Conjunction]


class _Chosen(NamedTuple):
    """A choice on the way to a case: at which place, of how many options, and whether this or one before multiplied others."""

    place: Place
    num_options: int
    is_multiplied: bool


class _PartialCase(NamedTuple):
    """An incomplete case: the places that are done, those to visit, the keys of visited ones, the remaining types, the choices made."""

    done: Conjunction
    todo: Conjunction
    seen: frozenset[object]
    types: frozenset[str]
    made: tuple[_Chosen, ...]


class TooManyCases(Exception):
    """A value has too many exact cases; looser ones and a check are to be used instead."""


class TooCostly(Exception):
    """Pushing all negations inwards takes too many steps; the document is to be compiled with fewer of them."""


Negations = Literal["all", "small", "none"]
"""Which negations (of `not`, `if`, and of branches of `oneOf` that are not disjoint) are pushed inwards; the others are checked.

`small`: those of schemas that contain at most `_MAX_SMALL` others, and not themselves.
"""


@dataclass(slots=True)
class Cases:
    """The ways to satisfy some places.

    Attributes:
        alternatives: each a conjunction of places that apply no other schema to the same value.
        missing: places and keywords that were left out, so that some alternative allows too much.
        cost: what making terms of them costs, of the budget for negations.
    """

    alternatives: list[Conjunction]
    missing: tuple[tuple[Place, str], ...] = ()
    cost: int = 0

    @property
    def key(self) -> tuple[tuple[tuple[object, ...], ...], ...]:
        """A hashable identity."""
        key = tuple(tuple(place.key for place in places) for places in self.alternatives)
        return (*key, tuple((*place.key, keyword) for place, keyword in self.missing)) if self.missing else key


class CaseFinder:
    """The cases of the places of one document, cached.

    Args:
        document: where the places are.
        negations: which of them are pushed inwards.
        is_coarse: whether to make few cases and leave more to checks, since an exact compilation took too much work.

    Attributes:
        can_be_coarser: whether some cases would be fewer with `is_coarse`.
        has_negated: whether some place was negated.
        listed: for a schema with listed values, by its id, the places that replace it.
    """

    def __init__(self, document: Document, negations: Negations = "all", *, is_coarse: bool = False) -> None:
        self.document, self.is_coarse = document, is_coarse
        self.can_be_coarser = self.has_negated = False
        self._negations = negations
        self._budget: int | None = None if negations == "none" else MAX_SPENT
        self._small: dict[tuple[object, ...], bool] = {}
        self._disjoint: dict[tuple[object, ...], bool] = {}
        self.listed: dict[int, tuple[Place, ...]] = {}
        self._known: dict[tuple[object, ...], Cases | str] = {}
        self._num_kept = 0

    def find(self, places: Conjunction, *, loosely: bool = False) -> Cases:
        """Return the ways to satisfy all places; no alternative: no value does.

        Places without keywords of their own are left out, so that the alternative `()` is any value.

        Args:
            places: a conjunction.
            loosely: where the exact cases are too many: leave out `not`, `if` and dependencies, read `oneOf` as `anyOf`, and leave out an
                `anyOf` that would multiply the cases of others too often.

        Raises:
            SchemaError: a place is malformed, or a reference names nothing, or the same schema again for the same value.
            BudgetExceeded: there are more than `max_alternatives`.
            TooManyCases: the exact cases are too many.
            TooCostly: negations took too many steps.
        """
        if len(places) == 1 and (simple := self._single(places[0])) is not None:
            return simple
        if any(place.via is not None for place in places):  # then the cases depend on more than their keys
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
            self._known[key] = str(reason)  # the exception itself would keep its frames alive
            raise
        if self._num_kept < _MAX_KEPT:
            self._num_kept += len(cases.alternatives)
            self._known[key] = cases
        return cases

    def _single(self, place: Place) -> Cases | None:
        """The only case of a place that applies no other schema to its value, which is common; None for other places."""
        place = self.document.normalize_draft(place)
        schema = place.schema
        if place.negated or not isinstance(schema, dict):
            return None
        applying = KEYWORDS.applying & schema.keys()
        if applying and not (len(applying) == 1 and applying <= KEYWORDS.listing):
            return None
        self.document.check_keywords(place)
        if applying and any(isinstance(value, dict | list) for value in values_at(place) or ()):
            return None
        return Cases([(place,) if place.has_any(KEYWORDS.own) else ()])

    def branches(self, places: Conjunction) -> Conjunction | None:
        """The branches of a single place with nothing but `anyOf`, as each can be compiled by itself; None for other places."""
        place = self.document.normalize_draft(places[0]) if len(places) == 1 else None
        if place is None or place.negated or not place.has_any(KEYWORDS.splitting) or place.watches_branches:
            return None
        assert isinstance(place.schema, dict)
        (name, *others) = place.schema.keys() - KEYWORDS.annotations
        keyword = KEYWORDS.get(name)
        if others or keyword is None or keyword.role is not Role.BRANCHES or keyword.is_exclusive:
            return None
        self.document.check_keywords(place)
        return tuple(map(self.document.dereference, keyword.branches(place)))

    def spend(self, cost: int) -> None:
        """Subtract from the budget for negations.

        Raises:
            TooCostly: it is exhausted.
        """
        if self._budget is not None:
            self._budget -= cost
            if self._budget < 0:
                raise TooCostly

    def disable_budget(self) -> None:
        """Remove the budget for negations: schemas that are compiled later are the same again, for another nesting."""
        self._budget = None

    def leaves_out(self, places: Iterable[Place]) -> bool:
        """Whether the negations of some places are left to a check."""
        return self._negations == "none" or (self._negations == "small" and not all(map(self._is_small, places)))

    def _is_small(self, place: Place) -> bool:
        """Whether a schema contains few others, and not itself: a depth-first search that ends at the first cycle."""
        if place.key in self._small:
            return self._small[place.key]
        path, seen = set[tuple[object, ...]](), set[tuple[object, ...]]()
        stack: list[tuple[Place, bool]] = [(place, True)]
        is_small = True
        while stack and is_small:
            one, is_new = stack.pop()
            key = (id(one.schema), one.scope)
            if not is_new:
                path.remove(key)
            elif key in path:
                is_small = False
            elif key not in seen and not isinstance(one.schema, bool):
                path.add(key)
                seen.add(key)
                is_small = len(seen) <= _MAX_SMALL
                if is_small:
                    normalized = self.document.normalize_draft(one)
                    below = chain(KEYWORDS.subschemas(normalized), self.document.referred(normalized))
                    stack += [(one, False), *((inner._replace(via=None), True) for inner in below)]
        self._small[place.key] = is_small
        return is_small

    def are_disjoint(self, place: Place, branches: list[Place]) -> bool:
        """`disjoint.are_disjoint`, cached by the place and those that applied it, as values that share a schema need it again."""
        key = tuple(outer.key for outer in place.holding())
        if key not in self._disjoint:
            self._disjoint[key] = are_disjoint(place, branches, self.document)
        return self._disjoint[key]


class _Search:
    """One search for the ways to satisfy some places; for the parameters see `CaseFinder.find`."""

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
            if case.types and case.todo:
                stack.extend(reversed(self._extended(case)))
            elif case.types:
                self._finish(case, len(stack))
        cost = _CASE_COST * len(self._found) if self._num_negated else 0
        return Cases(list(self._found.values()), tuple(self._missing.values()), cost)

    def _count_step(self, num_open: int) -> None:
        """Count a step; raise `TooManyCases` if negations multiply the cases too often (others are bounded by the limits only)."""
        self._num_steps += 1
        work.add(_STEP_WORK)
        work.check()
        is_many = self._num_steps > _FEW_STEPS and len(self._found) + num_open > MAX_EXACT
        if (is_many or self._num_steps > MAX_STEPS) and not self._loosely and self._finder.has_negated:
            raise TooManyCases(f"more than {MAX_EXACT} cases for one value (at '#{self._pointer}')")

    def _finish(self, case: _PartialCase, num_open: int) -> None:
        """Add a complete case."""
        self._found.setdefault(tuple(p.key for p in case.done), case.done)
        count = len(self._found) + num_open
        self._document.limits.check("max_alternatives", count, "alternatives for one value", self._pointer)
        if case.made and case.made[-1].is_multiplied:
            self._joined += sum(map(_weight, case.done))
        self._limit_joined(self._joined, self._pointer)

    def _extended(self, case: _PartialCase) -> list[_PartialCase]:
        """The cases that result from visiting the next place of one."""
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
        """How often each choice of a place is combined with others: with those of other places, but not of those that applied it."""
        if not made or self._finder.is_coarse:
            return prod(choice.num_options for choice in made)
        outer = set(map(id, place.lineage()))
        return prod(choice.num_options for choice in made if id(choice.place) not in outer)

    def _limit_joined(self, joined: int, pointer: str) -> None:
        """Raise `TooManyCases` if several keywords multiply the exact cases too often."""
        if not self._loosely and joined > (MAX_JOINED // 20 if self._finder.is_coarse else MAX_JOINED):
            raise TooManyCases(f"too many combinations of cases for one value (at '#{pointer}')")

    def _leave_out(self, place: Place, keyword: str) -> None:
        """Note a keyword that no case enforces."""
        self._missing[id(place.schema), keyword] = place, keyword

    def _parts(self, place: Place, factor: int) -> tuple[Place | None, Conjunction, Choice]:
        """The place if it constrains the value itself, the places that hold in every case, and the choices, each for `factor` others."""
        if place.negated:
            self._finder.has_negated = self._finder.can_be_coarser = True
            return None, (), self._failures(place)
        own: Place | None = place if isinstance(place.schema, NegatedKeyword) or place.has_any(KEYWORDS.own) else None
        if not place.has_any(KEYWORDS.splitting):
            return own, tuple(self._always(place)), [()]
        listing = KEYWORDS.with_roles(place, Role.VALUES)
        if len(listing) > 1:
            return None, self._separated(place, listing), [()]
        always, choices = tuple(self._always(place)), self._choices(place)
        if listing and any(isinstance(value, dict | list) for value in values_at(place) or ()):
            others, *cases = self._value_cases(place)
            own = None
            choices.append((listing[0], [(others, case) for case in cases]))
        return own, always, self._combined(place, choices, factor)

    def _combined(self, place: Place, choices: list[tuple[Keyword, Choice]], factor: int) -> Choice:
        """All combinations of the choices of a place; in a loose search, without some keywords where these are too many."""
        combined: Choice = [()]
        most = 4 if self._finder.is_coarse else _MAX_MULTIPLIED
        for keyword, options in choices:
            count = len(combined) * len(options)
            is_multiplied = len(options) > 1 and (factor > 1 or len(combined) > 1)
            self._finder.can_be_coarser |= is_multiplied
            if is_multiplied:
                self._limit_joined(count * len(choices), place.pointer)
            may_leave = self._loosely and keyword.role is Role.BRANCHES and not place.watches_branches
            if is_multiplied and may_leave and factor * count > most:
                self._leave_out(place, keyword.name)
                continue
            self._document.limits.check("max_alternatives", count, "alternatives for one value", place.pointer)
            combined = [(*left, *right) for left in combined for right in options]
        return combined

    def _always(self, place: Place) -> Iterator[Place]:
        """Yield the places that hold in every case: by references, `allOf` and `not`."""
        if not place.has_any(KEYWORDS.conjunctive):
            return
        yield from self._document.referred(place)
        for keyword in KEYWORDS.with_roles(place, Role.ALL, Role.NOT):
            applied = keyword.branches(place, negated=keyword.role is Role.NOT)
            if keyword.role is Role.NOT and (self._loosely or self._finder.leaves_out(applied)):
                self._leave_out(place, keyword.name)
            else:
                yield from applied

    def _choices(self, place: Place) -> list[tuple[Keyword, Choice]]:
        """The choices that `anyOf`, `oneOf`, `if` and the dependencies of a place make, each with its keyword."""
        choices: list[tuple[Keyword, Choice]] = []
        for keyword in KEYWORDS.with_roles(place, Role.BRANCHES):
            choices.append((keyword, (self._one_of if keyword.is_exclusive else self._any_of)(place, keyword)))
        for keyword in KEYWORDS.with_roles(place, Role.CONDITION):
            value = place.get(keyword.name)
            denied = (place.beside(value, keyword.name),) if keyword.is_negating else ()
            if self._loosely or keyword.cases is None or (denied and self._finder.leaves_out(denied)):
                self._leave_out(place, keyword.name)
            else:
                choices += [(keyword, choice) for choice in keyword.cases(place, value, self._document.make)]
        return choices

    def _any_of(self, place: Place, keyword: Keyword) -> Choice:
        """Each branch; every set of branches, the largest first, where it matters which of them evaluate parts of the value."""
        branches = keyword.branches(place)
        if place.watches_branches and len(branches) <= _MAX_SUBSETS:
            return list(chain.from_iterable(combinations(branches, size) for size in range(len(branches), 0, -1)))
        if place.watches_branches:
            self._leave_out(place, keyword.name)
        return [(branch,) for branch in branches]

    def _one_of(self, place: Place, keyword: Keyword) -> Choice:
        """Each branch, with the negations of all others unless the branches are disjoint."""
        branches = keyword.branches(place)
        normalized = list(map(self._document.normalize_draft, branches))
        for branch in normalized:
            self._document.check_keywords(branch)
        is_disjoint = len(branches) == 1 or self._finder.are_disjoint(place, normalized)
        if is_disjoint or self._loosely or self._finder.leaves_out(normalized):
            if not is_disjoint:
                self._leave_out(place, keyword.name)
            return [(branch,) for branch in branches]
        if len(branches) > _MAX_APART:
            at = place.at(keyword.name)
            raise TooManyCases(f"more than {_MAX_APART} branches that one value may satisfy together (at '#{at}')")
        others = keyword.branches(place, negated=True)
        return [(b, *(o for m, o in enumerate(others) if m != n)) for n, b in enumerate(branches)]

    def _failures(self, place: Place) -> Choice:
        """The ways to fail a place, a keyword at a time: negation is pushed inwards, and no automaton complemented."""
        found: Choice = [(referred,) for referred in self._document.referred(place)]
        try:
            if self._loosely or self._finder.leaves_out(()):
                raise NoNegation("not")
            return found + list(self._ways_to_fail(place))
        except NoNegation as problem:
            self._leave_out(place, problem.args[0])
            return [()]

    def _ways_to_fail(self, place: Place) -> Iterator[Conjunction]:
        """Yield the ways to fail the keywords of a place, except references; raise `NoNegation` if one cannot be negated."""
        assert isinstance(place.schema, dict)
        enforced = (KEYWORDS[name] for name in place.schema if name in KEYWORDS.enforced)
        failures = (keyword.failures(keyword, place, place.get(keyword.name)) for keyword in enforced)

        def as_place(part: Part, *position: int) -> Place:
            if isinstance(part, Place):
                return part
            return place.beside(self._document.make(part, "way", id(place.schema), *position))

        for number, failure in enumerate(chain.from_iterable(failures)):
            yield tuple(as_place(part, number, n) for n, part in enumerate(failure))

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


def _weight(place: Place) -> int:
    """What it costs to combine a place with others."""
    if isinstance(place.schema, NegatedKeyword):
        return _HEAVY_WEIGHT if place.schema.types != ALL_TYPES else 1
    return _HEAVY_WEIGHT if place.has_any(KEYWORDS.heavy) else 1
