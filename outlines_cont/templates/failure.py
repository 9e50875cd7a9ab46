"""Errors of templates: `syntax_failure` and `failure` return exceptions of Jinja and Python as `TemplateError` with the line (of a run:
that of the traceback, or of the generator), its source and, if known, the column. Other errors of this package keep their class and get the
place, those of `fsm` a note; a misspelt name gets a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from traceback import walk_tb

from jinja2 import TemplateSyntaxError, UndefinedError
from jinja2.environment import Template as JinjaTemplate
from jinja2.exceptions import SecurityError, TemplateRuntimeError

from outlines_cont.errors import OutlinesContError, TemplateError, located_at
from outlines_cont.templates.source_place import SourcePlace
from outlines_cont.unknown_option import did_you_mean

_FILE = "<template>"
_QUOTED = re.compile(r"'([^']*)'")


def syntax_failure(error: TemplateSyntaxError, source: str, origin: str) -> TemplateError:
    """Return the error of a template that cannot be parsed."""
    line = int(error.lineno)
    column = error.lineno.column if isinstance(error.lineno, SourcePlace) else None
    shown = _shown(source, line)
    return TemplateError(
        f"{origin}, {where(line, column)}: expected a Jinja template, got one that cannot be read: {error.message}{shown}",
        line,
        column,
    )


def failure(
    template: JinjaTemplate,
    source: str,
    names: Mapping[tuple[int, str], int],
    error: Exception,
    at: SourcePlace | None,
    known: Iterable[str],
) -> Exception:
    """Return an error of a run with its line and column.

    Args:
        template, source: the compiled template, and its text.
        names: the column of each name in a line.
        error: the error that the template has raised.
        at: the position of the generator that was running, or None.
        known: names that had a value, for suggestions.
    """
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILE]
    line = template.get_corresponding_lineno(lines[-1]) if lines else None
    column: int | None = None
    if at is not None:
        line, column = int(at), at.column
    quoted = _QUOTED.match(str(error))
    if isinstance(error, UndefinedError) and line is not None and quoted is not None:
        column = names.get((line, quoted[1]), column)
        error = UndefinedError(f"{error.message}.{did_you_mean(quoted[1], known) or _advice(error.message, quoted[1])}")
    place = "the template" if line is None else where(line, column)
    return _located(error, place, line, column, _shown(source, line))


def _advice(message: str | None, name: str) -> str:
    if message is None or not message.endswith("is undefined"):
        return ""  # an attribute of a value
    return f" Give it in the row, or for all rows: `{name}=...`, on the command line `--set {name}=...`."


def where(line: int, column: int | None) -> str:
    """Return a position in words."""
    return f"line {line}" if column is None else f"line {line}, column {column}"


def _located(error: Exception, place: str, line: int | None, column: int | None, shown: str) -> Exception:
    if isinstance(error, OutlinesContError) and not isinstance(error, TemplateError):
        return located_at(error, place, line, column)
    if type(error).__module__.partition(".")[0] == "fsm":
        error.add_note(f"This was {place} of the template{shown}")
        return error
    if isinstance(error, TemplateError):
        message = str(error)
    elif isinstance(error, RecursionError):
        message = "expected a template that is not nested so deeply"
    elif isinstance(error, UndefinedError):
        message = f"expected a value for each name, but {error.message}"
    elif isinstance(error, SecurityError):
        message = f"expected a template that stays in its sandbox, but {error.message}"
    else:
        kind = "" if isinstance(error, TemplateRuntimeError) else f"{type(error).__name__}: "
        message = f"expected a template that runs, but it fails with {kind}{error}"
    return TemplateError(f"{place}: {message}{shown}", line, column)


def _shown(source: str, line: int | None) -> str:
    lines = source.split("\n")
    if line is None or not 1 <= line <= len(lines):
        return ""
    text = lines[line - 1].strip()
    return f"\n    {text[:160]}" if text else ""
