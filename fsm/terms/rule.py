"""`Rule`: a nonterminal of a context-free grammar, used in terms as `Rule.term`, whose derivative is that of the body. The body, which may
contain that term, is set by `define`, or built when first needed; it must not match the empty text, and left recursion is refused when it
is derived. `Rules` owns bodies that refer to their own rules, which refer to it weakly, so that there are no reference cycles.

`complement`, `intersection`, `encode`: operations on languages of texts, the byte strings that are valid UTF-8 (`TEXTS`). A complement
of a term also has byte strings that are not UTF-8; here it is intersected with `TEXTS`, an operand that is left out where another one
implies it. `encode` refuses lone surrogates. Complements inside a larger term (a pattern, a JSON string) are made by `node.complement`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass, field
from weakref import ref

from fsm.errors import ExpressionError, shorten
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.characters import ALL_CHARACTERS, utf8
from fsm.terms.node import Kind, Node, intern

_building = threading.RLock()
_numbers = iter(range(1 << 62))


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Rule:
    """A named term that may refer to itself; its body is set once, by `define` or by `build` when it is first needed.

    The body must not match the empty text, so that nullability needs no fixed point. Where it refers to the rule, make it with `Rules`.

    Attributes:
        name: for messages.
        build: makes the body; it may be called by any thread, and refer to rules that are not built yet.
        is_sure: a promise that neither the body nor any of its derivatives is empty.
        is_inhabited: a promise that some text belongs to the body, so that it need not be built to find that out.
        has_munch: its body may contain a MUNCH.
        family: equal for rules that differ only in how deep they may be nested and contain the same checks; unique by default.
        keeps: an object that must live as long as the rule.
        number: unique in this process.
    """

    name: str
    build: Callable[[], Node] | None = None
    _: KW_ONLY
    is_sure: bool = False
    is_inhabited: bool = False
    has_munch: bool = False
    family: Hashable = None
    keeps: object = None
    number: int = field(init=False, default_factory=_numbers.__next__)
    _body: Node | None = field(init=False, default=None)
    _rules: ref[Rules] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.family is None:
            self.family = self.number

    @property
    def term(self) -> Node:
        """The language of the rule; its body is looked up when it is first needed."""
        return intern(Kind.RULE, (self,), False, key=(self.number,))

    @property
    def is_built(self) -> bool:
        """Whether there is a body already."""
        return self._known() is not None

    @property
    def body(self) -> Node:
        """The body, built if need be.

        Raises:
            ExpressionError: the rule was never defined, or the `Rules` that keep its body are gone.
        """
        body = self._known()
        if body is None:
            with _building:
                body = self._known()
                if body is None:
                    if self.build is None:
                        raise ExpressionError(
                            f"rule {self.name!r} has no body. Define it before the expression is used, and keep the expression "
                            "as long as what is left of it."
                        )
                    with work.uncounted():
                        body = self.build()
                        self.define(body)
        return body

    def _known(self) -> Node | None:
        if self._rules is None:
            return self._body
        rules = self._rules()
        return None if rules is None else rules.bodies.get(self)

    def define(self, body: Node) -> None:
        """Set the body.

        Raises:
            ExpressionError: the rule has a body already, or `body` matches the empty text.
        """
        if self.is_built:
            raise ExpressionError(f"rule {self.name!r} is defined already. Give each rule one body.")
        assert self.has_munch or not body.has_munch, f"rule {self.name!r} was made without `has_munch`"
        if body.nullable:
            raise ExpressionError(
                f"rule {self.name!r} matches the empty text. Make the place that uses it optional instead."
            )
        rules = None if self._rules is None else self._rules()
        if rules is None:
            self._body, self.build = body, None
        else:
            rules.bodies[self] = body


class Rules:
    """Rules whose bodies refer to them, and these bodies.

    Such a rule finds its body here and does not keep it; the term from outside, `entrance`, keeps all bodies, so that they are freed with
    the last term that contains an entrance. A derivative of an entrance does not keep them: a caller that derives it further keeps the
    entrance, as an automaton keeps its first state.
    """

    def __init__(self) -> None:
        self.bodies: dict[Rule, Node] = {}

    def rule(self, name: str, *, is_sure: bool = False, has_munch: bool = False) -> Rule:
        """A rule whose body is kept here; see `Rule`."""
        made = Rule(name, is_sure=is_sure, has_munch=has_munch)
        made._rules = ref(self)
        return made

    def entrance(self, rule: Rule) -> Node:
        """The term of a rule, which keeps all bodies alive.

        Raises:
            ExpressionError: the rule has no body yet.
        """
        outer = Rule(
            rule.name,
            is_sure=rule.is_sure,
            is_inhabited=rule.is_inhabited,
            has_munch=rule.has_munch,
            family=rule.family,
            keeps=self,
        )
        outer.define(rule.body)
        return outer.term


TEXTS = nodes.repeat(utf8(ALL_CHARACTERS))
"""Every text."""

TEXT_BYTES: int = sum(1 << byte for byte in (*range(0xC0), *range(0xC2, 0xF5)))
"""The bytes that occur in texts, as a 256-bit mask; C0, C1 and those from F5 on begin no character."""


def has_all(node: Node) -> bool:
    """True if a term of texts is seen to have all of them."""
    return node.is_regular and not node.is_checked and nodes.is_among(TEXTS, node)


def union(left: Node, right: Node) -> Node:
    """The texts of either, two terms of texts: all texts if one of them is `TEXTS`."""
    return TEXTS if TEXTS in (left, right) else nodes.alternation((left, right))


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
