"""`Context`: the mutable state of one compilation of a schema, shared by all builders of terms: options, caches, and notes for the report.

The notes are the keywords that are left to checks, with reasons, the values of unbounded length, and the spellings that are left out. With
`strict`, a note on a check raises `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fsm.errors import BudgetExceeded, SchemaError, reference
from fsm.limits import Limits
from fsm.schema.documents.document import Document
from fsm.schema.key_kinds import KeyKinds
from fsm.schema.places.place import Place
from fsm.schema.syntax import Syntax
from fsm.terms.derivative import Derivatives
from fsm.terms.distance import is_endless
from fsm.terms.node import EMPTY, Node

KeyOrder = Literal["schema", "any"]
_BOUNDS = ("type", "propertyNames", "maxLength", "maxItems", "maxProperties")
"""What would bound a value; of several the last, as `maxProperties` of an object that may have members of any type."""


@dataclass(slots=True)
class Context:
    """Options of one compilation, and what was left out of the automaton so far.

    Attributes:
        document: the schema.
        syntax: separators and values of any type.
        limits: bounds of compiling.
        key_order: `schema` or `any`.
        is_strict: whether to refuse what is not exact.
        is_coarse: whether to leave more to checks, where everything together was too much.
        can_be_coarser: whether something was met that costs less then.
        left_out: the keywords that the automaton does not enforce exactly, of the value that is being built.
        checked: the pointers of all such keywords, with the reason.
        key_kinds: the minterms of languages of keys, by the languages.
        endless: of the value that is being built, the keywords that would bound it; see `Report.unbounded`.
        is_outermost: whether there is room for all that a value may hold inside.
        impossible: optional properties that no value satisfies, by their pointers.
        spellings: what is never written though the schema allows it, one sentence each.
        derivatives: for short searches, kept as terms have most of their states in common.
    """

    document: Document
    syntax: Syntax
    limits: Limits
    key_order: KeyOrder = "schema"
    is_strict: bool = False
    is_coarse: bool = False
    can_be_coarser: bool = False
    left_out: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    key_kinds: dict[tuple[Node, tuple[Node, ...]], KeyKinds] = field(default_factory=dict)
    is_outermost: bool = False
    impossible: dict[str, Place] = field(default_factory=dict)
    spellings: dict[str, None] = field(default_factory=dict)
    _met: dict[str, dict[object, None]] = field(default_factory=dict)
    _without_bound: dict[object, list[str]] = field(default_factory=dict)
    _endless_terms: dict[Node, bool] = field(default_factory=dict)
    derivatives: Derivatives = field(default_factory=lambda: Derivatives(max_search=300, max_memo=20_000))

    def leave_out(self, place: Place, keyword: str, reason: str = "") -> None:
        """Note that the automaton allows more than `keyword` of `place` does, so that the value must be checked.

        Raises:
            SchemaError: everything must be exact.
        """
        self.left_out.append(self.note_check(place, keyword, reason))

    def note_check(self, place: Place, keyword: str, reason: str = "") -> str:
        """Note that `keyword` of `place` is checked, and return the pointer to it.

        Raises:
            SchemaError: everything must be exact.
        """
        pointer = place.at(keyword)
        if self.is_strict:
            raise SchemaError(
                f"`{keyword}` is not exact here{f' ({reason})' if reason else ''}, only checked when the value is complete. "
                "Leave `strict` out to have it checked, or change the schema",
                pointer,
            )
        self.checked[pointer] = self.checked.get(pointer) or reason
        return pointer

    def is_possible(self, node: Node) -> bool:
        """Whether some text belongs to a term; True where that is not found out soon. Cost: nothing for most terms."""
        if node is EMPTY or node.is_plain or not node.is_regular:
            return node is not EMPTY
        try:
            return self.derivatives.is_inhabited(node)
        except BudgetExceeded:
            return True

    def note_spellings(self, *sentences: str) -> None:
        """Note what is never written of the values that are being built."""
        self.spellings |= dict.fromkeys(sentences)

    @property
    def unbounded(self) -> list[tuple[str, str]]:
        """The values that may be of any length; see `Report.unbounded`."""
        known = self._without_bound
        found = {at: [word for key in keys for word in known.get(key, ())] for at, keys in self._met.items()}
        return [(reference(at), max(words, key=_BOUNDS.index)) for at, words in found.items() if words]

    def note_met(self, key: object, pointer: str) -> None:
        """Note that what is at a pointer is what `key` stands for."""
        self._met.setdefault(pointer, {})[key] = None

    def note_endless(self, key: object, words: list[str]) -> None:
        """Note that what `key` stands for may be of any length, and the keywords that would bound it."""
        self._without_bound.setdefault(key, words)

    def note_strings(self, node: Node, keyword: str = "maxLength") -> None:
        """Note whether strings of the value that is being built may be of any length, and the keyword that would bound them."""
        if is_endless(node, self._endless_terms) and self.is_possible(node):
            self.endless.append(keyword)

    def leave_all_out(self, missing: Iterable[tuple[Place, str]], reason: str = "") -> None:
        """Note several; see `leave_out`."""
        for place, keyword in missing:
            self.leave_out(place, keyword, reason)
