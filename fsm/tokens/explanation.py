"""`Explanation`, `explain`, `wanted`: why a token is or is not allowed in a state, what would be, and which part of the source requires
it. The token is read byte by byte up to the first byte without a transition; the source is found by `Expression.blame`, where the text
before the state is given. `explain_special` is about ids without bytes, `gap_error` about a vocabulary whose tokens spell no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fsm.automaton.lazy_dfa import Automaton
from fsm.automaton.rejection import missing, required_by, shown
from fsm.errors import BudgetExceeded, FSMError, VocabularyGap
from fsm.expression import Expression
from fsm.terms.node import reached
from fsm.terms.rendering import render
from fsm.terms.special_token import MARK
from fsm.tokens.coreachable import Spelling, survivors
from fsm.tokens.vocabulary import Vocabulary

_MAX_GAP_STATES = 100  # the most states that are visited to find which bytes a vocabulary lacks


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a token is or is not allowed in a state.

    Attributes:
        token_id, token: the id and its bytes (None for a special token).
        allowed: the answer.
        position: the index in `token` of the first byte that does not fit; None if no single byte is to blame.
        expected: the bytes that would fit there, ascending.
        text: the same as a message.
        rest: what must follow there, as a pattern, shortened: the part of the expression that does not fit.
        sources: the parts of the source that require it (JSON pointers to keywords, or a pattern); only where the text was given.
    """

    token_id: int
    token: bytes | None
    allowed: bool
    position: int | None
    expected: bytes
    text: str
    rest: str = ""
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def explain(
    expression: Expression,
    automaton: Automaton,
    state: int,
    token_id: int,
    token: bytes,
    written: bytes | None,
    can_end: Callable[[int], bool],
) -> Explanation:
    """Explain by its bytes whether a token is allowed; `can_end` returns whether tokens spell a text from a state on."""
    begin, is_special = state, token.startswith(MARK)
    text = None if is_special else token
    label = f"token {token_id} ({repr(token) if text else 'the special token ' + repr(token.strip(MARK).decode())})"
    for position, byte in enumerate(token):
        moves = automaton.moves(state)
        if byte not in moves:
            at = begin if is_special else state
            expected, rest = bytes(sorted(automaton.moves(at))), render(automaton.nodes[at])
            sources = () if written is None else expression.blame(written + token[: position + 1])
            place = "" if is_special else f" at byte {position} of it, received {bytes((byte,))!r}"
            said = (
                f"{label} is not allowed: expected {shown(expected)}{place}. {required_by(sources)}"
                f"What must follow there: {rest}. `allowed_token_ids` lists what is allowed."
            )
            return Explanation(token_id, text, False, None if is_special else position, expected, said, rest, sources)
        state = moves[byte]
    if can_end(state):
        return Explanation(token_id, text, True, None, b"", f"{label} is allowed.")
    rest = render(automaton.nodes[state])
    said = (
        f"{label} is not allowed: no tokens of this vocabulary spell a text that follows it. What must follow: "
        f"{rest}. Use a tokenizer with these characters (byte-level or byte-fallback ones have all)."
    )
    return Explanation(token_id, text, False, None, bytes(sorted(automaton.moves(state))), said, rest)


def explain_special(
    expression: Expression,
    automaton: Automaton,
    vocabulary: Vocabulary,
    state: int,
    token_id: int,
    written: bytes | None,
) -> Explanation:
    """Explain an id without bytes: an EOS id, another special token, or no id of the vocabulary."""
    if token_id not in vocabulary.eos_token_ids:
        token = vocabulary.tokens[token_id] if 0 <= token_id < len(vocabulary) else None
        what = (
            "a special token" if 0 <= token_id < len(vocabulary) else f"no id of this vocabulary of {len(vocabulary)}"
        )
        said = (
            f"token {token_id} is {f'{token!r}, which is no UTF-8' if token else what}, so it never belongs to a text."
        )
        return Explanation(token_id, token, False, None, b"", said)
    accepting = automaton.is_accepting(state)
    expected, rest = bytes(sorted(automaton.moves(state))), render(automaton.nodes[state])
    sources = () if written is None or accepting else missing(automaton, state, written, expression.blame)
    said = f"token {token_id} ends the text" + (
        ", which is complete here; an end leads to no further state."
        if accepting
        else f", which still needs {shown(expected)}. {required_by(sources)}What must follow: {rest}."
    )
    return Explanation(token_id, None, accepting, None, expected, said, rest, sources)


def wanted(expression: Expression, automaton: Automaton, state: int, written: bytes) -> str:
    """Return what must follow in `state`; see `TokenFSM.wanted`."""
    sources = missing(automaton, state, written, expression.blame)
    return render(automaton.nodes[state]) + (f", required by {', '.join(sources)}" if sources else "")


def gap_error(expression: Expression, automaton: Automaton, vocabulary: Vocabulary, spelling: Spelling) -> FSMError:
    """Return the error where no tokens spell a text, or none were found; it names the bytes that are needed first and are no tokens."""
    if not spelling.is_exact:
        return BudgetExceeded(
            f"whether tokens of this vocabulary, which lacks bytes, can spell a text was not decided within {spelling.max_search} "
            "states. Add tokens of one byte to the vocabulary, or raise `TokenFSM.max_gap_search`.",
            "max_gap_search",
            spelling.max_search,
        )

    def targets(state: int) -> Iterable[int]:
        return np.unique(survivors(automaton, vocabulary.trie, state)[1]).tolist()  # type: ignore[no-any-return]

    states = islice(reached(automaton.initial_state, targets), _MAX_GAP_STATES)
    needed = {b for state in states for b in automaton.moves(state)}
    missing = bytes(b for b in sorted(needed) if not vocabulary.single_bytes >> b & 1)
    return VocabularyGap(
        f"the vocabulary cannot spell any text of {expression!r}: no token supplies {shown(missing)} where it is needed. "
        "Use a tokenizer with these characters (byte-level or byte-fallback ones have all), or another constraint."
    )


def special_gap(expression: Expression, vocabulary: Vocabulary, name: str) -> VocabularyGap:
    """Return the error where a special token of an expression is none of the vocabulary."""
    if name in vocabulary.special_tokens.values():
        advice = "it ends a text there. Leave it out where the language ends"
    elif name.encode() in vocabulary.tokens:
        advice = f"it is a token with letters there. Write it as a text, {name!r}"
    else:
        known = ", ".join(map(repr, list(vocabulary.special_ids)[:8])) or "none"
        advice = f"it has {known}. Use one of them, or a tokenizer that has it"
    return VocabularyGap(
        f"expected a vocabulary with the special token {name!r} of {expression!r}, received one in which it is no symbol: {advice}."
    )
