"""Many rows to records: lists, tables and files in, records in columns and files out, on one machine or on many.

`Extractor` turns rows into records with one model, `run` reads a file and writes one, with several workers where asked for. It may import
everything but `cli`, `commands` and `server`; the names are loaded when first asked for, so that a wrong path is told without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlines_cont.pipelines.errors import OutputError, RowError, SetupError, TemplateError
    from outlines_cont.pipelines.extractor import Extractor
    from outlines_cont.pipelines.outcome import Failure, Outcome, Usage

__all__ = [
    "Extractor",
    "Failure",
    "Outcome",
    "OutputError",
    "RowError",
    "SetupError",
    "TemplateError",
    "Usage",
]

_WHERE = {
    "Extractor": "extractor",
    "Failure": "outcome",
    "Outcome": "outcome",
    "OutputError": "errors",
    "RowError": "errors",
    "SetupError": "errors",
    "TemplateError": "errors",
    "Usage": "outcome",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
