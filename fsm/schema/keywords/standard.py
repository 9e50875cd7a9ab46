"""The standard keywords of strings, numbers, arrays and objects, and those that apply other schemas to the same value, as `Keyword` objects
with their negations. `pattern` and `format` of strings give a term here; automata of numbers, arrays and objects are built elsewhere
(`scalars/`, `array.py`, `object.py`). Negations are other keywords where there are some (the opposite bound), or `SomeItem` and
`SomeMember`; `allOf`, `anyOf`, `oneOf`, `not` and `if` are negated by De Morgan's laws, by ways to fail made of their branches. Left to a
check are the negations of `uniqueItems`, of `unevaluated...`, and of a `oneOf` of more than 8; `Document` negates references.

Formats of numbers are in `place.py`, as other keywords, those of strings in `formats.py`. An unknown format rejects nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from fsm.errors import SchemaError, did_you_mean, shorten
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import ecma_search, read_loosely
from fsm.schema.keywords.formats import FORMATS, OPENAPI_FORMATS, SPELLINGS, STRING_FORMATS, format_node
from fsm.schema.keywords.keyword import (
    ARRAY,
    NUMERIC,
    OBJECT,
    STRING,
    Failure,
    Keyword,
    Make,
    Matches,
    Name,
    NoNegation,
    Role,
    count_bounds,
    negated,
    no_failures,
    unless_trivial,
)
from fsm.schema.keywords.place import (
    COUNT,
    DIVISOR,
    FLAG,
    NAME_LISTS,
    NUMBER,
    NUMBER_FORMATS,
    SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    TEXT,
    TEXTS,
    Conjunction,
    NegatedKeyword,
    Place,
    Schema,
    SomeItem,
    SomeMember,
    negation_of,
)
from fsm.schema.keywords.resource import Resources
from fsm.terms.characters import json_spelling
from fsm.terms.node import Node


def _pattern_node(pattern: str, pointer: str, limits: Limits) -> Node:
    """The inside of the strings in which a pattern is found; raises `NotRegular`, or `SchemaError` for a malformed pattern."""
    limits.check("max_pattern_length", len(pattern), "characters of a pattern", pointer)
    try:
        return _found(pattern)
    except SchemaError:
        return ecma_search(pattern, json_spelling, pointer=pointer)  # raises again, with the position


@lru_cache(maxsize=256)
def _found(pattern: str) -> Node:
    """Cached, as large schemas repeat the same few patterns: azure-pipelines.json has 6,000 of them in 67,000 places."""
    return ecma_search(pattern, json_spelling)


def loose_reading(pattern: str, limits: Limits) -> tuple[str, ...]:
    """A note on a pattern that was read though ECMA-262 refuses it with the `u` flag."""
    loose = read_loosely(pattern) if len(pattern) <= limits.max_pattern_length else ()
    return (f"ECMA-262 refuses it with the `u` flag: {', '.join(loose)}",) if loose else ()


def _bound(name: str, opposite: str) -> Keyword:
    """A bound; its negation is the opposite one."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        yield ({"type": "number", opposite: value},)

    return Keyword(name, NUMBER, NUMERIC, since="draft-04", failures=failures, is_built=True)


NUMBERS = (
    _bound("minimum", "exclusiveMaximum"),
    _bound("maximum", "exclusiveMinimum"),
    _bound("exclusiveMinimum", "maximum"),
    _bound("exclusiveMaximum", "minimum"),
    Keyword("multipleOf", DIVISOR, NUMERIC, since="draft-04", failures=negated, is_built=True, is_heavy=True),
)
_NUMBERS = {keyword.name: keyword for keyword in NUMBERS}


def _format_language(name: str, pointer: str, limits: Limits) -> Node | None:
    return None if name in NUMBER_FORMATS else format_node(name)


