"""`RowPrompt`: the prompt of a row, rendered from its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outlines_cont.pipelines.prompts.template import PromptTemplate
from outlines_cont.pipelines.rows.errors import RowError

MakePrompt = Callable[[Mapping[str, Any]], Any]
"""From the fields of a row to its prompt: a text, `Tokens`, token ids or messages."""


class RowPrompt:
    """Makes the prompts of rows.

    Args:
        template: a template that may name `text`, any field of the row, `row` (all fields) and `schema`.
        text_field: the field that holds the message, which the template calls `text`.
        json_schema: what a record must be, as JSON.
    """

    def __init__(self, template: PromptTemplate, text_field: str, json_schema: str) -> None:
        self.template = template
        self._text_field = text_field
        self._json_schema = json_schema

    @property
    def needs_text(self) -> bool:
        """Whether a row without a message has no prompt."""
        return "text" in self.template.names

    def values(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of the template.

        Raises:
            RowError: the text is missing, blank or no text.
        """
        name = self._text_field
        values = {**fields, "row": dict(fields), "schema": self._json_schema}
        if name not in fields:
            if self.needs_text:
                known = ", ".join(repr(key) for key in list(fields)[:12]) or "no fields"
                raise RowError(
                    f"expected a field {name!r}, got {known}. Name the field of the message with --text-field, or `text_field=`."
                )
            return values
        text = fields[name]
        if not isinstance(text, str) or not text.strip():
            got = "a blank one" if isinstance(text, str) else type(text).__name__
            raise RowError(f"expected a text in the field {name!r}, got {got}")
        return {**values, "text": text}

    def text(self, fields: Mapping[str, Any], marked: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
        """Return the prompt of a row.

        Args:
            fields: those of the row.
            marked: marks in the values what must not become a special token.

        Raises:
            RowError: the row has no message.
            TemplateError: the template names what the row does not have, or goes beyond a limit.
        """
        return self.template.render(marked(self.values(fields)))
