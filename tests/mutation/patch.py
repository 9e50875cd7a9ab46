"""Another body for an existing function: its code object is replaced in place, so that nothing has to be imported again."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Pair(NamedTuple):
    """The code of a function before and after a change, and whether the function is made at the import."""

    old: CodeType
    new: CodeType
    is_outer: bool


def changed_code(before: str, after: str, path: Path) -> list[Pair] | None:
    """The functions whose code differs between two texts of a module; None if code that runs at its import differs, too.

    Args:
        before: the module.
        after: the module with a change.
        path: its path, as tracebacks show it.
    """
    codes = [compile(text, str(path), "exec", dont_inherit=True) for text in (before, after)]
    found: list[Pair] = []
    stack = [Pair(codes[0], codes[1], True)]
    while stack:
        pair = stack.pop()
        if pair.old == pair.new:
            continue
        old, new = ([part for part in code.co_consts if isinstance(part, CodeType)] for code in pair[:2])
        is_run_at_import = pair.is_outer and pair.old.co_name in _COMPREHENSIONS
        is_function = bool(pair.old.co_flags & inspect.CO_OPTIMIZED) and not is_run_at_import
        if is_function:
            found.append(pair)
        elif _bare(pair.old) != _bare(pair.new):
            return None
        if len(old) == len(new):
            stack += [Pair(*parts, is_outer=pair.is_outer and not is_function) for parts in zip(old, new, strict=True)]
    return found


def _bare(code: CodeType) -> CodeType:
    """The code without the code of the functions in it, and without line numbers."""
    outside = tuple(None if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_consts=outside, co_linetable=b"", co_firstlineno=1)


class LiveFunctions:
    """The functions of a folder that are there now, by their code."""

    def __init__(self, folder: Path) -> None:
        self._functions: dict[tuple[str, CodeType], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename.startswith(f"{folder}/"):
                self._functions.setdefault((thing.__code__.co_filename, thing.__code__), []).append(thing)

    def replace(self, pairs: Sequence[Pair]) -> bool:
        """Give functions another code; False if it is impossible: a function is not found, or uses other variables from around it."""
        for old, new, is_outer in pairs:
            functions = self._functions.get((old.co_filename, old), [])
            if (is_outer and not functions) or (functions and old.co_freevars != new.co_freevars):
                return False
            for function in functions:
                function.__code__ = new
        return True
