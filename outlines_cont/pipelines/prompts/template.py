"""`PromptTemplate`: a Jinja template that renders the prompt of a row.

It runs in Jinja's immutable sandbox with strict names, without includes, in a process of its own. Its text, its time and its memory
are bounded, whatever it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, meta

from outlines_cont.checks import file_text
from outlines_cont.pipelines.prompts.sandbox import Sandbox
from outlines_cont.pipelines.prompts.template_process import SHARED, TemplateLimits
from outlines_cont.pipelines.rows.errors import SetupError

DEFAULT_SOURCE = "Message: {{ text }}\nRecord: "
CHAT_SOURCE = (
    "Read the message, and answer with a JSON object that fits this schema: {{ schema }}\n\nMessage: {{ text }}"
)
MAX_CHARACTERS = 1_000_000
MAX_SECONDS = 1.0
MAX_MEMORY_BYTES = 2**28


class PromptTemplate:
    """A template, compiled and checked.

    Attributes:
        source: the text of the template.
        names: the variables that it may ask for.
        max_characters: the longest prompt that it may make.
        max_seconds: the most processor time that one prompt may take.
        max_memory_bytes: the most memory that it may take.
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
            environment.compile(source, raw=True)  # Python's own compiler would compute what is constant
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
        self.max_characters = max_characters
        self.max_seconds = max_seconds
        self.max_memory_bytes = max_memory_bytes

    @classmethod
    def from_file(cls, path: str | Path) -> PromptTemplate:
        """Read a template; one line break at the end of the file does not count.

        Raises:
            SetupError: the file cannot be read, is not UTF-8, or is not a usable template.
        """
        return cls(file_text(path, "as the prompt template", SetupError), repr(str(path)))

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the prompt of one row.

        Args:
            values: what JSON can hold, by name.

        Raises:
            TemplateError: a name is missing, a limit is reached, or an expression fails.

        Cost: 0.2 ms, and 0.1 s for the first one; see `template_process`.
        """
        limits = TemplateLimits(self.max_characters, self.max_seconds, self.max_memory_bytes)
        return SHARED.fill(self.source, values, limits)
