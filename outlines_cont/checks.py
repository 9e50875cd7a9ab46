"""`knows_its_options`: a decorator that raises `UnknownOption` (`unknown_option`) for unknown keyword arguments, with advice for the names
of other functions, else with the closest known name. `names_of`: the arguments that a function takes by name.

Checks of arguments: predicates (`is_int`, `is_number`, `is_model`; a bool is no number), functions that raise `OptionError` (`check`,
`check_int`, `check_limits` and so on; those of one value return it), `plain`, `make_plain` and `listed`, which make numbers and arrays of
NumPy and PyTorch those of Python, and `file_text`, which reads a file in UTF-8 or raises a given error. `said_of`: an error that pydantic
found in a value from outside, in the same words ("expected a number as `temperature`, got 'hot'").

Limits and defaults that the command line and Python share: `MAX_SAMPLES`, `DEFAULT_MAX_TOKENS`, and `num_cores`, the cores that this
process may use.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ParamSpec, TypeGuard, TypeVar

from outlines_cont.errors import OptionError, UnknownOption, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.near_names import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


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
        parameters = signature(function).parameters.values()
        by_place = [
            one.name for one in parameters if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        takes_any = any(one.kind is Parameter.VAR_POSITIONAL for one in parameters)

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            if len(args) > len(by_place) and not takes_any:
                raise _too_many(name_of_function, args, by_place, known)
            unknown = next((name for name in options if name not in known), None)
            if unknown is not None:
                raise unknown_option(name_of_function, unknown, known, (elsewhere or {}).get(unknown, ""))
            plain_args: Any = map(plain, args)
            plain_options: Any = {name: plain(value) for name, value in options.items()}
            return function(*plain_args, **plain_options)

        return call

    return decorate


def _too_many(function: str, args: Sequence[object], by_place: Sequence[str], known: Sequence[str]) -> OptionError:
    """Return the error for options that were given by position, such as a sampler behind a pattern."""
    others = [name for name in known if name not in by_place]
    example = "sampler" if "sampler" in others else others[0] if others else ""
    taken = ", ".join(f"`{name}`" for name in by_place) or "none"
    return UnknownOption(
        f"expected options of {function} by name{example and f', such as `{example}=...`'}, got {len(args)} arguments by position, "
        f"where it takes {taken}",
        example,
    )


def names_of(function: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function takes by name."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [name for name, parameter in signature(function).parameters.items() if parameter.kind in kinds]


def check(option: str, value: T, holds: bool, expected: str, advice: str = "") -> T:
    """Return a value; raise `OptionError` with `expected {expected} as {option}`, and the advice, if `holds` is false."""
    if not holds:
        raise OptionError(
            f"expected {expected} as `{option}`, got {shortened(repr(value), 200)}{advice and '. ' + advice}", option
        )
    return value


def check_one_of(option: str, value: T, known: Sequence[str | None], advice: str = "") -> T:
    """Return a value; raise `OptionError`, with the closest of the known ones if it is a text, unless it is one of them."""
    from fsm.errors import is_one_of  # which takes long, and `--help` has no need of it

    texts = [one for one in known if one is not None]
    near = did_you_mean(value, texts).strip() if isinstance(value, str) else ""
    *others, last = map(repr, texts)
    expected = f"{', '.join(others)} or {last}" if others else last
    return check(option, value, is_one_of(value, known), expected, near or advice)


_LARGEST = 2**1023
_ARRAY_MODULES = ("numpy", "torch")


def is_int(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an int from `least` to `most`, each without a limit if it is None; a bool is not."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def index_of(value: object) -> int | None:
    """Return the int that a value is as an index, such as an int of NumPy; None for a bool, and for what is no index."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch, such as one of `np.arange` or of a table, as what it is in Python; other values as they are."""
    if type(value).__module__ in _ARRAY_MODULES and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def make_plain(value: Any) -> None:
    """Make the scalars of NumPy and PyTorch among the fields of a frozen dataclass those of Python."""
    for field in fields(value):
        given = getattr(value, field.name)
        if plain(given) is not given:
            object.__setattr__(value, field.name, plain(given))


def listed(value: Any) -> Any:
    """Return an array, or a column of a table, as a list; other values as they are."""
    convert = getattr(value, "tolist", None) or getattr(value, "to_list", None)  # the other name is that of polars
    return value if convert is None else convert()


