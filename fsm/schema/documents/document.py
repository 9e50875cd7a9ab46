"""A schema document: check keywords, resolve references, and split the values of a schema into cases (a disjunctive normal form).

A case is a list of places that hold together and apply no other schema to the value. Negation is pushed inwards, keyword by keyword, as
in a negation normal form, so that no automaton is complemented but those of patterns, formats and keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import prod
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import read_loosely
from fsm.schema.documents.disjoint import are_disjoint, around
from fsm.schema.documents.older_word import allows_any_type, in_latest_words
from fsm.schema.formats.table import is_known_format, known_formats
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, NoNegation, Role, Way
from fsm.schema.keywords.misspelling import meant_by
from fsm.schema.keywords.value import pointer_to, schema_of, types_at, values_at
from fsm.schema.places.dialect import DRAFT_3, LATEST, Dialect, dialect_named, dialect_of, is_known
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.schema.places.resource import Resources
from fsm.schema.places.schema_document import AnySchema
from fsm.schema.places.shape import JSON_TYPES, Schema, check_schema, check_text, shorten
from fsm.terms import work_budget as work
from fsm.terms.node import Check

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


class _Way(NamedTuple):
    """A case in the making: the places that are done, those to come, what was seen, the types that are left, and the choices made."""

    done: Conjunction
    todo: Conjunction
    seen: frozenset[object]
    types: frozenset[str]
    made: tuple[_Chosen, ...]


def _weight(place: Place) -> int:
    """What it costs to join a place to others."""
    is_heavy = (
        place.schema.types != ALL_TYPES if isinstance(place.schema, NegatedKeyword) else place.says(KEYWORDS.heavy)
    )
    return _HEAVY_WEIGHT if is_heavy else 1


Missing = dict[tuple[int, str], tuple[Place, str]]
"""Keywords that were left out, each with its place."""


class TooManyCases(Exception):
    """The exact cases of a value are not worth their number; the loose ones and a check say the same."""


class TooCostly(Exception):
    """Working out what all negations leave takes too long; the document is to be read with fewer of them."""


Negations = Literal["all", "small", "none"]
"""Which negations (of `not`, `if`, and of branches of `oneOf` that may hold together) are worked out; the others are checked.

`small`: those of schemas that lead to at most `_MAX_SMALL` others, and not back to themselves.
"""


def _is_watched(place: Place) -> bool:
    """Whether it counts which branches of a place hold, for an `unevaluated...` keyword."""
    return place.is_watched or place.is_watching


@dataclass(frozen=True, slots=True)
class Cases:
    """The ways to satisfy some places.

    Attributes:
        alternatives: each a list of places that hold together and apply no other schema to the same value any more.
        missing: places and keywords that were left out, so that some alternative allows too much.
        cost: what making terms of them costs, of what may be spent on negations.
        key: what tells them from other cases.
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


@dataclass(frozen=True, slots=True)
class Remark:
    """What there is to say of a keyword that was not taken at its word.

    Attributes:
        keyword: its name.
        text: what became of it.
        is_suspect: whether it may not be what its author meant; then it is an error with `strict=True`.
    """

    keyword: str
    text: str
    is_suspect: bool = True


