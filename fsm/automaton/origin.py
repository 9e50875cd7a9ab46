"""`Origin`: the source of an expression, to name the pattern or grammar rule that rejects a text. Terms do not record their source, so the
rejected text is read again: by DFA simulation along the parts of a concatenation or a union (`Combination`), and along all open rules of a
grammar, as a nondeterministic pushdown automaton (`GrammarOrigin`), which names at most 8 rules, no terminals, and above 300 ways to read
it the language as a whole (`NamedOrigin`); so are `&`, `~` and `repeat` without rules. Keywords of a schema: `schema/blame.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Kind, Node

_MAX_STARTS = 64
_MAX_READINGS = 300
_MAX_NAMED = 8
_OPENED = frozenset({Kind.CONCAT, Kind.ALTERNATION, Kind.RULE, Kind.CHECK, Kind.REPEAT})
_MAX_DEPTH = 30
_MAX_STEPS = 10_000


class Origin(Protocol):
    """The source of a language."""

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """The parts that reject `text` at its last byte, or, where `is_whole`, at its end."""


@dataclass(frozen=True, slots=True)
class NamedOrigin:
    """A language that is named as a whole, by its name or its source."""

    label: str

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """The name."""
        return (self.label,)


@dataclass(frozen=True, slots=True)
class GrammarOrigin:
    """A language with named rules: names those that are open at the rejected byte, the innermost of each way to read the text.

    Cost: some 10 us per byte and way to read the text; with more than 300 ways the language is named as a whole.
    """

    node: Node
    label: str

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """The rules, or the name of the language if none is open."""
        derivatives = Derivatives()
        tops = list(_expanded([_OpenTerm(self.node, "", None)]))
        for byte in text if is_whole else text[:-1]:
            followed = [(top, derivatives.after(top.node, byte)) for top in tops]
            left = [_OpenTerm(target, top.rule, top.below) for top, target in followed if target is not EMPTY]
            tops = list(_expanded(left))
            if len(tops) > _MAX_READINGS:
                return (self.label,)
        rules = dict.fromkeys(top.rule for top in tops if top.rule)
        return tuple(f"rule '{rule}'" for rule in list(rules)[:_MAX_NAMED]) or (self.label,)


@dataclass(frozen=True, slots=True)
class _OpenTerm:
    """A stack: the next term, the innermost rule that contains it, and the stack after it."""

    node: Node
    rule: str
    below: _OpenTerm | None


def _expanded(frames: list[_OpenTerm]) -> Iterator[_OpenTerm]:
    """Expand rules and composed terms until the next terms are regular; each stack once."""
    seen = set[tuple[Node, int]]()
    stack = frames[::-1]
    while stack:
        frame = stack.pop()
        node, rule, below = frame.node, frame.rule, frame.below
        if (node, id(below)) in seen:
            continue
        seen.add((node, id(below)))
        kind, args = node.kind, node.args
        if node.nullable and below is not None:
            stack.append(below)
        if node.is_regular or kind not in _OPENED:
            if node is not EPSILON:
                yield frame
        elif kind is Kind.RULE:
            name = args[0].name
            stack.append(_OpenTerm(args[0].body, rule if name.startswith("__") else name, below))
        elif kind is Kind.CONCAT or kind is Kind.REPEAT:
            rest = args[1] if kind is Kind.CONCAT else nodes.fewer(node)
            stack.append(_OpenTerm(args[0], rule, below if rest is EPSILON else _OpenTerm(rest, rule, below)))
        else:
            stack += [_OpenTerm(part, rule, below) for part in reversed(nodes.children(node))]


Step = tuple[Node, Origin]


@dataclass(frozen=True, slots=True)
class Combination:
    """A concatenation or a union of languages.

    Attributes:
        kind: `sequence` or `either`.
        steps: each language and its origin.
        depth: how deeply such origins are nested.
    """

    kind: Literal["sequence", "either"]
    steps: tuple[Step, ...]
    depth: int = 1

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """The names of the parts in which the last byte may be."""
        found = dict[str, None]()
        for origin, rest in self._sequence(text, is_whole) if self.kind == "sequence" else self._either(text, is_whole):
            found.update(dict.fromkeys(origin.names(rest, is_whole)))
        return tuple(found)

    def _either(self, text: bytes, is_whole: bool) -> Iterator[tuple[Origin, bytes]]:
        before = text if is_whole else text[:-1]
        for node, origin in self.steps:
            automaton = Automaton(node)
            if automaton.next_state(Automaton.initial_state, before) != DEAD:
                yield origin, text

    def _sequence(self, text: bytes, is_whole: bool) -> Iterator[tuple[Origin, bytes]]:
        last = len(text) - (not is_whole)  # of the byte that is rejected
        starts = {0}
        for node, origin in self.steps:
            automaton, ends = Automaton(node), set[int]()
            for start in sorted(starts)[-_MAX_STARTS:]:
                state = Automaton.initial_state
                for position in range(start, last + 1):
                    if automaton.is_accepting(state):
                        ends.add(position)
                    if position < last:
                        state = automaton.next_state(state, text[position : position + 1])
                    if state == DEAD:
                        break
                else:
                    if not automaton.is_accepting(state) or (automaton.moves(state) and not is_whole):
                        yield origin, text[start:]
            starts = ends


def together(kind: Literal["sequence", "either"], *steps: Step) -> Origin | None:
    """The origin of a concatenation or union; None if origins are nested too deeply, or are too many."""
    flat: list[Step] = []
    for step in steps:
        origin = step[1]
        flat += origin.steps if isinstance(origin, Combination) and origin.kind == kind else (step,)
        if len(flat) > _MAX_STEPS:
            return None
    depth = 1 + max((origin.depth for _, origin in flat if isinstance(origin, Combination)), default=0)
    return Combination(kind, tuple(flat), depth) if depth <= _MAX_DEPTH else None
