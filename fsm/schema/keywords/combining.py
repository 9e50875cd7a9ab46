"""The keywords that apply other schemas to the same value, as `Keyword` objects: references, `allOf`, `anyOf`, `oneOf`, `not`, `if`. They
are negated by De Morgan's laws, by ways to fail made of their branches; a `oneOf` of more than 8 by a check, references by `Document`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fsm.schema.keywords.keyword import Failure, Keyword, Make, NoNegation, Role, no_failures
from fsm.schema.places.place import Conjunction, Place
from fsm.schema.places.resource import Resources
from fsm.schema.places.shape import SCHEMA, SCHEMA_LIST, TEXT, Schema

_MAX_ONE_OF = 8


def _all_of_failures(keyword: Keyword, place: Place, schemas: list[Schema]) -> Iterator[Failure]:
    return ((branch,) for branch in keyword.branches(place, negated=True))


def _any_of_failures(keyword: Keyword, place: Place, schemas: list[Schema]) -> Iterator[Failure]:
    yield tuple(keyword.branches(place, negated=True))


def _one_of_failures(keyword: Keyword, place: Place, schemas: list[Schema]) -> Iterator[Failure]:
    if len(schemas) > _MAX_ONE_OF:
        raise NoNegation(keyword.name)
    yield from _any_of_failures(keyword, place, schemas)
    branches = keyword.branches(place)
    yield from ((first, second) for n, second in enumerate(branches) for first in branches[:n])


def _not_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    yield tuple(keyword.branches(place))


def _if_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    for name, fails in (("then", False), ("else", True)):
        if place.has(name):
            denied = place.beside(place.get(name), name, negated=True)
            yield place.beside(schema, keyword.name, negated=fails), denied


def _if_cases(place: Place, schema: Schema, make: Make) -> Iterator[list[Conjunction]]:
    holds, fails = [place.beside(schema, "if")], [place.beside(schema, "if", negated=True)]
    is_watched = holds[0].is_watched
    for name, found in (("then", holds), ("else", fails)):
        if place.has(name):
            found.append(place.beside(place.get(name), name))
    if is_watched or len(holds) + len(fails) > 2:
        yield [tuple(holds), tuple(fails)]


_schemas = partial(Keyword, shape=SCHEMA_LIST, role=Role.BRANCHES, since="draft-04")
_reference = partial(
    Keyword, shape=TEXT, role=Role.REFERENCE, failures=no_failures
)  # `Document` resolves and negates it
_consequence = partial(Keyword, shape=SCHEMA, role=Role.CONSEQUENCE, failures=no_failures, is_blamed=False)

COMBINING = (
    _schemas("anyOf", failures=_any_of_failures),
    _schemas("oneOf", failures=_one_of_failures, is_exclusive=True),
    _schemas("allOf", role=Role.ALL, failures=_all_of_failures),
    _reference("$ref", since="draft-04", find=Resources.find),
    _reference("$dynamicRef", since="draft/2020-12", find=partial(Resources.find, is_dynamic=True), is_dynamic=True),
    _reference("$recursiveRef", since="draft/2019-09", find=Resources.find_recursive, is_dynamic=True),
    Keyword("not", SCHEMA, role=Role.NOT, since="draft-04", failures=_not_failures),
    Keyword(
        "if",
        SCHEMA,
        role=Role.CONDITION,
        since="draft-07",
        failures=_if_failures,
        cases=_if_cases,
        is_negating=True,
        companions=("then", "else"),
    ),
    _consequence("then", since="draft-07"),
    _consequence("else", since="draft-07"),
)
