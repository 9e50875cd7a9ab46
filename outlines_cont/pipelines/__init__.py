"""Batch inference: lists, tables and files of rows to records, in columns and files, on one machine or on many.

`Extractor` turns rows into records with one model; `run` reads a file and writes one, optionally with several workers. Public names are
imported when first used, so that a wrong path is reported before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlines_cont.pipelines.extractor import Extractor, run
    from outlines_cont.pipelines.reports.calibration import Answer, Calibration
    from outlines_cont.pipelines.reports.report import Report
    from outlines_cont.pipelines.reports.report_page import write_page
    from outlines_cont.pipelines.rows.errors import (
        InputError,
        OutputError,
        RowError,
        SetupError,
        TemplateError,
        WorkersFailed,
    )
    from outlines_cont.pipelines.rows.outcome import Failure, Outcome, Usage

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
    "extractor": "Extractor run",
    "reports.calibration": "Answer Calibration",
    "reports.report": "Report",
    "reports.report_page": "write_page",
    "rows.errors": "InputError OutputError RowError SetupError TemplateError WorkersFailed",
    "rows.outcome": "Failure Outcome Usage",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
