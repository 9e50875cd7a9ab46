"""A schema of which nothing is reported to be of any length has no text of any length, and the other way round."""

from __future__ import annotations

import warnings
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, SchemaWarning, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms.node import Node

_MAX_STATES = 400
_COUNTS = st.integers(0, 3)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


# None of them excludes another: what is named inside of what cannot be is no error.
_STRINGS = st.one_of(
    _some(
        minLength=_COUNTS,
        maxLength=st.integers(3, 6),
        pattern=st.sampled_from(["^a{1,3}$", "b", "^x*$", "^(y|z{2,})$"]),
    ),
    st.sampled_from([{"format": "date"}, {"format": "uuid"}, {"format": "email", "maxLength": 90}]),
).map(lambda schema: {"type": "string", **schema})
_SCALARS = _STRINGS | st.sampled_from([{"const": "c"}, {"enum": ["a", "b"]}, {"type": "boolean"}, {"type": "null"}])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = _some(
        items=inner, maxItems=st.integers(1, 3), prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=_COUNTS
    )
    objects = _some(
        properties=st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        additionalProperties=inner | st.booleans(),
        maxProperties=st.integers(1, 3),
        propertyNames=st.sampled_from([{"maxLength": 3}, {"pattern": "^[a-d]$"}]),
    )
    together = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        arrays.map(lambda schema: {"type": "array", **schema}),
        objects.map(lambda schema: {"type": "object", **schema}),
        together.map(lambda schemas: {"anyOf": schemas}),
        inner.map(lambda schema: {"allOf": [schema, {"maxLength": 90, "maxItems": 4}]}),
    )


def _is_infinite(node: Node) -> bool | None:
    """Whether texts of a term may be of any length, by a look at its states: is there a circle from which an end can be reached?

    None where there are too many states to look at, as for values of any type.
    """
    automaton = Automaton(node)
    states, targets = [automaton.initial_state], dict[int, set[int]]()
    for state in states:
        if len(states) > _MAX_STATES:
            return None
        targets[state] = {target for _, target in automaton.arcs(state)}
        states += [target for target in targets[state] if target not in states]
    sources: dict[int, set[int]] = {state: set() for state in states}
    for state, found in targets.items():
        for target in found:
            sources[target].add(state)
    live = {state for state in states if automaton.is_accepting(state)}
    queue = [*live]
    for state in queue:
        new = sources[state] - live
        queue += new
        live |= new
    left = {
        state: len(targets[state] & live) for state in live
    }  # states without a way on are taken away, one after the other
    ended = [state for state in live if not left[state]]
    for state in ended:
        for source in sources[state] & live:
            left[source] -= 1
            ended += [source] if not left[source] else []
    return len(ended) < len(live)


@settings(max_examples=60, deadline=None)
@given(st.recursive(_SCALARS, _containers, max_leaves=4))
def test_what_is_not_named_is_bounded_and_what_is_named_is_not(schema: Any) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=SchemaWarning):
            expression = json_schema(schema)
    except EmptyLanguage:
        return
    is_infinite = _is_infinite(expression.node)
    if is_infinite is not None:
        event(f"{is_infinite}")
        assert bool(expression.report.unbounded) is is_infinite
