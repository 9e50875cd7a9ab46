"""`expression_graph`: the DFA over characters of an expression, minimised (Moore's partition refinement) and simplified for drawing. A
chain of states with one edge each becomes one edge, an optional space is joined to the edge before it, a character of a JSON string is one
edge, and a count above `MAX_COUNT` is drawn as a loop; so the graph is for reading and not for matching. States are explored breadth first,
up to 8 for each that may be drawn. Also here: `explored`, the graph of any automaton, and labels (`visible`, `class_label`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from fsm.automaton.character_dfa import CharacterSteps
from fsm.automaton.lazy_dfa import Automaton
from fsm.drawing.graph import StateGraph
from fsm.terms import node as nodes
from fsm.terms.character_class import category
from fsm.terms.characters import ALL_CHARACTERS, Ranges, invert
from fsm.terms.node import Kind, Node
from fsm.terms.rendering import known_name
from fsm.terms.state_elimination import refined

MAX_COUNT = 8
"""The largest count that is drawn state by state."""
_NUM_RUNS = 6
_SPACE = "␣"


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
    return "".join(_SPACE if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)


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
    shown = rest if is_negated else ranges
    runs = [_run(first, last) for first, last in shown[:_NUM_RUNS]]
    return f"[{'^' if is_negated else ''}{''.join(runs)}{'...' if len(shown) > _NUM_RUNS else ''}]"


@cache
def _named() -> dict[Ranges, str]:
    """The classes `\\d`, `\\w`, `\\s` of Python's `re` and their complements, by their ranges."""
    found = {category(name, False): rf"\{name}" for name in "dws"}
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
            return
        yield self._state(nodes.concat(nodes.fewer(first), rest)), [name]
        if first.args[1] == 0:
            yield from self.labels(self._state(rest))

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
