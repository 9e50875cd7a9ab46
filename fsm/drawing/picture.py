"""`picture`: a state graph as SVG, by a layered drawing: the column of a state is the longest path to it from the initial one. Back edges
do not count for that, and are drawn below all states, each at a level of its own. Long labels are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from fsm.drawing.graph import StateGraph
from fsm.errors import clip

_RADIUS, _ROW, _MARGIN, _GAP = 15, 64, 40, 30
_LINE, _CHARACTER, _LONGEST = 18, 6.7, 48
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#1f2328}"
    ".s{fill:#eef4fb;stroke:#2f6db3;stroke-width:1.5}.e{fill:none;stroke:#2f6db3}"
    ".a{fill:none;stroke:#6e7781;stroke-width:1.2}.h{marker-end:url(#h)}"
    ".l{fill:#57606a;font-size:11px}.b{fill:white;fill-opacity:.8}"
)
_HEAD = (
    '<defs><marker id="h" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
    '<path d="M0,0 L7,3 L0,6 z" fill="#6e7781"/></marker></defs>'
)


def picture(graph: StateGraph) -> str:
    """Return an SVG picture: circles for states, a ring in the accepting ones, arrows with labels."""
    return _Layout(graph).svg()


class _Arrow(NamedTuple):
    """A forward edge. Its label is at height `middle`, as far as other labels permit."""

    column: int
    middle: float
    source: int
    label: str
    heights: list[float]  # in the columns after that of the source, up to that of the target
    is_drawn: bool  # whether the target is drawn; else the arrow ends after its label


class _Layout:
    """The coordinates of states, arrows and labels.

    The column of a state is the length of the longest path to it without back edges, so that all other arrows lead to later columns; they
    cross each column between at a height of their own. Back edges run below all states, each at a level of its own.
    """

    def __init__(self, graph: StateGraph) -> None:
        self._graph = graph
        self._edges = [
            (state, target, clip(" ".join(names), _LONGEST))
            for state in graph.order
            for target, names in graph.arrows[state].items()
        ]
        self._loops = {state: label for state, target, label in self._edges if state == target and label}
        self._columns = _longest_paths(graph)
        self._num_rows = [0] * (max(self._columns.values()) + 2)
        self._ys = {state: self._next_y(self._columns[state]) for state in graph.order}
        self._arrows = list(self._forward())
        self._bottom: float = max(self._num_rows) * _ROW + _MARGIN * 2 - _ROW + _RADIUS
        self._xs, self._width = self._column_centers()
        self._parts: list[str] = []
        self._labels: list[str] = []

    def svg(self) -> str:
        self._draw_forward()
        self._draw_loops()
        self._draw_back()
        circles = [self._circle(state, number) for number, state in enumerate(self._graph.order, 1)]
        width, height = round(self._width + _RADIUS + _MARGIN), round(self._bottom + _MARGIN)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
                f"<style>{_STYLE}</style>",
                _HEAD,
                f'<rect width="{width}" height="{height}" fill="white"/>',
                *self._parts,
                *self._labels,
                *circles,
                "</svg>",
            ]
        )

    # -- coordinates ---------------------------------------------------------------------------------------------------

    def _next_y(self, column: int) -> float:
        self._num_rows[column] += 1
        return (self._num_rows[column] - 1) * _ROW + _MARGIN * 2

    def _forward(self) -> Iterator[_Arrow]:
        for state, target, label in self._edges:
            column, y = self._columns[state], self._ys[state]
            if target not in self._columns:
                heights = [self._next_y(column + 1)]
                yield _Arrow(column, (y + heights[0]) / 2, state, f"{label} ...", heights, False)
            elif self._columns[target] > column:
                between = range(column + 1, self._columns[target])
                heights = [*map(self._next_y, between), self._ys[target]]
                yield _Arrow(column, (y + heights[0]) / 2, state, label, heights, True)

    def _column_centers(self) -> tuple[list[float], float]:
        """The x of each column, and where the last label ends."""
        widest, loops = [0.0] * len(self._num_rows), [0.0] * len(self._num_rows)
        for arrow in self._arrows:
            widest[arrow.column] = max(widest[arrow.column], _width(arrow.label))
        for state, label in self._loops.items():
            column = self._columns[state]
            loops[column] = max(loops[column], _width(label) / 2 - _RADIUS)
        xs = [_MARGIN + loops[0]]
        for column in range(len(self._num_rows) - 2):
            room = max(widest[column] + 2 * _GAP, loops[column + 1] + _GAP)
            xs.append(xs[-1] + 2 * _RADIUS + loops[column] + room)
        last = widest[len(xs) - 1]
        return xs, xs[-1] + (last + _GAP if last else 0)

    def _point(self, state: int) -> tuple[float, float]:
        return self._xs[self._columns[state]], self._ys[state]

    # -- drawings ------------------------------------------------------------------------------------------------------

    def _draw_forward(self) -> None:
        arrows = sorted(self._arrows, key=attrgetter("column", "middle"))
        for _, found in groupby(arrows, attrgetter("column")):
            level = -float("inf")
            for arrow in found:
                level = max(arrow.middle, level + _LINE)
                self._draw_arrow(arrow, level)

    def _draw_arrow(self, arrow: _Arrow, level: float) -> None:
        """From a state to its label, and from there through all columns between to the target."""
        x, y = self._point(arrow.source)
        loop = self._loops.get(arrow.source, "")
        start = x + _RADIUS + _GAP * 0.8 + max(_width(loop) / 2 - _RADIUS, 0)
        stop = start + _width(arrow.label)
        path = f"M{x + _RADIUS + 1:.0f},{y:.0f} {_curve(x + _RADIUS + 1, y, start, level)} L{stop:.0f},{level:.0f}"
        self._write(arrow.label, (start + stop) / 2, level - 4)
        if arrow.is_drawn:
            *between, last = zip(self._xs[arrow.column + 1 :], arrow.heights, strict=False)
            at = (stop, level)
            for middle, height in between:
                path += f" {_curve(*at, middle - _RADIUS, height)} L{middle + _RADIUS:.0f},{height:.0f}"
                at = (middle + _RADIUS, height)
            path += f" {_curve(*at, last[0] - _RADIUS - 2, last[1])}"
        self._parts.append(f'<path class="{"a h" if arrow.is_drawn else "a"}" d="{path}"/>')

    def _draw_loops(self) -> None:
        for state, label in self._loops.items():
            x, y = self._point(state)
            path = (
                f"M{x - 7:.0f},{y - _RADIUS + 2:.0f} C{x - 22:.0f},{y - 42:.0f} {x + 22:.0f},{y - 42:.0f} "
                f"{x + 7:.0f},{y - _RADIUS + 1:.0f}"
            )
            self._parts.append(f'<path class="a h" d="{path}"/>')
            self._write(label, x, y - 38)

    def _draw_back(self) -> None:
        for state, target, label in self._edges:
            if target == state or self._columns.get(target, len(self._xs)) > self._columns[state]:
                continue
            self._bottom += _LINE + 8
            level, (x, y), (to_x, to_y) = self._bottom, self._point(state), self._point(target)
            # Down after its column, and up before the other, so that no state is in the way.
            right, left = x + _RADIUS + 10, to_x - _RADIUS - 14
            path = (
                f"M{x + 11:.0f},{y + 11:.0f} C{right:.0f},{y + 24:.0f} {right:.0f},{y + 24:.0f} {right:.0f},{y + 36:.0f} "
                f"L{right:.0f},{level - 10:.0f} Q{right:.0f},{level:.0f} {right - 10:.0f},{level:.0f} "
                f"L{left + 10:.0f},{level:.0f} Q{left:.0f},{level:.0f} {left:.0f},{level - 10:.0f} "
                f"L{left:.0f},{to_y + 36:.0f} C{left:.0f},{to_y + 24:.0f} {left:.0f},{to_y + 24:.0f} {to_x - 12:.0f},{to_y + 12:.0f}"
            )
            self._parts.append(f'<path class="a h" d="{path}"/>')
            self._write(label, (x + to_x) / 2, level - 4)

    def _write(self, label: str, x: float, y: float) -> None:
        self._bottom = max(self._bottom, y)
        width = _width(label)
        # On a lighter ground, so that an arrow behind it does not hide the text.
        self._labels.append(
            f'<rect class="b" x="{x - width / 2:.0f}" y="{y - 10:.0f}" width="{width:.0f}" height="13"/>'
            f'<text class="l" x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{escape(label)}</text>'
        )

    def _circle(self, state: int, number: int) -> str:
        x, y = self._point(state)
        ring = (
            f'<circle class="e" cx="{x:.0f}" cy="{y:.0f}" r="{_RADIUS - 4}"/>' if state in self._graph.accepting else ""
        )
        return (
            f'<circle class="s" cx="{x:.0f}" cy="{y:.0f}" r="{_RADIUS}"/>{ring}'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{number}</text>'
        )


def _longest_paths(graph: StateGraph) -> dict[int, int]:
    """The length of the longest path to each state without back edges, those to a state on the current path of a depth-first search."""
    start = graph.order[0]
    sources: list[tuple[int, Iterator[int]]] = [(start, iter(graph.arrows[start]))]
    on_path, done, forward = {start}, dict[int, None](), dict[int, list[int]]()
    while sources:
        state, targets = sources[-1]
        target = next(targets, None)
        if target is None:
            sources.pop()
            on_path.discard(state)
            done[state] = None
        elif target in graph.arrows and target not in on_path:
            forward.setdefault(state, []).append(target)
            if target not in done:
                on_path.add(target)
                sources.append((target, iter(graph.arrows[target])))
    columns = dict.fromkeys(graph.order, 0)
    for state in reversed(done):  # in topological order
        for target in forward.get(state, ()):
            columns[target] = max(columns[target], columns[state] + 1)
    return columns


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (to_x - x) / 2
    return f"C{x + bend:.0f},{y:.0f} {to_x - bend:.0f},{to_y:.0f} {to_x:.0f},{to_y:.0f}"


def _width(label: str) -> float:
    return len(label) * _CHARACTER
