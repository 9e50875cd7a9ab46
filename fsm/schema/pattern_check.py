r"""`FoundPattern`, `PatternKeyword`, `KeyPatterns`: patterns inside checks, as this package reads ECMA-262. The validator `jsonschema-rs`
reads another dialect (its `.` matches a carriage return), so it gets only patterns that every dialect reads equally (`is_plain`).

Other texts are matched by a lazy DFA where the pattern is regular, else by backtracking (`fsm.pattern.ecma_matcher`), at most a number of
steps; then `BudgetExceeded` is raised. Of `patternProperties`, which the validator has to know for `additionalProperties` and
`unevaluatedProperties`, a pattern is written in such words (`.` as a set), or else as the list of the keys of the value in which it is
found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from math import prod
from typing import Any
from urllib.parse import unquote

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, NotRegular
from fsm.pattern.ecma_matcher import EcmaMatcher
from fsm.pattern.ecma_pattern import backtracking_matcher, ecma_search
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.place import escape
from fsm.terms.characters import utf8

MAX_STATES = 50_000  # of a DFA, which is then given up for backtracking
_MAX_PLAIN = (
    50_000  # characters of a pattern for the validator, times all its counts: far below the bounds of its engine
)
_MAX_GROUPS = 50
_NEVER = "$a"

_PLAIN = re.compile(
    r"""(?:
        [^\\^$.*+?()\[\]{}|]
        | \\[\\^$.*+?()\[\]{}|/]
        | \(\?: | [()|^$]
        | \[\^?(?:(?!&&|--|~~)[^\\\[\]^]|\\[\\\]\[^-])(?:(?!&&|--|~~)[^\\\[\]]|\\[\\\]\[^-])*\]
        | [*+?]\??(?![*+?{])
        | \{[0-9]{1,2}(?:,[0-9]{0,2})?\}\??(?![*+?{])
    )*""",
    re.VERBOSE,
)

_COUNT = re.compile(r"\{([0-9]{1,2})(?:,([0-9]{0,2}))?\}")

_UNDECIDED: ContextVar[BudgetExceeded | None] = ContextVar("undecided pattern", default=None)
"""The first pattern that could not be decided in the current validation."""


def is_plain(pattern: str) -> bool:
    """Whether all dialects read a pattern equally: it has plain characters, groups, sets and small counts."""
    if len(pattern) > _MAX_PLAIN or pattern.count("(") > _MAX_GROUPS or "(?" in pattern.replace("(?:", ""):
        return False
    size = len(pattern) * prod(max(int(lo), int(hi or 0), 1) for lo, hi in _COUNT.findall(pattern))
    return size <= _MAX_PLAIN and _PLAIN.fullmatch(pattern) is not None


@lru_cache(maxsize=256)
def found_pattern(pattern: str) -> FoundPattern:
    """The pattern, kept."""
    return FoundPattern(pattern)


class FoundPattern:
    """One pattern, to be found in texts."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._automaton: Automaton | None = None
        self._matcher: EcmaMatcher | None = None
        try:
            self._automaton = Automaton(ecma_search(pattern, utf8), max_states=MAX_STATES)
        except NotRegular:
            self._matcher = backtracking_matcher(pattern)

    def is_in(self, text: str) -> bool:
        """True if it is found.

        Raises:
            BudgetExceeded: that takes too many steps of backtracking.
        """
        automaton = self._automaton
        if automaton is not None:
            try:
                return automaton.accepts(text.encode(errors="surrogatepass"))
            except BudgetExceeded:
                self._automaton = None
        self._matcher = self._matcher or backtracking_matcher(self._pattern)
        return self._matcher.found_in(text)


class PatternKeyword:
    """The keyword `pattern` as the validator calls it: the class is the factory, an instance one pattern in a schema."""

    def __init__(self, parent: Any, pattern: Any, path: Any) -> None:
        self._pattern = pattern
        self._found: FoundPattern | None = None

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` if a text does not match."""
        try:
            self._found = self._found or found_pattern(self._pattern)
            if not isinstance(instance, str) or self._found.is_in(instance):
                return
        except BudgetExceeded as error:
            _UNDECIDED.set(_UNDECIDED.get() or error)
        raise ValueError(f"{instance!r} does not match {self._pattern!r}")


def is_valid(validator: Any, value: Any) -> bool:
    """True when `value` is valid.

    Raises:
        BudgetExceeded: a pattern could not be decided.
    """
    _UNDECIDED.set(None)
    answer = bool(validator.is_valid(value))
    error = _UNDECIDED.get()
    if error is not None:
        raise error
    return answer


class KeyPatterns:
    """The patterns of `patternProperties` in some schemas that the validator would read in its own way.

    Attributes:
        listed: those that are written as the list of the keys in which they are found.
    """

    def __init__(self, schemas: Iterable[Any]) -> None:
        found = dict.fromkeys(
            pattern for schema in schemas for pattern in _patterns_of_keys(schema) if not is_plain(pattern)
        )
        # The end of each, which never matches, makes it differ from all others.
        self._written = {
            pattern: (_in_plain_words(pattern), f"|$a{{{number}}}") for number, pattern in enumerate(found, 1)
        }
        self.listed = [pattern for pattern, (text, _) in self._written.items() if text is None]

    def for_value(self, value: Any) -> dict[str, str]:
        """How each pattern is written to validate a value."""
        keys = sorted(set(_keys(value))) if self.listed else []
        return {
            pattern: (_one_of(pattern, keys) if text is None else text) + end
            for pattern, (text, end) in self._written.items()
        }


def with_written_keys(schema: dict[str, Any], written: dict[str, str]) -> None:
    """Change the key patterns of one schema object, and the pointer of its reference, in place."""
    members = schema.get("patternProperties")
    if isinstance(members, dict):
        schema["patternProperties"] = {written.get(pattern, pattern): below for pattern, below in members.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and "/patternProperties/" in reference:
        base, _, pointer = reference.partition("#")
        by_token = {escape(pattern): escape(text) for pattern, text in written.items()}
        tokens = pointer.split("/")
        for place in range(1, len(tokens)):
            if tokens[place - 1] == "patternProperties":
                tokens[place] = by_token.get(unquote(tokens[place]), tokens[place])
        schema["$ref"] = f"{base}#{'/'.join(tokens)}"


def _patterns_of_keys(root: Any) -> Iterator[str]:
    for schema in KEYWORDS.schemas_inside(root):
        members = schema.get("patternProperties")
        if isinstance(members, dict):
            yield from members


def _keys(value: Any) -> Iterator[str]:
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield from part
            todo += part.values()
        elif isinstance(part, list):
            todo += part


def _one_of(pattern: str, keys: list[str]) -> str:
    found = [
        "".join(rf"\u{{{ord(character):x}}}" for character in key) for key in keys if found_pattern(pattern).is_in(key)
    ]
    return f"^(?:{'|'.join(found)})$" if found else _NEVER


_TOKEN = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|\.", re.DOTALL)
_IN_SET = re.compile(r"(?<!-)\\([dws])(?!-)|\\.", re.DOTALL)
_SETS = {"d": "0-9", "w": "0-9A-Z_a-z", "s": "\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"}


def _in_plain_words(pattern: str) -> str | None:
    r"""A pattern with `.`, `\d`, `\w`, `\s` and their opposites as sets; None if it is not plain then, either."""
    written = _TOKEN.sub(lambda token: _in_plain_set(token[0]), pattern)
    return written if is_plain(written) else None


def _in_plain_set(token: str) -> str:
    if token == ".":
        return "[^\n\r\u2028\u2029]"
    if token[0] == "[":
        return _IN_SET.sub(lambda part: _SETS[part[1]] if part[1] else part[0], token)
    inside = _SETS.get(token[1].lower())
    return token if inside is None else f"[{'^' * token[1].isupper()}{inside}]"
