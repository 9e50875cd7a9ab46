"""`Sandbox`: Jinja's immutable sandbox for prompt templates, and `filled`, which renders one up to a length limit. Only the results of `*`
and `**` are bounded inside of an expression; `template_process` renders in a process with limits on time and memory, since templates can
make huge results in more ways than an allow-list of operators and filters could cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2.environment import Template
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.runtime import Context

from outlines_cont.jinja_sandbox import BoundedSandbox
from outlines_cont.pipelines.rows.errors import TemplateError, listed


class Sandbox(BoundedSandbox):
    """The sandbox of prompt templates: repetition by `*` beyond a limit raises at once, as huge powers do."""

    def __init__(self, max_characters: int) -> None:
        super().__init__()
        self._max_characters = max_characters

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result would be huge."""
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if hasattr(sized, "__len__") and isinstance(count, int) and len(sized) * count > self._max_characters:
                    raise SecurityError(
                        f"repeating a value of length {len(sized)} {count} times exceeds the limit of "
                        f"{self._max_characters} characters"
                    )
        return super().call_binop(context, operator, left, right)


def filled(template: Template, values: Mapping[str, Any], max_characters: int) -> str:
    """Return the text of a template with the values of a row.

    Raises:
        TemplateError: a name is missing, the text is too long, or an expression fails.
        MemoryError: there is no memory left.
    """
    parts, length = [], 0
    try:
        for part in template.generate(values):
            parts.append(part)
            length += len(part)
            if length > max_characters:
                raise TemplateError(
                    f"expected a prompt of at most {max_characters} characters, the limit `max_characters`, but the "
                    "template goes on beyond it. Shorten the template or the row."
                )
    except (TemplateError, MemoryError):
        raise
    except UndefinedError as error:
        raise TemplateError(f"{error.message}; the row has {listed(values)}") from error
    except Exception as error:  # expressions of a template may raise anything that Python can
        raise TemplateError(f"the template fails on this row with {type(error).__name__}: {error}") from error
    return "".join(parts)
