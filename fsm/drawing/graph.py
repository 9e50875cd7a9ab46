"""`StateGraph`: the states and labelled edges of an automaton to be drawn, as adjacency lists, and as DOT source for Graphviz."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


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
