"""`scalar_node`: the scalar values of `enum` and `const` that satisfy all other keywords, as one sorted set of words. Each value is tested
by itself: strings by DFA simulation, numbers (some have several spellings) by exact decimal arithmetic. Lists and objects were replaced by
schemas before (`keywords/value.py`). `names`: null, true and false.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsm.automaton.lazy_dfa import Automaton
from fsm.limits import Limits
from fsm.schema.keywords.keyword import KEYWORDS, NUMERIC
from fsm.schema.keywords.place import (
    Conjunction,
    NegatedKeyword,
    Place,
    excluded_values,
    expected,
    is_number,
    negated_values_of,
    values_of,
)
from fsm.schema.keywords.value import identity, pointer_to, values_at
from fsm.schema.scalars.number import check_digits, demand_of, is_whole, number_texts
from fsm.schema.scalars.string import spelled, string_node
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import Node

_STRINGS_PER_WORK = 10
_OTHERS_PER_WORK = 1  # numbers become decimals


def scalar_node(
    places: Conjunction, types: frozenset[str], *, limits: Limits, left_out: list[tuple[Place, str]]
) -> Node | None:
    """Return the listed scalars that all places allow, as one set of words; None if no place lists values.

    Listed lists and objects are ignored here (`schemas_listed`). Keywords that some of these scalars may fail are added to `left_out`.

    Raises:
        SchemaError: a value is not a JSON value, or has no UTF-8.

    Cost: about 1 us per value.
    """
    listing = [(place, values) for place in places if (values := values_at(place)) is not None]
    if not listing:
        return None
    for _, values in listing:
        is_text = bool(values) and isinstance(values[0], str)
        work.add(len(values) // (_STRINGS_PER_WORK if is_text else _OTHERS_PER_WORK))
    work.check()
    strings, others = _common(listing, limits)
    for keyword in KEYWORDS.with_accepts:
        for is_wanted, found in ((True, values_of), (False, negated_values_of)):
            for _, said in found(places, keyword.name):
                strings = [value for value in strings if keyword.takes(said, value) == is_wanted]
                others = [value for value in others if keyword.takes(said, value) == is_wanted]
    texts = [text for value, text in names(places, types) if any(value is other for other in others)]
    if "string" in types:
        texts += _strings(strings, places, partial(string_node, places, limits=limits, left_out=left_out))
    numbers = [value for value in others if is_number(value)]
    if numbers and not types.isdisjoint(NUMERIC):
        demand = demand_of(places, integers=True, limits=limits)
        for value, spellings in number_texts(numbers, demand.decimals if "number" in types else None).items():
            if demand.allows(value) and ("integer" if is_whole(value) else "number") in types:
                texts += spellings
    return nodes.words(texts)


_NAMES = ((None, "null", b"null"), (True, "boolean", b"true"), (False, "boolean", b"false"))


def names(places: Conjunction, types: frozenset[str]) -> list[tuple[bool | None, bytes]]:
    """Which of null, true and false are of these types and are not excluded, each with its text."""
    excluded = [value for value in excluded_values(places) if value is None or isinstance(value, bool)]
    return [(value, text) for value, name, text in _NAMES if name in types and value not in excluded]


def _common(listing: list[tuple[Place, list[Any]]], limits: Limits) -> tuple[list[str], list[Any]]:
    """The scalars that are in every list: strings, and others."""
    strings, others = _separated(*listing[0], limits)
    for place, values in listing[1:]:
        more_strings, more_others = map(set, _separated(place, values, limits))
        known = {identity(value) for value in more_others}
        strings = [value for value in strings if value in more_strings]
        others = [value for value in others if identity(value) in known]
    return strings, others


def _separated(place: Place, values: list[Any], limits: Limits) -> tuple[list[str], list[Any]]:
    """Strings, and other scalars."""
    strings, others = list[str](), list[Any]()
    for position, value in enumerate(values):
        if isinstance(value, str):
            strings.append(value)
        elif not isinstance(value, list | dict):
            if is_number(value):
                check_digits(value, pointer_to(place, position), limits)
            elif value is not None and not isinstance(value, bool):
                raise expected("a JSON value", value, pointer_to(place, position))
            others.append(value)
    return strings, others


def _strings(values: list[str], places: Conjunction, make: Callable[[], Node]) -> list[bytes]:
    """The texts of the strings that are not excluded, and belong to the term that `make` returns where keywords constrain strings."""
    excluded = {other for other in excluded_values(places) if isinstance(other, str)}
    texts = [spelled(value) for value in values if value not in excluded]
    negated = (place.schema.keyword for place in places if isinstance(place.schema, NegatedKeyword))
    if any(place.has_any(KEYWORDS.of_strings) for place in places) or not KEYWORDS.of_strings.isdisjoint(negated):
        return list(Automaton(make()).accepted(texts)) if texts else []
    return texts
