"""`TemplateUsage`: the counters of one run of a template, which raise a `BudgetError` beyond a limit of its budget (`TemplateBudget`
is another name of `Budget`). `usage` returns the counters of the run that is active (a context variable).

`BoundedSandbox`: the Jinja environment of all templates: prompt programs, prompts of `pipelines`, chat templates. Who writes a template
may be hostile; the caller supplies the values, whose methods and functions are trusted, and whose texts are not.

A template reaches plain values and what it is given: filters, methods of built-in types and global functions are allow-lists. It is charged
for all that takes time or memory in proportion to its values, before that happens: nested values by their size as a tree, and by a bound
where something takes more than linear time or makes more than its arguments (`_METHOD_COSTS`, `_FILTER_COSTS`). Filters return lists, so
that no work is deferred. `rendered` runs a template without generators.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence, Set, Sized, ValuesView
from contextvars import ContextVar
from time import thread_time
from types import CodeType
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, nodes
from jinja2.environment import Environment, Template
from jinja2.exceptions import SecurityError
from jinja2.filters import ignore_case, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, _PassArg, missing, pass_context, pass_environment
from jinja2.visitor import NodeTransformer

from outlines_cont.budget import Budget, Usage
from outlines_cont.errors import CharacterBudgetError, ProgramTimeout, StepBudgetError, TemplateError
from outlines_cont.near_names import did_you_mean


class NearUndefined(StrictUndefined):
    """A name without a value, whose use is an error; for an attribute it suggests the closest key or attribute of its owner."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        told, owner, name = super()._undefined_message, self._undefined_obj, self._undefined_name
        if owner is missing or self._undefined_hint or not isinstance(name, str):
            return told
        keys = [key for key in owner if isinstance(key, str)] if isinstance(owner, Mapping) else []
        attributes = [one for one in object.__dir__(owner) if not one.startswith("_")]
        return f"{told}.{did_you_mean(name, [*attributes, *keys])}"


ITEM = 16
"""What an item of a collection costs, in characters; it takes so much more time and memory."""
MAX_DEPTH = 100
"""Of nested collections: Python compares and hashes them recursively."""


TemplateBudget = Budget


