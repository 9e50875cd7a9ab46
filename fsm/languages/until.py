"""`until`: any text up to and including the first occurrence of a mark, as an intersection with a complement: the texts that end in the
mark, without those that continue after an occurrence. Its lazy DFA has about one state per byte of the mark, like that of Knuth, Morris and
Pratt.
"""

from __future__ import annotations

from fsm.errors import ExpressionError, clip, shorten
from fsm.expression import Expression
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms import rule as texts
from fsm.terms.characters import ALL_CHARACTERS, utf8


@remembered
def until(mark: str) -> Expression:
    """Any text whose first and only occurrence of `mark` is its end, such as the thoughts of a model before `</think>`.

    Raises:
        ExpressionError: `mark` is empty, not text, or contains a lone surrogate.

    Cost: one state per byte of the mark.
    """
    if not isinstance(mark, str) or not mark:
        raise ExpressionError(
            f"expected a text with which the free text ends, received {shorten(mark)}. Give at least one character."
        )
    ends_so = nodes.concat(texts.TEXTS, nodes.literal(texts.encode(mark, "the mark")))
    goes_on = nodes.sequence((ends_so, utf8(ALL_CHARACTERS), texts.TEXTS))
    node = nodes.intersection((ends_so, nodes.complement(goes_on)))
    return Expression(node, source=f"until({clip(mark)!r})")
