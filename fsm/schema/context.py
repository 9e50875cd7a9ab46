"""What every builder of a term needs: the syntax, the options, and a list of what it could not put into the automaton."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fsm.derivative import Derivatives
from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.node import Node
from fsm.schema.document import Document
from fsm.schema.key_kinds import KeyKinds
from fsm.schema.place import Place
from fsm.schema.syntax import Syntax

KeyOrder = Literal["schema", "any"]


@dataclass(slots=True)
class Context:
    """Options of one compilation, and what was left out of the automaton so far.

    Attributes:
        document: the schema.
        syntax: separators and values of any type.
        limits: bounds of compiling.
        key_order: `schema` or `any`.
        is_strict: whether to refuse what is not exact.
        left_out: the keywords that the automaton does not hold, of the value that is being built.
        checked: the pointers of all such keywords, and why the automaton cannot hold them.
        key_kinds: into what languages divide all keys, by the languages.
        spellings: what is never written though the schema allows it, one sentence each.
        derivatives: for short searches, kept as terms have most of their states in common.
    """

    document: Document
    syntax: Syntax
    limits: Limits
    key_order: KeyOrder = "schema"
    is_strict: bool = False
    left_out: list[str] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    key_kinds: dict[tuple[Node, tuple[Node, ...]], KeyKinds] = field(default_factory=dict)
    spellings: dict[str, None] = field(default_factory=dict)
    derivatives: Derivatives = field(default_factory=lambda: Derivatives(max_search=300, max_memo=20_000))

    @property
    def asserts_format(self) -> bool:
        """Whether `format` can reject a value."""
        return self.document.asserts_format

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
        keyword = keyword.removeprefix("\0")
        pointer = place.at(keyword)
        if self.is_strict:
            raise SchemaError(
                f"`{keyword}` is not exact here{f' ({reason})' if reason else ''}, only checked when the value is complete. "
                "Leave `strict` out to have it checked, or change the schema",
                pointer,
            )
        self.checked[pointer] = self.checked.get(pointer) or reason
        return pointer

    def note_spellings(self, *sentences: str) -> None:
        """Note what is never written of the values that are being built."""
        self.spellings |= dict.fromkeys(sentences)

    def leave_all_out(self, missing: Iterable[tuple[Place, str]], reason: str = "") -> None:
        """Note several; see `leave_out`."""
        for place, keyword in missing:
            self.leave_out(place, keyword, reason)
