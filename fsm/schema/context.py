"""`Syntax`: the separators of JSON text, with no, one or an optional space, and the term of any JSON value up to a nesting depth. That is a
chain of rules, one per nesting level, each built when it is reached; its objects have a check for repeated keys.

`Context`: the mutable state of one compilation of a schema, shared by all builders of terms: options, caches, and notes for the report.
The notes are the keywords that are left to checks, with reasons, the values of unbounded length, impossible properties, and the spellings
that are never generated. With `strict`, a note on a check raises `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal

from fsm.errors import BudgetExceeded, SchemaError, reference
from fsm.schema.documents.document import Document
from fsm.schema.key_minterms import KeyMinterms
from fsm.schema.keywords.place import Place
from fsm.schema.scalars.number import NUMBER
from fsm.schema.scalars.string import STRING
from fsm.schema.value_check import DISTINCT_KEYS
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.distance import is_unbounded
from fsm.terms.node import EMPTY, Node
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


KeyOrder = Literal["schema", "any"]
_BOUNDS = ("type", "propertyNames", "maxLength", "maxItems", "maxProperties")
"""The keywords that would bound a value; if several would, the report names the last of these."""


@dataclass(slots=True)
class Context:
    """Options of one compilation, and notes on it.

    Attributes:
        document: the schema.
        syntax: separators and values of any type.
        key_order: `schema` or `any`.
        is_strict: whether to refuse what is not exact.
        is_coarse: whether to leave more to checks, since an exact compilation took too much work.
        can_be_coarser: whether some part costs less then.
        left_out: of the value that is being built, the pointers of keywords that the automaton does not enforce exactly.
        missing_bounds: of the same value, the keywords that would bound its length; see `Report.unbounded`.
        checked: the pointers of all keywords that are checked, with reasons.
        key_minterms: the minterms of languages of keys, by the languages.
        is_outermost: whether the nesting of the value that is being built is not bounded yet.
        impossible: optional properties that no value satisfies, by their pointers.
        spellings: sentences on what the schema allows and is never generated.
        derivatives: a cache for short searches, as terms have most of their states in common.
    """

    document: Document
    syntax: Syntax
    key_order: KeyOrder = "schema"
    is_strict: bool = False
    is_coarse: bool = False
    can_be_coarser: bool = False
    left_out: list[str] = field(default_factory=list)
    missing_bounds: list[str] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    key_minterms: dict[tuple[Node, tuple[Node, ...]], KeyMinterms] = field(default_factory=dict)
    is_outermost: bool = False
    impossible: dict[str, Place] = field(default_factory=dict)
    spellings: dict[str, None] = field(default_factory=dict)
    _met: dict[tuple[str, object], None] = field(default_factory=dict)
    _unbounded: dict[object, list[str]] = field(default_factory=dict)
    _unbounded_terms: dict[Node, bool] = field(default_factory=dict)
    derivatives: Derivatives = field(default_factory=lambda: Derivatives(max_search=300, max_memo=20_000))

    def leave_out(self, missing: Iterable[tuple[Place, str]], reason: str) -> None:
        """Note keywords of places that the term being built does not enforce exactly, so that its value must be checked.

        Raises:
            SchemaError: the caller is strict.
        """
        self.left_out += [self.note_check(place, keyword, reason) for place, keyword in missing]

    def note_check(self, place: Place, keyword: str, reason: str) -> str:
        """Note that `keyword` of `place` is checked, and return the pointer to it.

        Raises:
            SchemaError: the caller is strict.
        """
        pointer = place.at(keyword)
        if self.is_strict:
            raise SchemaError(
                f"`{keyword}` is not exact here ({reason}), only checked when the value is complete. "
                "Leave `strict` out to have it checked, or change the schema",
                pointer,
            )
        self.checked[pointer] = self.checked.get(pointer) or reason
        return pointer

    def is_possible(self, node: Node) -> bool:
        """Whether a term has some text; True if a short search does not find out."""
        if node is EMPTY or node.is_plain or not node.is_regular:
            return node is not EMPTY
        try:
            return self.derivatives.is_inhabited(node)
        except BudgetExceeded:
            return True

    def note_spellings(self, *sentences: str) -> None:
        """Note which spellings of the values that are being built are never generated."""
        for sentence in sentences:
            self.spellings[sentence] = None

    @property
    def unbounded(self) -> list[tuple[str, str]]:
        """The values that may be of any length; see `Report.unbounded`."""
        found = dict[str, list[str]]()
        for at, key in self._met if self._unbounded else ():
            found.setdefault(at, []).extend(self._unbounded.get(key, ()))
        return [(reference(at), max(words, key=_BOUNDS.index)) for at, words in found.items() if words]

    def note_met(self, key: object, pointer: str) -> None:
        """Note that the term with a key is that of the schema at a pointer."""
        self._met[pointer, key] = None

    def note_unbounded(self, key: object, words: list[str]) -> None:
        """Note that the texts of the term with a key may be of any length, and the keywords that would bound them."""
        self._unbounded.setdefault(key, words)

    def note_strings(self, node: Node, keyword: str = "maxLength") -> None:
        """Note whether strings in the value that is being built may be of any length, and the keyword that would bound them."""
        if is_unbounded(node, self._unbounded_terms) and self.is_possible(node):
            self.missing_bounds.append(keyword)
