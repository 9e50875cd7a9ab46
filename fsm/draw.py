"""Pictures of automata and token FSMs, as SVG.

States are laid out in columns by their distance from the first one; an arrow is labelled with the bytes (or the tokens) that take it.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape

from fsm.automaton import Automaton
from fsm.expression import Expression
from fsm.rows import bytes_of
from fsm.token_fsm import TokenFSM

_WIDTH, _HEIGHT, _RADIUS = 190, 78, 17
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#1f2328}"
    ".s{fill:#eef4fb;stroke:#2f6db3;stroke-width:1.5}.e{fill:none;stroke:#2f6db3}"
    ".a{fill:none;stroke:#6e7781;stroke-width:1.2;marker-end:url(#h)}.l{fill:#57606a;font-size:11px}"
)

Edges = dict[tuple[int, int], str]


def draw(language: Expression | TokenFSM, *, max_states: int = 40, max_tokens: int = 4) -> str:
    """Return an SVG picture of an automaton over bytes, or of a token FSM.

    Args:
        language: an expression, whose automaton over bytes is drawn, or a token FSM.
        max_states: how many states are drawn; arrows that lead beyond them end in `...`.
        max_tokens: how many tokens an arrow of a token FSM names.

    Raises:
        BudgetExceeded: see `Automaton`.

    Cost: the states that are drawn; for a token FSM also a mask of each.
    """
    if isinstance(language, TokenFSM):
        return _picture(*_token_edges(language, max_states, max_tokens))
    return _picture(*_byte_edges(Automaton(language.node), max_states))


def _byte_edges(automaton: Automaton, max_states: int) -> tuple[list[int], Edges, set[int]]:
    order, edges = [automaton.initial_state], Edges()
    for state in order:
        for mask, target in automaton.arcs(state):
            if target not in order and len(order) < max_states:
                order.append(target)
            edges[state, target] = _bytes_label(mask)
    return order, edges, {state for state in order if automaton.is_accepting(state)}


def _token_edges(token_fsm: TokenFSM, max_states: int, max_tokens: int) -> tuple[list[int], Edges, set[int]]:
    order, edges = [token_fsm.initial_state], Edges()
    tokens, ends = token_fsm.vocabulary.tokens, set(token_fsm.vocabulary.eos_token_ids)
    for state in order:
        named = defaultdict[int, list[str]](list)
        for token_id in token_fsm.allowed_token_ids(state).tolist():
            if token_id not in ends:
                target = token_fsm.next_state(state, token_id)
                named[target].append(ascii((tokens[token_id] or b"").decode(errors="replace"))[1:-1])
        for target, names in named.items():
            if target not in order and len(order) < max_states:
                order.append(target)
            more = len(names) - max_tokens
            edges[state, target] = " ".join(names[:max_tokens]) + (f" +{more}" if more > 0 else "")
    return order, edges, {state for state in order if token_fsm.is_accepting(state)}


def _bytes_label(mask: int) -> str:
    """Runs of bytes, for people."""
    found, parts = bytes_of(mask).tolist(), []
    first = last = found[0]
    for byte in [*found[1:], -1]:
        if byte == last + 1:
            last = byte
            continue
        parts.append(_shown(first) if first == last else f"{_shown(first)}-{_shown(last)}")
        first = last = byte
    return " ".join(parts[:4]) + (" ..." if len(parts) > 4 else "")


def _shown(byte: int) -> str:
    return chr(byte) if 0x20 < byte < 0x7F else f"{byte:02x}"


def _picture(order: list[int], edges: Edges, accepting: set[int]) -> str:
    places = _places(order, edges)
    width = (max(x for x, _ in places.values()) + 1) * _WIDTH + 40
    height = (max(y for _, y in places.values()) + 1) * _HEIGHT + 80
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="h" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#6e7781"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    parts += [_arrow(places, start, target, label) for (start, target), label in edges.items() if start in places]
    parts += [_circle(places[state], str(number + 1), state in accepting) for number, state in enumerate(order)]
    return "\n".join([*parts, "</svg>"])


def _places(order: list[int], edges: Edges) -> dict[int, tuple[int, int]]:
    """Column and line of each state."""
    column = {order[0]: 0}
    for state in order:
        for start, target in edges:
            if start == state and target in order:
                column.setdefault(target, column[state] + 1)
    filled = defaultdict[int, int](int)
    places = {}
    for state in order:
        x = column[state]
        places[state] = x, filled[x]
        filled[x] += 1
    return places


def _point(place: tuple[int, int]) -> tuple[int, int]:
    return place[0] * _WIDTH + 50, place[1] * _HEIGHT + 80


def _circle(place: tuple[int, int], name: str, is_accepting: bool) -> str:
    x, y = _point(place)
    ring = f'<circle class="e" cx="{x}" cy="{y}" r="{_RADIUS - 4}"/>' if is_accepting else ""
    return f'<circle class="s" cx="{x}" cy="{y}" r="{_RADIUS}"/>{ring}<text x="{x}" y="{y + 4}" text-anchor="middle">{name}</text>'


def _arrow(places: dict[int, tuple[int, int]], start: int, target: int, label: str) -> str:
    x, y = _point(places[start])
    text = escape(label if len(label) <= 22 else label[:19] + "...")
    if target not in places:
        return f'<text class="l" x="{x + _RADIUS + 6}" y="{y + 26}">{text} ...</text>'
    if target == start:
        path = f"M{x - 8},{y - _RADIUS + 2} C{x - 26},{y - 52} {x + 26},{y - 52} {x + 8},{y - _RADIUS + 2}"
        return f'<path class="a" d="{path}"/><text class="l" x="{x}" y="{y - 42}" text-anchor="middle">{text}</text>'
    to_x, to_y = _point(places[target])
    middle_x, middle_y = (x + to_x) / 2, (y + to_y) / 2 - 6
    if to_x > x:
        bend = (to_x - x) / 2
        path = f"M{x + _RADIUS + 1},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x - _RADIUS - 1},{to_y}"
    elif to_x == x:
        path = f"M{x + _RADIUS + 1},{y} C{x + 46},{y} {x + 46},{to_y} {to_x + _RADIUS + 1},{to_y}"
        middle_x += 50
    else:  # backwards, below the others
        low = max(y, to_y) + 62
        path = f"M{x},{y + _RADIUS + 1} C{x},{low} {to_x},{low} {to_x},{to_y + _RADIUS + 1}"
        middle_y = low - 10
    return (
        f'<path class="a" d="{path}"/><text class="l" x="{middle_x}" y="{middle_y}" text-anchor="middle">{text}</text>'
    )
