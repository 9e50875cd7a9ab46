"""`describe`: how each keyword of a schema is enforced, a shortest example, and the size of the automaton."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import fsm
from fsm.automaton.lazy_dfa import Automaton
from fsm.automaton.shortest import shortest_text


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a schema.

    Attributes:
        report: how each keyword is enforced.
        checks: what is asked when a value is complete.
        example: a shortest text; None where none was found soon.
        example_passes: whether it passes the checks, too.
        states: states of the automaton that lie within `example`, and the number of ways that leave them.
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
