"""Product walks of a token trie and a lazy DFA: after which tokens the DFA is live, depth first (`walk_narrow`) or by level (`walk_wide`).
Both equal a loop that feeds each token to the DFA. `walk_narrow`, for states with few next bytes, follows the bytes that a trie node and a
state share, with dicts, and reads literals, words and cached prefixes in one step; it returns None above a cost, and reports subtries of
wide states to its caller. `walk_wide` is one gather from the transition table per trie level (`sweep`), a loop for few nodes (`finish`).

`sweep_each` starts at many nodes, `leaving` at those where a loop may end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton, begins_with_byte_loop
from fsm.automaton.transition_rows import Codes, Rows
from fsm.terms import node as nodes
from fsm.terms.node import Kind, Node
from fsm.tokens.sparse_product import SparseProduct, SparseProducts, is_byte, is_narrow
from fsm.tokens.trie import Trie

Jump = tuple[int, int]
"""A trie node and a state at which a depth-first walk stopped; a mask strategy finds the texts below."""
End = tuple[int, int, int]
"""The index of a text that ends, the trie node there, and the number of texts below the node."""

MIN_WIDE_TEXTS = 25  # the fewest texts below a node for which the walk stops at a wide state
MIN_BYTE_LOOP_TEXTS = 300  # the same for a loop over one byte, which needs one state only and is fast to walk
NEW_STATE_COST, NEW_TEXT_COST = 40, 8
"""The cost of making a state, and of reading a text below a loop for the first time, in steps of a depth-first walk."""
MAX_TAIL_SPAN, MAX_TAIL_NODES, MAX_TAIL_TEXTS = (
    256,
    8,
    64,
)  # a level with fewer live nodes is finished node by node, without arrays
MAX_EXIT_COST = 1_000  # of a depth-first walk of the texts of exits, before one by level costs less
NEVER = 65_535  # more iterations of a loop than any token has: the value for `not inside`


def walk_narrow(
    automaton: Automaton, trie: Trie, state: int, *, max_cost: int = 400, products: SparseProducts | None = None
) -> tuple[list[int], list[Jump]] | None:
    """The texts of `trie` after which `state` leads to a live state, depth first over dicts; None where that costs too much.

    At a wide state with many texts below, the walk splits the state into its alternatives, or, with `products`, stops there and reports a
    jump.
    Best where few bytes are possible: about 0.5 us per trie node that both sides share, and 5 us more at its first visit. Each state at a
    node costs 4, and 1 for each byte that is compared; literals and words are read without a state per byte, and cost 1 for each node at
    which one of them ends.
    """
    walk = _NarrowWalk(automaton, trie, products)
    return (walk.found, walk.jumps) if walk.run(state, max_cost) else None


class _NarrowWalk:
    """A depth-first walk: the labels found so far, the jumps, and the stack of nodes, states and numbers of texts below."""

    def __init__(self, automaton: Automaton, trie: Trie, products: SparseProducts | None) -> None:
        self._automaton, self._trie, self._products = automaton, trie, products
        self._stack: list[tuple[int, int, int]] = []
        self.found: list[int] = []
        self.jumps: list[Jump] = []

    def run(self, state: int, max_cost: int) -> bool:
        """Walk from the root on; False where it costs too much."""
        automaton, trie, stack, found = self._automaton, self._trie, self._stack, self.found
        num_known, cost, seen = len(automaton), 0, set[tuple[int, int]]()
        stack.append((Trie.root, state, 0 if self._products is None else trie.below(Trie.root)))
        while stack:
            node, state, below = stack.pop()
            if (node, state) in seen:  # several alternatives may lead there
                continue
            seen.add((node, state))
            if cost > max_cost:
                return False
            read = self._read(node, state, below, max_cost - cost)
            if read is not None:
                cost += read
                continue
            branches, moves = trie.branches(node), automaton.moves(state)
            shared = moves if len(moves) <= len(branches) else branches
            cost += 4 + len(shared)
            if cost + NEW_STATE_COST * (len(automaton) - num_known) > max_cost:
                return False
            for byte in shared:
                step, target = branches.get(byte), moves.get(byte)
                if step is not None and target is not None:
                    child, ends, below = step
                    if ends:
                        found.extend(ends)
                    if below:
                        stack.append((child, target, below))
        return True

    def _read(self, node: int, state: int, below: int, room: int) -> int | None:
        """Read the leading subexpression of a state in one step; return the cost, or None where it is to be walked byte by byte."""
        automaton = self._automaton
        start = automaton.start(state)
        if start is None:
            ways = automaton.split(state)
            if ways:
                self._stack += [(node, way, below) for way in ways]
                return 4
        elif start[0].kind is Kind.LITERAL:
            return self._push(_read_text(self._trie, node, start[0].args[0], self.found), start[1])
        elif start[0].kind is Kind.WORDS:
            word_list, *span = start[0].args
            return self._push(read_words(self._trie, node, self.found, word_list.words, *span), start[1])
        elif start[0].kind is Kind.FIELDS:
            return self._read_fields(node, *start)
        if self._products is not None:
            read = self._read_product(self._products, node, state, below, room)
            if read is not None:
                return read
        if below < MIN_WIDE_TEXTS or len(automaton.first_bytes(state)) <= FEW_BYTES:
            return None
        ways = automaton.ways(state)
        self._stack += [(node, way, below) for way in ways]
        if ways:
            return len(ways)
        is_short = begins_with_byte_loop(automaton.nodes[state]) and below < MIN_BYTE_LOOP_TEXTS
        if is_short or self._products is None:
            return None
        self.jumps.append((node, state))
        return 0

    def _push(self, ends: list[End], state: int) -> int:
        self._stack += [(end, state, below) for _, end, below in ends]
        return len(ends)

    def _read_fields(self, node: int, fields: Node, after: int) -> int:
        """Follow the words of optional fields, each of which is followed by its own value; return how many of them end."""
        table, start, lo, hi, depth = fields.args
        words, ranks = zip(*table.open_words(start, lo, hi), strict=True)
        rest, state_of = self._automaton.nodes[after], self._automaton.state_of
        read = read_words(self._trie, node, self.found, words, 0, len(words), depth)
        self._stack += [
            (end, state_of(nodes.concat(table.after(ranks[index]), rest)), below) for index, end, below in read
        ]
        return len(read)

    def _read_product(self, products: SparseProducts, node: int, state: int, below: int, room: int) -> int | None:
        """Read the prefix or the loop with which a state begins, or report a jump; return the cost, or None where it has neither."""
        start = self._automaton.start(state)  # a loop, or None
        if start is not None and below >= MIN_WIDE_TEXTS and products.is_wide_class(start[0].args[0]):
            self.jumps.append((node, state))
            return 0
        begun = self._automaton.prefix(state)
        prefix = None if begun is None else products.prefix(begun[0], node)
        if begun is not None and prefix is not None:
            return 4 + self._leave(prefix, begun[1])
        if start is None or not _is_short(start[0].args[0], below):
            return None
        body, lo, hi = start[0].args
        cost = 0 if is_narrow(body) or (body, node, True) in products.known else NEW_TEXT_COST * below
        loop = products.loop(body, node) if cost < room else None
        return None if loop is None else cost + 4 + self._leave(loop, start[1], lo, hi)

    def _leave(self, product: SparseProduct, state: int, lo: int = 0, hi: int | None = None) -> int:
        """Add the tokens that end inside a product, and push the nodes where it may end; return the number of these nodes."""
        self.found += product.inside(hi)
        exits = product.exits(self._automaton.moves(state), lo, hi)
        self._stack += [(node, state, below) for node, below in exits]
        return len(exits)


def _is_short(body: Node, below: int) -> bool:
    """True where a loop is read as a sparse product."""
    return is_narrow(body) or below < (MIN_BYTE_LOOP_TEXTS if is_byte(body) else MIN_WIDE_TEXTS)


def _read_text(trie: Trie, node: int, text: bytes, found: list[int]) -> list[End]:
    """Follow one text through the trie, and add the labels on the way."""
    labels, node = trie.follow(node, text)
    found += labels
    below = trie.below(node) if node >= 0 else 0
    return [(0, node, below)] if below else []


def read_words(
    trie: Trie, node: int, found: list[int], words: Sequence[bytes], lo: int, hi: int, depth: int
) -> list[End]:
    """Follow the sorted words lo..hi, without their first `depth` bytes, and return where they end."""
    read: list[End] = []
    if len(words[lo]) == depth:  # the empty word is one of them
        read.append((lo, node, trie.below(node)))
        lo += 1
    stack = [(node, lo, hi, depth)]
    while stack:
        node, lo, hi, depth = stack.pop()
        for byte, first, end in nodes.next_words(words, lo, hi, depth):
            step = trie.step(node, byte)
            if step is None:
                continue
            child, ends, below = step
            if ends:
                found.extend(ends)
            if below:
                if len(words[first]) == depth + 1:
                    read.append((first, child, below))
                    first += 1
                if end - first == 1:
                    rest = _read_text(trie, child, words[first][depth + 1 :], found)
                    read += [(first, last, below) for _, last, below in rest]
                elif first < end:
                    stack.append((child, first, end, depth + 1))
    return read


def sweep(
    automaton: Automaton, trie: Trie, state: int, node: int = Trie.root, tail: list[tuple[int, int]] | None = None
) -> Iterator[tuple[int, Codes, Rows]]:
    """Walk the trie below `node` level by level (breadth first), all nodes of a level at once.

    Args:
        automaton, trie, state, node: the two sides of the product, and its start.
        tail: if given, the walk ends as soon as few nodes are alive, and adds them to it with their states; see `finish`.

    Yields:
        For each level but that of `node`, a first node, the codes of it and of those after it (0 for dead ones; the first and the last are
        alive), and the transition table that decodes them. The codes are overwritten by the next level.

    Cost: about 10 ns per node between the first and the last live one of a level.
    """
    rows = automaton.rows()
    first, codes = node, np.array([rows.code(state)], np.int32)
    # Arrays that are used again at every level, since fresh memory costs more than the operations on it.
    indices, above, here = np.empty(0, np.intp), np.empty(0, np.int32), np.empty(0, np.int32)
    while True:
        if rows.is_full:
            states, rows = rows.states(codes), automaton.rows()
            codes = rows.codes(states)
        begin, end = trie.child_range(first, first + len(codes))
        if begin == end:
            return
        if end - begin > len(indices):
            size = max(2 * len(indices), end - begin)
            indices, above, here = np.empty(size, np.intp), np.empty(size, np.int32), np.empty(size, np.int32)
        level = slice(0, end - begin)
        np.subtract(trie.parent[begin:end], first, out=indices[level])
        codes.take(indices[level], out=above[level], mode="clip")  # all are in range, and this mode is the fastest
        np.add(above[level], trie.byte[begin:end], out=indices[level])
        codes = rows.step(indices[level], out=here[level])
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


def sweep_each(
    automaton: Automaton, trie: Trie, state: int, nodes: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The nodes that `state` reaches from the parents of `nodes` through these, each with the position in `nodes`; some more than once.

    Cost: 30 us per level and 50 ns per node found.
    """
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
    """For every label of `trie`, whether the state after its text is live, starting at `state`.

    Best where many bytes are possible: 4 ms at most for the 266,000 nodes of a vocabulary of 131,072 tokens.
    """
    alive = np.zeros(len(trie) + 1, bool)
    tail: list[tuple[int, int]] = []
    for first, codes, _ in sweep(automaton, trie, state, tail=tail):
        alive[first : first + len(codes)] = codes
    for _, node, _ in finish(automaton, trie, tail):
        alive[node] = True
    return alive.take(trie.ends, mode="clip")