class Document:
    """One schema with everything that its references can reach.

    Args:
        root: the schema.
        limits: bounds of compiling.
        registry: schemas by URI.
        asserts_format: whether `format` can reject a value.
        validators: checks by the names that the keywords of Python types give them.
        negations: which of them are worked out.
        is_coarse: whether to make few cases and leave more to checks, where everything together was too much.
        dialect: the name of the one in which the root is written; None: it says so itself.
        is_strict: whether a keyword that looks misspelt, an unknown format and the like are errors.

    Attributes:
        can_be_coarser: whether something was met that costs less then.
    """

    def __init__(
        self,
        root: Schema,
        limits: Limits,
        registry: Mapping[str, Any] | None = None,
        *,
        asserts_format: bool = True,
        validators: Mapping[str, Check] | None = None,
        negations: Negations = "all",
        is_coarse: bool = False,
        dialect: str | None = None,
        is_strict: bool = False,
    ) -> None:
        self.schema, self.root = root, Place(root, "")
        self.limits, self.asserts_format = limits, asserts_format
        self.dialect = dialect_of(root, LATEST, "") if dialect is None else dialect_named(dialect)
        self.keywords: dict[str, str] = {}
        self.remarks: dict[str, Remark] = {}
        self._is_strict = is_strict
        self.is_dynamic = False
        self._has_negated = False
        self._negations = negations
        self.is_coarse = is_coarse
        self.can_be_coarser = False
        self._left: int | None = None if negations == "none" else MAX_SPENT
        self._small: dict[tuple[object, ...], bool] = {}
        self._known_cases: dict[tuple[object, ...], Cases | str] = {}
        self._num_kept = 0
        self.registry = dict(registry or {})
        self.validators = dict(validators or {})
        self._resources: Resources | None = None
        self._visited: set[int] = set()
        self._normalized: dict[int, Schema] = {}
        self._made: dict[tuple[object, ...], Any] = {}
        self._kept: list[Schema] = []
        base = root.get(self.dialect.identifier) if isinstance(root, dict) else None
        self._base = base.rstrip("#") if isinstance(base, str) else None
        if dialect is None:
            self._remark_dialect()

    @property
    def resources(self) -> Resources:
        """What references lead to outside the root's own pointers; made when first needed."""
        if self._resources is None:
            self._resources = Resources(self.schema, self.registry, self.dialect)
        return self._resources

    def cases(self, places: Conjunction, *, loosely: bool = False) -> Cases:
        """The ways to satisfy all places.

        Places without keywords of their own are left out, so that `()` means any value; no alternative at all: no value.

        Args:
            places: what holds together.
            loosely: leave out `not`, read `oneOf` and `if` as `anyOf`, and leave out an `anyOf` that would multiply the cases of others
                too often, where the exact cases would be too many.

        Raises:
            SchemaError: a place is malformed, or a reference leads nowhere, or back to itself for the same value.
            BudgetExceeded: there are more than `max_alternatives`.
        """
        if len(places) == 1 and (simple := self._single(places[0])) is not None:
            return simple
        key = None
        if all(place.via is None for place in places):  # then nothing counts but what they say themselves
            key = (loosely, *(place.key for place in places))
            known = self._known_cases.get(key)
            if isinstance(known, str):
                raise TooManyCases(known)
            if known is not None:
                return known
        try:
            cases = self._find_cases(places, loosely)
        except TooManyCases as reason:
            if key is not None:
                self._known_cases[key] = str(reason)  # the exception would keep the frames that it came through
            raise
        if key is not None and self._num_kept < _MAX_KEPT:
            self._num_kept += len(cases.alternatives)
            self._known_cases[key] = cases
        return cases

    def behind(self, places: Conjunction) -> Conjunction:
        """Replace the places that are only a reference by what they refer to, so that equal questions have equal keys."""
        return tuple(self._behind(place) if place.via is None and not place.negated else place for place in places)

    def _behind(self, place: Place) -> Place:
        while place.has("$ref"):
            normalized = self.normalize_draft(place)
            if not isinstance(normalized.schema, dict) or not normalized.schema.keys() <= KEYWORDS.alone["$ref"]:
                break
            self._visit(normalized)
            place = self.resolve(normalized, "$ref")
        return place if place.via is None else place._replace(via=None)

    def _find_cases(self, places: Conjunction, loosely: bool) -> Cases:
        found: dict[tuple[object, ...], Conjunction] = {}
        missing: Missing = {}
        most = frozenset(JSON_TYPES)
        stack = [_Way((), places, frozenset(), most, ())]
        steps = num_negated = joined = 0
        while stack:
            done, todo, seen, types, made = stack.pop()
            steps += 1
            work.add(_STEP_WORK)
            work.check()
            is_many = steps > MAX_STEPS or (steps > _FEW_STEPS and len(found) + len(stack) > MAX_EXACT)
            if not loosely and is_many:
                self._limit_exact(places)
            if not types:
                continue
            if not todo:
                found.setdefault(tuple(p.key for p in done), done)
                self._limit_alternatives(len(found) + len(stack), places)
                joined += sum(map(_weight, done)) if made and made[-1].is_multiplied else 0
                if not loosely:
                    self._limit_joined(joined, places)
                continue
            place, rest = self.normalize_draft(todo[0]), todo[1:]
            if isinstance(place.schema, bool):
                if place.schema != place.negated:
                    stack.append(_Way(done, rest, seen, types, made))
                continue
            if place.key in seen and not place.is_watched:
                stack.append(_Way(done, rest, seen, types, made))
                continue
            self._visit(place)
            if place.negated:
                num_negated += 1
                self.spend(1)
            seen |= {place.key}
            factor = self._factor(place, made)
            own, always, choices = self._parts(place, loosely, missing, factor)
            if own is not None:
                done, types = (*done, own), types & types_at(own)
            always = (*always, *rest)
            if choices is None:
                stack.append(_Way(done, always, seen, types, made))
                continue
            if len(choices) > 1:
                self.can_be_coarser |= bool(made)
                is_multiplied = factor > 1 or (bool(made) and made[-1].is_multiplied)
                made = (*made, _Chosen(place, len(choices), is_multiplied))
            stack.extend(_Way(done, (*chosen, *always), seen, types, made) for chosen in reversed(choices))
        return Cases(list(found.values()), tuple(missing.values()), _CASE_COST * len(found) if num_negated else 0)

    def _factor(self, place: Place, made: tuple[_Chosen, ...]) -> int:
        """How often each choice of a place is combined with others: those of places beside it, not of those around it."""
        if not made:
            return 1
        if self.is_coarse:
            return prod(choice.num_options for choice in made)
        outer = set[int]()
        around: Place | None = place
        while around is not None:
            outer.add(id(around))
            around = around.via
        return prod(choice.num_options for choice in made if id(choice.place) not in outer)

    def _limit_joined(self, joined: int, places: Conjunction) -> None:
        """Give up on exact cases where keywords beside one another multiply them.

        Raises:
            TooManyCases: they do.
        """
        if joined > (MAX_JOINED // 20 if self.is_coarse else MAX_JOINED):
            pointer = places[0].pointer if places else ""
            raise TooManyCases(f"too many combinations of cases for one value (at '#{pointer}')")

    def _is_too_often(self, count: int) -> bool:
        """Whether so many combinations are more than are made where the exact ones would be too many."""
        return count > (4 if self.is_coarse else _MAX_MULTIPLIED)

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

    def _leaves_out(self, places: Iterable[Place], loosely: bool) -> bool:
        """Whether the negations of some places are left to a check."""
        if loosely or self._negations == "none":
            return True
        return self._negations == "small" and not all(map(self._is_small, places))

    def _is_small(self, place: Place) -> bool:
        """True where a negation of the place leads to few other schemas, and not back to one that it came from."""
        known = self._small.get(place.key)
        if known is None:
            known = self._small[place.key] = self._is_really_small(place)
        return known

    def _is_really_small(self, place: Place) -> bool:
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
            normalized = self.normalize_draft(one)
            stack += [(below, True) for below in KEYWORDS.subschemas(normalized)]
            for keyword in KEYWORDS.references:
                if normalized.has(keyword):
                    stack.append((self.resolve(normalized, keyword)._replace(via=None), True))
        return True

    def _limit_exact(self, places: Conjunction) -> None:
        """Give up on exact cases where negations multiply them; plain alternatives may be as many as the limits say."""
        if self._has_negated:
            pointer = places[0].pointer if places else ""
            raise TooManyCases(f"more than {MAX_EXACT} cases for one value (at '#{pointer}')")

    def branches(self, places: Conjunction) -> list[Place] | None:
        """The branches of a place that says nothing but `anyOf`: each can be compiled for itself."""
        if len(places) != 1:
            return None
        place = self.normalize_draft(places[0])
        schema = place.schema
        if place.negated or place.is_watched or not isinstance(schema, dict) or "anyOf" not in schema:
            return None
        if not schema.keys() <= KEYWORDS.alone["anyOf"]:
            return None
        self._visit(place)
        return [self._behind(branch) for branch in self._branches(place, "anyOf")]  # `anyOf` alone says no more of them

    def _single(self, place: Place) -> Cases | None:
        """The one case of a place that applies no other schema to its value; the most common of all."""
        place = self.normalize_draft(place)
        schema = place.schema
        if place.negated or not isinstance(schema, dict) or not KEYWORDS.apart.isdisjoint(schema):
            return None
        self._visit(place)
        return Cases([(place,) if place.says(KEYWORDS.own) else ()])

    def _limit_alternatives(self, count: int, places: Conjunction) -> None:
        pointer = places[0].pointer if places else ""
        self.limits.check("max_alternatives", count, "alternatives for one value", pointer)

    def normalize_draft(self, place: Place) -> Place:
        """The place with the keywords of draft 2020-12, in the scope of its own resource if it begins one."""
        schema = place.schema
        if not isinstance(schema, dict):
            if not isinstance(schema, NegatedKeyword):
                check_schema(schema, place.pointer)
            return place
        known, scope = self._normalized.get(id(schema)), place.scope
        if scope is None and schema is not self.schema and isinstance(schema.get(self.dialect.identifier), str):
            scope = self.resources.scope()
        if known is not None and scope is None:
            return place if known is schema else place._replace(schema=known)
        dialect = self.dialect
        if scope is not None:
            scope = self.resources.inside(schema, scope)
            dialect = scope.dialect
        if known is None:
            known = self._without_unknown_format(in_latest_words(schema, dialect), place)
            if known is not schema:
                self._remark_older_words(place, dialect)
            self._normalized[id(schema)] = self._normalized[id(known)] = known
            self._kept += (schema, known)
        return place if known is schema and scope is place.scope else place._replace(schema=known, scope=scope)

    def _without_unknown_format(self, schema: Schema, place: Place) -> Schema:
        """The same without a `format` that rejects nothing here."""
        name = schema.get("format") if isinstance(schema, dict) else None
        if (
            not isinstance(schema, dict)
            or not isinstance(name, str)
            or not self.asserts_format
            or is_known_format(name)
        ):
            return schema
        self._remark(
            place, "format", f"the format {shorten(name)} is not known, so that any text passes. {known_formats(name)}"
        )
        return {key: value for key, value in schema.items() if key != "format"}

    def _remark_dialect(self) -> None:
        """Tell of a metaschema that is not known, and read it where the registry has it.

        Raises:
            SchemaError: it leaves out keywords of the standard, which then reject nothing.
        """
        name = self.root.get("$schema")
        if not isinstance(name, str) or is_known(name):
            return
        given = self.registry.get(name.removesuffix("#"))
        if isinstance(given, dict):
            self.dialect = dialect_of(given, self.dialect, "")
            words = given.get("$vocabulary")
            if isinstance(words, dict) and not any(uri.endswith("/vocab/validation") for uri in words):
                text = f"the metaschema {shorten(name)} leaves out vocabularies of the standard, which is not supported"
                raise SchemaError(f"{text}. Name a draft in `$schema`", "/$schema")
        else:
            text = f"the metaschema {shorten(name)} is not known; the schema is read as one of {self.dialect.name}"
            self._remark(self.root, "$schema", f"{text}. Say which draft it is: `dialect={self.dialect.name!r}`")

    def _remark_older_words(self, place: Place, dialect: Dialect) -> None:
        """Tell of words that could be read in one way alone, but that are no good words of the dialect."""
        assert isinstance(place.schema, dict)
        if dialect is not DRAFT_3 and allows_any_type(place.schema):
            self._remark(
                place, "type", "'any' is no type since draft 4; it is read as values of any type. Leave `type` out"
            )
        if place.schema.get("required") is True and not place.pointer.rpartition("/")[0].endswith("/properties"):
            self._remark(
                place, "required", "`required: true` stands outside of `properties`, where it says nothing. Remove it"
            )

    def _remark(self, place: Place, keyword: str, text: str, *, is_suspect: bool = True) -> None:
        """Keep what is to be said of a keyword for the report.

        Raises:
            SchemaError: it is suspect, and the caller is strict.
        """
        pointer = place.at(keyword)
        if is_suspect and self._is_strict:
            raise SchemaError(text, pointer)
        self.remarks[pointer] = Remark(keyword, text, is_suspect)

    def read(self, place: Place) -> None:
        """Check the keywords of a place and write them into the report, once.

        Raises:
            SchemaError: a keyword is malformed, or unknown.
        """
        self._visit(self.normalize_draft(place))

    def make(self, schema: AnySchema, *key: object) -> AnySchema:
        """A schema of our own that stays the same object each time it is asked for."""
        made: AnySchema = self._made.setdefault(key, schema)
        if isinstance(made, dict):
            self._normalized[id(made)] = made
            self._visited.add(id(made))
        return made

    def _parts(
        self, place: Place, loosely: bool, missing: Missing, factor: int
    ) -> tuple[Place | None, Conjunction, Choice | None]:
        """What a place says itself, what holds beside it, and the cases that it makes, each to be combined with `factor` others."""
        if place.negated:
            self._has_negated = self.can_be_coarser = True
            return None, (), self._failures(place, loosely, missing)
        if place.has("enum") and place.has("const"):
            return None, self._parted(place), None
        own: Place | None = place if isinstance(place.schema, NegatedKeyword) or place.says(KEYWORDS.own) else None
        always = self._always(place, loosely, missing) if place.says(KEYWORDS.always) else ()
        if not place.says(KEYWORDS.splitting):
            return own, always, None
        choices = self._choices(place, loosely, missing)
        if own is not None and any(isinstance(value, dict | list) for value in values_at(place) or ()):
            cases = self._value_cases(place)
            own = None
            choices.append(("enum", [(case, cases[0]) for case in cases[1:]]))
        if not choices:
            return own, always, None
        return own, always, self._combined(place, choices, loosely, missing, factor)

    def _combined(
        self, place: Place, choices: list[tuple[str, Choice]], loosely: bool, missing: Missing, factor: int
    ) -> Choice:
        """All combinations of the choices of a place; where it is read loosely, some keywords are left out before these are too many."""
        combined: list[Conjunction] = [()]
        for keyword, options in choices:
            count = len(combined) * len(options)
            is_multiplied = len(options) > 1 and (factor > 1 or len(combined) > 1)
            self.can_be_coarser |= is_multiplied
            if is_multiplied and not loosely:
                self._limit_joined(count * len(choices), (place,))
            may_leave = KEYWORDS[keyword].role is Role.BRANCHES and not _is_watched(place)
            if is_multiplied and loosely and may_leave and self._is_too_often(factor * count):
                missing[id(place.schema), keyword] = place, keyword
                continue
            self._limit_alternatives(count, (place,))
            combined = [(*left, *right) for left in combined for right in options]
        return combined

    def _always(self, place: Place, loosely: bool, missing: Missing) -> Conjunction:
        """The places that hold beside this one: by references, `allOf` and `not`."""
        found: list[Place] = []
        for keyword in KEYWORDS.references:
            if place.has(keyword):
                found.append(self.resolve(place, keyword))
        for position, schema in enumerate(place.get("allOf") or ()):
            found.append(place.beside(schema, "allOf", position))
        if place.has("not"):
            denied = place.beside(place.get("not"), "not", negated=True)
            if self._leaves_out((denied,), loosely):
                missing[id(place.schema), "not"] = place, "not"
            else:
                found.append(denied)
        return tuple(found)

    def _choices(self, place: Place, loosely: bool, missing: Missing) -> list[tuple[str, Choice]]:
        """The cases that `anyOf`, `oneOf`, `if` and the dependencies of a place make, each with its keyword."""
        choices: list[tuple[str, Choice]] = []
        if place.has("anyOf"):
            branches = self._branches(place, "anyOf")
            options: Choice = [(branch,) for branch in branches]
            choices.append(("anyOf", self._subsets(place, branches, missing) if _is_watched(place) else options))
        if place.has("oneOf"):
            choices.append(("oneOf", self._one_of(place, loosely, missing)))
        for keyword in KEYWORDS.conditions:
            if place.has(keyword.name):
                value = place.get(keyword.name)
                denied = (place.beside(value, keyword.name),) if keyword.is_negating else ()
                if loosely or keyword.cases is None or (denied and self._leaves_out(denied, loosely)):
                    missing[id(place.schema), keyword.name] = place, keyword.name
                else:
                    choices += [(keyword.name, choice) for choice in keyword.cases(place, value, self.make)]
        return choices

    def _branches(self, place: Place, keyword: str) -> list[Place]:
        return [place.beside(schema, keyword, n) for n, schema in enumerate(place.get(keyword))]

    def _subsets(self, place: Place, branches: list[Place], missing: Missing) -> Choice:
        """Every set of branches, the largest first: which ones hold decides what counts as evaluated."""
        if len(branches) > _MAX_SUBSETS:
            missing[id(place.schema), "anyOf"] = place, "anyOf"
            return [(branch,) for branch in branches]
        sizes = range(len(branches), 0, -1)
        return list(chain.from_iterable(combinations(branches, size) for size in sizes))

    def _one_of(self, place: Place, loosely: bool, missing: Missing) -> Choice:
        branches = self._branches(place, "oneOf")
        normalized = [self.normalize_draft(branch) for branch in branches]
        for branch in normalized:
            self._visit(branch)
        if len(branches) == 1 or self._are_disjoint(place, normalized):
            return [(branch,) for branch in branches]
        if self._leaves_out(normalized, loosely):
            missing[id(place.schema), "oneOf"] = place, "oneOf"
            return [(branch,) for branch in branches]
        if len(branches) > _MAX_APART:
            raise TooManyCases(f"more than {_MAX_APART} branches that may hold together (at '#{place.at('oneOf')}')")
        others = [place.beside(b.schema, "oneOf", n, negated=True) for n, b in enumerate(branches)]
        return [(b, *(o for m, o in enumerate(others) if m != n)) for n, b in enumerate(branches)]

    def _are_disjoint(self, place: Place, branches: list[Place]) -> bool:
        """Asked once for each place and those around it, as values that share a schema ask again and again."""
        key = ("disjoint", *(outer.key for outer in around(place)))
        if key not in self._made:
            self._made[key] = are_disjoint(place, branches, self)
        return bool(self._made[key])

    def _failures(self, place: Place, loosely: bool, missing: Missing) -> Choice:
        """The ways to fail a place."""
        assert isinstance(place.schema, dict)
        found: Choice = []
        for keyword in KEYWORDS.references:
            if place.has(keyword):
                found.append((self.resolve(place, keyword),))
        try:
            if loosely or self._negations == "none":
                raise NoNegation("not")
            for position, way in enumerate(self._ways_to_fail(place)):
                parts = []
                for n, part in enumerate(way):
                    if not isinstance(part, Place):
                        schema = self.make(part, "way", id(place.schema), position, n)
                        part = place.beside(schema)
                    parts.append(part)
                found.append(tuple(parts))
        except NoNegation as problem:
            missing[id(place.schema), problem.args[0]] = place, problem.args[0]
            return [()]
        return found

    def _ways_to_fail(self, place: Place) -> Iterator[Way]:
        """Yield the ways to fail a place, a keyword at a time: negation is pushed inwards, and no automaton complemented.

        Raises:
            NoNegation: a way cannot be told.
        """
        assert isinstance(place.schema, dict)
        for name, value in place.schema.items():
            keyword = KEYWORDS.get(name)
            if keyword is not None and name in KEYWORDS.enforced and (self.asserts_format or not keyword.is_optional):
                yield from keyword.failures(keyword, place, value)

    def _value_cases(self, place: Place) -> tuple[Place, ...]:
        """The place without its listed values, then a place for its scalars and one for each list and object."""
        known: tuple[Place, ...] | None = self._made.get(("values", id(place.schema)))
        if known is not None:
            return known
        assert isinstance(place.schema, dict)
        values = values_at(place) or []
        rest = {k: v for k, v in place.schema.items() if k in KEYWORDS.own - KEYWORDS.apart}
        scalars = [value for value in values if not isinstance(value, dict | list)]
        schemas: list[tuple[dict[str, Any], str]] = [(rest, place.pointer)]
        if scalars:
            schemas.append(({"enum": scalars}, place.pointer))
        for position, value in enumerate(values):
            if isinstance(value, dict | list):
                at = pointer_to(place, position)
                schemas.append((schema_of(value, at), at))
        (others, at), *listed = schemas
        # What is listed evaluates nothing, though the schema that stands for it names properties and items.
        cases = (
            place._replace(schema=others, origin=place.schema),
            *(place._replace(schema=schema, pointer=at, via=None) for schema, at in listed),
        )
        for case in cases:  # they say what the report says of `enum` and `const` already
            parts = (*(case.get("properties") or {}).values(), *(case.get("prefixItems") or ()))
            for part in (case.schema, *parts):
                self.make(part, "part", id(part))
        self._made["values", id(place.schema)] = cases
        return cases

    def _parted(self, place: Place) -> tuple[Place, ...]:
        """A place that has both `enum` and `const`, as one without `const` and one with nothing else."""
        assert isinstance(place.schema, dict)
        rest = self.make({k: v for k, v in place.schema.items() if k != "const"}, "rest", id(place.schema))
        only = self.make({"const": place.schema["const"]}, "const", id(place.schema))
        return place.beside(rest), place.beside(only)

    def follow(self, place: Place) -> Place:
        """The normalized place that `$ref` of `place` names."""
        return self.normalize_draft(self.resolve(place, "$ref"))

    def resolve(self, place: Place, keyword: str) -> Place:
        """The place that a reference of `place` names.

        Raises:
            SchemaError: it names nothing that is known, or a place that refers back here without reading anything.
        """
        reference, pointer = place.get(keyword), place.at(keyword)
        check_text(reference, pointer)
        found = self._find(place, keyword, reference, pointer)
        check_schema(found.schema, found.pointer)
        if place.leads_back_to(self.normalize_draft(found).schema, found.scope):
            raise SchemaError(
                f"reference {shorten(reference)} leads back to itself without content, so that it says nothing. "
                "Put the reference inside `properties` or `items`, or remove it",
                pointer,
            )
        self._visit(self.normalize_draft(found))
        self.limits.check("max_depth", found.depth, "references one behind the other", pointer)
        return found

    def _find(self, place: Place, keyword: str, reference: str, pointer: str) -> Place:
        if keyword == "$ref" and place.scope is None:
            found = self._in_root(reference, pointer)
            if found is not None:
                return place.elsewhere(*found, None)
        scope = place.scope or self.resources.scope()
        if keyword == "$ref":
            schema, inner = self.resources.find(reference, scope, pointer)
        else:
            self.is_dynamic = True
            if keyword == "$recursiveRef":
                schema, inner = self.resources.recursive(scope, pointer)
            else:
                schema, inner = self.resources.find(reference, scope, pointer, is_dynamic=True)
        at = reference if inner.uri == self.resources.uri else f"{inner.uri}#{reference.partition('#')[2]}"
        return place.elsewhere(schema, at.removeprefix("#"), inner)

    def _in_root(self, reference: str, pointer: str) -> tuple[Schema, str] | None:
        """The schema at a pointer into the root, without a look at resources; None where there may be more to it."""
        base, _, fragment = reference.partition("#")
        if (base and base != self._base) or (fragment and not fragment.startswith("/")):
            return None
        node: Any = self.schema
        for token in unquote(fragment).split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
                if isinstance(node, dict) and isinstance(node.get(self.dialect.identifier), str):
                    return None
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node, unquote(fragment)

    def _visit(self, place: Place) -> None:
        """Check the keywords of a place and write them into the report, once."""
        schema = place.schema
        if id(schema) in self._visited or not isinstance(schema, dict):
            return
        self._visited.add(id(schema))
        start = place.pointer + "/"
        for keyword, value in schema.items():
            if keyword in KEYWORDS.enforced:
                pointer = start + keyword  # none of them needs an escape
                KEYWORDS[keyword].shape.check(value, pointer)
                self.keywords[pointer] = keyword
            elif keyword not in KEYWORDS:
                self._remark_unknown(place, keyword, value)
        for known in KEYWORDS.with_patterns:
            for pattern in known.patterns(schema[known.name]) if known.name in schema else ():
                self._remark_pattern(place, known.name, pattern)
        self.limits.check("max_enum_values", len(schema.get("enum") or ()), "values of an enum", place.at("enum"))

    def _remark_unknown(self, place: Place, keyword: object, value: object) -> None:
        """A keyword that annotates, as the standard says; tell where it may be a misspelling.

        Raises:
            SchemaError: it is no string, or `dependencies` (of which only the shape is unknown here), or misspelt where all must be exact.
        """
        if not isinstance(keyword, str):
            raise SchemaError(
                f"expected a string as keyword, received {shorten(keyword)}. Correct the schema", place.pointer
            )
        if keyword == "dependencies":
            raise SchemaError(
                f"expected an object whose values are schemas or lists of names, received {shorten(value)}. Correct the schema",
                place.at(keyword),
            )
        meant = meant_by(keyword, value)
        text = f"unknown keyword {shorten(keyword)}, which rejects nothing"
        if meant is not None:
            text += f". Did you mean {meant!r}?"
        self._remark(place, keyword, text, is_suspect=meant is not None)

    def _remark_pattern(self, place: Place, keyword: str, pattern: str) -> None:
        loose = read_loosely(pattern) if len(pattern) <= self.limits.max_pattern_length else ()
        if loose:
            text = f"ECMA-262 refuses it with the `u` flag: {', '.join(loose)}"
            self._remark(place, keyword, text, is_suspect=False)
