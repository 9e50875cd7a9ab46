"""Where the texts of a terminal end, against every way to cut a short text in two."""

from __future__ import annotations

import re
from itertools import product

import pytest

from fsm.automaton.lazy_dfa import Automaton
from fsm.lark.terminal import TerminalEnd
from fsm.pattern.python_pattern import regex
from fsm.terms import node as nodes
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY

TEXTS = ["".join(letters) for length in range(8) for letters in product("1.", repeat=length)]
HEADS = ["1+", r"1+(?:\.1+)?", r"1(?:\.\.1)*", "1", r"1*\.", r"\.+|1"]
RIVALS = ["[^1.]", r"11\.1", r"\.+", "1+"]


def _ends(text: str, head: str, rival: str, avoided: str) -> bool:
    """True where the text can be cut so that the head does not go on, nor the rival, and what is avoided does not follow."""
    for end in range(1, len(text) + 1):
        longer = [text[:length] for length in range(end + 1, len(text) + 1)]
        if not re.fullmatch(head, text[:end]) or any(re.fullmatch(p, more) for p in (head, rival) for more in longer):
            continue
        if not avoided or not re.match(avoided, text[end:]):
            return True
    return False


@pytest.mark.parametrize("avoided", ["", r"\.1"])
@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("head", HEADS)
def test_a_text_ends_where_nothing_longer_is_completed(head: str, rival: str, avoided: str) -> None:
    ending = TerminalEnd(regex(head).node, Automaton(regex(rival).node), regex(avoided).node if avoided else EMPTY)
    automaton = Automaton(nodes.concat(ending.before(ALL_BYTES), ANYTHING))
    for text in TEXTS:
        assert _ends(text, head, rival, avoided) == automaton.accepts(text.encode()), text


def test_what_cannot_come_next_needs_no_look() -> None:
    ending = TerminalEnd(regex("[a-z]+").node, Automaton(EMPTY))
    assert regex("[a-z]+").node is ending.before(1 << ord(" "))
    assert regex("[a-z]+").node is not ending.before(1 << ord("a"))