class TemplateUsage(Usage):
    """Counters of one run that begins now. Every method raises a `BudgetError` if its count exceeds the budget.

    Attributes:
        num_characters: how many were charged.
    """

    what, advised = "a template", "TemplateBudget"

    num_characters = 0

    def step(self) -> None:
        """Count a step, and check the time."""
        super().step()
        self.check_time()

    def check_time(self) -> None:
        """Check the time since the beginning."""
        self.check(ProgramTimeout, self.seconds)

    def characters(self, count: int) -> None:
        """Count characters of a result, known or estimated, and check the time."""
        self.num_characters += count
        self.check(CharacterBudgetError, self.num_characters)
        self.check_time()

    def value(self, value: object) -> int:
        """Count the characters and items of a value, including nested ones; return its depth."""
        level, depth = [value], 0
        while level:
            if depth > MAX_DEPTH:
                raise TemplateError(f"expected collections that are nested at most {MAX_DEPTH} deep, got deeper ones")
            below: list[object] = []
            for found in level:
                below += self._items(found)
            level, depth = below, depth + 1
        return depth

    def _items(self, value: object) -> Iterable[object]:
        """Count one value, and return its items. They are counted before anything takes their number of bytes."""
        if isinstance(value, Namespace):
            value = value._Namespace__attrs
        if isinstance(value, int):
            self.characters(1 + value.bit_length() // 3)
        elif isinstance(value, str | bytes):
            self.characters(1 + len(value))
        elif isinstance(value, range):
            self.characters(1)
        elif isinstance(value, Sequence | Mapping | Set | ValuesView):
            self.characters(1 + ITEM * len(value))
            if isinstance(value, dict):
                return (*value.keys(), *value.values())
            if isinstance(value, list | tuple | set | frozenset | ItemsView | ValuesView):
                return value
        return ()


running_usage: ContextVar[TemplateUsage | None] = ContextVar("usage", default=None)


def usage() -> TemplateUsage:
    """Return the usage of the template that runs; a new one if none runs, as at compile time."""
    return running_usage.get() or TemplateUsage(TemplateBudget())


_words = str.split
_MAX_BITS = 4096  # of an int; Python prints ints in quadratic time
# What looks at the items of its first argument, but not into them, and what does not look at it at all. Not allowed is what has a huge
# result for a small number (center, format, slice, ...), or a random one.
_FREE = _words("count d default first last length")
_SHALLOW = _words("items list map reject rejectattr reverse select selectattr")
_DEEP = _words(
    "abs capitalize dictsort float groupby indent int join lower max min replace round sort string sum title trim truncate upper wordcount"
)
_FREE_TESTS = _words(
    "defined undefined none boolean true false integer float number string mapping iterable sequence callable sameas filter test escaped"
)
_TEXT_METHODS = _words(
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isspace "
    "istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper"
)
_SET_METHODS = _words("copy difference intersection isdisjoint issubset issuperset union")
_METHODS: dict[type, list[str]] = {
    str: _TEXT_METHODS,
    dict: ["copy", "get", "items", "keys", "values"],
    list: ["copy", "count", "index"],
    tuple: ["count", "index"],
    range: ["count", "index"],
    set: _SET_METHODS,
    frozenset: _SET_METHODS,
    bool: [],
    int: ["bit_length"],
    float: ["is_integer"],
    bytes: [],
}
# With a space in front no template can name these filters.
_STEP, _SIZED, _KEY, _CONCATENATE, _SLICE = " step", " sized", " key", " concatenate", " slice"


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, bounded by the `TemplateUsage` that is active; undefined names raise, and nothing is escaped."""

    # All operators, since Python's compiler would otherwise fold constants before any limit applies.
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, **options: Any) -> None:
        """Take options of `jinja2.Environment`."""
        extensions = ["jinja2.ext.loopcontrols", "jinja2.ext.do"]
        given = {"undefined": NearUndefined, "extensions": extensions, **options}
        super().__init__(autoescape=False, optimized=False, finalize=self.written, **given)
        made = {name: inspect.unwrap(self.filters[name]) for name in _FREE + _SHALLOW + _DEEP}
        made |= {"tojson": _tojson, "unique": _unique, "safe": str}
        self.filters = {name: self.counted(filter_, name) for name, filter_ in made.items()}
        self.filters |= {
            _STEP: pass_context(_step),
            _SIZED: pass_context(_sized),
            _KEY: pass_context(lambda _, key: _key(key)),
            _CONCATENATE: pass_context(lambda _, values: self.concat([str(self.written(value)) for value in values])),
            _SLICE: pass_context(_sliced),
        }
        self.tests = {
            name: test if name in _FREE_TESTS else _counted(test, name, pass_environment)
            for name, test in self.tests.items()
        }
        self.globals = {"range": _range, "dict": _dict, "namespace": _namespace}
        self.concat = self._concatenated  # type: ignore[method-assign]

    def counted(self, function: Any, name: str) -> Any:
        """Return a filter that is charged for its arguments and result."""
        return _counted(function, name, pass_context)

    def joined(self, texts: Sequence[str]) -> str:
        """Concatenate texts."""
        return "".join(texts)

    def written(self, value: Any) -> Any:
        """Return what is written for a value: a text, or an undefined name, which raises where it is written."""
        if isinstance(value, str | Undefined):
            return value
        usage().value(value)
        if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isroutine(value):
            raise TemplateError(
                f"expected a value that has a text, got {type(value).__name__}. Add `| list` or `| join` to what is lazy, `()` to a "
                "function."
            )
        return str(value)

    def _concatenated(self, parts: Iterable[str]) -> str:
        """Join the output of a macro or a block."""
        found = [*parts]
        usage().characters(sum(map(len, found)))
        return self.joined(found)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        try:
            tree = super()._parse(source, name, filename)
        except ValueError as error:  # of `int`
            raise TemplateSyntaxError(f"a number cannot be read ({error})", 1, name, filename) from error
        for node in tree.find_all(nodes.Const):
            if isinstance(node.value, int) and node.value.bit_length() > _MAX_BITS:
                raise TemplateSyntaxError(f"a number has more than {_MAX_BITS} bits", node.lineno, name, filename)
        return tree

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(_Charging().visit(source), *args, **options)

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
        _check_method(callee, args, options)
        return _measured(super().call(context, callee, *args, **options))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, after charging for the size of the result."""
        used = usage()
        used.characters(1)
        if operator == "*":
            for sized, count in ((left, right), (right, left)):
                if isinstance(sized, Sized) and isinstance(count, int):
                    used.characters(_size(sized) * max(count, 0))
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            used.characters(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str | bytes):
            raise SecurityError("a text is formatted by `%`; join texts by `~` instead")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int):
            _check_bits(result.bit_length())
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return None, so that `str.format` is not wrapped; `call` refuses it, since a format can have any width."""
        return None

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, after charging for its key, which is hashed."""
        usage().value(argument)
        return super().getitem(obj, argument)


