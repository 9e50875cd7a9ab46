"""What to do about a grammar that cannot be read: which function reads its notation (`other_notation`), what is written there as in another
one (`advice_at`), and the patterns of terminals that Lark has named itself (`with_patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lark.lexer import TerminalDef

from fsm.errors import clip

_DEFINED = re.compile(r"^[ \t]*(<?)[\w-]+>?[ \t]*::=", re.MULTILINE)
_DEFINED_IN_LARK = re.compile(
    r"^(?:[?!]*[a-z_]\w*(?:\{[^}\n]*\})?|_?[A-Z]\w*)(?:\.-?\d+)?[ \t]*:(?!:)|^%(?:import|ignore|declare)\b",
    re.MULTILINE,
)
_DEFINED_IN_ISO = re.compile(r"^[ \t]*[a-zA-Z][\w -]*=(?![=>])", re.MULTILINE)
_UNNAMED = re.compile(r"'(__ANON_\d+)'")

DIFFERENCE = (
    "a difference (`a - b`) is not part of the notation. Write the texts that remain, or subtract expressions: `a & ~b`"
)


def other_notation(text: str, *, is_lark: bool) -> str | None:
    """Which function reads a grammar in another notation than the one that was asked for, as a sentence; None if that is not known.

    Args:
        text: the grammar.
        is_lark: whether the language of Lark was asked for, and not GBNF.
    """
    defined = _DEFINED.search(text)
    if defined and is_lark:
        names = " Write its names without angle brackets." if defined[1] else ""
        return f"rules with `::=` are GBNF, which `fsm.gbnf` reads; `fsm.grammar` reads the language of Lark (`start: ...`).{names}"
    if defined and defined[1]:
        return "names in angle brackets are special tokens here. Write the names of rules without them, as in `root ::= item`."
    if not defined and not is_lark and _DEFINED_IN_LARK.search(text):
        return "rules with `:` and `%` are the language of Lark, which `fsm.grammar` reads; `fsm.gbnf` reads GBNF (`root ::= ...`)."
    if not defined and not _DEFINED_IN_LARK.search(text) and _DEFINED_IN_ISO.search(text):
        return "rules with `=` are not read. Write `start: ...` for `fsm.grammar` (Lark), or `root ::= ...` for `fsm.gbnf`."
    return None


def advice_at(text: str, line: int, column: int) -> str | None:
    """What to write in a grammar of Lark instead of what is at a place that it cannot read; None if that is not known."""
    lines = text.splitlines()
    there = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    if there.startswith("'"):
        return "Strings take double quotes: write \"x\", not 'x'"
    return f"{DIFFERENCE[:1].upper()}{DIFFERENCE[1:]}" if re.match(r"-\s*[\"/\w(]", there) else None


def with_patterns(said: str, text: str, terminals: Iterable[TerminalDef]) -> str:
    """A message with the pattern and the line of each terminal that has no name of its own."""
    patterns = {terminal.name: terminal.pattern for terminal in terminals}

    def described(found: re.Match[str]) -> str:
        pattern = patterns.get(found[1])
        if pattern is None:
            return found[0]
        before, written, _ = text.partition(pattern.raw or pattern.value)
        line = f" in line {before.count(chr(10)) + 1}" if written else ""
        return f"{clip(pattern.raw or repr(pattern.value), 60)}{line}"

    return _UNNAMED.sub(described, said)
