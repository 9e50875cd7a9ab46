"""`expression_graph`: the DFA over characters of an expression, minimised (Moore's partition refinement) and simplified for drawing. A
chain of states with one edge each becomes one edge, an optional space is joined to the edge before it, a character of a JSON string is one
edge, and a count above `MAX_COUNT` is drawn as a loop; so the graph is for reading and not for matching. States are explored breadth first,
up to 8 for each that may be drawn. `explored` is the graph of any automaton, `visible` and `class_label` make labels.

A `StateGraph` is written as SVG (`picture`) or as DOT source for Graphviz. The picture has all states on one line, so that no arrow crosses
a state and no label lies on another, whatever the graph; for a layout by ranks pass the DOT source to Graphviz.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import accumulate, count
from typing import Any
from unicodedata import combining

from fsm.automaton.character_dfa import CharacterSteps
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import clip
from fsm.terms import node as nodes
from fsm.terms.characters import ALL_CHARACTERS, Ranges, category, intersect, invert
from fsm.terms.node import Kind, Node
from fsm.terms.rendering import known_name
from fsm.terms.special_token import MARK
from fsm.terms.state_elimination import refined

MAX_COUNT = 8
"""The largest count that is drawn state by state."""
_NUM_RUNS = 6
_SPACE = "␣"

_RADIUS, _LANE, _CHARACTER, _LONGEST = 15, 20, 6.7, 48
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#1f2328;text-anchor:middle}"
    ".s{fill:#eef4fb;stroke:#2f6db3;stroke-width:1.5}.e{fill:none;stroke:#2f6db3}"
    ".a{fill:none;stroke:#6e7781;stroke-width:1.2}.h{marker-end:url(#h)}"
    ".l{fill:#57606a;font-size:11px}.b{fill:white;fill-opacity:.8}.g{fill:white}.m{fill:#6e7781}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.s{fill:#1c2b3a;stroke:#79b8ff}.e{stroke:#79b8ff}.a{stroke:#9aa4b0}"
    ".l{fill:#c3cad2}.b,.g{fill:#16181c}.m{fill:#9aa4b0}}"
)
_HEAD = (
    '<defs><marker id="h" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
    '<path class="m" d="M0,0 L7,3 L0,6 z"/></marker></defs>'
)


@dataclass(slots=True)
class StateGraph:
    """The states of a drawing, in breadth-first order, and their edges.

    Attributes:
        arrows: for each state, the labels of its edges by target.
        accepting: the accepting states.
        order: the states that are drawn, the initial one first; edges may lead to states beyond them.
    """

    arrows: dict[int, dict[int, list[str]]] = field(default_factory=dict)
    accepting: set[int] = field(default_factory=set)
    order: list[int] = field(default_factory=list)

    def sources(self) -> dict[int, list[int]]:
        """For each state, the states with an edge to it."""
        found = defaultdict[int, list[int]](list)
        for state, targets in self.arrows.items():
            for target in targets:
                found[target].append(state)
        return found

    def to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz: accepting states as double circles, numbered as in the SVG picture.

        An edge to a state that is not drawn leads to a node `...`.
        """
        numbers = {state: number for number, state in enumerate(self.order, 1)}
        lines = ["digraph {", "  rankdir=LR;", "  node [shape=circle];"]
        lines += [f"  {numbers[state]} [shape=doublecircle];" for state in self.order if state in self.accepting]
        for state in self.order:
            for target, names in self.arrows[state].items():
                label = " ".join(names).replace("\\", "\\\\").replace('"', '\\"')
                beyond = f'"... {numbers[state]} {target}"'
                if target not in numbers:
                    lines.append(f'  {beyond} [shape=plaintext, label="..."];')
                lines.append(f'  {numbers[state]} -> {numbers.get(target, beyond)} [label="{label}"];')
        return "\n".join([*lines, "}"])

    def to_table(self) -> str:
        """Return the graph as text: a line for each edge, by state; the number of an accepting state is in parentheses."""
        numbers = enumerate(self.order, 1)
        shown = {state: f"({number})" if state in self.accepting else str(number) for number, state in numbers}
        rows = [
            (shown[state], " ".join(names), f"  -> {shown.get(target, '...')}")
            for state in self.order
            for target, names in self.arrows[state].items()
        ]
        rows += [(shown[state], "", "") for state in self.order if not self.arrows[state]]
        left, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(f"{a:>{left}}  {label:{middle}}{target}".rstrip() for a, label, target in rows)


