"""`describe`: prints how each keyword of a schema is enforced and why, how the JSON is spelled, a shortest example (breadth-first search in
the automaton, at most 50,000 states), and how much of the lazy DFA is built to read it (states, transitions). `--draw`: a picture of its
first states.
"""

from __future__ import annotations

import warnings

from rich.console import Console
from rich.table import Table

import fsm
from fsm.automaton.lazy_dfa import Automaton, shortest_text
from outlines_cont.cli.console import write_picture
from outlines_cont.cli.options import SchemaOptions
from outlines_cont.generation.options import named_lengths
from outlines_cont.pipelines.record_schema import load_schema

_ANY_WIDTH = 100_000


def describe(options: SchemaOptions) -> None:
    """Print the description of a schema, and write a picture of its automaton if there is a file for it."""
    schema = load_schema(options.source).schema
    with warnings.catch_warnings(action="ignore", category=fsm.SchemaWarning):  # the report has the same notes
        expression = fsm.json_schema(schema, strict=options.strict, key_order="any" if options.any_order else "schema")
    text = shortest_text(expression.node)
    size = _size(expression, text or b"")
    console, table = (
        Console(highlight=False, markup=False),
        Table("keyword", "where", "enforced", box=None),
    )
    if not console.is_terminal:
        console.width = _ANY_WIDTH  # so that a file or a pipe gets whole pointers
    for keyword in expression.report:
        table.add_row(keyword.keyword, keyword.pointer, keyword.level)
    console.print(table)
    for keyword in expression.report:
        if keyword.note:
            console.print(f"{keyword.level}: {keyword.pointer}: {keyword.note}", soft_wrap=True)
    for check in expression.checks:
        console.print(f"checked: {check}", soft_wrap=True)
    for sentence in expression.report.spelling:
        console.print(f"spelling: {sentence}", soft_wrap=True)
    if expression.report.unbounded:
        console.print(f"any length: {named_lengths(expression.report.unbounded)}", soft_wrap=True)
    console.print(size)
    if text is None:
        console.print("no short example was found")
    else:
        console.print(
            f"example: {text.decode()}{'' if expression.accepts(text) else '  (fails a check)'}", soft_wrap=True
        )
    if options.draw is not None:
        write_picture(fsm.draw(expression), options.draw)


def _size(expression: fsm.Expression, example: bytes) -> str:
    automaton = Automaton(expression.node)
    state = automaton.initial_state
    num_transitions = len(automaton.moves(state))
    for byte in example:
        state = automaton.next_state(state, bytes((byte,)))
        num_transitions += len(automaton.moves(state))
    return f"size: {len(automaton) - 1} states, {num_transitions} transitions along the example"
