"""`PromptTemplate`: a Jinja template, checked here and rendered in the sandbox of all templates (`jinja_sandbox`), within limits on length
and time; `RowPrompt` passes it the fields of a row. Includes are refused, and so is a template that reads no variable; a missing field, a
blank message or an exceeded limit fails the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, UndefinedError, meta
from jinja2.environment import Template

from outlines_cont.checks import file_text
from outlines_cont.errors import TemplateBudgetError
from outlines_cont.jinja_sandbox import BoundedSandbox, rendered
from outlines_cont.pipelines.rows.errors import RowError, SetupError, TemplateError, listed
from outlines_cont.template_budget import TemplateBudget

DEFAULT_SOURCE = "Message: {{ text }}\nRecord: "
CHAT_SOURCE = (
    "Read the message, and answer with a JSON object that fits this schema: {{ schema }}\n\nMessage: {{ text }}"
)
MAX_CHARACTERS = 1_000_000
MAX_SECONDS = 1.0
_SANDBOX = BoundedSandbox()

MakePrompt = Callable[[Mapping[str, Any]], Any]
"""Returns the prompt of a row, given its fields: a text, `Tokens`, token ids or messages."""


class PromptTemplate:
    """A prompt template, parsed and checked.

    Attributes:
        source: the text of the template.
        names: the variables that it may read.
        max_characters: of a prompt.
        max_seconds: of processor time to render it.
    """

    def __init__(
        self,
        source: str,
        origin: str = "the template",
        *,
        max_characters: int = MAX_CHARACTERS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        try:
            tree = _SANDBOX.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - set(_SANDBOX.globals))
            has_includes = any(True for _ in meta.find_referenced_templates(tree))
            _compiled(source)
        except TemplateSyntaxError as error:
            raise SetupError(
                f"expected a Jinja template in {origin}, but line {error.lineno} is malformed: {error.message}. "
                "A value of the row is written {{ text }}."
            ) from error
        except (RecursionError, SyntaxError, MemoryError) as error:
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
        self.source, self.max_characters, self.max_seconds = source, max_characters, max_seconds

    @classmethod
    def from_file(cls, path: str | Path) -> PromptTemplate:
        """Read a template; one line break at the end of the file does not count. Raise `SetupError` if it cannot be used."""
        return cls(file_text(path, "as the prompt template", SetupError), repr(str(path)))

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the prompt of one row, given its values by name.

        Raises:
            TemplateError: a name is missing, a limit is exceeded, or an expression fails.
        """
        work = max(10_000_000, 20 * self.max_characters)
        budget = TemplateBudget(tokens=None, steps=None, characters=work, seconds=self.max_seconds)
        try:
            return rendered(_compiled(self.source), values, budget, self._check_length)
        except TemplateError:
            raise
        except TemplateBudgetError as error:
            raise TemplateError(
                f"expected a template that is filled in within {error.allowed:,} {error.limit}, but it takes more. Leave out nested loops "
                f"and huge results, or raise the limit: `PromptTemplate(source, max_{error.limit}=...)`."
            ) from error
        except UndefinedError as error:
            raise TemplateError(f"{error.message}; the row has {listed(values)}") from error
        except Exception as error:  # expressions of a template may raise anything that Python can
            raise TemplateError(f"the template fails on this row with {type(error).__name__}: {error}") from error

    def _check_length(self, length: int) -> None:
        if length > self.max_characters:
            raise TemplateError(
                f"expected a prompt of at most {self.max_characters} characters, the limit `max_characters`, but the text is longer. "
                "Shorten the template or the row."
            )


@lru_cache(64)
def _compiled(source: str) -> Template:
    return _SANDBOX.from_string(source)


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
