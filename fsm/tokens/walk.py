"""Product walks of a token trie and a lazy DFA: after which tokens the DFA is live, depth first (`walk_narrow`) or by level (`walk_wide`).
Both equal a loop that feeds each token to the DFA. `walk_narrow`, for states with few next bytes, follows the alternatives of a term one by
one, as a nondeterministic automaton does, and reads literals, words and cached prefixes in one step; it returns None above a cost, and
reports subtries of wide states to its caller. `walk_wide` is one gather from the transition table per trie level (`sweep`), a loop for few
nodes (`finish`).

`sweep_each` starts at many nodes, `leaving` at those where a loop may end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton, as_prefix, begins_with_byte_loop, opened
from fsm.automaton.transition_rows import Codes, Rows
from fsm.terms import node as nodes
from fsm.terms.derivative import bytes_in
from fsm.terms.members import FieldList
from fsm.terms.node import EPSILON, Kind, Node
from fsm.tokens.sparse_product import SparseProduct, SparseProducts, is_byte, is_narrow
from fsm.trie import Trie

Jump = tuple[int, int]
"""A trie node and a state at which a depth-first walk stopped; a mask strategy finds the texts below."""
End = tuple[int, int, int]
"""The index of a text that ends, the trie node there, and the number of texts below the node."""

MIN_WIDE_TEXTS = 25  # the fewest texts below a node for which the walk stops at a wide state
MIN_BYTE_LOOP_TEXTS = 300  # the same for a loop over one byte, which needs one state only and is fast to walk
NEW_STATE_COST, NEW_TEXT_COST = 40, 8
"""The cost of making a state, and of reading a text below a loop for the first time, in steps of a depth-first walk."""
# A level with fewer live nodes is finished node by node, without arrays.
MAX_TAIL_SPAN, MAX_TAIL_NODES, MAX_TAIL_TEXTS = 256, 8, 64
MAX_EXIT_COST = 1_000  # of a depth-first walk of the texts of exits, before one by level costs less
NEVER = 65_535  # more iterations of a loop than any token has: the value for `not inside`


def walk_narrow(
    automaton: Automaton, trie: Trie, state: int, *, max_cost: int = 400, products: SparseProducts | None = None
) -> tuple[list[int], list[Jump]] | None:
    """The texts of `trie` after which `state` leads to a live state, depth first over dicts; None if that costs too much.

    Alternatives are followed one by one, as a token is allowed as soon as one of them is alive. At a wide state with many texts below,
    the walk with `products` stops, and reports a jump.
    Best where few bytes are possible: 1 to 2 us per trie node that both sides share, and 5 us more at its first visit. Each term at a node
    costs 2, and 1 for each byte that is compared; literals and words are read at once, and cost 1 for each node at which one of them ends.
    """
    walk = _NarrowWalk(automaton, trie, products)
    return (walk.found, walk.jumps) if walk.run(automaton.nodes[state], max_cost) else None


_Rest = Node | tuple[FieldList, int]
"""A term, or that after an entry of optional fields and its value, which is made when it is reached."""


class _NarrowWalk:
    """A depth-first walk: the labels found so far, the jumps, and the stack of nodes, terms, rests and numbers of texts below.

    A rest is what follows a term: the number of a pair of the next term and its own rest; 0 is the end. So no term is made of
    an alternative and what follows it, and no state. All terms in it have a text, and so has their concatenation.
    """

    def __init__(self, automaton: Automaton, trie: Trie, products: SparseProducts | None) -> None:
        self._automaton, self._trie, self._products = automaton, trie, products
        self._stack: list[tuple[int, Node, int, int]] = []
        self._rests: list[tuple[_Rest, int]] = [(EPSILON, 0)]
        self._numbers: dict[tuple[_Rest, int], int] = {}
        self.found: list[int] = []
        self.jumps: list[Jump] = []

    def run(self, term: Node, max_cost: int) -> bool:
        """Walk from the root on; False if it costs too much."""
        stack, states, cost, seen = self._stack, self._automaton.nodes, 0, set[tuple[int, Node, int]]()
        most = max_cost + NEW_STATE_COST * len(states)
        stack.append((Trie.root, term, 0, self._trie.below(Trie.root)))
        while stack:
            node, term, rest, below = stack.pop()
            while term is EPSILON and rest:
                term, rest = self._next(rest)
            if term is EPSILON or (node, term, rest) in seen:  # several alternatives may lead there
                continue
            seen.add((node, term, rest))
            cost += 2 + self._read(node, term, rest, below, max_cost - cost)
            if cost + NEW_STATE_COST * len(states) > most:
                return False
        return True

    def _then(self, term: _Rest, rest: int) -> int:
        """The number of a term and what follows it."""
        if term is EPSILON:
            return rest
        number = self._numbers.setdefault((term, rest), len(self._rests))
        if number == len(self._rests):
            self._rests.append((term, rest))
        return number

    def _next(self, rest: int) -> tuple[Node, int]:
        """The next term of a rest, and what follows that; EPSILON at the end."""
        term, after = self._rests[rest]
        if isinstance(term, tuple):
            table, rank = term
            term = table.follow(rank)
            self._rests[rest] = term, after
        return term, after

    def _whole(self, term: Node, rest: int) -> Node:
        """A term with all that follows it."""
        parts = [term]
        while rest:
            term, rest = self._next(rest)
            parts.append(term)
        return nodes.sequence(parts)

    def _read(self, node: int, term: Node, rest: int, below: int, room: int) -> int:
        """Read the first factor of a term at a trie node, or divide it into alternatives; return the cost."""
        head, tail = nodes.first_and_rest(term)
        kind = head.kind
        if kind is Kind.LITERAL or kind is Kind.WORDS:
            if kind is Kind.LITERAL:
                ends = _read_text(self._trie, node, head.args[0], self.found)
            else:
                ends = read_words(self._trie, node, self.found, head.args[0].words, *head.args[1:])
            self._stack += [(end, tail, rest, left) for _, end, left in ends]
            return len(ends)
        if kind is Kind.ALTERNATION and head.args[:-1] == (EPSILON,) and head.args[1].kind is Kind.LITERAL:
            ends = _read_text(self._trie, node, head.args[1].args[0], self.found)  # an optional space
            self._stack += [(node, tail, rest, below), *((end, tail, rest, left) for _, end, left in ends)]
            return 1 + len(ends)
        after = self._then(tail, rest)
        if kind is Kind.FIELDS and head.is_plain:
            return self._read_fields(node, head, after)
        if head.has_munch:  # what follows decides where it ends
            head, after = self._whole(term, rest), 0
        elif (read := self._read_product(node, term, rest, below, room)) is not None:
            return read
        elif kind in _DIVIDED:
            return self._divide(node, _divided(head), after, below)
        is_wide = self._automaton.derivatives.first_bytes(head).bit_count() > FEW_BYTES
        if is_wide and self._products is not None and below >= MIN_WIDE_TEXTS:
            ways = opened(head) if head.has_munch else ()
            if ways:
                return self._divide(node, ways, after, below)
            whole = self._whole(term, rest)
            if below >= MIN_BYTE_LOOP_TEXTS or not begins_with_byte_loop(whole):
                self.jumps.append((node, self._automaton.state_of(whole)))
                return 0
        if head.nullable:
            self._stack.append((node, EPSILON, after, below))
        if head.kind is not Kind.REPEAT or head.has_munch:
            return self._derive(node, head, after, below)
        body, after = head.args[0], self._then(nodes.fewer(head), after)
        if is_wide and not body.nullable:
            return self._derive(node, body, after, below)
        return self._divide(node, (body,), after, below)

    def _divide(self, node: int, ways: Sequence[Node], rest: int, below: int) -> int:
        is_alive = self._automaton.is_alive
        self._stack += [(node, way, rest, below) for way in ways if way.is_plain or is_alive(way)]
        return len(ways)

    def _derive(self, node: int, head: Node, rest: int, below: int) -> int:
        """Read one byte of a term that is not divided, by its derivatives; whether it is empty is for the caller."""
        automaton, branches = self._automaton, self._trie.branches(node)
        moves, terms = automaton.moves(automaton.state_of(head)), automaton.nodes
        shared = moves if len(moves) <= len(branches) else branches
        for byte in shared:
            step, target = branches.get(byte), moves.get(byte)
            if step is not None and target is not None:
                child, ends, below = step
                self.found += ends
                if below:
                    self._stack.append((child, terms[target], rest, below))
        return 2 + len(shared)

    def _read_fields(self, node: int, fields: Node, rest: int) -> int:
        """Follow the words of optional fields, each of which is followed by its own value; return how many of them end."""
        table, start, lo, hi, depth = fields.args
        words, ranks = zip(*table.open_words(start, lo, hi), strict=True)
        read = read_words(self._trie, node, self.found, words, 0, len(words), depth)
        for index, end, below in read:
            rank = ranks[index]
            self._stack.append((end, table.values[rank], self._then((table, rank), rest), below))
        return len(read)

    def _read_product(self, node: int, term: Node, rest: int, below: int, room: int) -> int | None:
        """Read the prefix or the loop with which a term begins, or report a jump; return the cost, or None if it has neither."""
        (head, tail), products = nodes.first_and_rest(term), self._products
        if products is None:
            return None
        is_loop = head.kind is Kind.REPEAT
        if is_loop and below >= MIN_WIDE_TEXTS and products.is_wide_class(head.args[0]):
            self.jumps.append((node, self._automaton.state_of(self._whole(term, rest))))
            return 0
        begun = as_prefix(term)
        prefix = None if begun is None else products.prefix(begun[0], node)
        if begun is not None and prefix is not None:
            return 4 + self._leave(prefix, self._then(begun[1], rest))
        if not is_loop or not _is_short(head.args[0], below):
            return None
        body, lo, hi = head.args
        cost = 0 if is_narrow(body) or (body, node, True) in products.known else NEW_TEXT_COST * below
        loop = products.loop(body, node) if cost < room else None
        return None if loop is None else cost + 4 + self._leave(loop, self._then(tail, rest), lo, hi)

    def _leave(self, product: SparseProduct, rest: int, lo: int = 0, hi: int | None = None) -> int:
        """Add the tokens that end inside a product, and push the nodes where it may end; return the number of these nodes."""
        self.found += product.inside(hi)
        exits = product.exits(bytes_in(self._first_bytes(rest)), lo, hi)
        self._stack += [(node, EPSILON, rest, below) for node, below in exits]
        return len(exits)

    def _first_bytes(self, rest: int) -> int:
        """A 256-bit mask of bytes, with all with which a rest may begin."""
        mask, term = 0, EPSILON
        while rest and term.nullable:
            term, rest = self._next(rest)
            mask |= self._automaton.derivatives.first_bytes(term)
        return mask


_DIVIDED = frozenset({Kind.ALTERNATION, Kind.RULE, Kind.CHECK, Kind.MEMBERS})
READ_AT_ONCE = _DIVIDED | {Kind.LITERAL, Kind.WORDS, Kind.FIELDS}
"""The kinds of first factors at which a depth-first walk begins whatever bytes may follow."""


def _divided(head: Node) -> Sequence[Node]:
    """Terms whose union is a term of a kind in `_DIVIDED`."""
    if head.kind is Kind.MEMBERS:
        head = head.args[0].expand(head.args[1])
        return head.args if head.kind is Kind.ALTERNATION else (head,)
    return nodes.children(head)


def _is_short(body: Node, below: int) -> bool:
    """True if a loop is read as a sparse product."""
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


def states_at(automaton: Automaton, trie: Trie, state: int, node: int = Trie.root) -> NDArray[np.int32]:
    """For `node` and each node below it, the state there, starting at `state`; 0 if it is dead, for all others, and behind the last."""
    at_node = np.zeros(len(trie) + 1, np.int32)
    at_node[node] = state
    tail: list[tuple[int, int]] = []
    for first, codes, rows in sweep(automaton, trie, state, node, tail):
        at_node[first : first + len(codes)] = rows.states(codes)
    for _, child, target in finish(automaton, trie, tail):
        at_node[child] = target
    return at_node


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
        trie: these texts, labelled with their numbers.

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
        self.trie = Trie(list(numbers))
        self._alive: dict[int, NDArray[np.bool_]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with all branches of the trie."""
        known = self.max_known * len(self.trie.ends)
        return self.nodes.nbytes + 3 * self.texts.nbytes + self.trie.nbytes + 250 * len(self.trie) + known

    def alive(self, automaton: Automaton, state: int) -> NDArray[np.bool_]:
        """For each text, whether `state` leads to a live state after it. Cost: a walk of the texts, once per term."""
        serial = automaton.nodes[state].serial  # in place of the term, which it keeps in memory
        alive = self._alive.get(serial)
        if alive is None:
            walked = walk_narrow(automaton, self.trie, state, max_cost=MAX_EXIT_COST)
            if walked is None:
                alive = walk_wide(automaton, self.trie, state)
            else:
                alive = np.zeros(len(self.trie.ends), bool)
                alive[walked[0]] = True
            if len(self._alive) >= self.max_known:
                self._alive.clear()
            self._alive[serial] = alive
        return alive


