"""`complement`, `intersection`, `encode`: operations on languages of texts, the byte strings that are valid UTF-8 (`TEXTS`). A complement
of a term also has byte strings that are not UTF-8; here it is intersected with `TEXTS`, an operand that is left out where another one
implies it. `encode` refuses lone surrogates. Complements inside a larger term (a pattern, a JSON string) are made by `node.complement`.
"""

from __future__ import annotations

from fsm.errors import ExpressionError, shorten
from fsm.terms import node as nodes
from fsm.terms.characters import ALL_CHARACTERS, utf8
from fsm.terms.node import Kind, Node

TEXTS = nodes.repeat(utf8(ALL_CHARACTERS))
"""Every text."""

TEXT_BYTES: int = sum(1 << byte for byte in (*range(0xC0), *range(0xC2, 0xF5)))
"""The bytes that occur in texts, as a 256-bit mask; C0, C1 and those from F5 on begin no character."""


def complement(node: Node) -> Node:
    """Every text that does not belong to `node`, a term of texts. The complement of the result is `node` again.

    Raises:
        ExpressionError: `node` refers to a rule, or has a check.
    """
    if node is TEXTS:
        return nodes.EMPTY
    if node.kind is Kind.INTERSECTION and len(node.args) == 2 and TEXTS in node.args:
        (other,) = (part for part in node.args if part is not TEXTS)
        if other.kind is Kind.COMPLEMENT:
            left_out: Node = other.args[0]
            return left_out
    return nodes.intersection((TEXTS, nodes.complement(node)))


def intersection(left: Node, right: Node) -> Node:
    """The texts of both, two terms of texts: a complement among texts becomes a plain one, as the other term has texts only.

    Raises:
        ExpressionError: one of the two refers to a rule, or has a check.
    """
    both = nodes.intersection((left, right))
    if both.kind is not Kind.INTERSECTION or TEXTS not in both.args:
        return both
    others = [part for part in both.args if part is not TEXTS]
    if all(part.kind is Kind.COMPLEMENT for part in others):
        return both
    return nodes.intersection(others)


def encode(text: str, what: str) -> bytes:
    """A text as UTF-8.

    Args:
        text: the text.
        what: what it is, for the error.

    Raises:
        ExpressionError: it contains a lone surrogate.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ExpressionError(
            f"expected text that has UTF-8 as {what}, received {shorten(text)}, which contains a lone surrogate at position "
            f"{error.start}. Remove it."
        ) from error
