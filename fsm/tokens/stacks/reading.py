"""`Readings`: what terms read from the nodes of a trie on. Stacks are followed one by one, and only by bytes that texts of the trie have;
what a stack leaves is tested for a text when it is made, so a text is allowed as soon as one stack survives it.

A stack is new since its lower part is, while few terms are ever on top. So what a term reads from a node on is found once (`Reading`),
above a hole in place of what is below: the texts that end inside, those that are allowed if what is below may follow, and the nodes where
the term ends and what is below begins. A `Walk` puts these together: for one stack, or for the readings of larger terms, which need those
of smaller ones at deeper nodes.

Heads that may begin with many bytes, at nodes with many texts, are left to the caller, once it is known what follows them (`Late`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.errors import exceeded
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.byte_classes import completed, covered, product
from fsm.terms.derivative import Arcs, Derivatives, bytes_in
from fsm.terms.free_text import ANY_TEXT
from fsm.terms.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node
from fsm.tokens.stacks.factor import Factors, Head, guarded
from fsm.tokens.stacks.run import Run, Runs
from fsm.tokens.stacks.stack import DEAD, END, HOLE, Level, Stacks
from fsm.trie import Trie

MAX_VISITS = 60_000  # of places in one walk and the readings that are made for it; one that takes more is given up
MIN_PRODUCT_TEXTS = (
    64  # the fewest texts below a node for which a head that may begin with many bytes is left to the caller
)
READ_RUN = -1
_VISITS_PER_WORK = 4
_LINKS_PER_WORK = 16
_COUNTED = 256  # visits after which a walk is interrupted, so that they are counted

Ends = tuple[tuple[int, int], ...]
"""Nodes of a trie, each with the mask of the bytes that lead on from it."""
Late = tuple[int, int, int]
"""A node of a trie, the number of what is read there, and the stack after it, or below it for a head that depends on what follows; in a
long run of one byte `READ_RUN`, and the stack that is read."""
Reading = tuple[
    tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...], tuple[tuple[int, int, Ends], ...], tuple[Late, ...]
]
"""What a term reads from a node of a trie on, whatever is below it on the stack:

- the texts after which every stack is alive;
- stacks above the hole, which must have a text together with what is below, each with the texts that leave it;
- numbers of rivals, with the bytes that lead on from any of the nodes at which the term may end beside them, and these nodes;
- what the caller reads when it knows the stack below.

