"""`knows_its_options`: a decorator that raises `UnknownOption` (`unknown_option`) for unknown keyword arguments, with advice for the names
of other functions, else with the closest known name (`did_you_mean`, by `difflib`). `names_of`: the arguments that a function takes by
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from outlines_cont.errors import UnknownOption

P = ParamSpec("P")
T = TypeVar("T")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for a name that is close to a known one, in capitals or not, else an empty text."""
    known = {one.lower(): one for one in names}
    found = get_close_matches(name.lower(), known, 1)
    return f" Did you mean {known[found[0]]!r}?" if found else ""


def unknown_option(owner: str, name: str, known: Iterable[str], advice: str = "") -> UnknownOption:
    """Return the error for an unknown option of `owner`, a function or a call, such as "`multinomial`".

    `known` are the valid options, of which the closest is suggested if `advice` is empty.
    """
    known = list(known)
    options = ", ".join(f"`{option}`" for option in known)
    advice = f" {advice}" if advice else did_you_mean(name, known)
    return UnknownOption(f"expected options of {owner} ({options}), got `{name}`.{advice}", name)


def knows_its_options(
    *, also_of: Callable[..., Any] | None = None, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that raises `UnknownOption` for unknown keyword arguments; it keeps signature and types.

    `also_of` is the function that receives `**options`; `elsewhere` is advice for options of other functions.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = list(dict.fromkeys(name for one in (function, also_of) if one is not None for name in names_of(one)))
        name_of_function = f"`{function.__name__}`"

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            unknown = next((name for name in options if name not in known), None)
            if unknown is not None:
                raise unknown_option(name_of_function, unknown, known, (elsewhere or {}).get(unknown, ""))
            return function(*args, **options)

        return call

    return decorate


def names_of(function: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function takes by name."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [name for name, parameter in signature(function).parameters.items() if parameter.kind in kinds]
