"""`choice`: the finite language of some given texts, as one term with their sorted list, whose derivatives are ranges of it. An empty list
is refused. (The module is not called `choice`, as the public function is.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from fsm.errors import ExpressionError, clip, shorten
from fsm.expression import Expression
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms import rule as texts

_OF_ENUM = "For the values of an Enum write `generate.format(model, TheEnum)`, or list their texts."


@remembered
def choice(options: Sequence[str]) -> Expression:
    """One of `options`, exactly.

    Raises:
        ExpressionError: `options` is not a list, is empty, or contains something that is not text or has a lone surrogate.

    Cost: one sort; 50,000 options are fine.
    """
    received, advice = "", "Write `list(...)` of what to choose from."
    if isinstance(options, str):
        received, advice = f"one string {options!r}", f"Write [{options!r}] for a single option."
    elif isinstance(options, type):
        received, advice = f"the class {options.__name__}", _OF_ENUM
    elif isinstance(options, Mapping) or not isinstance(options, Sequence):
        received = shorten(options)
    elif not options:
        received, advice = "an empty one", "Give at least one text to choose from."
    if received:
        raise ExpressionError(f"expected a list of options, received {received}. {advice}")
    for position, option in enumerate(options):
        if not isinstance(option, str):
            raise ExpressionError(
                f"expected text for every option, received {option!r} at position {position}. "
                + (_OF_ENUM if isinstance(option, Enum) else "Convert it with str() first.")
            )
    spelled = [texts.encode(option, f"the option at position {position}") for position, option in enumerate(options)]
    few = ", ".join(repr(clip(option, 30)) for option in options[:4])
    more = f", ... {len(options)} in all" if len(options) > 4 else ""
    return Expression(nodes.words(spelled), source=f"choice([{few}{more}])")
