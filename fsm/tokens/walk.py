"""Walks of a trie and a DFA in step: which texts the DFA does not reject, depth first for narrow states, by level for wide ones.

The plain form of both is a loop over the texts and their bytes. `walk_narrow` follows the bytes that a trie node and a state have in
common, with dicts. `walk_wide` advances all nodes of a trie level by one look-up in the transition table each, with numpy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton, Fields, Loop, begins_with_byte_loop
from fsm.automaton.transition_rows import Codes, Rows
from fsm.errors import BudgetExceeded
from fsm.terms.node import Kind, Node
from fsm.tokens.dfa_prefix import DFAPrefix
from fsm.tokens.short_loop import SparseCharacterLoop, is_byte, is_narrow
from fsm.tokens.trie import Trie

Jump = tuple[int, int]
"""A trie node and a state at which a depth-first walk stopped, to leave the texts below to a mask strategy."""
Place = tuple[int, int, int]
"""A trie node and a state that are still to be walked, and the number of texts below the node."""

End = tuple[int, int, int]
"""The index of a text that ends, the trie node there, and the number of texts below the node."""

MIN_WIDE_TEXTS = 25
"""Below a node with so many texts, a wide state is left to other strategies."""
MIN_BYTE_LOOP_TEXTS = 300
"""The same for a loop over one byte, which needs one state only and is fast to walk."""
NEW_STATE_COST, NEW_TEXT_COST = 40, 8
"""The cost of making a state, and of reading a text below a loop for the first time, in steps of a depth-first walk."""
MAX_TAIL_SPAN, MAX_TAIL_NODES, MAX_TAIL_TEXTS = 256, 8, 64
"""A level with fewer live nodes is finished node by node, without arrays."""


NEVER = 65_535
"""More rounds of a loop than any token has; stands for `not inside`."""


class Rounds(Protocol):
    """How the tokens of a trie run through a loop; see `CharacterLoop`, whose attributes these are."""

    rounds: NDArray[np.uint16]
    between: NDArray[np.uint16]


class Loops(Protocol):
    """The products of loops and prefixes with a trie, which a `Vocabulary` keeps."""

    def short_loop(self, body: Node, node: int) -> SparseCharacterLoop | None:
        """The product of `body*` and the trie below `node`; None where it is not available."""

    def prefix(self, term: Node, node: int) -> DFAPrefix | None:
        """The product of `term` and the trie below `node`; None where it would help little."""

    def has_short_loop(self, body: Node, node: int) -> bool:
        """True where `short_loop` is a look-up."""

    def has_wide_loop(self, body: Node) -> bool:
        """True where `body` is known to be a class of characters with many first bytes."""


def walk_narrow(
    automaton: Automaton,
    trie: Trie,
    state: int,
    *,
    max_cost: int = 400,
    loops: Loops | None = None,
) -> tuple[list[int], list[Jump]] | None:
    """The texts of `trie` after which `state` leads to a live state, depth first over dicts; None where that costs too much.

    Where a wide state has many texts below, the walk splits the state into its alternatives, or stops there and reports a jump; without
    `loops` not at the start.
    Best where few bytes may come: about 0.5 us per trie node that both sides share, and 5 us when a trie node is met for
    the first time. Each state at a node costs 4, and 1 for each byte looked at; literals and words are read without a state per byte,
    and cost 1 for each place at which one of them ends.
    """
    found: list[int] = []
    jumps: list[Jump] = []
    num_known = len(automaton)
    stack: list[Place] = [(Trie.root, state, 0 if loops is None else trie.below(Trie.root))]
    seen = set[tuple[int, int]]()
    cost = 0
    while stack:
        place = node, state, below = stack.pop()
        if (node, state) in seen:  # several ways may lead there
            continue
        seen.add((node, state))
        if cost > max_cost:
            return None
        read = _read_texts(automaton, trie, place, found, stack)
        if read is None and loops is not None:
            read = _read_loops(automaton, loops, place, max_cost - cost, found, jumps, stack)
        if read is not None:
            cost += read
            continue
        if below >= MIN_WIDE_TEXTS and automaton.num_first_bytes(state) > FEW_BYTES:
            ways = automaton.ways(state)
            if ways:
                cost += len(ways)
                stack += [(node, way, below) for way in ways]
                continue
            if _is_jump(automaton, state, below):
                jumps.append((node, state))
                continue
        branches, moves = trie.branches(node), automaton.moves(state)
        shared = moves if len(moves) <= len(branches) else branches
        cost += 4 + len(shared)
        if cost + NEW_STATE_COST * (len(automaton) - num_known) > max_cost:
            return None
        for byte in shared:
            step, target = branches.get(byte), moves.get(byte)
            if step is not None and target is not None:
                child, ends, below = step
                if ends:
                    found.extend(ends)
                if below:
                    stack.append((child, target, below))
    return found, jumps


def _read_texts(automaton: Automaton, trie: Trie, place: Place, found: list[int], stack: list[Place]) -> int | None:
    """Read the texts with which a state begins, or a few alternative texts; return the cost, or None where it begins with neither."""
    node, state, below = place
    head = automaton.head(state)
    if head is not None:
        first, state = head
        if first.kind is Kind.LITERAL:
            read = _read_text(trie, node, first.args[0], found)
        else:
            read = _read_words(trie, node, found, first.args[0].words, *first.args[1:])
        stack += [(end, state, below) for _, end, below in read]
        return len(read)
    fields = automaton.fields(state)
    if fields is not None:
        return _read_fields(automaton, trie, node, fields, found, stack)
    ways = automaton.split(state)
    if ways is None:
        return None
    stack += [(node, way, below) for way in ways]
    return 4


def _read_loops(
    automaton: Automaton,
    loops: Loops,
    place: Place,
    room: int,
    found: list[int],
    jumps: list[Jump],
    stack: list[Place],
) -> int | None:
    """Read the prefix or the short loop with which a state begins, or report a jump; return the cost, or None where it has neither."""
    node, state, below = place
    loop = automaton.loop(state)
    if loop is not None and below >= MIN_WIDE_TEXTS and loops.has_wide_loop(loop[0]):
        jumps.append((node, state))
        return 0
    begun = automaton.prefix(state)
    prefix = None if begun is None else loops.prefix(begun[0], node)
    if begun is not None and prefix is not None:
        return 4 + _read_prefix(automaton, prefix, begun[1], found, stack)
    if loop is None or not _is_short(loop[0], below):
        return None
    cost = 0 if is_narrow(loop[0]) or loops.has_short_loop(loop[0], node) else NEW_TEXT_COST * below
    short = loops.short_loop(loop[0], node) if cost < room else None
    return None if short is None else cost + 4 + _read_short_loop(automaton, short, loop, found, stack)


def _is_short(body: Node, below: int) -> bool:
    """True where a loop is read as a `ShortLoop`."""
    return is_narrow(body) or below < (MIN_BYTE_LOOP_TEXTS if is_byte(body) else MIN_WIDE_TEXTS)


def _is_jump(automaton: Automaton, state: int, below: int) -> bool:
    """True where the state is wide and so many texts lie below that a mask strategy should take over."""
    if begins_with_byte_loop(automaton.nodes[state]):
        return below >= MIN_BYTE_LOOP_TEXTS
    return automaton.num_first_bytes(state) > FEW_BYTES


def _read_text(trie: Trie, node: int, text: bytes, found: list[int]) -> list[End]:
    """Follow one text through the trie, and add the labels on the way."""
    labels, node = trie.follow(node, text)
    found += labels
    below = trie.below(node) if node >= 0 else 0
    return [(0, node, below)] if below else []


def _read_short_loop(
    automaton: Automaton, short: SparseCharacterLoop, loop: Loop, found: list[int], stack: list[Place]
) -> int:
    """Read a loop, and push the nodes where it may end; return their number."""
    _, lo, hi, state = loop
    found += short.inside(hi)
    bytes_ = [byte for byte in next_bytes(automaton, state) if byte in short.places]
    places = dict.fromkeys(place for byte in bytes_ for place in short.exits(byte, lo, hi))
    stack += [(node, state, below) for node, below in places]
    return len(places)


def _read_prefix(automaton: Automaton, prefix: DFAPrefix, state: int, found: list[int], stack: list[Place]) -> int:
    """Read a prefix, and push the nodes where it may end; return their number."""
    found += prefix.labels
    places = prefix.exits(next_bytes(automaton, state))
    stack += [(node, state, below) for node, below in places]
    return len(places)


def next_bytes(automaton: Automaton, state: int) -> Collection[int]:
    """The bytes that may come in `state`; for a literal only its first byte is looked at."""
    head = automaton.head(state)
    if head is not None and head[0].kind is Kind.LITERAL:
        text: bytes = head[0].args[0]
        return text[:1]
    return automaton.moves(state).keys()


def _read_words(
    trie: Trie, node: int, found: list[int], words: Sequence[bytes], lo: int, hi: int, depth: int
) -> list[End]:
    """Follow the sorted words lo..hi, without their first `depth` bytes, and return where they end."""
    read: list[End] = []
    if len(words[lo]) == depth:  # the empty word is one of them
        read.append((lo, node, trie.below(node)))
        lo += 1
    places = [(node, lo, hi, depth)]
    while places:
        node, lo, hi, depth = places.pop()
        while lo < hi:
            word = words[lo]
            byte = word[depth]
            end = hi if byte == 255 else bisect_left(words, word[:depth] + bytes((byte + 1,)), lo, hi)
            step = trie.step(node, byte)
            if step is not None:
                child, ends, below = step
                if ends:
                    found.extend(ends)
                if below:
                    if len(word) == depth + 1:
                        read.append((lo, child, below))
                        lo += 1
                    if end - lo == 1:
                        rest = _read_text(trie, child, words[lo][depth + 1 :], found)
                        read += [(lo, last, below) for _, last, below in rest]
                    elif lo < end:
                        places.append((child, lo, end, depth + 1))
            lo = end
    return read


def _read_fields(
    automaton: Automaton, trie: Trie, node: int, fields: Fields, found: list[int], stack: list[Place]
) -> int:
    """Follow the words of optional fields, after each of which comes its own value; return how many of them end."""
    table, start, lo, hi, depth = fields[0].args
    words, ranks = zip(*table.open_words(start, lo, hi), strict=True)
    read = _read_words(trie, node, found, words, 0, len(words), depth)
    stack += [(end, automaton.after_field(fields, ranks[index]), below) for index, end, below in read]
    return len(read)


def sweep(
    automaton: Automaton, trie: Trie, state: int, node: int = Trie.root, tail: list[tuple[int, int]] | None = None
) -> Iterator[tuple[int, Codes, Rows]]:
    """Walk the trie below `node` level by level, all nodes of a level at once.

    Args:
        automaton, trie, state, node: what is walked, and from where.
        tail: where given, the walk ends as soon as few nodes are alive, and puts them there with their states; see `finish`.

    Yields:
        For each level, a first node, the codes of it and of its neighbours (0 for dead ones; the first and the last are
        alive), and the table in which codes mean something. The root's own level is left out. The codes are overwritten
        by the next level.

    Cost: about 10 ns per node between the first and the last live one of a level.
    """
    rows = automaton.rows()
    first, codes = node, np.array([rows.code(state)], np.int32)
    # Arrays that are used again at every level: fresh memory costs more than what is done with it.
    places, above, here = np.empty(0, np.intp), np.empty(0, np.int32), np.empty(0, np.int32)
    while True:
        if rows.is_full:
            states, rows = rows.states(codes), automaton.rows()
            codes = rows.codes(states)
        begin, end = trie.child_range(first, first + len(codes))
        if begin == end:
            return
        if end - begin > len(places):
            size = max(2 * len(places), end - begin)
            places, above, here = np.empty(size, np.intp), np.empty(size, np.int32), np.empty(size, np.int32)
        level = slice(0, end - begin)
        np.subtract(trie.parent[begin:end], first, out=places[level])
        codes.take(places[level], out=above[level], mode="clip")  # all are in range, and this mode is the fastest
        np.add(above[level], trie.byte[begin:end], out=places[level])
        codes = rows.step(places[level], out=here[level])
        first = begin
        if not (codes[0] and codes[-1]):
            alive = np.flatnonzero(codes)
            if not len(alive):
                return
            codes = codes[alive[0] : alive[-1] + 1]
            first += int(alive[0])
        yield first, codes, rows
        if tail is not None and len(codes) <= MAX_TAIL_SPAN:
            alive = np.flatnonzero(codes)
            if len(alive) <= MAX_TAIL_NODES and int(trie.num_texts[alive + first].sum()) <= MAX_TAIL_TEXTS:
                tail += zip((alive + first).tolist(), rows.states(codes[alive]).tolist(), strict=True)
                return


def finish(automaton: Automaton, trie: Trie, tail: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Finish a walk from a few nodes, one by one: for long tokens that are alike, such as runs of spaces.

    Yields:
        Each node that is alive, after its parent: the parent, the node and its state.
    """
    while tail:
        node, state = tail.pop()
        moves = automaton.moves(state)
        for child, byte in trie.children(node):
            target = moves.get(byte)
            if target is not None:
                yield node, child, target
                tail.append((child, target))


