"""`rejection`: why a whole text is not in a language: the first byte that does not fit, or what is missing at its end; what would fit, and
the part of the source that requires it, which `blame` finds (`Expression.blame`). `shown`, `required_by` and `missing` are parts of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fsm.automaton.lazy_dfa import Automaton
from fsm.terms.rendering import render
from fsm.terms.special_token import MARK, without

_BEGINNINGS = b'0"-[{tn}]a'
"""Bytes with which a value of JSON may begin or continue; where one is not allowed, a keyword forbids it."""

_BEFORE = 24  # the most characters that are shown before the first that does not fit


class Blame(Protocol):
    """Names the parts of a source that reject a text; see `Expression.blame`."""

    def __call__(self, text: bytes, *, is_whole: bool = False) -> tuple[str, ...]:
        """Return them."""
        ...


def rejection(automaton: Automaton, data: bytes, blame: Blame, passes: Callable[[], bool]) -> str | None:
    """Return why a text is not in the language of an automaton, or does not pass its checks; None if it does."""
    state = automaton.initial_state
    for position, byte in enumerate(data):
        moves = automaton.moves(state)
        if byte not in moves:
            sources = blame(data[: position + 1])
            return _message(automaton, state, data, position, sources)
        state = moves[byte]
    if not automaton.is_accepting(state):
        return _message(automaton, state, data, len(data), missing(automaton, state, data, blame))
    if passes():
        return None
    return f"the text has the form of the language, but does not pass a check. {required_by(blame(data))}".rstrip()


def missing(automaton: Automaton, state: int, data: bytes, blame: Blame) -> tuple[str, ...]:
    """Return the parts of the source that require more in a state, after a text."""
    moves = automaton.moves(state)
    # Blaming the end of the text is of little use where no value has begun; a byte that would begin or close one is blamed instead.
    wrong = (blame(data + bytes((byte,))) for byte in _BEGINNINGS if byte not in moves)
    return blame(data, is_whole=True) or next(filter(None, wrong), ())


def shown(data: bytes) -> str:
    """A few bytes for messages."""
    if data in (b"", MARK):
        return "a special token" if data else "the end of the text"
    found = ["a special token" if byte == MARK[0] else repr(bytes((byte,)))[1:] for byte in data[:12]]
    more = f" and {len(data) - 12} more" if len(data) > 12 else ""
    return f"one of {', '.join(found)}{more}" if len(found) > 1 else found[0]


def required_by(sources: tuple[str, ...]) -> str:
    """A sentence that names parts of the source; empty if there are none."""
    return f"This is required by {', '.join(sources)}. " if sources else ""


def _message(automaton: Automaton, state: int, data: bytes, position: int, sources: tuple[str, ...]) -> str:
    text = without(data).decode(errors="replace")
    before = without(data[:position]).decode(errors="ignore")  # a character may begin before the byte that does not fit
    if position == len(data):
        received = "the end of the text"
    elif data[position : position + 1] == MARK:
        received = "a special token"
    else:
        received = repr(text[len(before) : len(before) + 1])
    tail = repr(before if len(before) <= _BEFORE else "..." + before[-_BEFORE:])
    expected, rest = shown(bytes(sorted(automaton.moves(state)))), render(automaton.nodes[state])
    said = f"expected {expected} at character {len(before)}{f', after {tail}' if before else ''}, received {received}."
    follows = f" What must follow there: {rest}." if rest else ""
    return f"{said} {required_by(sources)}".rstrip() + follows
