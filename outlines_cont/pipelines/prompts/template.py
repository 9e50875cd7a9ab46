"""`PromptTemplate`: a Jinja template, checked here and rendered by `template_process`: a sandboxed subprocess with limits on length,
processor time and memory; `RowPrompt` passes it the fields of a row. Includes are refused, and so is a template that reads no variable; a
missing field, a blank message or an exceeded limit fails the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, meta

from outlines_cont.checks import file_text
from outlines_cont.pipelines.prompts.template_process import SHARED, Sandbox, TemplateLimits
from outlines_cont.pipelines.rows.errors import RowError, SetupError, listed

DEFAULT_SOURCE = "Message: {{ text }}\nRecord: "
CHAT_SOURCE = (
    "Read the message, and answer with a JSON object that fits this schema: {{ schema }}\n\nMessage: {{ text }}"
)
MAX_CHARACTERS = 1_000_000
MAX_SECONDS = 1.0
MAX_MEMORY_BYTES = 2**28

MakePrompt = Callable[[Mapping[str, Any]], Any]
"""Returns the prompt of a row, given its fields: a text, `Tokens`, token ids or messages."""


class PromptTemplate:
    """A prompt template, parsed and checked.

    Attributes:
        source: the text of the template.
        names: the variables that it may read.
        limits: of the length of a prompt, and of the time and memory of rendering it.
    """

    def __init__(
        self,
        source: str,
        origin: str = "the template",
        *,
        max_characters: int = MAX_CHARACTERS,
        max_seconds: float = MAX_SECONDS,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        environment = Sandbox(max_characters)
        try:
            tree = environment.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - set(environment.globals))
            has_includes = any(True for _ in meta.find_referenced_templates(tree))
            environment.compile(source, raw=True)  # not by Python, whose compiler would evaluate constant expressions
        except TemplateSyntaxError as error:
            raise SetupError(
                f"expected a Jinja template in {origin}, but line {error.lineno} is malformed: {error.message}. "
                "A value of the row is written {{ text }}."
            ) from error
        except RecursionError as error:
            raise SetupError(f"expected a Jinja template in {origin}, but it is nested too deeply") from error
        if has_includes:
            raise SetupError(
                f"expected one template without other files, got an include, import or extends in {origin}."
            )
        if not self.names:
            raise SetupError(
                f"expected a template that uses a value of the row, such as {{{{ text }}}}, but {origin} uses none: "
                "every prompt would be the same."
            )
        self.source = source
        self.limits = TemplateLimits(max_characters, max_seconds, max_memory_bytes)

    @classmethod
    def from_file(cls, path: str | Path) -> PromptTemplate:
        """Read a template; one line break at the end of the file does not count. Raise `SetupError` if it cannot be used."""
        return cls(file_text(path, "as the prompt template", SetupError), repr(str(path)))

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the prompt of one row, given its values, which must be JSON, by name.

        Raises:
            TemplateError: a name is missing, a limit is exceeded, or an expression fails.

        Cost: 0.2 ms, and 0.1 s for the first one; see `template_process`.
        """
        return SHARED.fill(self.source, values, self.limits)


@dataclass(frozen=True, slots=True)
class RowPrompt:
    """Renders a template with the fields of a row, and with the names `text` (its `text_field`), `row` (all fields) and `schema`."""

    template: PromptTemplate
    text_field: str
    json_schema: str

    @property
    def needs_text(self) -> bool:
        """Whether the template needs the message of a row."""
        return "text" in self.template.names

    def text(self, fields: Mapping[str, Any], marked: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
        """Return the prompt of a row; `marked` inserts marks into its values, so that no special token is read in them.

        Raises:
            RowError: the message is missing, blank or not a text.
            TemplateError: the template names a field that the row lacks, or exceeds a limit.
        """
        name = self.text_field
        values = {**fields, "row": dict(fields), "schema": self.json_schema}
        if name in fields:
            text = values["text"] = fields[name]
            if not isinstance(text, str) or not text.strip():
                got = "a blank one" if isinstance(text, str) else type(text).__name__
                raise RowError(f"expected a text in the field {name!r}, got {got}")
        elif self.needs_text:
            raise RowError(
                f"expected a field {name!r}, got {listed(fields) or 'no fields'}. Name the field of the message with --text-field, or "
                "`text_field=`."
            )
        return self.template.render(marked(values))