def expression_graph(root: Node, max_states: int) -> StateGraph:
    """Return the graph of the DFA over characters of a term.

    Args:
        root: the language.
        max_states: the most states of the graph.

    Raises:
        BudgetExceeded: see `Automaton`.

    Cost: the states that are made, at most 8 for each that is returned.
    """
    states = _TermStates(root)
    start = states.initial_state
    graph = _minimal(explored(start, states.labels, states.automaton.is_accepting, max_states * 8))
    _join_optional_spaces(graph)
    _join_chains(graph)
    return explored(start, lambda state: graph.arrows.get(state, {}).items(), graph.accepting.__contains__, max_states)


def visible(text: str) -> str:
    """Return a text with spaces shown as `␣` and characters that cannot be printed as escapes."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() and not combining(character):
        return _SPACE if character == " " else character
    return character.encode("unicode_escape").decode()


def class_label(ranges: Ranges) -> str:
    """Return a set of characters as a regular expression writes it; one character as itself."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return visible(chr(ranges[0][0]))
    if ranges == ALL_CHARACTERS:
        return "any character"
    if len(ranges) > _NUM_RUNS and ranges in _named():
        return _named()[ranges]
    rest = invert(ranges)
    is_negated = len(rest) < len(ranges) or (len(rest) == len(ranges) and ranges[-1][1] == ALL_CHARACTERS[-1][1])
    names, shown = _without_named(rest if is_negated else ranges)
    runs = [_run(first, last) for first, last in shown[:_NUM_RUNS]]
    return f"[{'^' if is_negated else ''}{''.join(runs)}{names}{'...' if len(shown) > _NUM_RUNS else ''}]"


def _without_named(ranges: Ranges) -> tuple[str, Ranges]:
    r"""Return the names of the classes such as `\d` that a set with many runs contains, and the rest of it.

    Otherwise its first runs would be shown, of scripts that few fonts have.
    """
    names = ""
    for named, name in _named().items():
        if len(ranges) > _NUM_RUNS and intersect(named, ranges) == named:
            names, ranges = names + name, intersect(ranges, invert(named))
    return names, ranges


@cache
def _named() -> dict[Ranges, str]:
    """The classes `\\d`, `\\w`, `\\s` of Python's `re` and their complements, by their ranges."""
    found = {category(name, False): rf"\{name}" for name in "wds"}  # a word has the digits
    return found | {invert(ranges): name.upper() for ranges, name in found.items()}


def _run(first: int, last: int) -> str:
    ends = visible(chr(first)), visible(chr(last))
    return ends[0] if first == last else ends[0] + ("-" if last > first + 1 else "") + ends[1]


class _TermStates:
    """The states of a term between whole characters, with large counts replaced by loops."""

    def __init__(self, root: Node) -> None:
        self.automaton = Automaton(root)
        self._steps = CharacterSteps(self.automaton)
        self.initial_state = self._state(root)

    def labels(self, state: int) -> Iterator[tuple[int, list[str]]]:
        """The edges of a state: the target and the labels of each."""
        first, rest = nodes.first_and_rest(self.automaton.nodes[state])
        name = known_name(first.args[0]) if first.kind is Kind.REPEAT else None
        if name is None:
            for target, ranges in self._steps.of(state).items():
                yield self._state(self.automaton.nodes[target]), [class_label(ranges)]
            yield from self._special_labels(state)
            return
        yield self._state(nodes.concat(nodes.fewer(first), rest)), [name]
        if first.args[1] == 0:
            yield from self.labels(self._state(rest))

    def _special_labels(self, state: int) -> Iterator[tuple[int, list[str]]]:
        """The edges of special tokens, by their names."""
        stack = [(self.automaton.moves(state).get(MARK[0], DEAD), b"")]
        while stack:
            inside, name = stack.pop()
            for byte, target in self.automaton.moves(inside).items() if inside != DEAD else ():
                if byte == MARK[0]:
                    yield self._state(self.automaton.nodes[target]), [visible(name.decode())]
                else:
                    stack.append((target, name + bytes((byte,))))

    def _state(self, node: Node) -> int:
        return self.automaton.state_of(_without_counts(node))


