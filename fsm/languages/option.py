"""`choice`: the finite language of some given texts, as one term with their sorted list, whose derivatives are ranges of it.

(The module is not called `choice`, as the public function has that name.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from fsm.errors import ExpressionError, clip, shorten
from fsm.expression import Expression
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms import texts


@remembered
def choice(options: Sequence[str]) -> Expression:
    """One of `options`, exactly.

    Raises:
        ExpressionError: `options` is not a list, is empty, or contains something that is not text or has a lone surrogate.

    Cost: one sort; 50,000 options are fine.
    """
    if isinstance(options, str):
        raise ExpressionError(
            f"expected a list of options, received one string {options!r}. Write [{options!r}] for a single option."
        )
    if isinstance(options, type):
        raise ExpressionError(
            f"expected a list of options, received the class {options.__name__}. For the values of an Enum write "
            "`generate.format(model, TheEnum)`, or list their texts."
        )
    if isinstance(options, Mapping) or not isinstance(options, Sequence):
        raise ExpressionError(
            f"expected a list of options, received {shorten(options)}. Write `list(...)` of what to choose from."
        )
    if not options:
        raise ExpressionError("expected at least one option, received none. Give the texts to choose from.")
    for position, option in enumerate(options):
        if not isinstance(option, str):
            raise ExpressionError(
                f"expected text for every option, received {option!r} at position {position}. {_advice(option)}"
            )
    spelled = [texts.encode(option, f"the option at position {position}") for position, option in enumerate(options)]
    few = ", ".join(repr(clip(option, 30)) for option in options[:4])
    more = f", ... {len(options)} in all" if len(options) > 4 else ""
    return Expression(nodes.words(spelled), source=f"choice([{few}{more}])")


def _advice(option: object) -> str:
    if isinstance(option, Enum):
        return "For the values of an Enum write `generate.format(model, TheEnum)`, or list their texts."
    return "Convert it with str() first."
