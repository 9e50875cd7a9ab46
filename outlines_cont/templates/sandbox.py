"""`TemplateSandbox`: the sandbox of all templates in its asynchronous form, in which special tokens keep their marks, and tokens of a
template know their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlines_cont.errors import TemplateError
from outlines_cont.jinja_sandbox import BoundedSandbox
from outlines_cont.templates.program import MarkedText, joined
from outlines_cont.templates.rewriting import PlacedLexer


class TemplateSandbox(BoundedSandbox):
    """The Jinja environment of prompt programs."""

    def __init__(self) -> None:
        super().__init__(enable_async=True, keep_trailing_newline=True)
        self.filters["special"] = self.counted(special_text, "special")

    @property
    def lexer(self) -> PlacedLexer:
        """A lexer with the column of each token."""
        return PlacedLexer(self)

    def joined(self, texts: Sequence[str]) -> str:
        """Concatenate texts, with their marks."""
        return joined(texts)


def special_text(text: Any) -> MarkedText:
    """Return a text in which special tokens are control tokens."""
    if not isinstance(text, str):
        raise TemplateError(f"expected a text before `special`, got {type(text).__name__}")
    return MarkedText([(str.__str__(text), True)])
