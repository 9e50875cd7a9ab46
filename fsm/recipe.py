"""`recipe`, `follow`: pickle an expression as the calls of public functions that made it, which are repeated where it is loaded. Terms are
interned per process and so are not pickled. The decorator `remembered` records a call with its arguments; the calls of all parts are a DAG,
listed in topological order. A part that was made in another way raises `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
# An `Expression`; this module is below it.
E = TypeVar("E")
# A function or method, its arguments, and those with a name.
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Result(int):
    """A reference to the result of an earlier call, by its number, in the arguments of a later one."""


def remembered(maker: Callable[P, E]) -> Callable[P, E]:
    """Have the expressions of a public function or method remember the call. Dicts and lists are copied, as they may change."""

    @wraps(maker)
    def make(*args: P.args, **options: P.kwargs) -> E:
        expression = maker(*args, **options)
        object.__setattr__(expression, "made_by", (make, *_changed(args, options, _kept)))
        return expression

    return make


def _changed(
    args: tuple[Any, ...], options: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(map(change, args)), {name: change(option) for name, option in options.items()}


def _kept(argument: Any) -> Any:
    """Return an argument with copies of its dicts and lists, each once; `copy.deepcopy` takes a stack as deep as they are nested."""
    if not isinstance(argument, dict | list):
        return argument
    copies: dict[int, Any] = {id(argument): argument.copy()}
    stack = [copies[id(argument)]]
    while stack:
        part = stack.pop()
        for key, value in list(part.items() if isinstance(part, dict) else enumerate(part)):
            if isinstance(value, dict | list):
                if id(value) not in copies:
                    copies[id(value)] = value.copy()
                    stack.append(copies[id(value)])
                part[key] = copies[id(value)]
    return copies[id(argument)]


def recipe(expression: Any) -> list[Call]:
    """Return the calls that make an expression, in order; arguments that are expressions are the `Result` of an earlier call.

    Raises:
        TypeError: a part of it was not made by a recorded call.

    Cost: linear in the number of different parts.
    """
    kind = type(expression)
    numbers: dict[int, Result] = {}
    calls: list[Call] = []
    stack = [expression]
    while stack:
        top = stack[-1]
        if id(top) in numbers:
            stack.pop()
            continue
        if top.made_by is None:
            raise TypeError(
                f"expected an expression of the public functions of `fsm` to pickle, received one with a part that was made in "
                f"another way, {top!r}. Make it in each process by itself."
            )
        make, args, options = top.made_by
        missing = [part for part in (*args, *options.values()) if isinstance(part, kind) and id(part) not in numbers]
        if missing:
            stack += missing
            continue
        call = _changed(args, options, lambda part: numbers[id(part)] if isinstance(part, kind) else part)
        calls.append((make, *call))
        numbers[id(stack.pop())] = Result(len(calls) - 1)
    return calls


def follow(calls: list[Call]) -> Any:
    """Return the expression that the last call makes."""
    made: list[Any] = []
    for make, args, options in calls:
        args, options = _changed(args, options, lambda part: made[part] if isinstance(part, Result) else part)
        made.append(make(*args, **options))
    return made[-1]
