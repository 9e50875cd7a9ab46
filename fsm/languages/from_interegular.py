"""`from_interegular`: the language of a DFA of the library `interegular` as an expression; `Expression.to_interegular` is the inverse.

Texts with a surrogate are left out, as they have no UTF-8.
"""

from __future__ import annotations

from typing import Any

from fsm.automaton.interegular_fsm import read_fsm
from fsm.expression import Expression


def from_interegular(fsm: Any) -> Expression:
    """Return the texts that an automaton of interegular accepts.

    Surrogates have no UTF-8, so that texts with one are left out.

    Args:
        fsm: an `interegular.FSM` over characters, such as `interegular.parse_pattern("[a-z]+").to_fsm()`.

    Raises:
        ExpressionError: `fsm` is not an automaton of that library, or its symbols are not characters.

    Cost: linear in its symbols and its arcs; the derivatives of a state are made when it is reached.
    """
    dfa = read_fsm(fsm)
    return Expression(dfa.language(), source=f"from_interegular(<FSM of {len(dfa.transitions)} states>)")