class Exits:
    """The tokens that contain one byte, by their texts from that byte on: after which of them a state is alive is found once for all loops
    that a token may leave with this byte.

    Args:
        trie: the trie of the tokens, labelled with token ids.
        tokens: the bytes of every token id, as they are spelled in the trie.
        byte: that byte; a token that contains it several times counts as often.

    Attributes:
        nodes: the trie nodes that are reached with it, int32.
        which, token_ids, texts: for each token at or below each of these: the position of the node, the token, and the number of its text
            from the byte on.

    Cost: 1 us for each of them.
    """

    max_known = 64

    def __init__(self, trie: Trie, tokens: Sequence[bytes], byte: int) -> None:
        self.nodes = trie.nodes_with((byte,))
        self.which, self.token_ids = trie.texts_below(self.nodes)
        depths = (trie.depths(self.nodes) - 1)[self.which].tolist()
        numbers = dict[bytes, int]()
        found = [
            numbers.setdefault(tokens[token_id][depth:], len(numbers))
            for token_id, depth in zip(self.token_ids.tolist(), depths, strict=True)
        ]
        self.texts = np.array(found, np.int32)
        self._trie = Trie(list(numbers))
        self._alive: dict[int, NDArray[np.bool_]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with all branches of the trie."""
        known = self.max_known * len(self._trie.ends)
        return self.nodes.nbytes + 3 * self.texts.nbytes + self._trie.nbytes + 250 * len(self._trie) + known

    def alive(self, automaton: Automaton, state: int) -> NDArray[np.bool_]:
        """For each text, whether `state` leads to a live state after it. Cost: a walk of the texts, once per term."""
        serial = automaton.nodes[state].serial  # in place of the term, which it keeps in memory
        alive = self._alive.get(serial)
        if alive is None:
            walked = walk_narrow(automaton, self._trie, state, max_cost=MAX_EXIT_COST)
            if walked is None:
                alive = walk_wide(automaton, self._trie, state)
            else:
                alive = np.zeros(len(self._trie.ends), bool)
                alive[walked[0]] = True
            if len(self._alive) >= self.max_known:
                self._alive.clear()
            self._alive[serial] = alive
        return alive


ExitsOf = Callable[[int, bool], Exits | None]
"""Returns the exits with a byte, or None where they are too many, or, unless they are wanted at once, were needed too seldom."""


def leaving(
    automaton: Automaton,
    trie: Trie,
    state: int,
    exits_of: ExitsOf,
    is_exit: Callable[[NDArray[np.int32]], NDArray[np.bool_]],
    at_once: bool = False,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The tokens that reach a node at which a loop may end, and continue in `state`, each with the first node after the loop.

    Args:
        automaton, trie, state: the two sides, and what follows the loop.
        exits_of: the exits with a byte.
        is_exit: of some nodes, before which the loop may end.
        at_once: whether exits are wanted that were needed seldom.
    """
    swept = list[int]()
    for byte in automaton.first_bytes(state):
        exits = exits_of(byte, at_once)
        if exits is None:
            swept.append(byte)
        else:
            kept = np.flatnonzero(is_exit(exits.nodes)[exits.which] & exits.alive(automaton, state)[exits.texts])
            yield exits.token_ids[kept], exits.nodes[exits.which[kept]]
    if swept:
        steps = trie.nodes_with(swept)
        steps = steps[is_exit(steps)]
        found, which = sweep_each(automaton, trie, state, steps)
        token_ids, places = trie.labels_of(found)
        yield token_ids, steps[which[places]]
