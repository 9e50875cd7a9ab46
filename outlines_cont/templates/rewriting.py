"""`SourcePlace`: a line number (`int`) with a column, and `PlacedLexer`: Jinja's lexer, which also finds the column of each token by
searching it in the source.

Errors of templates: `syntax_failure` and `failure` return exceptions of Jinja and Python as `TemplateError` with the line (of a run:
that of the traceback, or of the generator), its source and, if known, the column. Other errors of this package keep their class and get the
place, those of `fsm` a note; a misspelt name gets a suggestion.

`rewritten`: transforms the Jinja syntax tree of a template before compilation, and lists the names that it reads and generates. Calls of
generators become filters with their position, generated names look-ups of the last value. Refused are `include`, `import`, `extends`,
other variables of a generated name, and generators in macros, recursive loops, collected blocks (`call`, `filter`, `{% set x %}`), and
inside of a larger written expression; `{% set x = gen(...) %}` is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, Self

from jinja2 import TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.environment import Template as JinjaTemplate
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.lexer import Lexer, newline_re
from jinja2.visitor import NodeTransformer

from outlines_cont.errors import OutlinesContError, TemplateError, located_at
from outlines_cont.near_names import did_you_mean


class SourcePlace(int):
    """A line number, which Jinja stores as an int, with the `column` of the first character, from 1 on."""

    column: int

    def __new__(cls, line: int, column: int) -> Self:
        """Return a line number with its column."""
        place = super().__new__(cls, line)
        place.column = column
        return place


class PlacedLexer(Lexer):
    """Jinja's lexer, with a `SourcePlace` as the line of each token."""

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        """Yield (position, kind, text) of the tokens of a template."""
        text = "\n".join(newline_re.split(source)[::2])
        at = 0
        try:
            for line, kind, token in super().tokeniter(source, name, filename, state):
                start = text.find(token, at)  # whitespace between may have been stripped
                yield SourcePlace(line, _column(text, start)), kind, token
                at = start + len(token)
        except TemplateSyntaxError as error:
            if not isinstance(error.lineno, SourcePlace):
                error.lineno = SourcePlace(text.count("\n", 0, at) + 1, _column(text, at))
            raise


def _column(text: str, at: int) -> int:
    return at - text.rfind("\n", 0, at)


_FILE = "<template>"
_NO_FILTER = re.compile(r"No filter named '(\w+)'\.")
_QUOTED = re.compile(r"'([^']*)'")


def syntax_failure(error: TemplateSyntaxError, source: str, origin: str, filters: Iterable[str]) -> TemplateError:
    """Return the error of a template that cannot be parsed; `filters` are those that exist, of which the closest is suggested."""
    line = int(error.lineno)
    column = error.lineno.column if isinstance(error.lineno, SourcePlace) else None
    shown = _shown(source, line)
    unknown = _NO_FILTER.search(error.message or "")
    near = did_you_mean(unknown[1], filters) if unknown is not None else ""
    return TemplateError(
        f"{origin}, {where(line, column)}: expected a Jinja template, got one that cannot be read: {error.message}{near}{shown}",
        line,
        column,
    )


def failure(
    template: JinjaTemplate,
    source: str,
    names: Mapping[tuple[int, str], int],
    error: Exception,
    at: SourcePlace | None,
    known: Iterable[str],
    called: Collection[str] = (),
) -> Exception:
    """Return an error of a run with its line and column.

    Args:
        template, source: the compiled template, and its text.
        names: the column of each name in a line.
        error: the error that the template has raised.
        at: the position of the generator that was running, or None.
        known: names that had a value, for suggestions.
        called: names that the template calls as functions.
    """
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILE]
    line = template.get_corresponding_lineno(lines[-1]) if lines else None
    column: int | None = None
    if at is not None:
        line, column = int(at), at.column
    quoted = _QUOTED.match(str(error))
    told = str(error)
    if isinstance(error, UndefinedError) and line is not None and quoted is not None and " has no " not in told:
        column = names.get((line, quoted[1]), column)
        is_function = quoted[1] in called and told.endswith("is undefined")
        advice = _function_advice(quoted[1], template) if is_function else did_you_mean(quoted[1], known)
        error = UndefinedError(f"{told}.{advice or _advice(told, quoted[1])}")
    place = "the template" if line is None else where(line, column)
    return _located(error, place, line, column, _shown(source, line))


