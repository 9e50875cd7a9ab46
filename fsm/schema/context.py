"""`Context`: the mutable state of one compilation of a schema, shared by all builders of terms: options, caches, and notes for the report.
The notes are the keywords that are left to checks, with reasons, the values of unbounded length, impossible properties, and the spellings
that are never generated. With `strict`, a note on a check raises `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fsm.errors import BudgetExceeded, SchemaError, reference
from fsm.schema.documents.document import Document
from fsm.schema.key_minterms import KeyMinterms
from fsm.schema.places.place import Place
from fsm.schema.syntax import Syntax
from fsm.terms.derivative import Derivatives
from fsm.terms.distance import is_unbounded
from fsm.terms.node import EMPTY, Node

KeyOrder = Literal["schema", "any"]
_BOUNDS = ("type", "propertyNames", "maxLength", "maxItems", "maxProperties")
"""The keywords that would bound a value; where several would, the report names the last of these."""


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
    _met: dict[str, dict[object, None]] = field(default_factory=dict)
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
        """Whether a term has some text; True where a short search does not find out."""
        if node is EMPTY or node.is_plain or not node.is_regular:
            return node is not EMPTY
        try:
            return self.derivatives.is_inhabited(node)
        except BudgetExceeded:
            return True

    def note_spellings(self, *sentences: str) -> None:
        """Note which spellings of the values that are being built are never generated."""
        self.spellings |= dict.fromkeys(sentences)

    @property
    def unbounded(self) -> list[tuple[str, str]]:
        """The values that may be of any length; see `Report.unbounded`."""
        known = self._unbounded
        found = {at: [word for key in keys for word in known.get(key, ())] for at, keys in self._met.items()}
        return [(reference(at), max(words, key=_BOUNDS.index)) for at, words in found.items() if words]

    def note_met(self, key: object, pointer: str) -> None:
        """Note that the term with a key is that of the schema at a pointer."""
        self._met.setdefault(pointer, {})[key] = None

    def note_unbounded(self, key: object, words: list[str]) -> None:
        """Note that the texts of the term with a key may be of any length, and the keywords that would bound them."""
        self._unbounded.setdefault(key, words)

    def note_strings(self, node: Node, keyword: str = "maxLength") -> None:
        """Note whether strings in the value that is being built may be of any length, and the keyword that would bound them."""
        if is_unbounded(node, self._unbounded_terms) and self.is_possible(node):
            self.missing_bounds.append(keyword)
