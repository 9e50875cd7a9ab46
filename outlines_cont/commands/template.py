"""`PromptTemplate`: a Jinja template that makes a prompt of a row.

It runs in Jinja's immutable sandbox with strict names, without includes. Bounded are the length of a prompt, repetition by
`*`, powers and `range`; the time of nested loops is not: a template is the program of the person who starts the command, rows
are only its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlines_cont.commands.errors import SetupError, TemplateError

DEFAULT_SOURCE = "Message: {{ text }}\nRecord: "
MAX_CHARACTERS = 1_000_000
_MAX_POWER_BITS = 4096


class PromptTemplate:
    """A template, compiled and checked.

    Attributes:
        source: the text of the template.
        names: the variables that it may ask for.
        max_characters: the longest prompt that it may make.
    """

    def __init__(self, source: str, origin: str = "the template", *, max_characters: int = MAX_CHARACTERS) -> None:
        environment = _Sandbox(max_characters)
        try:
            tree = environment.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - set(environment.globals))
            has_includes = any(True for _ in meta.find_referenced_templates(tree))
            self._template = environment.from_string(source)
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

    @classmethod
    def from_file(cls, path: str | Path) -> PromptTemplate:
        """Read a template; one line break at the end of the file does not count.

        Raises:
            SetupError: the file cannot be read, is not UTF-8, or is no usable template.
        """
        try:
            source = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(
                f"expected a UTF-8 text file as the prompt template, but {str(path)!r} cannot be read: {error}"
            ) from error
        return cls(source, repr(str(path)))

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the prompt of one row.

        Raises:
            TemplateError: a name is missing, a limit is reached, or an expression fails.
        """
        parts, length = [], 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > self.max_characters:
                    raise TemplateError(
                        f"expected a prompt of at most {self.max_characters} characters, the limit `max_characters`, but the "
                        "template goes on beyond it. Shorten the template or the row."
                    )
        except TemplateError:
            raise
        except UndefinedError as error:
            raise TemplateError(f"{error.message}; the row has {_listing(values)}") from error
        except Exception as error:
            # Expressions of a template may raise anything that Python can.
            raise TemplateError(f"the template fails on this row with {type(error).__name__}: {error}") from error
        return "".join(parts)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with limits on the two operators that make much of little."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, max_characters: int) -> None:
        # Prompts are no HTML, so nothing is escaped. Without the optimizer nothing is computed before a row is there.
        super().__init__(undefined=StrictUndefined, autoescape=False, optimized=False)
        self._max_characters = max_characters

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` where the result cannot be huge."""
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if hasattr(sized, "__len__") and isinstance(count, int) and len(sized) * count > self._max_characters:
                    raise SecurityError(
                        f"repeating a value of length {len(sized)} {count} times exceeds the limit of "
                        f"{self._max_characters} characters"
                    )
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_POWER_BITS:
            raise SecurityError(f"a power of more than {_MAX_POWER_BITS} bits is not computed")
        return super().call_binop(context, operator, left, right)


def _listing(values: Mapping[str, Any]) -> str:
    names = [repr(str(name)) for name in values]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