def sweep_from(automaton: Automaton, trie: Trie, state: int, nodes: NDArray[np.int32]) -> NDArray[np.int32]:
    """The nodes that `state` reaches from the parents of `nodes` by way of these; some may be found more than once.

    Cost: 30 us per level and 50 ns per node found.
    """
    return sweep_each(automaton, trie, state, nodes)[0]


def sweep_each(
    automaton: Automaton, trie: Trie, state: int, nodes: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The same nodes, and for each the position in `nodes` of the one by way of which it was reached."""
    rows = automaton.rows()
    codes = rows.step(rows.code(state) + trie.byte[nodes].astype(np.intp))
    origins = np.arange(len(nodes), dtype=np.int32)
    found, came = [nodes[:0]], [origins[:0]]
    while True:
        alive = np.flatnonzero(codes)
        if not len(alive):
            return np.concatenate(found), np.concatenate(came)
        nodes, codes, origins = nodes[alive], codes[alive], origins[alive]
        found.append(nodes)
        came.append(origins)
        if rows.is_full:
            states, rows = rows.states(codes), automaton.rows()
            codes = rows.codes(states)
        nodes, which = trie.children_of(nodes)
        origins = origins[which]
        codes = rows.step(np.add(codes[which], trie.byte[nodes], dtype=np.intp))


def walk_wide(automaton: Automaton, trie: Trie, state: int) -> NDArray[np.bool_]:
    """For every label of `trie`, whether `state` leads to a live state after its text.

    Best where many bytes may come: 4 ms at the most for the 266,000 nodes of a vocabulary of 131,072 tokens.
    """
    alive = np.zeros(len(trie) + 1, bool)
    tail: list[tuple[int, int]] = []
    for first, codes, _ in sweep(automaton, trie, state, tail=tail):
        alive[first : first + len(codes)] = codes
    for _, node, _ in finish(automaton, trie, tail):
        alive[node] = True
    return alive.take(trie.ends, mode="clip")


def walk_by_length(automaton: Automaton, trie: Trie) -> tuple[NDArray[np.bool_], int | None]:
    """The same for the initial state, and None; where the budget ends, for texts up to a length only, and that length.

    Raises:
        BudgetExceeded: not even the texts of one byte were decided.
    """
    alive = np.zeros(len(trie) + 1, bool)
    length = 0
    try:
        for first, codes, _ in sweep(automaton, trie, automaton.initial_state):
            alive[first : first + len(codes)] = codes
            length += 1
    except BudgetExceeded:
        if not length:
            raise
        return alive.take(trie.ends, mode="clip"), length
    return alive.take(trie.ends, mode="clip"), None