ExitsOf = Callable[[int, bool], Exits | None]
"""Returns the exits with a byte, or None if they are too many, or, unless they are wanted at once, were needed too seldom."""


def leaving(
    automaton: Automaton,
    trie: Trie,
    state: int,
    exits_of: ExitsOf,
    is_exit: Callable[[NDArray[np.int32]], NDArray[np.bool_]],
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The tokens that reach a node at which a loop may end, and continue in `state`, each with the first node after the loop.

    Args:
        automaton, trie, state: the two sides, and what follows the loop.
        exits_of: the exits with a byte.
        is_exit: of some nodes, before which the loop may end.
    """
    swept = list[int]()
    for byte in bytes_in(automaton.derivatives.first_bytes(automaton.nodes[state])):
        exits = exits_of(byte, False)
        if exits is None:
            swept.append(byte)
        else:
            kept = np.flatnonzero(is_exit(exits.nodes)[exits.which] & exits.alive(automaton, state)[exits.texts])
            yield exits.token_ids[kept], exits.nodes[exits.which[kept]]
    if swept:
        steps = trie.nodes_with(swept)
        yield leave_from(automaton, trie, state, steps[is_exit(steps)])


def leave_from(
    automaton: Automaton, trie: Trie, state: int, steps: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The tokens that continue in `state` from the parents of some nodes through these, each with the node."""
    found, which = sweep_each(automaton, trie, state, steps)
    token_ids, places = trie.labels_of(found)
    return token_ids, steps[which[places]]
