"""Errors of `fsm`: each says what was expected, what was received, where, and what to do.

`FSMError` is the base of all. A child also derives from the built-in that it resembles, and keeps its facts as attributes.
"""

from __future__ import annotations


class FSMError(Exception):
    """Base of every error that `fsm` raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the facts; without this an error would break the pool of processes that it comes from."""
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[FSMError], args: tuple[object, ...], facts: dict[str, object]) -> FSMError:
    error = FSMError.__new__(kind)
    error.args = args
    vars(error).update(facts)
    return error


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
    """A place of a schema as people write it: `#/items` in the document itself, `http://example.org/x#/items` in another."""
    return f"#{pointer}" if pointer[:1] in ("", "/") else pointer


class SchemaError(FSMError, ValueError):
    """A JSON schema is malformed, or uses what is not supported; `pointer` says where, such as `#/items`."""

    def __init__(self, message: str, pointer: str = "") -> None:
        self.pointer = reference(pointer)
        super().__init__(f"{message} (at {self.pointer!r})")


class SchemaWarning(UserWarning):
    """Something in a JSON schema rejects nothing and may be meant to: a keyword that looks misspelt, a format that is not known."""


class GrammarError(FSMError, ValueError):
    """A grammar is malformed, or uses something that is not supported; the message says where."""


class TerminalCollision(GrammarError):
    """Two terminals match one text where both may come, and the grammar was to be read strictly."""

    def __init__(self, message: str, terminals: tuple[str, str], text: str) -> None:
        super().__init__(message)
        self.terminals = terminals
        self.text = text


class NotRegular(SchemaError):
    """A keyword of a schema is not regular here; caught inside where the keyword can be checked instead."""


class UnsupportedPython(FSMError, ImportError):
    """This version of Python has changed a private part of `re` that patterns are read with; raised when `fsm` is imported."""


class EmptyLanguage(FSMError, ValueError):
    """No text at all satisfies the constraint."""


class VocabularyError(FSMError, ValueError):
    """A vocabulary cannot be built from what was given."""


class VocabularyGap(FSMError, ValueError):
    """Texts exist that satisfy the constraint, but the tokens of the vocabulary cannot spell any of them."""


class BudgetExceeded(FSMError, RuntimeError):
    """A limit was reached; `limit` names it and `value` is its setting."""

    def __init__(self, message: str, limit: str, value: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.value = value


class TokenNotAllowed(FSMError, ValueError):
    """A token id was fed that the state does not allow."""


class UnknownState(FSMError, ValueError):
    """An integer is not a state of this token FSM."""
