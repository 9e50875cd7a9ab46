"""Mutants: every small change of a source text that this tool knows, found with `ast`.

Left out are annotations, docstrings, decorators, `assert`, what is only imported for types, and the texts and numbers inside a `raise`.
"""

from __future__ import annotations

import ast
import difflib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMPARISONS: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Lt: (rb"<", b"<="),
    ast.LtE: (rb"<=", b"<"),
    ast.Gt: (rb">", b">="),
    ast.GtE: (rb">=", b">"),
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
}
_SUMS: dict[type[ast.operator], tuple[bytes, bytes]] = {ast.Add: (rb"\+", b"-"), ast.Sub: (rb"-", b"+")}
_EXTREMES = {"min": "max", "max": "min"}
_CHECKS = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SIGNS = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: the file, from the root of the repository.
        line: where the change begins, from 1 on.
        lines: first and last line of the statement, or of the head of a compound one: a test that runs one of them runs the change.
        is_imported: whether it runs when the module is imported, and so counts for no test.
        names: what the statement defines, if it runs at the import.
        kind: what is changed, for people.
        start: the first byte that is replaced.
        stop: the byte after the last that is replaced.
        text: what stands there instead.
    """

    path: str
    line: int
    lines: tuple[int, int]
    is_imported: bool
    names: tuple[str, ...]
    kind: str
    start: int
    stop: int
    text: str

    def apply(self, source: str) -> str:
        """The changed text of the file."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.stop :]).decode()

    def diff(self, source: str) -> str:
        """The change as a diff without context."""
        before, after = source.splitlines(), self.apply(source).splitlines()
        return "\n".join([*difflib.unified_diff(before, after, n=0, lineterm="")][3:])


@dataclass(frozen=True, slots=True)
class _Change:
    """Some bytes of a file, and what stands there instead."""

    kind: str
    start: int
    stop: int
    text: bytes


def mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order in which they stand there."""
    text = _Text(source)
    found = []
    stack: list[tuple[ast.AST, ast.stmt | None, bool]] = [(s, None, False) for s in reversed(ast.parse(source).body)]
    while stack:
        node, statement, is_inside = stack.pop()
        if _is_left_out(node):
            continue
        changes: Iterable[_Change] = ()
        if isinstance(node, ast.stmt):
            statement = node
            changes = text.of_statement(node) if is_inside else ()
        elif isinstance(node, ast.expr):
            changes = text.of_expression(node)
        for change in changes:
            assert statement is not None
            is_imported = not is_inside and not isinstance(statement, _FUNCTIONS)
            place = text.line(change.start), _head(statement), is_imported, _names(statement) if is_imported else ()
            found.append(Mutant(path, *place, change.kind, change.start, change.stop, change.text.decode()))
        is_inside = is_inside or isinstance(node, (*_FUNCTIONS, ast.Lambda))
        stack += [(part, statement, is_inside) for part in reversed(list(_parts(node)))]
    return sorted(found, key=lambda mutant: (mutant.start, mutant.stop, mutant.text))


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and expressions inside a node, and what holds some, as far as they may be changed."""
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and not isinstance(part, _SIGNS):
                    yield part


def _head(node: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement without the statements inside it; of a function (its defaults) all of it."""
    if isinstance(node, _FUNCTIONS):
        return node.lineno, node.end_lineno or node.lineno
    inside = [
        part.lineno
        for _, value in ast.iter_fields(node)
        for part in (value if isinstance(value, list) else ())
        if isinstance(part, ast.stmt)
    ]
    return node.lineno, max(node.lineno, min(inside) - 1) if inside else node.end_lineno or node.lineno


def _names(node: ast.stmt) -> tuple[str, ...]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return tuple(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


class _Text:
    """A source text by bytes, and the changes of its parts."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def line(self, place: int) -> int:
        """The number of the line in which a byte stands, from 1 on."""
        return bisect_right(self._starts, place)

    def of_statement(self, node: ast.stmt) -> Iterator[_Change]:
        """The changes of a statement inside a function."""
        if isinstance(node, ast.Return) and node.value is not None:
            yield from self._of_return(node.value)
        is_set = isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
        is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield | ast.YieldFrom)
        if is_set or is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete):
            yield _Change("dropped statement", *self._range(node), b"pass")

    def of_expression(self, node: ast.expr) -> Iterator[_Change]:
        """The changes of an expression, those of its parts left out."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            for value in (node.value + 1, node.value - 1):
                yield _Change("off by one", *self._range(node), str(value).encode())
        elif isinstance(node, ast.Compare):
            for operator, left, right in zip(node.ops, (node.left, *node.comparators), node.comparators, strict=False):
                yield self._between("comparison", left, right, *_COMPARISONS[type(operator)])
        elif isinstance(node, ast.BinOp) and type(node.op) in _SUMS and not (_is_text(node.left) or _is_text(node.right)):
            yield self._between("+ / -", node.left, node.right, *_SUMS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from self._of_bool(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield _Change("dropped not", *self._range(node), _grouped(node.operand))
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)

    def _of_return(self, value: ast.expr) -> Iterator[_Change]:
        start, stop = self._range(value)
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield _Change("changed return", start, stop, str(not value.value).encode())
        elif isinstance(value, ast.Compare | ast.BoolOp):
            yield _Change("changed return", start, stop, b"not (" + self._data[start:stop] + b")")
        elif not isinstance(value, ast.Constant):
            yield _Change("changed return", start, stop, b"None")

    def _of_bool(self, node: ast.BoolOp) -> Iterator[_Change]:
        words = (rb"\band\b", b"or") if isinstance(node.op, ast.And) else (rb"\bor\b", b"and")
        for left, right in pairwise(node.values):
            yield self._between("and / or", left, right, *words)
        for place in range(len(node.values)):
            rest = [value for other, value in enumerate(node.values) if other != place]
            text = _grouped(rest[0]) if len(rest) == 1 else ast.unparse(ast.BoolOp(node.op, rest)).encode()
            yield _Change("dropped condition", *self._range(node), text)

    def _of_call(self, node: ast.Call) -> Iterator[_Change]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _EXTREMES:
            yield _Change("min / max", *self._range(node.func), _EXTREMES[name].encode())
        elif len(node.args) > 1 and name not in _CHECKS and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            (start, end), (begin, stop) = map(self._range, node.args[:2])
            first, second = self._data[start:end], self._data[begin:stop]
            if ast.dump(node.args[0]) != ast.dump(node.args[1]):
                yield _Change("swapped arguments", start, stop, second + self._data[end:begin] + first)

    def _between(self, kind: str, left: ast.expr, right: ast.expr, pattern: bytes, text: bytes) -> _Change:
        """Another operator between two operands."""
        start, stop = self._range(left)[1], self._range(right)[0]
        found = re.search(pattern, self._data[start:stop])
        assert found, self._data[start:stop]
        return _Change(kind, start + found.start(), start + found.end(), text)

    def _range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset


def _grouped(node: ast.expr) -> bytes:
    text = ast.unparse(node).encode()
    return b"(" + text + b")" if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda | ast.NamedExpr) else text


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