These are plain tuples of numbers, as no collector of cycles visits them.
"""
_AtomReading = tuple[tuple[int, ...], Ends, tuple[tuple[int, int], ...]]
"""What is left of a head reads: the texts that end inside, the nodes where it may end, and those where it may begin with many bytes, each
with the number of what is read there."""


class Wide(NamedTuple):
    """A head that may begin with many bytes, and a mask of those with which it may here: beside a rival not with all of them."""

    atom: Node
    first: int


class _Start(NamedTuple):
    """How a term begins above a hole.

    Attributes:
        moves: by byte, what is left of a head, what is left of its rival (EMPTY: none), and the stack after both.
        wide: heads that may begin with many bytes, the transitions of each, and the stack after it.
        opaque: heads that depend on all that follows.
        calls: stacks that may be in its place, and the numbers of their rivals.
    """

    moves: dict[int, list[tuple[Node, Node, int]]]
    wide: list[tuple[Wide, Arcs, int]]
    opaque: list[Head]
    calls: list[tuple[int, int]]


class _Spread(NamedTuple):
    """How a stack begins.

    Attributes:
        heads: first bytes, a term, and the stack below it.
        opaque: heads that depend on all that follows, and the stacks below them.
        ends: whether a hole is reached before a byte is read.
        ends_after_rule: whether it is reached by a rule with which a term begins in several ways.
    """

    heads: list[tuple[int, _Start, int]]
    opaque: list[tuple[Head, int]]
    ends: bool
    ends_after_rule: bool


class Readings:
    """What the terms of one language read from the nodes of one trie on.

    Args:
        stacks, factors: of the language.
        derivatives: of its terms.
        trie: the texts.
        has_products: whether heads that may begin with many bytes are left to the caller at nodes with many texts.

    Attributes:
        late: by number, heads that are left to the caller: those that may begin with many bytes, and those that depend on what follows.
    """

    def __init__(
        self, stacks: Stacks, factors: Factors, derivatives: Derivatives, trie: Trie, has_products: bool
    ) -> None:
        self.stacks, self.trie, self.has_products = stacks, trie, has_products
        self._factors, self._derivatives = factors, derivatives
        self.runs = Runs(trie)
        self.late: list[Wide | Head] = []
        self._late_numbers: dict[Wide | Head, int] = {}
        self._known: dict[int, Reading] = {}  # by the number of a term and a node
        self._atoms: dict[int, _AtomReading] = {}
        self._starts: dict[Node, _Start] = {}
        self._masks: dict[int, int] = {}
        self._spread: dict[int, _Spread] = {}
        self._steps: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._atoms) + len(self._steps)

    def walk(self, stack: int) -> Walk:
        """A walk of the trie with a stack from the root on; see `finish`."""
        walk = Walk(self, 0)
        walk.enter(self.ends((Trie.root,)), 0, stack)
        return walk

    def finish(self, walk: Walk) -> None:
        """Go on with a walk until nothing waits, and make the readings that it needs.

        Cost: 5 us for each place of the trie and stack there.
        """
        walks, num_visits = [walk], 0
        while walks:
            visits, missing = walks[-1].run(self._known)
            num_visits += 1 + visits
            work.add(1 + visits // _VISITS_PER_WORK)
            work.check()
            if num_visits > MAX_VISITS:
                raise exceeded("max_visits", MAX_VISITS, "a walk of the tokens")
            if missing is not None:
                walks.append(self._begun(missing))
            elif visits < _COUNTED:
                done = walks.pop()
                if walks:
                    self._known[done.of] = done.reading()

    def ends(self, nodes: Iterable[int]) -> Ends:
        """Nodes with the bytes that lead on from them; those without any are left out."""
        masks, found = self._masks, list[tuple[int, int]]()
        for node in nodes:
            mask = masks.get(node)
            if mask is None:
                mask = masks[node] = self.trie.branch_mask(node)
            if mask:
                found.append((node, mask))
        return tuple(found)

    def is_late(self, node: int, term: Node) -> bool:
        """True if a head that may begin with many bytes is left to the caller; a byte is one step."""
        return self.has_products and term.kind is not Kind.BYTES and self.trie.below(node) >= MIN_PRODUCT_TEXTS

    def spread(self, stack: int) -> _Spread:
        """How a stack begins. Unlike `Stacks.levels` it has what rules begin with, too, with which a term begins in several ways."""
        known = self._spread.get(stack)
        if known is None:
            stacks, heads = self.stacks, list[tuple[int, _Start, int]]()
            levels, rivals = stacks.levels(stack)
            waiting, seen, is_called = [*levels], set[Level](), False
            while waiting:
                level = mask, number, below = waiting.pop()
                if level in seen:
                    continue
                seen.add(level)
                start = self._start(stacks.terms[number])
                heads.append((mask, start, below))
                for called, beside in start.calls:
                    closed = stacks.closed(called, below)
                    if closed != DEAD:
                        more, others = stacks.levels(closed, beside)
                        waiting += more
                        is_called |= len(others) > 0
            opaque = [(head, below) for _, start, below in heads for head in start.opaque]
            known = self._spread[stack] = _Spread(heads, opaque, len(rivals) > 0, is_called)
        return known

    def step(self, stack: int, byte: int) -> int:
        """A stack after a byte, without heads that depend on what follows; `DEAD` if there is none."""
        key = stack << 8 | byte
        known = self._steps.get(key)
        if known is None:
            stacks, found = self.stacks, set[int]()
            for mask, start, below in self.spread(stack).heads:
                if mask >> byte & 1:
                    found |= {stacks.closed(after, below) for after in self._after(start, byte) if after != DEAD}
            found.discard(DEAD)
            known = self._steps[key] = stacks.united(found) if found else DEAD
        return known

    def _after(self, start: _Start, byte: int) -> Iterator[int]:
        """The stacks above a hole after a byte of a term."""
        stacks = self.stacks
        for target, rival, stack in start.moves.get(byte, ()):
            pushed = stacks.push(target, stack)
            yield pushed if rival is EMPTY else stacks.push_guard(rival, pushed)
        for _, arcs, stack in start.wide:
            yield from (stacks.push(target, stack) for mask, target in arcs if mask >> byte & 1)

    def opaque_arcs(self, head: Head, below: int) -> list[tuple[int, int]]:
        """The bytes with which a head that depends on what follows it may begin, above a stack without a hole, and the stacks then."""
        rest = self.stacks.push_path(head.path, below)
        if rest == DEAD:
            return []
        whole = guarded(nodes.concat(head.atom, self.stacks.whole(rest)), head.rival)
        return [(mask, self.stacks.push(target, END)) for mask, target in self._derivatives.live_arcs(whole)]

    def atom(self, term: Node, node: int) -> _AtomReading:
        """What is left of a head reads from a node on."""
        key = term.serial << 32 | node
        known = self._atoms.get(key)
        if known is None:
            known = self._atoms[key] = self._read_atom(term, node)
        return known

    def _read_atom(self, term: Node, node: int) -> _AtomReading:
        trie, found, ends, wide = self.trie, list[int](), list[int](), list[tuple[int, int]]()
        waiting = [(node, term)]
        while waiting:  # each node once, as the masks of transitions are disjoint
            node, term = waiting.pop()
            if term.kind is Kind.LITERAL:
                labels, node = trie.follow(node, term.args[0])
                found += labels
                if node >= 0:
                    ends.append(node)
                continue
            atom = self._factors.atom(term)
            if atom.arcs and self.is_late(node, term):
                wide.append((node, self.late_number(Wide(term, ALL_BYTES))))
                continue
            if term.nullable:
                ends.append(node)
            moves, arcs = atom
            for child, byte in trie.children(node):
                target = moves.get(byte, EMPTY)
                if target is EMPTY and arcs:
                    target = moves[byte] = next((target for mask, target in arcs if mask >> byte & 1), None)
                if target is not EMPTY and target is not None:
                    labels, below = trie.texts_at(child)
                    found += labels
                    if below:
                        waiting.append((child, target))
        return tuple(found), self.ends(ends), tuple(wide)

    def late_number(self, head: Wide | Head) -> int:
        """The number of a head that is left to the caller."""
        number = self._late_numbers.get(head)
        if number is None:
            number = self._late_numbers[head] = len(self.late)
            self.late.append(head)
        return number

    def _begun(self, of: int) -> Walk:
        """A walk for the reading of a term at a node, after its first byte."""
        node = of & 0xFFFFFFFF
        walk, term = Walk(self, of), self.stacks.terms[of >> 32]
        if self.runs.at(node) is not None:
            stack = self.stacks.push(term, HOLE)
            if not walk.read_run(node, stack):
                walk.late[node, READ_RUN, stack] = None
            return walk
        start, branches = self._start(term), self.trie.branches(node)
        moves = start.moves
        for byte in moves if len(moves) < len(branches) else branches:
            if byte in moves and (step := branches.get(byte)) is not None:
                child, labels, below = step
                for target, rival, stack in moves[byte]:
                    walk.move(child, labels, below > 0, target, rival, stack)
        for wide, arcs, stack in start.wide:
            if wide.first.bit_count() > FEW_BYTES and self.is_late(node, wide.atom):
                walk.late[node, self.late_number(wide), stack] = None
                continue
            for byte, (child, labels, below) in branches.items():
                for mask, target in arcs:
                    if mask >> byte & 1:
                        walk.move(child, labels, below > 0, target, EMPTY, stack)
        walk.late.update(((node, self.late_number(head), HOLE), None) for head in start.opaque)
        for called, beside in start.calls:
            walk.enter(self.ends((node,)), beside, called)
        return walk

    def _start(self, term: Node) -> _Start:
        known = self._starts.get(term)
        if known is not None:
            return known
        factor, stacks = self._factors.factor(term), self.stacks
        made = self._starts[term] = _Start({}, [], factor.opaque, [])
        after: dict[tuple[Node, Node], set[int]] = {}
        for head in factor.heads:
            stack = stacks.push_path(head.path, HOLE)
            if stack != DEAD:
                after.setdefault((head.atom, head.rival), set()).add(stack)
        for (atom, rival), found in after.items():
            self._add(made, atom, rival, stacks.united(found))
        for (rule, rival), paths in factor.calls.items():
            stack = stacks.called(rule, paths, HOLE)
            if stack != DEAD:
                made.calls.append((stack, stacks.number_of(rival)))
        return made

    def _add(self, made: _Start, atom: Node, rival: Node, stack: int) -> None:
        own = self._factors.atom(atom)
        if rival is EMPTY and own.arcs:
            made.wide.append((Wide(atom, ALL_BYTES), own.arcs, stack))
            return
        if rival is EMPTY:
            for byte, target in own.moves.items():
                if target is not None:
                    made.moves.setdefault(byte, []).append((target, EMPTY, stack))
            return
        free = list[tuple[int, Node]]()
        for mask, (target, still) in product(
            (self._derivatives.live_arcs(atom), completed(self._derivatives.arcs(rival), EMPTY))
        ):
            if still is EMPTY:
                free.append((mask, target))
            elif not still.nullable:
                for byte in bytes_in(mask):
                    made.moves.setdefault(byte, []).append((target, still, stack))
        if own.arcs:
            first = covered(free)
            is_whole = first == covered(own.arcs) and not atom.nullable  # else the rival goes on after the empty text
            made.wide.append((Wide(atom, ALL_BYTES if is_whole else first), tuple(free), stack))
            return
        for mask, target in free:
            for byte in bytes_in(mask):
                made.moves.setdefault(byte, []).append((target, EMPTY, stack))


class Walk:
    """A walk of a trie from one place on.

    Attributes:
        of: the number of the term of a reading, and its node.
        found: the texts that are allowed, some of them several times.
        late: what the caller is to read; in a walk of a stack without a hole it knows all of it.
    """

    __slots__ = ("_conditional", "_exits", "_readings", "_seen", "_stacks", "_waiting", "found", "late", "of")

    def __init__(self, readings: Readings, of: int) -> None:
        self.of, self._readings, self._stacks = of, readings, readings.stacks
        self.found = list[int]()
        self.late: dict[Late, None] = {}
        self._conditional: dict[int, list[int]] = {}
        self._exits: dict[tuple[int, int], int] = {}
        self._waiting: list[tuple[int, int, int]] = []
        self._seen = set[tuple[int, int, int]]()

    def run(self, known: dict[int, Reading]) -> tuple[int, int | None]:
        """Go on until nothing waits, a reading is needed that is not known, or there were many visits.

        Returns:
            The number of visits, fewer than `_COUNTED` unless there were many; the number of the term and the node of the reading, or None.
        """
        waiting, seen, before = self._waiting, self._seen, len(self._seen)
        while waiting and len(seen) - before < _COUNTED:
            item = waiting[-1]
            if item in seen:
                waiting.pop()
                continue
            node, term, below = item
            of = term << 32 | node
            reading = known.get(of)
            if reading is None:
                return len(seen) - before, of
            waiting.pop()
            seen.add(item)
            self._add(reading, below)
        return len(seen) - before, None

    def reading(self) -> Reading:
        """What was found, as a reading."""
        found, by_rival = set(self.found), dict[int, list[tuple[int, int]]]()
        conditional = [(stack, tuple(set(labels) - found)) for stack, labels in self._conditional.items()]
        for (rival, node), mask in self._exits.items():
            by_rival.setdefault(rival, []).append((node, mask))
        exits = [(rival, _joined(ends), tuple(ends)) for rival, ends in by_rival.items()]
        return tuple(found), tuple(one for one in conditional if one[1]), tuple(exits), tuple(self.late)

    def enter(self, ends: Ends, rival: int, stack: int) -> None:
        """Begin to read a stack at some nodes."""
        if ends:
            self._enter(ends, ends[0][1] if len(ends) == 1 else _joined(ends), rival, stack)

    def _enter(self, ends: Ends, joined: int, rival: int, stack: int) -> None:
        if stack == HOLE:
            self._exits.update(((rival, node), mask) for node, mask in ends)
            return
        levels, rivals = self._stacks.levels(stack, rival)
        waiting = self._waiting
        for mask, term, below in levels:
            if mask & joined:
                waiting += [(node, term, below) for node, own in ends if own & mask]
        for one in rivals:
            self._exits.update(((one, node), own) for node, own in ends)

    def read_run(self, node: int, stack: int) -> bool:
        """Read a stack in a long run of one byte; False if it reaches a hole there, when nothing is added."""
        place = self._readings.runs.at(node)
        assert place is not None, "called for nodes of runs alone"
        run, index = place
        readings, stacks, here = self._readings, list[int](), stack
        for _ in run.links[index:]:
            spread = readings.spread(here)
            if spread.ends_after_rule or (spread.ends and stacks):
                return False
            stacks.append(here)
            here = readings.step(here, run.byte)
            if here == DEAD:
                break
        self._add_run(run, index, stacks)
        return True

    def read_runs(self, entered: dict[int, set[int]]) -> None:
        """Read stacks without a hole at nodes of long runs, those of one run together."""
        readings, by_run = self._readings, dict[int, tuple[Run, dict[int, set[int]]]]()
        for node, numbers in entered.items():
            place = readings.runs.at(node)
            assert place is not None, "entered are nodes of runs alone"
            run, index = place
            by_run.setdefault(run.links[0].node, (run, {}))[1][index] = numbers
        for run, places in by_run.values():
            here, stacks, first = DEAD, list[int](), min(places)
            for index in range(first, len(run.links)):
                alive = ({here} | places.get(index, set())) - {DEAD}
                here = self._stacks.united(alive) if alive else DEAD
                stacks.append(here)
                if here != DEAD:
                    here = readings.step(here, run.byte)
            self._add_run(run, first, stacks)

    def _add_run(self, run: Run, first: int, stacks: list[int]) -> None:
        """Add what stacks read in a run, one at each node from a position on."""
        readings = self._readings
        work.add(1 + len(stacks) // _LINKS_PER_WORK)
        for (node, labels, others), stack in zip(run.links[first:], stacks, strict=False):
            if stack == DEAD:
                continue
            for head, below in readings.spread(stack).opaque:
                self.late[node, readings.late_number(head), below] = None
            if labels:
                after = readings.step(stack, run.byte)
                if after != DEAD:
                    self.end(labels, after)
            for child, byte, ends, has_more in others:
                after = readings.step(stack, byte)
                if after != DEAD:
                    self.end(ends, after)
                    if has_more:
                        self.enter(readings.ends((child,)), 0, after)
        work.check()

    def enter_level(self, places: Sequence[int], level: Level) -> None:
        """Begin to read a level of a stack at nodes from which one of its bytes leads on."""
        _, term, below = level
        self._waiting += [(node, term, below) for node in places]

    def move(self, child: int, labels: Sequence[int], has_more: bool, target: Node, rival: Node, stack: int) -> None:
        """Read what is left of a head, and of its rival, after a byte: `labels` end there, and `has_more` says that others go on."""
        if rival is not EMPTY:
            stack = self._stacks.push_guard(rival, self._stacks.push(target, stack))
            if stack == DEAD:
                return
            target = EPSILON
        if labels:
            self.end(labels, stack)
        if has_more:
            self.read_atom(child, target, stack)

    def read_atom(self, node: int, target: Node, stack: int) -> None:
        """Read what is left of a head, then a stack."""
        if target is EPSILON:
            self.enter(self._readings.ends((node,)), 0, stack)
            return
        found, ends, wide = self._readings.atom(target, node)
        if found:
            self.end(found, stack)
        self.enter(ends, 0, stack)
        self.late.update(((place, atom, stack), None) for place, atom in wide)

    def end(self, labels: Sequence[int], stack: int) -> None:
        """Add texts that end before a stack."""
        if not self._stacks.is_open[stack] or self._stacks.condition(stack) == ANY_TEXT:
            self.found += labels
        else:
            self._conditional.setdefault(stack, []).extend(labels)

    def _add(self, reading: Reading, below: int) -> None:
        """Add what a term reads, given what is below it."""
        stacks, (found, conditional, exits, late) = self._stacks, reading
        self.end(found, below)  # above a hole what is below may have no text
        if below == HOLE:
            for stack, labels in conditional:
                self._conditional.setdefault(stack, []).extend(labels)
        elif stacks.is_open[below]:
            for stack, labels in conditional:
                after = stacks.closed(stack, below)
                if after != DEAD:
                    self.end(labels, after)
        else:
            for stack, labels in conditional:
                if stacks.follows(stack, below):
                    self.found += labels
        for rival, joined, ends in exits:
            self._enter(ends, joined, rival, below)
        for node, what, stack in late:
            after = stacks.closed(stack, below)
            if after != DEAD:
                self.late[node, what, after] = None


def _joined(ends: Iterable[tuple[int, int]]) -> int:
    joined = 0
    for _, mask in ends:
        joined |= mask
    return joined