def rendered(
    template: Template, values: Mapping[str, Any], budget: TemplateBudget, check: Callable[[int], None] | None = None
) -> str:
    """Return the text of a template without generators, within a budget; its seconds are those of the processor.

    `check` is called with the length of the text after each part of it. Raises what the template raises, and `BudgetError`.
    """
    used = TemplateUsage(budget, thread_time)
    token = running_usage.set(used)
    parts, length = [], 0
    try:
        for part in template.generate(values):
            used.characters(len(part))
            parts.append(part)
            length += len(part)
            if check is not None:
                check(length)
    finally:
        running_usage.reset(token)
    return "".join(parts)


class _Charging(NodeTransformer):
    """Inserts filters that charge for loops, comparisons, `~`, slices and keys of dicts, which Jinja compiles to Python."""

    def get_visitor(self, node: nodes.Node) -> Any:
        """Return the method for this kind of node, None to visit what is in it."""
        return getattr(self, f"_{type(node).__name__.lower()}", None)

    def _for(self, node: nodes.For) -> nodes.Node:
        """Charge for every iteration, also those that the condition skips."""
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(True), _STEP, [], [], None, None, lineno=node.lineno)
        if node.test is not None:
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        node.body = [nodes.ExprStmt(step, lineno=node.lineno), *node.body]
        return node

    def _compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, _SIZED, node)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, _SIZED, node)
        return node

    def _concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCATENATE, node)

    def _pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _filter(node.key, _KEY, node)
        return node

    def _getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _filter(node.node, _SLICE, node, bounds)


def _filter(node: nodes.Expr, name: str, place: nodes.Node, args: Sequence[nodes.Expr] = ()) -> nodes.Filter:
    return nodes.Filter(node, name, [*args], [], None, None, lineno=place.lineno)


def _step(context: Context, value: Any) -> Any:
    usage().step()
    return value


def _sized(context: Context, value: Any) -> Any:
    usage().value(value)
    return value


def _sliced(context: Context, value: Any, *bounds: Any) -> Any:
    cut = slice(*bounds)
    if isinstance(value, Sized):
        taken = range(*cut.indices(len(value)))
        usage().characters(1 + len(taken) * (1 if isinstance(value, str) else ITEM))
    return value[cut]


def _key(key: Any) -> Any:
    """Return the key of a dict. Of tuples many with one hash are easily made, so that a dict of them takes quadratic time."""
    if not isinstance(key, str | int | float | None):
        raise SecurityError(f"a key is of the type {type(key).__name__}; keys are texts and numbers")
    usage().value(key)
    return key


def _size(value: Any) -> int:
    """Return what the items of a value cost, without those in them."""
    if isinstance(value, str | bytes):
        return len(value)
    return ITEM * len(value) if isinstance(value, Sized) and not isinstance(value, range) else 1


def _check_bits(count: int) -> None:
    if count > _MAX_BITS:
        raise SecurityError(f"a number of more than {_MAX_BITS} bits is not computed")


def _range(*bounds: int) -> range:
    found = range(*bounds)
    usage().check(StepBudgetError, len(found))
    return found


def _dict(pairs: Any = (), /, **options: Any) -> dict[Any, Any]:
    made = dict(pairs) if isinstance(pairs, Mapping) else {_key(key): value for key, value in pairs}
    return made | options


def _namespace(*pairs: Any, **options: Any) -> Namespace:
    return Namespace(_dict(*pairs, **options))