def _without_counts(node: Node) -> Node:
    """Return the term with the upper bound of every large count removed."""
    if node.kind is Kind.ALTERNATION or node.kind is Kind.INTERSECTION:
        build = nodes.alternation if node.kind is Kind.ALTERNATION else nodes.intersection
        return build(nodes.sequence([*map(_uncounted, nodes.factors(part))]) for part in node.args)
    return nodes.sequence([*map(_uncounted, nodes.factors(node))])


def _uncounted(node: Node) -> Node:
    if node.kind is not Kind.REPEAT or max(node.args[1], node.args[2] or 0) <= MAX_COUNT:
        return node
    body, lo, _ = node.args
    return nodes.repeat(body, lo if lo <= MAX_COUNT else 1, None)


def explored(
    initial_state: int,
    labels: Callable[[int], Iterable[tuple[int, list[str]]]],
    is_accepting: Callable[[int], bool],
    max_states: int,
) -> StateGraph:
    """Return the graph of the first states of an automaton, breadth first; `labels` gives the edges of a state: targets and labels."""
    graph = StateGraph(order=[initial_state])
    known = {initial_state}
    for state in graph.order:
        arrows = graph.arrows[state] = {}
        if is_accepting(state):
            graph.accepting.add(state)
        for target, names in labels(state):
            arrows.setdefault(target, []).extend(names)
            if target not in known and len(known) < max_states:
                known.add(target)
                graph.order.append(target)
    return graph


def _minimal(graph: StateGraph) -> StateGraph:
    """Return the graph with equivalent states merged (Moore's partition refinement)."""

    def signature(state: int, classes: Mapping[int, Any]) -> frozenset[tuple[Any, ...]]:
        # A state beyond those explored is a class of its own.
        return frozenset((classes.get(t, -1 - t), *sorted(names)) for t, names in graph.arrows[state].items())

    classes = refined({state: state in graph.accepting for state in graph.order}, signature)
    first = {number: state for state, number in reversed(classes.items())}
    joined = StateGraph(order=[state for state, number in classes.items() if first[number] == state])
    joined.accepting = graph.accepting & set(joined.order)
    for state in joined.order:
        arrows = joined.arrows[state] = dict[int, list[str]]()
        for target, names in graph.arrows[state].items():
            arrows.setdefault(first[classes[target]] if target in classes else target, []).extend(names)
    return joined


def _join_optional_spaces(graph: StateGraph) -> None:
    """Where a space is optional, remove its state and append `␣?` to the label before it."""
    sources = graph.sources()
    for state in graph.order[1:]:
        arrows = graph.arrows.get(state, {})
        after = next((target for target, names in arrows.items() if names == [_SPACE]), None)
        if after is None or after not in graph.arrows or {state, after} & graph.accepting or sources[after] != [state]:
            continue
        if {t: names for t, names in arrows.items() if t != after} != graph.arrows[after] or state in arrows:
            continue
        for source in sources[state]:
            graph.arrows[source][after] = [f"{name}{_SPACE}?" for name in graph.arrows[source].pop(state)]
        sources[after] = sources.pop(state)
        del graph.arrows[state]
        for target in arrows:
            sources[target] = [source for source in sources[target] if source != state]


def _join_chains(graph: StateGraph) -> None:
    """Merge each chain of states with one edge in and one edge out into one edge."""
    sources = graph.sources()
    for state in graph.order[1:]:
        arrows = graph.arrows.get(state, {})
        if state in graph.accepting or len(arrows) != 1 or len(sources[state]) != 1:
            continue
        (target, names), source = next(iter(arrows.items())), sources[state][0]
        before = graph.arrows[source][state]
        if (
            target in (state, source)
            or source == state
            or len(names) > 1
            or len(before) > 1
            or target in graph.arrows[source]
        ):
            continue
        del graph.arrows[state]
        del graph.arrows[source][state]
        graph.arrows[source][target] = [before[0] + names[0]]
        sources[target] = [source if other == state else other for other in sources[target]]


