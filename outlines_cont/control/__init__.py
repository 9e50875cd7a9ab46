"""Programs in Python that control decoding, as in AICI: controllers return branches after each token (rewind, fast-forward, sample under
a mask, fork), scripts are coroutines that await generated texts.

A program is a job of the engine, as the calls of generators are. Imports `generate`, `generation` and the layers below them.
"""

from typing import TYPE_CHECKING

from outlines_cont.budget import Budget
from outlines_cont.control.program import Controller, Program, arun, run, start
from outlines_cont.control.script import Label, fixed, fork, gen, label, log, shared, stop, text_since
from outlines_cont.errors import (
    BudgetError,
    CallbackTimeout,
    DeadlockError,
    ForkBudgetError,
    KVShareError,
    ProgramCancelled,
    ProgramTimeout,
    ReplayError,
    ScriptError,
    StepBudgetError,
    TokenBudgetError,
)
from outlines_cont.near_names import module_attributes
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.programs.fork_program import Append, Capture, Event, Finish, Forked, Replay, Retract
from outlines_cont.programs.job import Fork, Result
from outlines_cont.programs.variables import Shared, Written

__all__ = [
    "Append",
    "Branch",
    "Budget",
    "BudgetError",
    "CallbackTimeout",
    "Capture",
    "Controller",
    "DeadlockError",
    "Event",
    "Finish",
    "Fork",
    "ForkBudgetError",
    "Forked",
    "KVShareError",
    "Label",
    "Program",
    "ProgramCancelled",
    "ProgramTimeout",
    "Replay",
    "ReplayError",
    "Result",
    "Retract",
    "ScriptError",
    "Shared",
    "StepBudgetError",
    "TokenBudgetError",
    "TokenSet",
    "Written",
    "arun",
    "fixed",
    "fork",
    "gen",
    "label",
    "log",
    "run",
    "shared",
    "start",
    "stop",
    "text_since",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__)
