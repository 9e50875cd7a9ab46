"""`OpenWalk`: the masks of `(body{lo,hi} & pattern) rest` for all counts, from one product of the token trie and the pattern's automaton,
in which counted loops have no bounds (`open_counts.py` says which; too many states raise `BudgetExceeded`). Each token has an end state and
a number of iterations of `body`, a character class (here `rounds`); a mask tests for each distinct pair whether some text completes it
within the bounds that are left: by shortest paths (Dijkstra), else by an emptiness test.

Otherwise nearly every mask would need a walk of its own, as a state counts characters, words or both. Tokens that go on into `rest` are
walked apart. `as_counted` reads such a term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.lazy_dfa import Automaton
from fsm.bitmask import add_ids, pack
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.terms.open_counts import Bounds, OpenLoop, Ruler, accepting, closed, done, is_counted, opened_loops
from fsm.tokens.walk import NEVER, ExitsOf, leaving, states_at
from fsm.trie import Trie

MAX_STATES = 4_000  # the most states of a walk; with more, it is not worth its cost
MAX_VISITED = 400  # states visited in the search for a shortest text
MAX_VISITED_AFTER = (
    40  # states visited after that, in the search for a text that can be extended by any number of iterations
)
UNBOUNDED = 1 << 30  # more iterations than any text has: no upper bound
Required = tuple[bool, tuple[tuple[OpenLoop, int], ...]]
"""Whether a text must have some iterations of the ruler, and the fewest iterations of each open loop."""


class _Unpruned(Automaton):
    """The automaton of an open term, with states that may be dead, as that depends on the counts."""

    def __init__(self, root: Node, max_states: int, derivatives: Derivatives | None) -> None:
        super().__init__(root, max_states=max_states, derivatives=derivatives)
        self._excludes_all: dict[Node, bool] = {}

    def arcs(self, state: int) -> list[tuple[int, int]]:
        arcs = self.derivatives.arcs(self.nodes[state])
        return [(mask, self.state_of(target)) for mask, target in arcs if not self._is_dead(target)]

    def _is_dead(self, term: Node) -> bool:
        known = self._excludes_all.get(term)
        if known is None:
            known = self._excludes_all[term] = _excludes_all(term)
        return known


def _excludes_all(term: Node) -> bool:
    """True if a term plainly excludes every text that its ruler allows, such as after a match of a negated pattern."""
    if term.kind is not Kind.INTERSECTION:
        return False
    bodies = [m.args[0].body for m in term.args if m.kind is Kind.MACHINE and isinstance(m.args[0], Ruler)]
    others = [m for m in term.args if m.kind is Kind.COMPLEMENT]
    return bool(bodies) and nodes.intersection((nodes.repeat(bodies[0]), *others)) is EMPTY


@dataclass(frozen=True, slots=True)
class _Path:
    """A shortest path from a state to an accepting one: its iterations of the ruler, and that state, -1 if none is known."""

    rounds: int
    end: int


_NO_PATH = _Path(2 * UNBOUNDED, -1)


@dataclass(frozen=True, slots=True)
class _Completions:
    """Paths from a state to an accepting one.

    Attributes:
        least: a path with few iterations, upper bounds of open loops ignored.
        unbounded: one with a cycle, which may add any number of iterations.
        at_least: no path has fewer iterations than this.
    """

    least: _Path
    unbounded: _Path
    at_least: int


@dataclass(frozen=True, slots=True)
class _Leaving:
    """The tokens that continue after the pattern: their ids, the state and iterations with which each leaves it, and all these states."""

    token_ids: NDArray[np.int32]
    states: NDArray[np.int32]
    rounds: NDArray[np.int32]
    distinct: list[int]


@dataclass(frozen=True, slots=True)
class Counted:
    """A term read as `(body{lo,hi} & pattern) rest`, its pattern open.

    Attributes:
        term: the open pattern, intersected with the ruler.
        bounds: those of its open loops.
        body: the class of characters that is counted.
        lo, hi: the bounds of its iterations.
        rest: the term after the intersection.
    """

    term: Node
    bounds: Bounds
    body: Node
    lo: int
    hi: int | None
    rest: Node


class OpenWalk:
    """The product of an open term (see `Counted`) and the tokens below one node of a vocabulary's trie, for all count bounds.

    `rounds` and `between` are those of the same tokens and nodes in the loop that is counted, and `exits` those of the vocabulary; see
    `CharacterLoop`. Walks of one pattern have most of their derivatives in common. Raises `BudgetExceeded` if the states take more work
    than the thread may do.
    Cost: 5 to 10 ms and 1 MB for 131,072 tokens.
    """

    max_leaving = 16

    def __init__(
        self,
        term: Node,
        rounds: NDArray[np.uint16],
        between: NDArray[np.uint16],
        trie: Trie,
        exits: ExitsOf,
        node: int = Trie.root,
        derivatives: Derivatives | None = None,
    ) -> None:
        self._trie, self._between, self._exits = trie, between, exits
        self._automaton = _Unpruned(term, max_states=4 * MAX_STATES, derivatives=derivatives)
        self._completions: dict[Required, dict[int, _Completions]] = {}
        self._leaving: dict[Node, _Leaving] = {}
        self._accepting: dict[int, tuple[list[tuple[OpenLoop, int]], bool]] = {}
        self._known_parts: dict[int, tuple[Node, bool]] = {}
        self._known_targets: dict[int, list[tuple[int, bool]]] = {}
        at_node = states_at(self._automaton, trie, Automaton.initial_state, node)
        self._most_states = len(self._automaton) + MAX_STATES
        at_end = at_node.take(trie.ends, mode="clip")
        at_end[(trie.ends >= len(trie)) | (trie.ends == node)] = 0  # a token that ends at `node` is not below it
        at_end[rounds >= NEVER] = 0
        counts = np.where(at_end > 0, rounds, 0).astype(np.int64)
        width = int(counts.max(initial=0)) + 1
        pairs = at_end * width + counts
        is_there = np.zeros((len(self._automaton) + 1) * width, bool)
        is_there[pairs] = True
        is_there[0] = True
        found = np.flatnonzero(is_there)
        numbers = np.zeros(len(is_there), np.intp)
        numbers[found] = np.arange(len(found))
        self._pair = numbers[pairs].astype(np.uint16 if len(found) < 65_536 else np.int32)  # per token; 0: dead
        self._states = found[1:] // width  # of each pair
        self._rounds = found[1:] % width
        self._distinct, self._which = np.unique(self._states, return_inverse=True)
        self._at_node = at_node

    @property
    def nbytes(self) -> int:
        """The estimated memory in bytes, with some of what follows the term."""
        return int(self._pair.nbytes) + self._at_node.nbytes + 2_000 * len(self._automaton) + 200_000

    def mask(self, automaton: Automaton, counted: Counted) -> NDArray[np.int32]:
        """The packed mask of a term whose open part is that of this walk. Cost: 0.3 ms for 131,072 tokens.

        `automaton` is that of the whole language.
        """
        alive = np.zeros(len(self._states) + 1, bool)
        alive[1:] = self._alive(automaton, counted)
        words = pack(alive[self._pair])
        if counted.rest is not EPSILON:
            add_ids(words, self._left(automaton, counted))
        return words

    def _alive(self, automaton: Automaton, counted: Counted) -> NDArray[np.bool_]:
        """For each pair of a state and iterations, whether a text leads from there to acceptance."""
        states = self._distinct.tolist()
        required = counted.lo > 0, tuple((loop, counts[0]) for loop, counts in counted.bounds.items())
        if len(self._completions) > 64:
            self._completions = {}
        known = self._completions.setdefault(required, {})
        for state in reversed(states):  # those with larger numbers have read more, and so are nearer to acceptance
            if state not in known:
                known[state] = self._find_completions(state, required, known)
        ahead = [known[state] for state in states]
        ok = np.array(
            [[self._may_end(way.end, counted.bounds) for way in (a.least, a.unbounded)] for a in ahead], bool
        ).reshape(-1, 2)
        least = np.array([a.least.rounds for a in ahead], np.int64)
        at_least = np.array([a.at_least for a in ahead], np.int64)
        unbounded = np.array([a.unbounded.rounds for a in ahead], np.int64)
        which = self._which
        room = (UNBOUNDED if counted.hi is None else counted.hi) - self._rounds
        need = np.maximum(counted.lo - self._rounds, 0)
        alive: NDArray[np.bool_] = ok[which, 0] & (least[which] <= room) & (least[which] >= need)
        alive |= ok[which, 1] & (np.maximum(unbounded[which], need) <= room)
        is_unsure = ~alive & (at_least[which] <= room)
        for pair in np.flatnonzero(is_unsure).tolist():
            alive[pair] = self._is_inhabited(
                automaton, int(self._states[pair]), int(need[pair]), int(room[pair]), counted
            )
        return alive

    def _is_inhabited(self, automaton: Automaton, state: int, need: int, room: int, counted: Counted) -> bool:
        """Whether the closed term of one state, with the iterations that are left, has a text."""
        node = self._automaton.nodes[state]
        if node is EPSILON:  # the ruler has been read to its end
            return need == 0
        hi = None if counted.hi is None else room
        others = {Ruler(counted.body).term: nodes.repeat(counted.body, need, hi)}
        return automaton.derivatives.is_inhabited(closed(node, counted.bounds, others))

    def _may_end(self, state: int, bounds: Bounds) -> bool:
        """True when the text may end in a state, given the bounds of open loops."""
        if state < 0:
            return False
        found, is_free = self._when_over(state)
        return is_free or any(loop.may_end(place, bounds[loop]) for loop, place in found)

    def _when_over(self, state: int) -> tuple[list[tuple[OpenLoop, int]], bool]:
        known = self._accepting.get(state)
        if known is None:
            pattern, is_between = self._parts(state)
            found, is_free = accepting(pattern) if is_between else ([], False)
            known = self._accepting[state] = [(loop, n) for loop, n in found if n < 0 or loop.rest.nullable], is_free
        return known

    def _parts(self, state: int) -> tuple[Node, bool]:
        """The pattern in a state, and whether the ruler is between two iterations there."""
        known = self._known_parts.get(state)
        if known is not None:
            return known
        node = self._automaton.nodes[state]
        members = node.args if node.kind is Kind.INTERSECTION else (node,)
        pattern, is_between = list[Node](), True
        for member in members:
            last = member
            while (
                last.kind is Kind.CONCAT or last.kind is Kind.ALTERNATION
            ):  # alternatives of a body all end in the ruler
                last = last.args[-1]
            if last.kind is Kind.MACHINE and isinstance(last.args[0], Ruler):
                is_between = last is member
            else:
                pattern.append(member)
        known = self._known_parts[state] = nodes.intersection(pattern), is_between
        return known

    def _find_completions(self, state: int, required: Required, ahead: dict[int, _Completions]) -> _Completions:
        """Find the texts with the fewest iterations from a state on (Dijkstra's algorithm); `ahead` has states that are done."""
        needs_unbounded, lows = required[0], dict(required[1])
        found = dict[bool, _Path]()  # by whether any number of iterations may be added
        seen = set[tuple[int, bool]]()
        # Of equally many iterations a path with a cycle is first; characters of several bytes are last, as they seldom lead to new states.
        queue: list[tuple[int, bool, bool, int, int, bool]] = [(0, True, False, 0, state, False)]
        nearest, steps, most = _NO_PATH.rounds, 0, MAX_VISITED
        while queue and len(found) <= needs_unbounded:
            rounds, is_bounded, _, _, here, is_end = heappop(queue)
            is_unbounded = not is_bounded
            steps += 1
            if steps > most:
                nearest = min(nearest, rounds)
                break
            if is_end:
                found.setdefault(is_unbounded, _Path(rounds, here))
                if False not in found:
                    found[False] = _Path(rounds, here)
                    most = min(most, steps + MAX_VISITED_AFTER)
                continue
            if (here, is_unbounded) in seen:
                continue
            seen.add((here, is_unbounded))
            known = ahead.get(here)
            if known is not None:
                nearest = min(nearest, rounds + known.at_least)
                for way, fixed in ((known.least, is_bounded), (known.unbounded, False)):
                    if way.end >= 0:
                        heappush(queue, (rounds + way.rounds, fixed, False, steps, way.end, True))
                continue
            over, is_free = self._when_over(here)
            if is_free or any(done(place) >= lows[loop] for loop, place in over):
                heappush(queue, (rounds, is_bounded, False, steps, here, True))
            if len(self._automaton) > self._most_states:
                nearest = min(nearest, rounds)
                continue
            is_between = self._parts(here)[1]  # an iteration counts from its first byte on
            for target, is_inside in self._targets(here):
                if target == here and is_between and is_bounded:
                    heappush(queue, (rounds, False, False, steps, here, False))
                elif (target, is_unbounded) not in seen:
                    heappush(queue, (rounds + is_between, is_bounded, is_inside, steps, target, False))
        least = found.get(False, _NO_PATH)
        return _Completions(least, found.get(True, _NO_PATH), min(nearest, least.rounds))

    def _targets(self, state: int) -> list[tuple[int, bool]]:
        """The states after one byte, and whether the ruler is inside of an iteration there."""
        known = self._known_targets.get(state)
        if known is None:
            found = dict.fromkeys(target for _, target in self._automaton.arcs(state))
            known = self._known_targets[state] = [(target, not self._parts(target)[1]) for target in found]
        return known

    def _left(self, automaton: Automaton, counted: Counted) -> NDArray[np.int32]:
        """The tokens that leave the pattern within the bounds and continue in the term after it."""
        leaving = self._leaving.get(counted.rest)
        if leaving is None:
            if len(self._leaving) >= self.max_leaving:
                self._leaving.clear()
            leaving = self._leaving[counted.rest] = self._find_leaving(automaton, counted.rest)
        may_end = np.zeros(len(self._automaton) + 1, bool)
        for state in leaving.distinct:
            may_end[state] = self._may_end(state, counted.bounds)
        kept = may_end[leaving.states]
        kept &= (leaving.rounds >= counted.lo) & (leaving.rounds <= (UNBOUNDED if counted.hi is None else counted.hi))
        token_ids: NDArray[np.int32] = leaving.token_ids[kept]
        return token_ids

    def _find_leaving(self, automaton: Automaton, rest: Node) -> _Leaving:
        parent, is_over = self._trie.parent, np.zeros(len(self._automaton) + 1, bool)

        def is_exit(steps: NDArray[np.int32]) -> NDArray[np.bool_]:
            at = self._at_node[parent[steps]]
            is_over[[s for s in np.unique(at).tolist() if s and any(self._when_over(s))]] = True
            return is_over[at]

        none, state = np.zeros(0, np.int32), automaton.state_of(rest)
        found = [(none, none), *leaving(automaton, self._trie, state, self._exits, is_exit)]
        token_ids, steps = (np.concatenate(parts) for parts in zip(*found, strict=True))
        before = parent[steps]
        states = self._at_node[before]
        return _Leaving(token_ids, states, self._between[before].astype(np.int32), np.unique(states).tolist())


def as_counted(node: Node, is_class: Callable[[Node], bool]) -> Counted | None:
    """Read a term as `(body{lo,hi} & pattern) rest`, with every loop of the pattern open that can be; else None.

    `is_class` returns whether a loop body is one class of characters; see `is_character_class`.
    """
    head, rest = nodes.first_and_rest(node)
    if head.kind is not Kind.INTERSECTION:
        return None
    loops = [m for m in head.args if m.kind is Kind.REPEAT and is_class(m.args[0])]
    ruler = next((m for m in loops if is_counted(m)), loops[0] if loops else None)
    if ruler is None:
        return None
    pattern, bounds = opened_loops(nodes.intersection(m for m in head.args if m is not ruler))
    body, lo, hi = ruler.args
    return Counted(nodes.intersection((pattern, Ruler(body).term)), bounds, body, lo, hi, rest)
