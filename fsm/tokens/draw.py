"""Pictures of languages and token FSMs, as SVG."""

from __future__ import annotations

from fsm.drawing.picture import picture
from fsm.drawing.state_graph import expression_graph, token_graph
from fsm.expression import Expression
from fsm.tokens.token_fsm import TokenFSM


def draw(language: Expression | TokenFSM, *, max_states: int = 40, max_tokens: int = 4) -> str:
    """Return an SVG picture of an automaton over characters, or of a token FSM.

    The automaton of an expression is simplified for the eye: text that nothing interrupts is one arrow, `␣` is a space and `␣?` one
    that may be left out, a count above 8 is drawn as a loop. A token FSM is drawn as it is.

    Args:
        language: an expression, whose automaton is drawn, or a token FSM.
        max_states: how many states are drawn; arrows that lead beyond them end in `...`.
        max_tokens: how many tokens an arrow of a token FSM names.

    Raises:
        BudgetExceeded: see `Automaton`.

    Cost: the states that are drawn, and those that are simplified away; for a token FSM a mask of each.
    """
    if isinstance(language, TokenFSM):
        return picture(token_graph(language, max_states, max_tokens))
    return picture(expression_graph(language.node, max_states))
