"""`shortest_text`: a shortest text of a language, by breadth-first search of its lazy DFA; for examples in messages.

Checks are ignored. None where no accepting state is among the first `max_states` states.
"""

from __future__ import annotations

from fsm.automaton.lazy_dfa import Automaton
from fsm.automaton.transition_rows import bytes_of
from fsm.terms.node import Node

_PREFERRED = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")


def shortest_text(root: Node, *, max_states: int = 50_000) -> bytes | None:
    """A shortest text of `root`, by the automaton alone; None where none was found among the first `max_states` states.

    Of several, one of small letters and digits is chosen where that is possible. Cost: some 20 us per visited state.
    """
    automaton = Automaton(root, max_states=2 * max_states)
    start = automaton.initial_state
    came: dict[int, tuple[int, int]] = {}
    queue, seen = [start], {start}
    for state in queue:
        if automaton.is_accepting(state):
            out = bytearray()
            while state != start:
                state, byte = came[state]
                out.append(byte)
            return bytes(reversed(out))
        if len(queue) > max_states:
            return None
        for mask, target in automaton.arcs(state):
            if target not in seen:
                seen.add(target)
                choices = bytes_of(mask).tolist()
                came[target] = state, next((b for b in choices if b in _PREFERRED), choices[0])
                queue.append(target)
    return None