def _counted(
    function: Any, name: str, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a filter or test that is charged for its arguments and result, and is never evaluated at compile time."""
    passed = _PassArg.from_obj(function)
    cost = _FILTER_COSTS.get(name)

    def counted(first: Any, value: Any, *args: Any, **options: Any) -> Any:
        used = usage()
        used.step()
        used.value([args, options])
        if name not in _FREE and name not in _SHALLOW:
            used.value(value)
        if name in _ITERATING and isinstance(value, Sized):
            used.characters(ITEM * len(value))
        if cost is not None:
            used.characters(cost(value, *args, **options))
        if passed is None:
            return _measured(function(value, *args, **options))
        if isinstance(first, Context) and passed is not _PassArg.context:
            first = first.environment if passed is _PassArg.environment else first.eval_ctx
        return _measured(function(first, value, *args, **options))

    return decorate(counted)


def _measured(result: Any) -> Any:
    """Return a result with lists in place of iterators, and charge for it."""
    if inspect.isgenerator(result) or isinstance(result, reversed):
        result = [*result]
    if isinstance(result, int):
        _check_bits(result.bit_length())
    elif isinstance(result, Sequence | Mapping | Set):
        usage().characters(_size(result))
    return result


def _check_method(callee: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Refuse methods of built-in types that are not on the list, and charge for the others."""
    owner = getattr(callee, "__self__", None)
    kind = next((kind for kind in type(owner).__mro__ if kind in _METHODS), None)
    if kind is None or inspect.ismodule(owner):
        return
    name = callee.__name__
    if name not in _METHODS[kind]:
        known = ", ".join(_METHODS[kind])
        raise SecurityError(f"the method `{name}` of {kind.__name__} is not for templates ({known})")
    if kind is not dict:
        usage().value(owner)
    if kind is str and name in _METHOD_COSTS:
        usage().characters(_METHOD_COSTS[name](owner, *args, **options))


def _replace_cost(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    texts = [found if isinstance(found, Sized) else str(found) for found in (text, old, new)]
    return (len(texts[0]) // max(len(texts[1]), 1) + 1) * (len(texts[2]) + 1)


def _join_cost(items: Any, separator: Any = "", *_: Any, d: Any = "", **__: Any) -> int:
    return len(items) * len(str(separator or d)) if isinstance(items, Sized) else 0


def _search_cost(text: str, part: Any = "", *_: Any, sep: Any = "", chars: Any = "", **__: Any) -> int:
    """Searches from the end, and searches for one of many characters, take the product of both lengths."""
    found = part or sep or chars
    return len(text) * len(found) // ITEM if isinstance(found, str) else 0


def _split_cost(text: str, sep: Any = None, *_: Any, **__: Any) -> int:
    return ITEM * (text.count(sep) if isinstance(sep, str) and sep else len(text) // 2)


def _indent_cost(text: str, width: Any = 4, *_: Any, **__: Any) -> int:
    return (
        (len(text.splitlines()) + 1) * (width if isinstance(width, int) else len(width)) if isinstance(text, str) else 0
    )


_ITERATING = {*_SHALLOW, *_words("groupby join max min sort sum title unique wordcount")}
"""Filters that take their argument, also a text, item by item in Python."""


def _tojson(
    value: Any, indent: Any = None, ensure_ascii: Any = False, separators: Any = None, sort_keys: Any = False
) -> str:
    """Return JSON as the generators of this package write it."""
    if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= 16):
        raise TemplateError(f"expected an indent from 0 to 16, got {indent!r}")
    if separators is not None and len("".join(separators)) > 16:
        raise TemplateError(f"expected `separators` of at most 16 characters, got {len(''.join(separators))}")
    used = usage()
    before, depth = used.num_characters, used.value(value)
    used.characters((used.num_characters - before) // ITEM * depth * (indent or 0))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _unique(environment: Environment, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    """Return the first item of each key; Jinja's would hash keys of any type."""
    key_of = make_attrgetter(environment, attribute, None if case_sensitive else ignore_case)
    found: dict[Any, Any] = {}
    for item in value:
        found.setdefault(_key(key_of(item)), item)
    return [*found.values()]


def _no_sum_of_lists(value: Any, attribute: Any = None, start: Any = 0) -> int:
    """Sums of lists would take quadratic time."""
    if not isinstance(start, int | float):
        raise TemplateError(f"expected a number as `start` of `sum`, got {type(start).__name__}")
    return 0


def _bounded_precision(value: Any, precision: Any = 0, method: Any = "common") -> int:
    if not isinstance(precision, int) or abs(precision) > 300:
        raise TemplateError(f"expected a precision from -300 to 300, got {precision!r}")
    return 0


_FILTER_COSTS: dict[str, Callable[..., int]] = {
    "join": _join_cost,
    "replace": _replace_cost,
    "trim": _search_cost,
    "indent": _indent_cost,
    "sum": _no_sum_of_lists,
    "round": _bounded_precision,
}
_METHOD_COSTS: dict[str, Callable[..., int]] = {
    "join": lambda separator, items=(), *_: _join_cost(items, separator),
    "replace": _replace_cost,
    "split": _split_cost,
    **dict.fromkeys(_words("rfind rindex rpartition rsplit strip lstrip rstrip"), _search_cost),
}
