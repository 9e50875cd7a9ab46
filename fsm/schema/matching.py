r"""The keyword `pattern` inside checks: by a DFA where the pattern is regular, else by backtracking with a bound on its steps.

The validator matches `pattern` itself. With a look-around or a back-reference (`(.+)-\1`) it backtracks, and reports a text that takes
too many steps as not matching. Here such a text is not refused: the check ends in an error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, SchemaError
from fsm.terms.characters import Speller, utf8
from fsm.terms.node import Node

MAX_BACKTRACKS = 50_000_000
"""Steps of a match, some seconds."""
NOTE = f"the pattern is not regular, so it is matched by backtracking, in at most {MAX_BACKTRACKS:,} steps"
"""What a report says of such a pattern."""
MAX_STATES = 50_000

_BACKTRACKS = re.compile(r"\(\?<?[=!]|\\+(?:[1-9]|k<)")


Search = Callable[[str, Speller], Node]
"""Makes the term of the texts in which a pattern is found, given how characters are spelled; see `ecma_search`."""


class _Unknown(threading.local):
    """The pattern that could not be decided since the validation of this thread began."""

    pattern: str | None = None


_unknown = _Unknown()


def may_backtrack(schemas: str) -> bool:
    """True where JSON text of schemas holds what may be a look-around or a back-reference."""
    return _BACKTRACKS.search(schemas) is not None


def is_valid(validator: Any, value: Any) -> bool:
    """True when `value` is valid.

    Raises:
        BudgetExceeded: a pattern could not be decided within `MAX_BACKTRACKS` steps.
    """
    _unknown.pattern = None
    answer = bool(validator.is_valid(value))
    if _unknown.pattern is not None:
        raise BudgetExceeded(
            f"whether a text matches the pattern {_unknown.pattern!r} was not decided within {MAX_BACKTRACKS:,} steps of backtracking. "
            "Write the pattern without the back-reference, give it fewer ways to match (`[^-]+` instead of `.+`), or a `maxLength`.",
            "max_backtracks",
            MAX_BACKTRACKS,
        )
    return answer


def pattern_keyword(search: Search) -> type:
    """The keyword `pattern`, as the validator makes and calls it; `search` makes the terms of patterns."""

    class Keyword(_Pattern):
        def __init__(self, parent: Any, pattern: Any, path: Any) -> None:
            super().__init__(pattern, search)

    return Keyword


class _Pattern:
    """One pattern in a schema.

    Args:
        pattern: the value of the keyword.
        search: makes its term.
    """

    def __init__(self, pattern: Any, search: Search) -> None:
        self._pattern = pattern
        self._automaton: Automaton | None = None
        try:
            if may_backtrack(pattern):
                self._automaton = Automaton(search(pattern, utf8), max_states=MAX_STATES)
        except SchemaError:
            pass  # not regular, or the validator says what is wrong with it
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)
        self._matcher = jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` where a text does not match."""
        if not isinstance(instance, str):
            return
        if not self._matches(instance):
            raise ValueError(f"{instance!r} does not match {self._pattern!r}")

    def _matches(self, text: str) -> bool:
        if self._automaton is not None:
            try:
                return self._automaton.accepts(text.encode(errors="surrogatepass"))
            except BudgetExceeded:
                self._automaton = None
        error = next(self._matcher.iter_errors(text), None)
        if error is not None and not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Pattern):
            _unknown.pattern = self._pattern
        return error is None
