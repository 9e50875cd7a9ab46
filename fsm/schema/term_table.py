"""`TermTable`: a cache of the terms of one schema document, by their cases and, where they depend on it, the nesting (of arrays and objects
that may be open). A schema inside itself gets a recursive rule for each nesting, built when a text reaches it, if some value has so few
levels. Also here is `Frame`, a term that is being built: an entry of the stack of `compiler.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary, ref

from fsm.errors import BudgetExceeded
from fsm.schema import spelling
from fsm.schema.context import Context
from fsm.schema.keywords.place import Builder, Conjunction
from fsm.terms.node import EMPTY, Node
from fsm.terms.rule import Rule

Key = tuple[tuple[tuple[object, ...], ...], ...]
Dependence = int
"""How a term depends on the nesting. 0: not at all; 1: roughly, it contains values of any type; 2: it contains itself."""
_STEP = 16  # of the nesting to which terms of the dependence 1 are rounded


@dataclass(slots=True)
class Frame:
    """A term that is being built.

    Attributes:
        key: its identity.
        places: what the value must satisfy.
        builder: the coroutine that builds it.
        name: a pointer, for messages.
        nesting: how many arrays and objects may be open at once within the value.
        is_value: False for a choice among other terms for the same value, which adds nothing to the depth.
        dependence: how the term depends on the nesting.
        height: how many arrays and objects may be open at once in the parts that do not depend on it.
        left_out: keywords that the term does not enforce exactly.
        missing_bounds: keywords that would bound its length.
    """

    key: Key
    places: Conjunction
    builder: Builder
    name: str
    nesting: int
    is_value: bool = True
    dependence: Dependence = 0
    height: int = 0
    left_out: list[str] = field(default_factory=list)
    missing_bounds: list[str] = field(default_factory=list)


class TermTable:
    """The terms of one document, by their cases, and by the nesting where they depend on it.

    The rule of a schema inside itself is built when a text first reaches it. A rule that is not built yet keeps
    this table alive, so the table keeps terms with rules only while `at_work`: then they are freed with their expression.

    Args:
        context: of the compilation.
        build: makes the term of some places for a nesting, with the terms of this table.

    Attributes:
        recursive: keys of terms that contain themselves, so that there is one for each nesting.
    """

    def __init__(self, context: Context, build: Callable[[TermTable, Conjunction, int], Node]) -> None:
        self.context, self._build = context, build
        self._known: dict[tuple[Key, Dependence, int], tuple[Node, Frame]] = {}
        self._with_rules: dict[tuple[Key, int], tuple[ref[Node], Frame]] = {}
        self._references: WeakValueDictionary[tuple[Key, int], Node] = WeakValueDictionary()
        self._family = object()
        self._num_at_work = 0
        self._in_use: list[Node] = []
        self._tried: dict[Key, int] = {}
        self._fewest: dict[Key, tuple[int, bool, bool]] = {}  # levels, and the promises of a `Rule` with as many
        self.recursive: set[Key] = set()

    def find(self, key: Key, nesting: int, is_outermost: bool) -> tuple[Node, Frame] | None:
        """A known term that fits, with its frame."""
        for dependence in (0, 1):
            known = self._known.get((key, dependence, dependence and self.roughly(nesting)))
            if known is not None and (is_outermost or dependence > 0 or known[1].height <= nesting):
                return known
        found = self._with_rules.get((key, nesting))
        node = None if found is None else found[0]()
        return None if found is None or node is None else (node, found[1])

    def keep(self, frame: Frame, node: Node, is_outermost: bool) -> None:
        """Store a term for `find`."""
        key, dependence, nesting = frame.key, frame.dependence, frame.nesting
        if dependence < 2:
            self._known[key, dependence, dependence and self.roughly(nesting)] = node, frame
            return
        self._with_rules[key, nesting] = ref(node), frame
        self._in_use.append(node)
        if is_outermost:
            self.recursive.add(key)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep all terms that are made inside of the `with` block alive, as they may be needed again soon."""
        self._num_at_work += 1
        try:
            yield
        finally:
            self._num_at_work -= 1
            if not self._num_at_work:
                self._in_use.clear()

    def roughly(self, nesting: int) -> int:
        """`nesting` rounded down, so that values of any type at different depths share terms and masks."""
        most = self.context.document.limits.max_nesting
        steps = -(-(most - nesting) // _STEP)
        rounded = most - steps * _STEP
        return rounded if rounded > 0 else max(nesting, 0)

    def reference(self, key: Key, places: Conjunction, nesting: int, name: str) -> Node:
        """The term of a value inside itself, EMPTY where every value is nested deeper."""
        self.context.note_spellings(spelling.nested(self.context.document.limits.max_nesting))
        if nesting <= 0 or not self._reaches(key, places, nesting):
            return EMPTY
        known = self._references.get((key, nesting))
        if known is None:
            _, is_sure, is_inhabited = self._fewest[key]
            known = self._references[key, nesting] = Rule(
                name,
                lambda: self._build(self, places, nesting),
                is_sure=is_sure,
                is_inhabited=is_inhabited,
                family=(self._family, key),
            ).term
        self._in_use.append(known)
        return known

    def _reaches(self, key: Key, places: Conjunction, nesting: int) -> bool:
        """Whether some value has at most `nesting` levels; 1, 2, 3, 4, 8, ... levels are tried."""
        while key not in self._fewest and (before := self._tried.get(key, 0)) < nesting:
            tried = self._tried[key] = min(before + 1 if before < 4 else 2 * before, nesting)
            node = self._build(self, places, tried)
            if node is not EMPTY:
                self._fewest[key] = tried, node.is_plain, self._has_text(node)
        return key in self._fewest and nesting >= self._fewest[key][0]

    def _has_text(self, node: Node) -> bool:
        """Whether a short search finds a text of a term; terms for a greater nesting contain that text as well."""
        try:
            return self.context.derivatives.is_inhabited(node)
        except BudgetExceeded:
            return False
