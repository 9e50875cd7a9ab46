"""`TemplateSandbox`: Jinja's immutable sandbox in its asynchronous form, with allow-lists of filters and of methods of built-in types;
calls and operators are charged to a budget of steps and characters, since Jinja bounds neither time nor memory. Functions with a huge
result for a small argument (`format`, `center`) or a random one (`random`) are not allowed.

The size of a result is at most a product of two sizes that are known before, which is charged first; a loop is charged for each iteration.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set, Sized
from types import CodeType
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import _PassArg, pass_context, pass_environment

from outlines_cont.errors import TemplateError
from outlines_cont.jinja_sandbox import BoundedSandbox
from outlines_cont.templates.budget import usage
from outlines_cont.templates.marked_text import MarkedText, joined
from outlines_cont.templates.source_place import PlacedLexer

_words = str.split
# Filters with a huge result for a small number, or a random one, are left out: center, format, random, slice, ...
_FILTERS = _words(
    "abs capitalize count d default dictsort first float groupby int items join last length list lower map max min reject rejectattr "
    "replace reverse round select selectattr sort string sum title trim truncate unique upper wordcount"
)
_METHODS = {
    str: _words(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
        "isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip "
        "split splitlines startswith strip swapcase title upper"
    ),
    dict: ["copy", "get", "items", "keys", "values"],
    list: ["copy", "count", "index"],
    tuple: ["count", "index"],
    range: ["count", "index"],
    set: ["copy", "difference", "intersection", "isdisjoint", "issubset", "issuperset", "union"],
    frozenset: ["copy", "difference", "intersection", "isdisjoint", "issubset", "issuperset", "union"],
    bool: [],
    int: ["bit_length"],
    float: ["is_integer"],
    bytes: [],
}


class TemplateSandbox(BoundedSandbox):
    """The Jinja environment of all templates."""

    def __init__(self) -> None:
        super().__init__(
            enable_async=True,
            keep_trailing_newline=True,
            extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"],
            finalize=_written,
        )
        self.filters = {name: _counted(self.filters[name], pass_context) for name in _FILTERS}
        self.filters |= {
            "join": _counted(self.filters["join"], pass_context, _join_cost),
            "replace": _counted(self.filters["replace"], pass_context, _replace_cost),
            "tojson": _counted(_tojson, pass_context),
            "special": _counted(special_text, pass_context),
        }
        self.tests = {name: _counted(test, pass_environment) for name, test in self.tests.items()}
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals["range"] = _range
        self.concat = _concat  # type: ignore[method-assign]

    @property
    def lexer(self) -> PlacedLexer:
        """A lexer with the column of each token."""
        return PlacedLexer(self)

    def _compile(self, source: str, filename: str) -> CodeType:
        """Compile Python without warnings, as for `1[2]`, which raises when it runs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return super()._compile(source, filename)

    def call(self, context: Context, callee: Any, /, *args: Any, **options: Any) -> Any:
        """Call a function or method, if it is allowed."""
        used = usage()
        used.step()
        used.value([args, options])
        _check_method(callee, args)
        return _measured(super().call(context, callee, *args, **options))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, after charging for the size of the result."""
        used = usage()
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if isinstance(sized, Sized) and isinstance(count, int):
                    used.characters(len(sized) * max(count, 0))
        elif operator == "%" and isinstance(left, str | bytes):
            raise SecurityError("a text is formatted by `%`; join texts by `~` instead")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, Sized):
            used.characters(len(result))
        elif isinstance(result, int):
            used.characters(result.bit_length() // 8)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return None, so that `str.format` is not wrapped; `call` refuses it, since a format can have any width."""
        return None

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; a slice is charged for."""
        found = super().getitem(obj, argument)
        if isinstance(argument, slice) and isinstance(found, Sized):
            usage().characters(len(found))
        return found


def _range(*bounds: int) -> range:
    found = range(*bounds)
    usage().check_steps(len(found))
    return found


def _written(value: Any) -> Any:
    if isinstance(value, str | Undefined):
        return value
    usage().value(value)
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isroutine(value):
        raise TemplateError(
            f"expected a value that has a text, got {type(value).__name__}. Add `| list` or `| join` to what is lazy, `()` to a function."
        )
    return str(value)


def _concat(parts: Any) -> str:
    """Join the output of a macro or a block."""
    found = [*parts]
    usage().characters(sum(map(len, found)))
    return joined(found)


def concatenated(values: list[Any]) -> str:
    """Return `a ~ b`."""
    return _concat([str(_written(value)) for value in values])


def _counted(
    function: Any, decorate: Callable[[Callable[..., Any]], Callable[..., Any]], cost: Callable[..., int] | None = None
) -> Callable[..., Any]:
    """Return a filter or test that is charged for its arguments and result, and is never evaluated at compile time."""
    passed = _PassArg.from_obj(function)

    def counted(first: Any, *args: Any, **options: Any) -> Any:
        used = usage()
        used.step()
        used.value([args, options])
        if cost is not None:
            used.characters(cost(*args, **options))
        if passed is None:
            return _measured(function(*args, **options))
        if isinstance(first, Context) and passed is not _PassArg.context:
            first = first.environment if passed is _PassArg.environment else first.eval_ctx
        return _measured(function(first, *args, **options))

    return decorate(counted)


def _measured(result: Any) -> Any:
    """Charge for a result, also for that of an awaitable."""
    if inspect.isawaitable(result):
        return _measured_later(result)
    if isinstance(result, Sequence | Mapping | Set):
        usage().characters(len(result))
    return result


async def _measured_later(result: Awaitable[Any]) -> Any:
    return _measured(await result)


def _check_method(callee: Any, args: tuple[Any, ...]) -> None:
    """Refuse methods of built-in types that are not on the list, and charge for those with a large result."""
    owner = getattr(callee, "__self__", None)
    kind = next((kind for kind in type(owner).__mro__ if kind in _METHODS), None)
    if kind is None or inspect.ismodule(owner):
        return
    name = callee.__name__
    if name not in _METHODS[kind]:
        known = ", ".join(_METHODS[kind])
        raise SecurityError(f"the method `{name}` of {kind.__name__} is not for templates ({known})")
    if kind is str and name == "replace" and len(args) > 1:
        usage().characters(_replace_cost(owner, *args[:2]))
    if kind is str and name == "join" and args:
        usage().characters(_join_cost(args[0], owner))


def _replace_cost(text: Any, old: Any, new: Any, *_: Any) -> int:
    texts = [found if isinstance(found, Sized) else str(found) for found in (text, old, new)]
    return (len(texts[0]) // max(len(texts[1]), 1) + 1) * (len(texts[2]) + 1)


def _join_cost(items: Any, separator: Any = "", *_: Any, **__: Any) -> int:
    return len(items) * len(str(separator)) if isinstance(items, Sized) else 0


def _tojson(value: Any, indent: int | None = None) -> str:
    """Return JSON as the generators of this package write it."""
    if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= 16):
        raise TemplateError(f"expected an indent from 0 to 16, got {indent!r}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def special_text(text: Any) -> MarkedText:
    """Return a text in which special tokens are control tokens."""
    if not isinstance(text, str):
        raise TemplateError(f"expected a text before `special`, got {type(text).__name__}")
    return MarkedText([(str.__str__(text), True)])