def check_int(option: str, value: T, least: int, most: int | None = None, *, is_optional: bool = False) -> T:
    """Return a value as an int of Python; raise `OptionError` for anything but one from `least` to `most`, or None if `is_optional`."""
    value = plain(value)
    holds = is_int(value, least, most) or (is_optional and value is None)
    wanted = f"an int, {least} or more," if most is None else f"an int from {least} to {most:,}"
    return check(option, value, holds, f"{wanted}{' or None' if is_optional else ''}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a float, NaN included, or an int that a float can be; a bool is not."""
    return isinstance(value, float) or is_int(value, -_LARGEST, _LARGEST)


def checked_bool(value: Any, option: str) -> bool:
    """Return the value of an option; raise `OptionError` if it is neither True nor False, since a text such as "no" is truthy."""
    return bool(check(option, value, isinstance(value, bool), "True or False"))


def check_limits(budget: Any) -> None:
    """Raise `OptionError` unless each field of a dataclass of limits is a positive int, where its name ends in `seconds` a positive
    number, or None.
    """
    for limit in fields(budget):
        value = getattr(budget, limit.name)
        is_count = not limit.name.endswith("seconds")
        kind = "an int above 0" if is_count else "a number of seconds above 0"
        holds = is_int(value, 1) if is_count else is_number(value) and math.isfinite(value) and value > 0
        check(limit.name, value, value is None or holds, f"{kind} or None")


def is_model(value: object) -> TypeGuard[LanguageModel]:
    """Return whether a value was made by `outlines_cont.models`."""
    return hasattr(value, "kv_store")


def check_model(model: object, place: str = "first") -> None:
    """Raise `OptionError` for anything but a model, such as the name of one; `place` is that among the arguments."""
    if not is_model(model):
        advice = "Wrap a model of transformers with `models.from_transformers(model, tokenizer)`."
        if isinstance(model, str):
            advice = f"Open a model by its name with `models.transformers({model!r})`."
        raise OptionError(
            f"expected a model as the {place} argument, such as `models.tiny()`, got {type(model).__name__}. {advice}",
            "model",
        )


def check_draft(draft: T) -> T:
    """Return a draft; raise `OptionError` if it is neither `"lookup"`, nor a model, nor an object with `propose`, nor None."""
    is_known = draft is None or (isinstance(draft, str) and draft == "lookup") or is_model(draft)
    if not is_known and (isinstance(draft, type) or not callable(getattr(draft, "propose", None))):
        near = did_you_mean(draft, ["lookup"]) if isinstance(draft, str) else ""
        raise OptionError(
            "expected 'lookup', a model such as `models.transformers(...)`, or an object with `propose(token_ids)` as `draft`, "
            f"got {shortened(repr(draft))}{near and '.' + near}",
            "draft",
        )
    return draft


def checked_path(path: str | os.PathLike[str], error: Callable[[str], Exception]) -> Path:
    """Return a path; raise `error` with a message for what cannot name a file."""
    try:
        name = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        name = b"\0"
    if b"\0" in name:
        raise error(f"expected a path that can name a file, without a NUL character, as `path`, got {path!r}")
    return Path(os.fsdecode(name))


def file_text(path: str | os.PathLike[str], what: str, error: Callable[[str], Exception]) -> str:
    """Return the text of a UTF-8 file; if it cannot be read, raise `error` with a message that contains `what`, the use of the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise error(f"expected a UTF-8 text file {what}, but {str(path)!r} cannot be read: {reason}") from reason


def write_text_file(path: Path, text: str, error: Callable[[str], Exception]) -> None:
    """Write a UTF-8 file, in place of one that is there; raise `error` with a message if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as reason:
        shown = shortened(repr(str(path)), 200)
        raise error(
            f"expected a path where a file can be written, got {shown}: {reason.strerror or reason}."
        ) from reason


_EXPECTED = {
    "int": "an int",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "finite_number": "a finite number",
    "none_required": "null",
    "literal_error": "{expected}",
    "union_tag_not_found": "an object with a `type`",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
    "greater_than": "more than {gt:g}",
    "less_than": "less than {lt:g}",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
    "string_too_short": "{min_length} characters or more",
    "string_too_long": "{max_length} characters or fewer",
}
"""What a kind of error expects; `int` stands for `int_type`, `int_parsing` and so on."""


def said_of(error: Any, place: Sequence[str | int]) -> str:
    """Return what is wrong, with the place of the value, such as `["messages", 0, "role"]`, once.

    Args:
        error: an entry of `ValidationError.errors()`.
        place: keys and indices, from the outermost; empty for the whole.
    """
    kind, facts, named = error["type"], error.get("ctx", {}), "/".join(map(str, place))
    told = error["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"expected `{named}`, got none"
    if kind == "extra_forbidden":
        return f"unknown field `{named}`"
    if kind == "json_invalid":
        return f"expected JSON, got what cannot be read as such: {facts['error']}"
    if kind == "union_tag_invalid":
        return f"expected {facts['expected_tags']} as `{named}/type`, got {_shown(facts['tag'])}"
    expected = _EXPECTED.get(kind) or _EXPECTED.get(kind.split("_")[0])
    if expected is not None:
        at = f" as `{named}`" if named else ""
        return f"expected {expected.format(**facts)}{at}, got {_shown(error['input'])}"
    return told if not named or f"`{named}`" in told else f"{named}: {told}"


def _shown(value: Any) -> str:
    """Return a value of JSON for a message; of lists and objects only what they are."""
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return shortened(repr(value) if isinstance(value, str) else json.dumps(value, default=repr), 100)


MAX_SAMPLES = 100_000
"""The most samples of a batch entry, and of a row by one call, so that a mistaken number is refused before memory is used up."""


DEFAULT_MAX_TOKENS = 1024
"""The most tokens of a generated span if `max_tokens` is not given, so that no text fills a context of 40,000 tokens unnoticed."""


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
