"""`expression_of`: the `fsm.Expression` of a constraint given as schema, type, expression or `str`, which is a regular expression. A
constraint with checks beyond the automaton is refused, unless `checks="ignore"`.
"""

from __future__ import annotations

from typing import Any

import fsm
from fsm import Expression
from fsm.automaton.checker import checks_of
from fsm.schema.value_check import DISTINCT_KEYS
from outlines_cont.errors import OptionError, shortened

CHECKS = ("refuse", "ignore")
# Of two members with one key the last counts when JSON is read, so a repeated key makes a value fail only where members are counted.
_COUNTING = {"minProperties", "maxProperties"}


def expression_of(constraint: Any, checks: str) -> Expression:
    """Return the language of a constraint that was given in one of the forms of `logits_processor`.

    Raises:
        OptionError: it has none of these forms, or checks that would not be run.
        fsm.FSMError: the schema or the pattern is malformed.
    """
    if checks not in CHECKS:
        raise OptionError(f"expected 'refuse' or 'ignore' as `checks`, got {checks!r}", "checks")
    expression = _to_expression(constraint)
    listed = [] if checks == "ignore" else _binding_checks(expression)
    if listed:
        raise OptionError(
            f"expected a constraint that a token automaton can express, got one with checks ({'; '.join(listed)}): a text that "
            "fails a check has to be changed, and `model.generate` does not rewind. Use `generate.json`, which does; or write the schema "
            "without these keywords; or pass `checks='ignore'` and validate the result yourself.",
            "constraint",
        )
    return expression


def _binding_checks(expression: Expression) -> list[str]:
    """Return descriptions of the checks that might make a value fail."""
    counts = any(line.keyword in _COUNTING for line in expression.report)
    return list(dict.fromkeys(str(check) for check in checks_of(expression.node) if check != DISTINCT_KEYS or counts))


def _to_expression(constraint: Any) -> Expression:
    if isinstance(constraint, Expression):
        return constraint
    is_tokenizer = hasattr(constraint, "vocab_size") or hasattr(
        constraint, "token_bytes"
    )  # a model has the former, too
    if is_tokenizer and not isinstance(constraint, type):
        raise OptionError(
            f"expected an expression, a schema, a type, or a pattern as the constraint, got {type(constraint).__name__}. "
            "The constraint comes first: `logits_processor(Order, tokenizer)`.",
            "constraint",
        )
    if not isinstance(constraint, str):
        return fsm.json_schema(constraint)
    if constraint.lstrip().startswith("{"):
        raise OptionError(
            f"expected an expression, a schema, or a pattern, got {shortened(repr(constraint))}, which looks like a schema as JSON text. "
            "Write `fsm.json_schema(text)` if it is one, `fsm.regex(text)` if it is a pattern, `fsm.choice([text])` if it stands for "
            "itself.",
            "constraint",
        )
    return fsm.regex(constraint)