def _format_failures(keyword: Keyword, place: Place, name: str) -> Iterator[Failure]:
    """A format of numbers fails where one of the keywords that define it does."""
    if name not in NUMBER_FORMATS:
        yield (NegatedKeyword(keyword.name, name, STRING),)
    for other, value in _number_keywords(name).items():
        yield from _NUMBERS[other].failures(_NUMBERS[other], place, value)


def _number_keywords(name: str) -> dict[str, Any]:
    return NUMBER_FORMATS.get(name, {})


def _ignored_format(name: object, asserts_format: bool) -> str | None:
    if not isinstance(name, str) or (asserts_format and (name in STRING_FORMATS or name in NUMBER_FORMATS)):
        return None
    if not asserts_format:
        return 'formats="annotate"'
    known = ", ".join((*FORMATS, *OPENAPI_FORMATS, *NUMBER_FORMATS))
    hint = did_you_mean(name, FORMATS) or f" Known are {known}."
    return f"the format {shorten(name)} is not known, so that any text passes.{hint}"


STRINGS = (
    *count_bounds("minLength", "maxLength", STRING),
    Keyword(
        "pattern",
        TEXT,
        STRING,
        since="draft-04",
        language=_pattern_node,
        remarks=loose_reading,
        is_heavy=True,
        is_built=True,
    ),
    Keyword(
        "format",
        TEXT,
        STRING | NUMERIC,
        since="draft-04",
        language=_format_language,
        failures=_format_failures,
        ignored=_ignored_format,
        stands_for=_number_keywords,
        is_built=True,
        is_heavy=True,
        spelling=SPELLINGS.get,
    ),
)


def _prefix_failures(keyword: Keyword, place: Place, schemas: list[Schema]) -> Iterator[Failure]:
    for position, schema in enumerate(schemas):
        if schema is not True:
            first = [*[True] * position, negation_of(schema)]
            yield ({"type": "array", "minItems": position + 1, "prefixItems": first},)


def _items_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    start = len(place.get("prefixItems") or ())
    if schema is not True:
        yield (NegatedKeyword("items", SomeItem(start, negation_of(schema)), ARRAY),)


def _contains_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    least, most = place.get("minContains"), place.get("maxContains")
    if least is None or least > 0:
        fewer = 0 if least is None else int(least) - 1
        yield ({"type": "array", "contains": schema, "minContains": 0, "maxContains": fewer},)
    if most is not None:
        yield ({"type": "array", "contains": schema, "minContains": int(most) + 1},)


def _prefix_parts(place: Place, schemas: list[Schema], name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, int) and name < len(schemas):
        return (place.below(schemas[name], "prefixItems", name),)
    return ()


def _items_parts(place: Place, schema: Schema, name: Name, matches: Matches) -> Iterable[Place]:
    is_later = isinstance(name, int) and name >= len(place.get("prefixItems") or ())
    return (place.below(schema, "items"),) if is_later else ()


_array = partial(Keyword, types=ARRAY, since="draft-04", is_built=True)
_counted = partial(_array, shape=COUNT, since="draft/2019-09", failures=no_failures, is_blamed=False)

ARRAYS = (
    _array("prefixItems", SCHEMA_LIST, since="draft/2020-12", failures=_prefix_failures, parts=_prefix_parts),
    _array("items", SCHEMA, failures=_items_failures, parts=_items_parts),
    *count_bounds("minItems", "maxItems", ARRAY),
    _array("uniqueItems", FLAG, failures=unless_trivial(False)),
    _array(
        "contains",
        SCHEMA,
        since="draft-06",
        failures=_contains_failures,
        is_heavy=True,
        companions=("minContains", "maxContains"),
    ),
    _counted("minContains"),
    _counted("maxContains"),
    _array("unevaluatedItems", SCHEMA, since="draft/2019-09", failures=unless_trivial(True), is_blamed=False),
)


def _required_failures(keyword: Keyword, place: Place, names: list[str]) -> Iterator[Failure]:
    for name in names:
        yield ({"type": "object", "properties": {name: False}},)


def _pattern_remarks(schemas: dict[str, Schema], limits: Limits) -> Iterator[str]:
    for pattern in schemas:
        yield from loose_reading(pattern, limits)


