"""`draw`: the automaton of an expression or of a token FSM, as an SVG picture or as DOT source for Graphviz. At most `max_states` states
are drawn, breadth first; that of an expression is the DFA over characters, simplified for reading, that of a token FSM is drawn as it is.
"""

from __future__ import annotations

from typing import Literal, Protocol

from fsm.drawing.graph import StateGraph
from fsm.drawing.picture import picture


class Drawable(Protocol):
    """What can be drawn: an `Expression`, or a `TokenFSM`."""

    def state_graph(self, max_states: int, max_tokens: int) -> StateGraph:
        """The graph of the first states."""


def draw(
    language: Drawable,
    *,
    format: Literal["svg", "dot"] = "svg",
    max_states: int = 40,
    max_tokens: int = 4,
) -> str:
    """Return a drawing of the DFA over characters of an expression, or of a token FSM.

    The DFA of an expression is simplified for reading: a chain of states without a choice is one edge, `␣` is a space and `␣?` an
    optional one, a count above 8 is drawn as a loop. A token FSM is drawn as it is.

    Args:
        language: the expression or the token FSM.
        format: `"svg"` for a picture, `"dot"` for the same graph in the DOT language of Graphviz.
        max_states: the most states that are drawn; edges that lead beyond them end in `...`.
        max_tokens: the most tokens that an edge of a token FSM names.

    Raises:
        BudgetExceeded: see `Automaton`.
        ValueError: `format` is neither of both.

    Cost: the states that are drawn and those that are simplified away; for a token FSM also one mask per state.
    """
    if format not in ("svg", "dot"):
        raise ValueError(f"expected `format` 'svg' or 'dot', received {format!r}.")
    graph = language.state_graph(max_states, max_tokens)
    return picture(graph) if format == "svg" else graph.to_dot()
