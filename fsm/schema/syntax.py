"""`Syntax`: the separators of JSON text, with no, one or an optional space, and the term of any JSON value up to a nesting depth. That is a
chain of rules, one per nesting level, each built when it is reached; its objects have a check for repeated keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from fsm.schema.scalars.number import NUMBER
from fsm.schema.scalars.string import STRING
from fsm.schema.value_check import DISTINCT_KEYS
from fsm.terms import node as nodes
from fsm.terms.node import Node
from fsm.terms.rule import Rule

Whitespace = Literal["none", "one_space", "spaced"]

NULL = nodes.literal(b"null")
BOOLEAN = nodes.words((b"true", b"false"))


@dataclass(frozen=True, slots=True)
class Syntax:
    """The terms of the separators of JSON, and methods that make members, items and values with them."""

    comma: Node
    colon: Node

    def any_value(self, nesting: int) -> Node:
        """Any value, with at most `nesting` arrays and objects inside one another; each level is built when it is reached."""
        return _any_rule(self, nesting).term

    def any_number(self, part: Node, close: Node) -> tuple[Node, Node]:
        """Any number of equal members or items and the closing bracket: as the first in their object or array, and after others."""
        more = nodes.concat(nodes.repeat(nodes.concat(self.comma, part)), close)
        return nodes.alternation((close, nodes.concat(part, more))), more


@cache
def syntax_of(whitespace: Whitespace) -> Syntax:
    """The syntax for one setting of `whitespace`."""
    one = nodes.literal(b" ")
    space = {"none": nodes.EPSILON, "one_space": nodes.optional(one), "spaced": one}[whitespace]
    return Syntax(nodes.concat(nodes.literal(b","), space), nodes.concat(nodes.literal(b":"), space))


@lru_cache(maxsize=1_000)
def _any_rule(syntax: Syntax, nesting: int) -> Rule:
    return Rule("any JSON value", lambda: _any_value(syntax, nesting), is_sure=True, family=syntax)


def _any_value(syntax: Syntax, nesting: int) -> Node:
    scalars = (NULL, BOOLEAN, NUMBER, STRING)
    if nesting == 0:
        return nodes.alternation(scalars)
    value = syntax.any_value(nesting - 1)
    items, _ = syntax.any_number(value, nodes.literal(b"]"))
    members, _ = syntax.any_number(nodes.sequence((STRING, syntax.colon, value)), nodes.literal(b"}"))
    an_object = nodes.checked(nodes.concat(nodes.literal(b"{"), members), DISTINCT_KEYS)
    return nodes.alternation((*scalars, nodes.concat(nodes.literal(b"["), items), an_object))