def picture(graph: StateGraph) -> str:
    """Return an SVG picture: states as circles on one line, a ring in the accepting ones, arrows with labels.

    An arrow to the next state is straight. Any other has a lane, below the line if it leads back, else above it: the first lane that has
    room for the arrow and its label, shorter arrows first. An arrow to a state that is not drawn ends in `...`.
    """
    columns = {state: column for column, state in enumerate(graph.order)}
    edges = [
        (columns[state], columns.get(target), clip(" ".join(names), _LONGEST))
        for state in graph.order
        for target, names in graph.arrows[state].items()
    ]
    straight = {column: label for column, to, label in edges if to == column + 1}
    gaps = (2 * _RADIUS + max(_width(straight.get(column, "")) + 16, 36) for column in range(len(columns) - 1))
    xs = [*accumulate(gaps, initial=0.0)]
    arrows, labels = list[str](), list[str]()
    taken = defaultdict[tuple[int, int], list[tuple[float, float]]](list)
    for column, to, label in sorted(edges, key=lambda edge: abs(edge[0] - (edge[0] if edge[1] is None else edge[1]))):
        x = xs[column]
        if to == column + 1:
            arrows.append(f'<path class="a h" d="M{x + _RADIUS:.0f},0 H{xs[to] - _RADIUS - 2:.0f}"/>')
            labels.append(_label(label, (x + xs[to]) / 2, -4))
            continue
        label = label if to is not None else f"{label} ..."
        side = 1 if to is not None and to < column else -1
        start, end = x + 5, x + 21 + _width(label) if to is None else xs[to] - 5
        middle, half = (start + end) / 2, _width(label) / 2 + 4
        left, right = min(start, end, middle - half), max(start, end, middle + half)
        lane = next(n for n in count(1) if all(right < a or b < left for a, b in taken[side, n]))
        taken[side, lane].append((left, right))
        y = side * (_RADIUS + lane * _LANE)
        back = "" if to is None else f" V{side * (_RADIUS + 1)}"
        arrows.append(
            f'<path class="a{" h" if back else ""}" d="M{start:.0f},{side * (_RADIUS - 1)} V{y} H{end:.0f}{back}"/>'
        )
        labels.append(_label(label, middle, y - 4))
    circles = [_circle(xs[column], column + 1, state in graph.accepting) for state, column in columns.items()]
    spans = [(-_RADIUS, xs[-1] + _RADIUS), *(span for lane in taken.values() for span in lane)]
    levels = [side * lane for side, lane in taken]
    left, top = min(a for a, _ in spans) - _LANE, min(levels, default=0) * _LANE - 2 * _LANE
    width, height = max(b for _, b in spans) + _LANE - left, max(levels, default=0) * _LANE + 2 * _LANE - top
    size = f'width="{width:.0f}" height="{height}" viewBox="{left:.0f} {top} {width:.0f} {height}"'
    ground = f'<rect class="g" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}"/>'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", _HEAD, ground]
    return "\n".join([*head, *arrows, *labels, *circles, "</svg>"])


def _circle(x: float, number: int, is_accepting: bool) -> str:
    ring = f'<circle class="e" cx="{x:.0f}" cy="0" r="{_RADIUS - 4}"/>' if is_accepting else ""
    return f'<circle class="s" cx="{x:.0f}" cy="0" r="{_RADIUS}"/>{ring}<text x="{x:.0f}" y="4">{number}</text>'


def _label(text: str, x: float, y: float) -> str:
    """A label on a lighter ground, so that an arrow behind it does not hide the text."""
    ground = f'<rect class="b" x="{x - _width(text) / 2:.0f}" y="{y - 9}" width="{_width(text):.0f}" height="12"/>'
    return f'{ground}<text class="l" x="{x:.0f}" y="{y}">{escape(text)}</text>'


def _width(label: str) -> float:
    return len(label) * _CHARACTER
