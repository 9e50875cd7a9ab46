r"""`pattern` inside checks: a pattern that might backtrack is matched by a lazy DFA where it is regular, else by bounded backtracking. On a
lookaround or a back-reference (`(.+)-\1`) the validator `jsonschema-rs` backtracks, and reports a text that takes too many steps as not
matching; here that raises `BudgetExceeded`. DFAs of more than `MAX_STATES` are given up for backtracking. Other patterns are left to the
validator's linear-time engine.
"""

from __future__ import annotations

import re
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import jsonschema_rs

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, SchemaError
from fsm.pattern.ecma_pattern import ecma_search
from fsm.terms.characters import utf8

MAX_BACKTRACKS = 50_000_000  # of one match: some seconds
NOTE = f"the pattern is not regular, so it is matched by backtracking, in at most {MAX_BACKTRACKS:,} steps"
MAX_STATES = 50_000

_BACKTRACKS = re.compile(r"\(\?<?[=!]|\\+(?:[1-9]|k<)")
_UNDECIDED: ContextVar[str | None] = ContextVar("undecided pattern", default=None)
"""The pattern that could not be decided in the current validation."""


def may_backtrack(schemas: str) -> bool:
    """Whether the JSON text of schemas may contain a lookaround or a back-reference."""
    return _BACKTRACKS.search(schemas) is not None


def is_valid(validator: Any, value: Any) -> bool:
    """True when `value` is valid.

    Raises:
        BudgetExceeded: a pattern could not be decided within `MAX_BACKTRACKS` steps.
    """
    _UNDECIDED.set(None)
    answer = bool(validator.is_valid(value))
    pattern = _UNDECIDED.get()
    if pattern is not None:
        raise BudgetExceeded(
            f"whether a text matches the pattern {pattern!r} was not decided within {MAX_BACKTRACKS:,} steps of backtracking. "
            "Write the pattern without the back-reference, give it fewer ways to match (`[^-]+` instead of `.+`), or a `maxLength`.",
            "max_backtracks",
            MAX_BACKTRACKS,
        )
    return answer


class PatternKeyword:
    """The keyword `pattern` as the validator calls it: the class is the factory, an instance one pattern in a schema."""

    def __init__(self, parent: Any, pattern: Any, path: Any) -> None:
        self._pattern = pattern
        self._automaton: Automaton | None = None
        with suppress(SchemaError):  # not regular, or malformed, which the validator reports
            if may_backtrack(pattern):
                self._automaton = Automaton(ecma_search(pattern, utf8), max_states=MAX_STATES)
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)
        self._matcher = jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` where a text does not match."""
        if isinstance(instance, str) and not self._matches(instance):
            raise ValueError(f"{instance!r} does not match {self._pattern!r}")

    def _matches(self, text: str) -> bool:
        if self._automaton is not None:
            try:
                return self._automaton.accepts(text.encode(errors="surrogatepass"))
            except BudgetExceeded:
                self._automaton = None
        error = next(self._matcher.iter_errors(text), None)
        if error is not None and not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Pattern):
            _UNDECIDED.set(self._pattern)
        return error is None
