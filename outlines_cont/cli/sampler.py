"""`parse_sampler`: parses the value of `--sampler`, `greedy` or `multinomial` with numbers as options, as Python (`ast`) without evaluating
it; `make_sampler` makes the sampler.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from outlines_cont.checks import is_number
from outlines_cont.pipelines.outcome import SetupError

if TYPE_CHECKING:
    from outlines_cont.sampling.params import Sampler

_FORMS = "greedy, multinomial, or multinomial with options such as multinomial(temperature=0.7, top_p=0.9)"


def parse_sampler(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a sampler; raise `SetupError` if it is not one of `_FORMS`."""
    expected = f"expected {_FORMS} as --sampler, got {text!r}"
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        if not isinstance(call.func, ast.Name) or call.func.id not in ("greedy", "multinomial") or call.args:
            raise ValueError
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise SetupError(expected) from error
    if options and call.func.id == "greedy":
        raise SetupError(f"{expected}: greedy has no options")
    wrong = next((name for name, value in options.items() if not is_number(value)), None)
    if wrong is not None or "n" in options:
        raise SetupError(
            f"expected numbers as options of --sampler, and no `n` (each row has one record), got {text!r}"
        )
    return call.func.id, options


def make_sampler(text: str) -> Sampler:
    """Return the sampler of `text`; raise `SetupError` for an unknown name or option, `OptionError` for one out of its range."""
    from outlines_cont import samplers

    name, options = parse_sampler(text)
    try:
        return samplers.greedy() if name == "greedy" else samplers.multinomial(**options)
    except TypeError as error:
        raise SetupError(f"expected {_FORMS} as --sampler, got {text!r}: {error}") from error