def _properties_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for name, schema in schemas.items():
        if schema is not True:
            yield ({"type": "object", "required": [name], "properties": {name: negation_of(schema)}},)


def _pattern_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for pattern, schema in schemas.items():
        if schema is not True:
            yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), pattern=pattern), OBJECT),)


def _additional_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    if schema is not True:
        known = tuple(place.get("properties") or ()), tuple(place.get("patternProperties") or ())
        yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), None, True, *known), OBJECT),)


def _names_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    if schema is not True:
        yield (NegatedKeyword(keyword.name, SomeMember(key=negation_of(schema)), OBJECT),)


def _dependent_required_failures(keyword: Keyword, place: Place, lists: dict[str, list[str]]) -> Iterator[Failure]:
    for key, names in lists.items():
        for name in names:
            yield ({"type": "object", "required": [key], "properties": {name: False}},)


def _dependent_schemas_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for key, schema in schemas.items():
        yield ({"type": "object", "required": [key]}, place.beside(schema, keyword.name, key, negated=True))


def _properties_parts(place: Place, schemas: Any, name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, str) and isinstance(schemas, dict) and name in schemas:
        return (place.below(schemas[name], "properties", name),)
    return ()


def _pattern_parts(place: Place, schemas: Any, name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, int) or not isinstance(schemas, dict):
        return ()
    return [place.below(schemas[p], "patternProperties", p) for p in schemas if matches(p, name)]


def _additional_parts(place: Place, schema: Schema, name: Name, matches: Matches) -> Iterable[Place]:
    declared, patterns = place.get("properties") or {}, place.get("patternProperties") or {}
    if isinstance(name, int) or not isinstance(declared, dict) or not isinstance(patterns, dict) or name in declared:
        return ()
    is_other = all(matches(pattern, name) is False for pattern in patterns)
    return (place.below(schema, "additionalProperties"),) if is_other else ()


def _required_cases(place: Place, lists: dict[str, list[str]], make: Make) -> Iterator[list[Conjunction]]:
    for name, names in lists.items():
        needs = make({"required": list(names)}, "required", *names)
        yield [(_without(place, name, make),), (place.beside(needs),)]


def _schemas_cases(place: Place, schemas: dict[str, Schema], make: Make) -> Iterator[list[Conjunction]]:
    for name, schema in schemas.items():
        needs = place.beside(make({"type": "object", "required": [name]}, "an object with", name))
        yield [(_without(place, name, make),), (needs, place.beside(schema, "dependentSchemas", name))]


def _without(place: Place, name: str, make: Make) -> Place:
    return place.beside(make({"properties": {name: False}}, "without", name))


_object = partial(Keyword, types=OBJECT, since="draft-04", is_built=True)
_dependent = partial(Keyword, types=OBJECT, role=Role.CONDITION, since="draft/2019-09")

OBJECTS = (
    _object("properties", SCHEMA_MAP, failures=_properties_failures, parts=_properties_parts, names=iter),
    _object("required", TEXTS, failures=_required_failures, names=iter),
    _object("additionalProperties", SCHEMA, failures=_additional_failures, parts=_additional_parts),
    _object(
        "patternProperties",
        SCHEMA_MAP,
        failures=_pattern_failures,
        parts=_pattern_parts,
        remarks=_pattern_remarks,
        is_heavy=True,
    ),
    _object("propertyNames", SCHEMA, since="draft-06", failures=_names_failures, is_heavy=True),
    *count_bounds("minProperties", "maxProperties", OBJECT),
    _object("unevaluatedProperties", SCHEMA, since="draft/2019-09", failures=unless_trivial(True), is_blamed=False),
    _dependent("dependentRequired", NAME_LISTS, failures=_dependent_required_failures, cases=_required_cases),
    _dependent("dependentSchemas", SCHEMA_MAP, failures=_dependent_schemas_failures, cases=_schemas_cases),
)


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
