"""`SourcePlace`: a line number (`int`) with a column, and `PlacedLexer`: Jinja's lexer, which also finds the column of each token by
searching it in the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from jinja2 import TemplateSyntaxError
from jinja2.lexer import Lexer, newline_re


class SourcePlace(int):
    """A line number, which Jinja stores as an int, with the `column` of the first character, from 1 on."""

    column: int

    def __new__(cls, line: int, column: int) -> Self:
        """Return a line number with its column."""
        place = super().__new__(cls, line)
        place.column = column
        return place


class PlacedLexer(Lexer):
    """Jinja's lexer, with a `SourcePlace` as the line of each token."""

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        """Yield (position, kind, text) of the tokens of a template."""
        text = "\n".join(newline_re.split(source)[::2])
        at = 0
        try:
            for line, kind, token in super().tokeniter(source, name, filename, state):
                start = text.find(token, at)  # whitespace between may have been stripped
                yield SourcePlace(line, _column(text, start)), kind, token
                at = start + len(token)
        except TemplateSyntaxError as error:
            if not isinstance(error.lineno, SourcePlace):
                error.lineno = SourcePlace(text.count("\n", 0, at) + 1, _column(text, at))
            raise


def _column(text: str, at: int) -> int:
    return at - text.rfind("\n", 0, at)
