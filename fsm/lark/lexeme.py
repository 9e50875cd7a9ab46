"""`Lexeme`: a terminal of a grammar that Lark does not know, as a term, and how a lexer reads it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fsm.terms.node import Node


class Lexeme(NamedTuple):
    """A terminal as a term.

    Attributes:
        node: its texts.
        kind: `greedy`: read as the longest match; `lazy`: as the shortest one; `foreign`: a language of its own, which no terminal changes.
    """

    node: Node
    kind: Literal["greedy", "lazy", "foreign"] = "greedy"
