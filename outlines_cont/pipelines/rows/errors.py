"""Errors of pipelines: `SetupError`: an option, file, schema or model cannot be used; `InputError`, `OutputError` and `WorkersFailed` end
a run, `RowError` and `TemplateError` fail a single row. `listed` formats names for messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlines_cont.errors import OutlinesContError


class SetupError(OutlinesContError, ValueError):
    """An option, file or schema cannot be used. Nothing ran, and no output was touched."""


class InputError(OutlinesContError, OSError):
    """The input cannot be read to its end, for example because a page of a Parquet file is corrupt. The rows before are written."""


class OutputError(OutlinesContError, OSError):
    """The output could not be written to its end, for example because the disk is full. It has only whole lines."""


class RowError(OutlinesContError, ValueError):
    """A row of the input cannot be used; the others can."""


class TemplateError(RowError):
    """The prompt template fails on a row: a name that the row does not have, or a limit."""


class WorkersFailed(OutlinesContError, RuntimeError):
    """Too many workers have crashed in succession. What was written stays, and can be resumed."""


def listed(names: Iterable[object]) -> str:
    """Return names for a message, at most 12 of them."""
    shown = [repr(str(name)) for name in names]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")
