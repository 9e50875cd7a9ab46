"""`picture`: a state graph as SVG, by a layered drawing: columns by longest path from the initial state, back edges left out.

Back edges run below all states, each at a level of its own; long labels are cut.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape

from fsm.drawing.graph import StateGraph

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
    """Return an SVG picture: circles for states, a ring in those where a text may end, arrows with labels."""
    return _Layout(graph).svg()


class _Layout:
    """The coordinates of states, arrows and labels.

    The column of a state is the length of the longest path to it without back edges, so that all other arrows lead to later columns; they
    cross each column between at a height of their own. Back edges run below all states, each at a level of its own.
    """

    def __init__(self, graph: StateGraph) -> None:
        self._graph = graph
        self._is_back = self._found_back()
        self._columns = self._longest_ways()
        self._lines: dict[object, int] = {}
        self._forward, self._back = self._arrows()
        self._set_lines()
        self._parts: list[str] = []
        self._labels: list[str] = []
        self._bottom = 0.0
        self._xs = self._column_places()

    def svg(self) -> str:
        self._draw_forward()
        self._draw_loops()
        self._draw_back()
        circles = [self._circle(state, number + 1) for number, state in enumerate(self._graph.order)]
        width, height = round(self._xs[-1] + _RADIUS + _MARGIN), round(self._bottom + _MARGIN)
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

    # -- places --------------------------------------------------------------------------------------------------------

    def _found_back(self) -> set[tuple[int, int]]:
        """The arrows that lead back, to a state on the way to theirs, loops included (depth-first search)."""
        back, on_the_way, done = set[tuple[int, int]](), set[int](), set[int]()
        stack = [(self._graph.order[0], iter(self._drawn(self._graph.order[0])))]
        on_the_way.add(self._graph.order[0])
        while stack:
            state, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                stack.pop()
                on_the_way.discard(state)
                done.add(state)
            elif target in on_the_way:
                back.add((state, target))
            elif target not in done:
                on_the_way.add(target)
                stack.append((target, iter(self._drawn(target))))
        return back

    def _drawn(self, state: int) -> list[int]:
        return [target for target in self._graph.arrows[state] if target in self._graph.arrows]

    def _longest_ways(self) -> dict[int, int]:
        """The column of each state."""
        sources = defaultdict[int, set[int]](set)
        for state in self._graph.order:
            for target in self._drawn(state):
                if (state, target) not in self._is_back:
                    sources[target].add(state)
        found: dict[int, int] = {}
        ready = [self._graph.order[0]]
        for state in ready:
            found[state] = max((found[source] + 1 for source in sources[state]), default=0)
            ready += [
                target
                for target in dict.fromkeys(self._drawn(state))
                if state in sources[target] and sources[target] <= set(ready) and target not in ready
            ]
        return found

    def _arrows(self) -> tuple[list[tuple[int, object, int, str]], list[tuple[int, int, str]]]:
        """Pieces of arrows from a column to the next, each with where it leads, the column and a label; and those that lead back."""
        forward: list[tuple[int, object, int, str]] = []
        back = []
        for state in self._graph.order:
            for target, names in self._graph.arrows[state].items():
                label = _short(" ".join(names))
                if target not in self._columns:
                    forward.append((state, ("beyond", state, target), self._columns[state], f"{label} ..."))
                elif (state, target) not in self._is_back:
                    forward.append((state, target, self._columns[state], label))
                elif target != state:
                    back.append((state, target, label))
        return forward, back

    def _set_lines(self) -> None:
        """Give states, and arrows that pass through a column, lines of their own."""
        filled = defaultdict[int, int](int)
        for state in self._graph.order:
            self._take_line(filled, self._columns[state], state)
        for state, target, column, _ in self._forward:
            last = column + 1 if isinstance(target, tuple) else self._columns[target]  # type: ignore[index]
            for between in range(column + 1, last + isinstance(target, tuple)):
                self._take_line(filled, between, (state, target, between))

    def _take_line(self, filled: dict[int, int], column: int, what: object) -> None:
        self._lines[what] = filled[column]
        filled[column] += 1

    def _column_places(self) -> list[float]:
        """The middle of each column."""
        widest = defaultdict[int, float](float)
        for _, _, column, label in self._forward:
            widest[column] = max(widest[column], _width(label))
        loops = defaultdict[int, float](float)
        for state in self._graph.order:
            label = self._loop_label(state)
            loops[self._columns[state]] = max(loops[self._columns[state]], _width(label) / 2 - _RADIUS)
        xs = [_MARGIN + loops[0]]
        for column in range(max(self._columns.values())):
            room = max(widest[column] + 2 * _GAP, loops[column + 1] + _GAP)
            xs.append(xs[-1] + 2 * _RADIUS + loops[column] + room)
        self._last_room = widest[len(xs) - 1]
        return xs if not self._last_room else [*xs, xs[-1] + self._last_room + _GAP]

    def _y(self, what: object) -> float:
        return self._lines[what] * _ROW + _MARGIN * 2

    def _point(self, state: int) -> tuple[float, float]:
        return self._xs[self._columns[state]], self._y(state)

    def _loop_label(self, state: int) -> str:
        return _short(" ".join(self._graph.arrows[state].get(state, [])))

    # -- drawings ------------------------------------------------------------------------------------------------------

    def _draw_forward(self) -> None:
        by_column = defaultdict[int, list[tuple[float, int, object, str]]](list)
        for state, target, column, label in self._forward:
            following = (state, target, column + 1)
            end = self._y(following if following in self._lines else target)
            by_column[column].append(((self._y(state) + end) / 2, state, target, label))
        for column, found in sorted(by_column.items()):
            level = -float("inf")
            for wanted, state, target, label in sorted(found, key=lambda item: item[0]):
                level = max(wanted, level + _LINE)
                self._draw_arrow(column, state, target, label, level)

    def _draw_arrow(self, column: int, state: int, target: object, label: str, level: float) -> None:
        """From a state to its label, and on to where it leads, through all columns between."""
        x, y = self._point(state)
        start = x + _RADIUS + _GAP * 0.8 + max(_width(self._loop_label(state)) / 2 - _RADIUS, 0)
        stop = start + _width(label)
        path = f"M{x + _RADIUS + 1:.0f},{y:.0f} {_curve(x + _RADIUS + 1, y, start, level)} L{stop:.0f},{level:.0f}"
        self._write(label, (start + stop) / 2, level - 4)
        if isinstance(target, tuple):
            self._parts.append(f'<path class="a" d="{path}"/>')
            return
        at = (stop, level)
        for between in range(column + 1, self._columns[target]):  # type: ignore[index]
            line = self._y((state, target, between))
            left, right = self._xs[between] - _RADIUS, self._xs[between] + _RADIUS
            path += f" {_curve(*at, left, line)} L{right:.0f},{line:.0f}"
            at = (right, line)
        end_x, end_y = self._point(target)  # type: ignore[arg-type]
        path += f" {_curve(*at, end_x - _RADIUS - 2, end_y)}"
        self._parts.append(f'<path class="a h" d="{path}"/>')

    def _draw_loops(self) -> None:
        for state in self._graph.order:
            label = self._loop_label(state)
            if label:
                x, y = self._point(state)
                path = (
                    f"M{x - 7:.0f},{y - _RADIUS + 2:.0f} C{x - 22:.0f},{y - 42:.0f} {x + 22:.0f},{y - 42:.0f} "
                    f"{x + 7:.0f},{y - _RADIUS + 1:.0f}"
                )
                self._parts.append(f'<path class="a h" d="{path}"/>')
                self._write(label, x, y - 38)

    def _draw_back(self) -> None:
        lowest = max((self._y(what) for what in self._lines), default=0.0)
        self._bottom = max(lowest + _RADIUS, self._bottom)
        for state, target, label in self._back:
            self._bottom += _LINE + 8
            level, (x, y), (to_x, to_y) = self._bottom, self._point(state), self._point(target)
            # Down beside its column, and up beside the other, so that no state lies in the way.
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
        # A lighter ground, so that an arrow that passes there does not hide the text.
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


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (to_x - x) / 2
    return f"C{x + bend:.0f},{y:.0f} {to_x - bend:.0f},{to_y:.0f} {to_x:.0f},{to_y:.0f}"


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 3]}..."


def _width(label: str) -> float:
    return len(label) * _CHARACTER
