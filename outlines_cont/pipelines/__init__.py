"""Batch inference: lists, tables and files of rows to records, in columns and files, on one machine or on many.

`Extractor` turns rows into records with one model; `run` reads a file and writes one, optionally with several workers. Public names are
imported when first used, so that a wrong path is reported before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlines_cont.pipelines.calibration import Answer, Calibration
    from outlines_cont.pipelines.extractor import Extractor, run
    from outlines_cont.pipelines.outcome import (
        Failure,
        InputError,
        Outcome,
        OutputError,
        RowError,
        SetupError,
        TemplateError,
        Usage,
        WorkersFailed,
    )
    from outlines_cont.pipelines.report import Report, write_page

__all__ = [
    "Answer",
    "Calibration",
    "Extractor",
    "Failure",
    "InputError",
    "Outcome",
    "OutputError",
    "Report",
    "RowError",
    "SetupError",
    "TemplateError",
    "Usage",
    "WorkersFailed",
    "run",
    "write_page",
]

_MODULES = {
    "calibration": "Answer Calibration",
    "extractor": "Extractor run",
    "outcome": "Failure InputError Outcome OutputError RowError SetupError TemplateError Usage WorkersFailed",
    "report": "Report write_page",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