def _function_advice(name: str, template: JinjaTemplate) -> str:
    """Return a sentence for a call of a function that does not exist."""
    others = [name for name, value in template.globals.items() if callable(value)]
    near = did_you_mean(name, [*GENERATING, *others])
    return near or " The functions by which a template generates are `gen`, `choice`, `json` and `grammar`."


def _advice(message: str, name: str) -> str:
    if not message.endswith("is undefined"):
        return ""  # a name that is not generated yet
    return f" Give it in the row, or for all rows: `{name}=...`, on the command line `--set {name}=...`."


def where(line: int, column: int | None) -> str:
    """Return a position in words."""
    return f"line {line}" if column is None else f"line {line}, column {column}"


def _located(error: Exception, place: str, line: int | None, column: int | None, shown: str) -> Exception:
    if isinstance(error, OutlinesContError) and not isinstance(error, TemplateError):
        return located_at(error, place, line, column)
    if type(error).__module__.partition(".")[0] == "fsm":
        error.add_note(f"This was {place} of the template{shown}")
        return error
    if isinstance(error, TemplateError):
        message = str(error)
    elif isinstance(error, RecursionError):
        message = "expected a template that is not nested so deeply"
    elif isinstance(error, UndefinedError):
        told = str(error.message)
        told += "" if told.endswith((".", "?")) else "."
        message = f"expected a value for each name, but {told} Test it with `x is defined`, or write `x | default('')`"
    elif isinstance(error, SecurityError):
        message = f"expected a template that stays in its sandbox, but {error.message}"
    else:
        kind = "" if isinstance(error, TemplateRuntimeError) else f"{type(error).__name__}: "
        message = f"expected a template that runs, but it fails with {kind}{error}"
    return TemplateError(f"{place}: {message}{shown}", line, column)


def _shown(source: str, line: int | None) -> str:
    lines = source.split("\n")
    if line is None or not 1 <= line <= len(lines):
        return ""
    text = lines[line - 1].strip()
    return f"\n    {text[:160]}" if text else ""


# Names of filters; with the space in front no template can name them.
GENERATE, CAPTURED, SPECIAL = " generate", " captured", " special"
CAPTURES = "captures"
GENERATING = frozenset({"gen", "choice", "json", "grammar"})
"""The functions by which a template generates; see `program.KINDS`."""

_COLLECTED: dict[type[nodes.Node], str] = {
    nodes.Macro: "a macro",
    nodes.CallBlock: "a `call` block",
    nodes.FilterBlock: "a `filter` block",
    nodes.AssignBlock: "a `set` block",
}

# Nodes that evaluate an expression without writing it, with the attribute of the expression.
_SILENT: dict[type[nodes.Node], str] = {
    nodes.Assign: "node",
    nodes.If: "test",
    nodes.ExprStmt: "node",
    nodes.With: "values",
}


