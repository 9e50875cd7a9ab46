"""`describe`: how each keyword of a schema is enforced, a shortest example (breadth-first search in the automaton, at most 50,000 states),
and how many states and transitions lie along it; the lazy DFA is not built as a whole.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import fsm
from fsm.automaton.lazy_dfa import Automaton, shortest_text


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a schema.

    Attributes:
        report: how each keyword is enforced.
        checks: the checks of a complete value, in words.
        example: a shortest text; None where the search reached its limit.
        example_passes: whether it passes the checks, too.
        states: states of the automaton that lie within `example`, and the number of transitions that leave them.
        ways: see `states`.
    """

    report: fsm.Report
    checks: tuple[str, ...]
    example: str | None
    example_passes: bool
    states: int
    ways: int


def describe(schema: Any, **options: Any) -> tuple[fsm.Expression, Description]:
    """Return the expression of a schema and its description.

    Raises:
        fsm.FSMError: it cannot be compiled.
    """
    with warnings.catch_warnings(action="ignore", category=fsm.SchemaWarning):  # the report says the same
        expression = fsm.json_schema(schema, **options)
    text = shortest_text(expression.node)
    automaton = Automaton(expression.node)
    state, ways = automaton.initial_state, len(automaton.moves(automaton.initial_state))
    for byte in text or b"":
        state = automaton.next_state(state, bytes((byte,)))
        ways += len(automaton.moves(state))
    shown = None if text is None else text.decode()
    passes = text is not None and expression.accepts(text)
    return expression, Description(expression.report, expression.checks, shown, passes, len(automaton) - 1, ways)
