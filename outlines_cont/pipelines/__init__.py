"""Batch inference: lists, tables and files of rows to records, in columns and files, on one machine or on many.

`Extractor` turns rows into records with one model; `run` reads a file and writes one, optionally with several workers. Public names are
imported when first used, so that a wrong path is reported before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outlines_cont.near_names import module_attributes

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
        Withheld,
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
    "Withheld",
    "WorkersFailed",
    "run",
    "write_page",
]

_missing = module_attributes(__name__, __all__)
_MODULES = ("outcome", "calibration", "report", "extractor")  # the last one loads torch


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES if name in __all__)
    found = next((module for module in modules if name in vars(module)), None)
    if found is None:
        return _missing(name)
    return getattr(found, name)


def __dir__() -> list[str]:
    return __all__