@dataclass(frozen=True, slots=True)
class Site:
    """The position of a generator; `is_written`: it is the whole of a `{{ ... }}`, so that Jinja must not write its value again."""

    line: int
    column: int
    kind: str
    is_written: bool

    @property
    def place(self) -> SourcePlace:
        """Its position."""
        return SourcePlace(self.line, self.column)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A template for compilation.

    Attributes:
        tree: the transformed tree.
        names: the values that it reads.
        generated: the names that it generates, as far as they are constants.
        in_loops: those of them that are generated in a loop, and so have lists of values.
        columns: of names, by line and name.
        called: those of the values that are called as functions.
        texts: the texts in the template, outside of tags and as constants.
    """

    tree: nodes.Template
    names: frozenset[str]
    generated: frozenset[str]
    in_loops: frozenset[str]
    columns: dict[tuple[int, str], int]
    called: frozenset[str]
    texts: tuple[str, ...]


def rewritten(tree: nodes.Template, given: frozenset[str], *, special: bool = False) -> Rewritten:
    """Return a template for compilation; raise `TemplateError` for an unsupported construct.

    Args:
        tree: as Jinja has parsed it; it is changed.
        given: names that every template can read.
        special: special tokens in its text are control tokens.
    """
    for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        kind = type(node).__name__.lower().replace("fromimport", "import")
        raise _refused(node, f"expected one template without other files, got `{kind}`. Write its text here")
    calls = {call: _name(call) for call in tree.find_all(nodes.Call) if _kind(call) is not None}
    generated = frozenset(name for name in calls.values() if name is not None)
    taken = next((call for call, name in calls.items() if name in given), None)
    if taken is not None:
        raise _refused(taken.node, f"expected another name than `{calls[taken]}`, which every template can read")
    columns = {(int(n.lineno), n.name): _place(n).column for n in reversed([*tree.find_all(nodes.Name)])}
    _check_stored(tree, generated)
    names = frozenset(meta.find_undeclared_variables(tree)) - GENERATING - given - {CAPTURES} - generated
    functions = [call.node for call in tree.find_all(nodes.Call)]
    called = frozenset(one.name for one in functions if isinstance(one, nodes.Name)) & names
    texts = _texts(tree)
    # A generated name that is `set` is a variable of Jinja; others are look-ups.
    rewriter = _Rewriter(generated - {target.name for target in _own_sets(tree)}, special)
    changed = rewriter.visit(tree)
    return Rewritten(changed, names, generated, frozenset(rewriter.in_loops), columns, called, texts)


def _texts(tree: nodes.Template) -> tuple[str, ...]:
    parts = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    data = [part.data for part in parts if isinstance(part, nodes.TemplateData)]
    return (*data, *(part.value for part in parts if isinstance(part, nodes.Const) and isinstance(part.value, str)))


def _kind(node: nodes.Node) -> str | None:
    is_call = isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in GENERATING
    return node.node.name if is_call else None  # type: ignore[attr-defined]


def _name(call: nodes.Call) -> str | None:
    first = call.args[0] if call.args else next((pair.value for pair in call.kwargs if pair.key == "name"), None)
    return first.value if isinstance(first, nodes.Const) and isinstance(first.value, str) else None


def _place(node: nodes.Node) -> SourcePlace:
    return node.lineno if isinstance(node.lineno, SourcePlace) else SourcePlace(node.lineno, 1)


def _refused(node: nodes.Node, message: str) -> TemplateError:
    place = _place(node)
    return TemplateError(f"{where(place, place.column)}: {message}.", int(place), place.column)


def _own_sets(tree: nodes.Template) -> dict[nodes.Name, nodes.Node]:
    """Return the names that are set to an expression of their own generator, as in `{% set n = gen("n") | int %}`, with the expression."""
    found: dict[nodes.Name, nodes.Node] = {}
    for node in tree.find_all(nodes.Assign):
        if isinstance(node.target, nodes.Name):
            calls = [node.node, *node.node.find_all(nodes.Call)]
            if any(_kind(call) is not None and _name(call) == node.target.name for call in calls):  # type: ignore[arg-type]
                found[node.target] = node.node
    return found


def _check_stored(tree: nodes.Template, generated: frozenset[str]) -> None:
    own = _own_sets(tree)
    inside = {call for node in own.values() for call in (node, *node.find_all(nodes.Call))}
    for call in tree.find_all(nodes.Call):
        generated_name = _name(call) if _kind(call) is not None else None
        if call not in inside and any(target.name == generated_name for target in own):
            raise _refused(
                call.node,
                f"expected one meaning of `{generated_name}`, which is `set` elsewhere. Write `{{% set {generated_name} = ... %}}` here, "
                "too",
            )
    for name in (name for name in tree.find_all(nodes.Name) if name.ctx in ("store", "param")):
        if name.name in GENERATING or name.name == CAPTURES:
            raise _refused(
                name, f"expected another name than `{name.name}`, which generates here, got it as a variable"
            )
        if name.name in generated and name not in own:
            raise _refused(
                name,
                f"expected one meaning of `{name.name}`, which is generated, got a variable of the same name. Give one of them another "
                "name",
            )


class _Rewriter(NodeTransformer):
    def __init__(self, looked_up: frozenset[str], special: bool) -> None:
        self.in_loops: set[str] = set()
        self._looked_up = looked_up
        self._num_loops = 0
        self._collected: list[str] = []
        self._written_once: set[int] = set()  # calls whose value is not written again
        self._allowed: set[int] = set()  # calls whose value is not part of a larger written expression
        self._changes: dict[type[nodes.Node], Any] = {
            nodes.For: self._loop,
            nodes.Output: self._output,
            **dict.fromkeys(_SILENT, self._silent),
            nodes.Call: self._call,
            nodes.Name: self._read,
            **({nodes.TemplateData: self._data} if special else {}),
            **dict.fromkeys(_COLLECTED, self._collector),
        }

    def get_visitor(self, node: nodes.Node) -> Any:
        return self._changes.get(type(node))

    def _loop(self, node: nodes.For) -> nodes.Node:
        """Collect the names that are generated in a loop."""
        self._allow(node.iter)
        node.iter = self.visit(node.iter)
        with self._inside(["a recursive loop"] if node.recursive else []):
            self._num_loops += 1
            if node.test is not None:
                node.test = self.visit(node.test)
            node.body = self._all(node.body)
            self._num_loops -= 1
            node.else_ = self._all(node.else_)
        return node

    def _collector(self, node: nodes.Node) -> nodes.Node:
        """Visit a node whose output is collected before it is written, such as a macro."""
        with self._inside([_COLLECTED[type(node)]]):
            return self.generic_visit(node)

    def _output(self, node: nodes.Output) -> nodes.Node:
        """Write a generator that is the whole of a tag, or of a branch of an inline `if`, only once."""
        todo = [*node.nodes]
        while todo:
            child = todo.pop()
            if isinstance(child, nodes.CondExpr):
                self._allow(child.test)
                todo += [child.expr1, *([child.expr2] if child.expr2 is not None else [])]
            elif _kind(child) is not None:
                self._written_once.add(id(child))
                self._allowed.add(id(child))
        return self.generic_visit(node)

    def _silent(self, node: nodes.Node) -> nodes.Node:
        """Allow generators anywhere in the expressions of a node that writes nothing itself."""
        found = getattr(node, _SILENT[type(node)])
        for expression in found if isinstance(found, list) else [found]:
            self._allow(expression)
        return self.generic_visit(node)

    def _call(self, node: nodes.Call) -> nodes.Node:
        """Turn a call of a generator into a filter."""
        kind = _kind(node)
        if kind is None:
            return self.generic_visit(node)
        place = _place(node.node)
        self._check_call(node, kind)
        name = _name(node)
        if self._num_loops and name is not None:
            self.in_loops.add(name)
        site = (int(place), place.column, kind, id(node) in self._written_once)
        args, kwargs = self._all(node.args), self._all(node.kwargs)
        dynamic = [None if part is None else self.visit(part) for part in (node.dyn_args, node.dyn_kwargs)]
        return nodes.Filter(nodes.Const(site), GENERATE, args, kwargs, *dynamic, lineno=place)

    def _read(self, node: nodes.Name) -> nodes.Node:
        """Turn a generated name into a look-up; refuse a generator that is not called."""
        if node.name in GENERATING:
            raise _refused(node, f"expected a call, `{node.name}(...)`, got `{node.name}` alone")
        if node.ctx == "load" and (node.name in self._looked_up or node.name == CAPTURES):
            name = None if node.name == CAPTURES else node.name
            return _filter(nodes.Const(name), CAPTURED, _place(node))
        return node

    def _data(self, node: nodes.TemplateData) -> nodes.Node:
        return _filter(nodes.Const(node.data), SPECIAL, _place(node))

    def _all(self, parts: list[Any]) -> list[Any]:
        found: list[Any] = []
        for part in parts:
            changed = self.visit(part)
            found += changed if isinstance(changed, list) else [changed]
        return found

    def _allow(self, expression: nodes.Node) -> None:
        """Allow generators in an expression whose value is not written."""
        for call in (expression, *expression.find_all(nodes.Call)):
            self._allowed.add(id(call))

    def _check_call(self, node: nodes.Call, kind: str) -> None:
        if self._collected:
            raise _refused(
                node.node,
                f"expected `{kind}` where text is written directly, got it in {self._collected[-1]}, whose text is collected first. Write "
                "it outside",
            )
        if id(node) not in self._allowed:
            raise _refused(
                node.node,
                f"expected `{kind}(...)` alone in its `{{{{ ... }}}}`, got it inside of an expression, whose value would be written after "
                f'it. Write `{{{{ {kind}("name", ...) }}}}`, or `{{% set name = {kind}(...) %}}`, which writes it there, and continue with '
                "`name`",
            )

    @contextmanager
    def _inside(self, collected: list[str]) -> Iterator[None]:
        self._collected += collected
        try:
            yield
        finally:
            del self._collected[len(self._collected) - len(collected) :]


def _filter(node: nodes.Expr, name: str, place: SourcePlace) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=place)
