"""`bound_expansion`: keeps the productions and terminals that Lark writes out for a grammar few. Lark writes a production for each choice
of the options, groups and counts of a rule (`["a"] ["b"] ["c"]` are eight), and a terminal with those that it names put in. How many
symbols these are is counted before Lark does so: where they are many, the parts of rules become rules of their own, which changes no
language; what is still too much, or is in a terminal or a template, raises `BudgetExceeded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lark import Tree
from lark.grammar import NonTerminal, RuleOptions

from fsm.limits import Limits

_MOST = 10**9  # larger counts are cut to this
_FEW = 64  # symbols of a part of a rule that are written out in any case
_REPEAT_BREAK = 50  # above it Lark divides counts into rules of their own
_DIVIDED_COUNT = 40  # about how many productions these are


class _Size(NamedTuple):
    """The productions and their symbols that Lark writes for a part of a rule, and the symbols of the rules that it adds for it."""

    rows: int
    symbols: int
    added: int = 0

    @property
    def total(self) -> int:
        return self.symbols + self.added


_ONE = _Size(1, 1)


def bound_expansion(loaded: Any, uses: Mapping[str, int], limits: Limits) -> None:
    """Make what Lark will write out for a grammar, as it has loaded it, small, or refuse it.

    Args:
        loaded: the grammar; its rules are changed.
        uses: how often each template is used.
        limits: `max_expansion` bounds the symbols that are not written in the grammar.

    Raises:
        BudgetExceeded: they are more.

    Cost: linear in the grammar.
    """
    own, written = _terminal_sizes(tree for _, (tree, _) in loaded.term_defs if tree is not None)
    limits.check("max_expansion", written - own, "symbols of terminals, with those that they name put in", None)
    added = _Rules(loaded.rule_defs, uses).added()
    if added > limits.max_expansion // 2:
        rules = _Rules(loaded.rule_defs, uses, divides=True)
        added = rules.added()
        loaded.rule_defs += rules.new
    limits.check("max_expansion", added, "symbols of rules, with options, groups and counts written out", None)


def _terminal_sizes(trees: Iterable[Any]) -> tuple[int, int]:
    """The nodes of trees that have parts in common: each once, and as they are written out."""
    own, written, sizes = 0, 0, dict[int, int]()
    for tree in trees:
        for part in _from_bottom(tree, sizes):
            own += 1
            sizes[id(part)] = min(1 + sum(sizes[id(inner)] for inner in _inner(part)), _MOST)
        written += sizes[id(tree)]
    return own, written


def _from_bottom(tree: Any, known: Mapping[int, object]) -> Iterator[Any]:
    """The parts of a tree that are not known, by their ids, each once and after its own parts."""
    stack, seen = [(tree, False)], set[int]()
    while stack:
        part, is_ready = stack.pop()
        if is_ready:
            yield part
        elif id(part) not in seen and id(part) not in known:
            seen.add(id(part))
            stack.append((part, True))
            stack += [(inner, False) for inner in _inner(part)]


def _inner(part: Any) -> list[Any]:
    return [child for child in part.children if isinstance(child, Tree)]


class _Rules:
    """Counts what Lark writes out for rules, and makes rules of their parts.

    Args:
        rules: of Lark.
        uses: of the templates.
        divides: whether to make rules of parts.
    """

    def __init__(self, rules: list[Any], uses: Mapping[str, int], *, divides: bool = False) -> None:
        self._rules, self._uses, self._divides = rules, uses, divides
        self._names: dict[Any, str] = {}
        self.new: list[Any] = []

    def added(self) -> int:
        """How many symbols are written out that are not in the grammar."""
        count = 0
        for name, params, tree, _ in self._rules:
            if tree is None:
                continue
            is_divided, sizes, own = self._divides and not params, dict[int, _Size](), 0
            for part in _from_bottom(tree, sizes):
                own += part.data == "value"
                sizes[id(part)] = self._size(part, sizes, str(name), is_divided)
            times = self._uses.get(str(name), 0) if params else 1
            count += sizes[id(tree)].total * times - own
        return max(count, 0)

    def _size(self, part: Any, sizes: dict[int, _Size], rule: str, is_divided: bool) -> _Size:
        kind = part.data
        if kind not in ("expansions", "expansion", "alias", "maybe", "expr"):
            return _ONE
        parts = [sizes[id(inner)] for inner in _inner(part)]
        found = _combined(part, parts)
        multiplies = kind == "expansion" or (kind == "expr" and part.children[1] == "~")
        if is_divided and multiplies and found.symbols > max(_FEW, sum(one.symbols for one in parts)):
            places = [number for number, child in enumerate(part.children) if isinstance(child, Tree)]
            for position, place in enumerate(places):
                if parts[position].rows > 1:
                    part.children[place] = self._reference(part.children[place], rule)
                    parts[position] = _Size(1, 1, parts[position].total)
            found = _combined(part, parts)
        return found

    def _reference(self, part: Any, rule: str) -> Any:
        """Make a rule of a part; equal parts are one."""
        name = self._names.get(part)
        if name is None:
            name = self._names[part] = f"__{rule}_part_{len(self._names)}"
            self.new.append((name, (), Tree("expansions", [Tree("expansion", [part])]), RuleOptions()))
        return Tree("value", [NonTerminal(name)])


def _combined(part: Any, parts: list[_Size]) -> _Size:
    """What Lark writes for a part of a rule, given the sizes of its parts."""
    added = sum(one.added for one in parts)
    if part.data == "expansions":
        found = _Size(sum(one.rows for one in parts), sum(one.symbols for one in parts), added)
    elif part.data == "expansion":
        rows = 1
        for one in parts:
            rows = min(rows * one.rows, _MOST)
        found = _Size(rows, sum(one.symbols * rows // max(one.rows, 1) for one in parts), added)
    elif part.data == "alias":
        found = parts[0]
    elif part.data == "maybe":
        found = _Size(parts[0].rows + 1, 2 * parts[0].symbols, added)
    else:
        found = _loop(part, parts[0])
    return _Size(*(min(count, _MOST) for count in found))


def _loop(part: Any, body: _Size) -> _Size:
    """The size of `body?`, `body*`, `body+` and `body ~ lo..hi`."""
    sign, *counts = part.children[1:]
    rows, symbols, added = body
    if sign == "?":
        return _Size(rows + 1, symbols, added)
    if sign != "~":
        return _Size(1 + (sign == "*"), 1, added + 2 * symbols + rows)
    lo, hi = int(counts[0]), int(counts[-1])
    if hi >= _REPEAT_BREAK:
        return _Size(1, 2, added + _DIVIDED_COUNT * symbols * rows**4)
    powers = [(rows**count, count * symbols * rows ** max(count - 1, 0)) for count in range(lo, hi + 1)]
    return _Size(sum(number for number, _ in powers), sum(size for _, size in powers), added)
