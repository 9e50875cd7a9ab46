"""Errors of `fsm`, and functions for their messages (`shorten`, `clip`, `did_you_mean`, `reference`, `exceeded`). `FSMError` is the base
class of all; a message states what was expected, what was received, and how to correct it. Each subclass also derives from the built-in
exception that it resembles (mostly `ValueError`), some have attributes such as `pattern` or `pointer`, and all can be pickled.
`SchemaWarning` is a warning and not an `FSMError`.

`stacklevel_of_user`: the `stacklevel` with which a warning points at the line of the user: at the first stack frame that is neither of
these packages nor of torch or of a few modules of the standard library, such as `contextlib` and `asyncio`.
"""

from __future__ import annotations

from collections.abc import Iterable
from copyreg import __newobj__  # type: ignore[attr-defined]
from difflib import get_close_matches
from reprlib import Repr
from sys import _getframe

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 2, 3, 4
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shorten(value: object) -> str:
    """Return the `repr` of a value for a message, bounded however large or deeply nested it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"a very long {type(value).__name__}"


def clip(text: str, most: int = 120) -> str:
    """Return a text of at most `most` characters, with `...` in place of the middle of a longer one."""
    kept = most * 2 // 3
    return text if len(text) <= most else f"{text[:kept]}...{text[kept + 3 - most :]}"


def is_one_of(value: object, known: Iterable[object]) -> bool:
    """Return whether an option is one of the known values; an array, whose comparison is none, is not."""
    try:
        return bool(value in tuple(known))
    except Exception:  # of any type of a library
        return False


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ' Did you mean ...?' with the closest of some names, in capitals or not; an empty text if none is close."""
    known = {one.lower(): one for one in names}
    near = get_close_matches(name.lower(), known, 1)
    return f" Did you mean {known[near[0]]!r}?" if near else ""


class FSMError(Exception):
    """Base class of the errors that `fsm` defines; a wrong argument may also raise a plain `TypeError` or `ValueError`."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes without calling `__init__`, so that an error can leave a worker process."""
        return __newobj__, (type(self), *self.args), vars(self)


class ExpressionError(FSMError, ValueError):
    """An expression cannot be built, for example `~` of something that is not regular."""


class RegexSyntaxError(ExpressionError):
    """A pattern is not a regular expression in Python syntax."""

    def __init__(self, message: str, pattern: str, position: int | None = None) -> None:
        super().__init__(message)
        self.pattern = pattern
        self.position = position


class UnsupportedRegex(ExpressionError):
    """A pattern is well formed, but uses something that is not supported here, such as a back-reference."""

    def __init__(self, message: str, pattern: str) -> None:
        super().__init__(message)
        self.pattern = pattern


def reference(pointer: str) -> str:
    """A position in a schema as a URI reference: `#/items` in the document itself, `http://example.org/x#/items` in another."""
    return f"#{pointer}" if pointer[:1] in ("", "/") else pointer


class SchemaError(FSMError, ValueError):
    """A JSON schema is malformed, or uses what is not supported; `pointer` is the position, such as `#/items`."""

    def __init__(self, message: str, pointer: str = "") -> None:
        self.pointer = reference(pointer)
        super().__init__(f"{message} (at {self.pointer!r})")


class SchemaWarning(UserWarning):
    """Part of a JSON schema has no effect and was probably meant to have one: a keyword that looks misspelt, an unknown format."""


class GrammarError(FSMError, ValueError):
    """A grammar is malformed, or uses something that is not supported; the message contains the position."""


class TerminalCollision(GrammarError):
    """Two terminals of equal priority match the same text at a position that allows both; raised only in strict mode."""

    def __init__(self, message: str, terminals: tuple[str, str], text: str) -> None:
        super().__init__(message)
        self.terminals = terminals
        self.text = text


class NotRegular(SchemaError):
    """A keyword of a schema cannot be compiled to an automaton; caught internally where a check of the finished value can replace it."""


class UnsupportedPython(FSMError, ImportError):
    """This version of Python has changed a private part of `re` that patterns are read with; raised when `fsm` is imported."""


class EmptyLanguage(FSMError, ValueError):
    """No text satisfies the constraint."""


class VocabularyError(FSMError, ValueError):
    """A vocabulary cannot be built from what was given."""


class VocabularyGap(FSMError, ValueError):
    """Texts satisfy the constraint, but none of them is a concatenation of tokens of the vocabulary, as some bytes are missing from it."""


class BudgetExceeded(FSMError, RuntimeError):
    """A limit was reached; `limit` names it and `value` is its setting."""

    def __init__(self, message: str, limit: str, value: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.value = value


def exceeded(limit: str, value: int, problem: str, advice: str = "Simplify the expression") -> BudgetExceeded:
    """Return the error for a limit that is reached: the problem, and how to stay within the limit other than by raising it."""
    return BudgetExceeded(f"{problem}. {advice}, or raise `{limit}`.", limit, value)


class TokenNotAllowed(FSMError, ValueError):
    """The token FSM was advanced by a token id that the state does not allow."""


class UnknownState(FSMError, ValueError):
    """An integer is not a state of this token FSM."""


# Ours, and those with frames between ours: decorators of torch, context managers, threads.
_PACKAGES = frozenset(
    {"fsm", "outlines_cont", "torch", "functools", "contextlib", "threading", "concurrent", "asyncio"}
)


def stacklevel_of_user() -> int:
    """Return the `stacklevel` with which the calling function is to warn, so that the warning points at the line of the user."""
    level, frame = 1, _getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
