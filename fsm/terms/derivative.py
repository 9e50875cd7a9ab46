"""`Derivatives`: Brzozowski derivatives of terms by classes of bytes, as disjoint 256-bit masks with the derivative of each, cached. Also
emptiness (`is_inhabited`): a best-first search of derivatives where a part is an intersection, a complement, a machine or has lookarounds,
else a least fixed point over the parts, or for terms with a MUNCH over what they leave (`rivals.py`). A search, or one derivative, beyond
its budget raises `BudgetExceeded`, left recursion `ExpressionError`.

Source: Brzozowski 1964, doi:10.1145/321239.321249; byte classes as in Owens, Reppy and Turon 2009, doi:10.1017/S0956796808007090.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from weakref import proxy

from fsm.errors import ExpressionError, exceeded
from fsm.process_fork import rlock
from fsm.terms import continuation as continuations
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.byte_classes import completed, covered, disjoint, product
from fsm.terms.distance import Distances
from fsm.terms.drain import drain
from fsm.terms.free_text import FreeTexts
from fsm.terms.members import field_range
from fsm.terms.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node
from fsm.terms.rivals import Left, Pair, Rivals

Arc = tuple[int, Node]
"""A 256-bit mask of bytes, and the derivative by any of them."""
Arcs = tuple[Arc, ...]

_SEARCHED = frozenset({Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION})
_BOOLEAN = frozenset({Kind.ALTERNATION, Kind.INTERSECTION, Kind.COMPLEMENT})
_OF_WORDS = frozenset({Kind.WORDS, Kind.FIELDS})
_CHOICES = frozenset({Kind.ALTERNATION, Kind.REPEAT})
_FEW_STATES = 1_000  # of a search by sets of alternatives, before one by single alternatives
_MAX_BEFORE_COUNT = 4  # the rest of an iteration, such as of a character
_MAX_JOINED = 20_000  # unions and intersections of targets that are kept
_MAX_BY_BYTE = 10_000  # derivatives of parts by one byte that are kept


_shared: dict[Node, Arcs] = {}


def share(node: Node) -> None:
    """Compute the arcs of `node` and of its derivatives once, for every `Derivatives` that is made from now on."""
    derivatives = Derivatives()
    for part in nodes.reached(node, lambda part: [target for _, target in derivatives.arcs(part)]):
        _shared[part] = derivatives.arcs(part)


class Derivatives:
    """Arcs (derivatives by byte class) and emptiness of nodes, cached in this object, within budgets of work.

    Args:
        max_search: most nodes that one search for an accepted text may visit; more raise `BudgetExceeded`.
        max_memo: most cached arc lists; beyond them the cache is cleared.
        max_step: most work that one derivative may take (see `work.py`); more raises `BudgetExceeded`.
        by_sets: whether searches follow sets of alternatives first; else what they find is known of each alternative.

    Attributes:
        free_texts: which terms are seen to have a text that restricts nothing after it.
    """

    def __init__(
        self, *, max_search: int = 20_000, max_memo: int = 200_000, max_step: int = 20_000, by_sets: bool = True
    ) -> None:
        self.max_search = max_search
        self._by_sets = by_sets
        self.max_step = max_step
        self.max_memo = max_memo
        self._arcs: dict[Node, Arcs] = dict(_shared)
        self._inhabited: dict[tuple[Node, int], bool] = {}
        self._left: dict[int, dict[Pair, Left]] = {}
        self._joined: dict[tuple[object, ...], Node] = {}
        self._first_bytes: dict[Node, int] = {}
        self._read: dict[tuple[Node, bytes], tuple[Node, int]] = {}
        self._by_byte: dict[int, dict[Node, Node]] = {}
        self._counted: dict[tuple[object, ...], dict[tuple[int, int], bool]] = {}
        self._iterations: dict[tuple[Node, Node], bytes] = {}
        self._sound: set[Node] = set()  # rules without left recursion
        self._distances = Distances(max_memo=max_memo)
        itself = proxy(self)  # no cycle: large tables are freed with the last reference to them
        self.free_texts = FreeTexts(
            lambda node: itself.first_bytes(node),
            lambda node: covered(itself.live_arcs(node)),
            lambda node: itself.is_inhabited(node),
            max_memo,
        )
        self._lock = rlock()  # a thread must not clear a cache while another one fills it

    def __del__(self) -> None:
        for table in (self._arcs, self._inhabited, self._left, self._read, self._joined):
            drain(table)

    def arcs(self, node: Node) -> Arcs:
        """Return the arcs of `node`: masks disjoint and not empty, targets distinct and never the empty language.

        A target that contains an intersection or complement may still be empty: see `is_inhabited`.

        Raises:
            ExpressionError: a rule refers to itself before it reads a byte (left recursion).
            BudgetExceeded: it takes more work than `max_step`, as with many unions inside each other.

        Cost: the sum of the arcs of its parts, once per node.
        """
        known = self._arcs.get(node)
        if known is not None:
            return known
        with self._lock:
            return self._make_arcs(node)

    def _make_arcs(self, node: Node) -> Arcs:
        if len(self._arcs) > self.max_memo:
            drain(self._arcs)
        limit = work.done() + self.max_step
        stack, open_nodes = [node], set[Node]()
        while stack:
            top = stack[-1]
            if top in self._arcs:
                stack.pop()
                continue
            missing = [n for n in _needed(top) if n not in self._arcs]
            if missing:
                if top in open_nodes:
                    _refuse_left_recursion(stack)
                open_nodes.add(top)
                stack.extend(missing)
                continue
            found = self._arcs[top] = self._combine(top)
            work.add(len(found) * (1 + len(top.args) if top.kind is Kind.INTERSECTION else 1))
            if work.done() > limit:
                raise self._heavy_step()
            work.check()
            open_nodes.discard(top)
            stack.pop()
        return self._arcs[node]

    def first_bytes(self, node: Node) -> int:
        """A 256-bit mask with every first byte of a text of `node`, and perhaps others. Cost: 0.2 us per part, once."""
        mask = 0
        while node.kind is Kind.CONCAT:
            head, node = node.args
            mask |= self._first_bytes_of(head)
            if not head.nullable:
                return mask
        return mask | self._first_bytes_of(node)

    def _first_bytes_of(self, head: Node) -> int:
        if head.kind is Kind.LITERAL:
            text: bytes = head.args[0]
            return 1 << text[0]
        mask = self._first_bytes.get(head)
        if mask is None:
            if len(self._first_bytes) >= _MAX_JOINED:
                self._first_bytes.clear()
            mask = self._first_bytes[head] = self._find_first_bytes(head)
        return mask

    def _find_first_bytes(self, node: Node) -> int:
        """The bytes, part by part: each part with the mask of bytes with which it may begin where it stands."""
        mask, stack, seen = 0, [(node, ALL_BYTES)], {(node, ALL_BYTES)}
        while stack:
            top, allowed = stack.pop()
            known = self._first_bytes.get(top)
            if known is not None:
                mask |= known & allowed
                continue
            kind, args = top.kind, top.args
            parts: tuple[Node, ...] = ()
            if kind is Kind.BYTES:
                mask |= args[0] & allowed
            elif kind is Kind.LITERAL:
                mask |= 1 << args[0][0] & allowed
            elif kind is Kind.CONCAT:
                parts = args if args[0].nullable else args[:1]
            elif kind in (Kind.ALTERNATION, Kind.REPEAT, Kind.RULE):
                parts = nodes.children(top)
            elif kind is Kind.MUNCH:
                parts = args[:1] if args[0] is not EPSILON else ()
                rest = allowed & ~self._kept_from_tail(args[0], args[2]) if args[0].nullable else 0
                if rest and (args[1], rest) not in seen:
                    seen.add((args[1], rest))
                    stack.append((args[1], rest))
            elif kind in _OF_WORDS:
                table, *_, lo, hi, depth = args
                for byte, _, _ in nodes.next_words(table.words, lo + (len(table.words[lo]) == depth), hi, depth):
                    mask |= 1 << byte & allowed
            else:
                mask |= covered(self.arcs(top)) & allowed
            new = [part for one in parts if (part := (one, allowed)) not in seen]
            seen.update(new)
            stack += new
        return mask

    def _kept_from_tail(self, head: Node, rival: Node) -> int:
        """The bytes with which the tail of a MUNCH does not begin: those that continue its head or rival, or are a text of the rival."""
        if head is EPSILON:
            return sum(mask for mask, target in self.arcs(rival) if target.nullable)
        return covered((*self.live_arcs(head), *self.live_arcs(rival)))

    def after(self, node: Node, byte: int) -> Node:
        """The derivative of `node` by one byte; see `read`."""
        return self.read(node, bytes((byte,)))[0]

    def read(self, node: Node, text: bytes) -> tuple[Node, int]:
        """The derivative of `node` by the first bytes of a text, and how many these are: one, or those that all parts read at once.

        Cost: less than `arcs` for a term that is reached once, such as each count of `x{0,200}`: only one target is made, of `&`, `~` and
        `|` by those of their operands.
        """
        head, tail = nodes.first_and_rest(node)
        while True:
            kind = head.kind
            if kind is Kind.LITERAL or kind is Kind.REPEAT:
                target, count = self._read_plainly(node, head, tail, text)
                if count:
                    return target, count
            if not head.nullable or kind not in _CHOICES or self.first_bytes(head) >> text[0] & 1:
                break
            node = tail
            head, tail = nodes.first_and_rest(node)
        if len(text) == 1 and node in self._arcs:
            return self._target(node, text[0]), 1
        if tail is not EPSILON and (head.kind in _BOOLEAN or head.kind in _OF_WORDS):
            is_over = head.nullable or head.kind in _BOOLEAN  # before the last byte that it may read
            others = ALL_BYTES & ~self.first_bytes(tail) if is_over else ALL_BYTES
            if not head.nullable or others >> text[0] & 1:  # the derivative is no union
                target, count = self._read_head(head, text[: max(_num_leading(text, others), 1)])
                return nodes.concat(target, tail), count
        limit, text = work.done() + self.max_step, self._read_at_once(node, text)
        known = self._known_after(node, text)
        target = nodes.folded(
            node, lambda top: self._stepped(top, text), lambda top, got: self._after(top, got, text), known
        )
        if work.done() > limit:
            raise self._heavy_step()
        return target, len(text)

    def _known_after(self, node: Node, text: bytes) -> dict[Node, Node]:
        """The memo of derivatives by a text: that of one byte is kept for recursive terms, as the parts of one are parts of later ones.

        So a step of an ambiguous grammar takes about as many steps of work as it has new parts, and not as it has parts.
        """
        if node.is_regular or len(text) > 1:
            return {}
        known = self._by_byte.get(text[0])
        if known is None or len(known) >= _MAX_BY_BYTE:
            known = self._by_byte[text[0]] = {}
        return known

    def _read_head(self, head: Node, text: bytes) -> tuple[Node, int]:
        """The same as `read`, cached, as few heads stand before many tails."""
        key = head, text
        found = self._read.get(key)
        if found is None:
            if len(self._read) >= _MAX_JOINED:
                self._read.clear()
            found = self._read[key] = self.read(head, text)
        return found

    def _read_plainly(self, node: Node, head: Node, tail: Node, text: bytes) -> tuple[Node, int]:
        """What `read` returns for a term that begins with a literal or a loop; no byte if several ways have to be united."""
        if head.kind is Kind.LITERAL:
            begin: bytes = head.args[0]
            if text.startswith(begin):
                return tail, len(begin)
            if not begin.startswith(text):
                return EMPTY, len(text)
            return nodes.concat(nodes.literal(begin[len(text) :]), tail), len(text)
        count = self._num_iterations(head, tail, text)
        if not count or head.args[1:] == (0, None):
            return node, count
        return nodes.concat(nodes.fewer(head, count), tail), count

    def _read_at_once(self, node: Node, text: bytes) -> bytes:
        """The first bytes of a text, at least one, by which the derivative of a term needs no choice of where a part of it ends."""
        stack = [node]
        while stack and len(text) > 1:
            head, tail = nodes.first_and_rest(stack.pop())
            kind, args = head.kind, head.args
            if kind is Kind.LITERAL:
                if tail is not EPSILON and text.startswith(args[0]):
                    text = text[: len(args[0])]
            elif kind in _OF_WORDS and not head.nullable:
                table, *_, lo, hi, depth = args
                lo, hi, end = nodes.narrowed(text, table.words, lo, hi, depth)
                text = text[: end - depth] if lo < hi else text
            elif kind is Kind.REPEAT:
                text = text[: max(self._num_iterations(head, tail, text), 1)]
            elif kind in _BOOLEAN:
                if tail is not EPSILON:
                    text = text[: max(_num_leading(text, ALL_BYTES & ~self.first_bytes(tail)), 1)]
                stack += args
            elif kind is not Kind.EPSILON or tail is not EPSILON:
                text = text[:1]
        return text

    def _num_iterations(self, loop: Node, tail: Node, text: bytes) -> int:
        """How many bytes a text begins with that are an iteration of a loop each, and cannot be read in another way."""
        body, _, most = loop.args
        single = self._iterations.get((body, tail))
        if single is None:
            if len(self._iterations) >= _MAX_JOINED:
                self._iterations.clear()
            mask = sum(own for own, target in self.arcs(body) if target is EPSILON)
            single = self._iterations[body, tail] = bytes_in(mask & ~self.first_bytes(tail))
        count = len(text) - len(text.lstrip(single))
        return count if most is None else min(count, most)

    def _stepped(self, node: Node, text: bytes) -> tuple[Node, ...]:
        """The terms whose derivatives by a text make that of `node`; none if that takes one operation, or known arcs."""
        kind, args = node.kind, node.args
        if kind is Kind.CONCAT and args[0].kind is not Kind.LITERAL:
            return args if args[0].nullable and len(text) == 1 else args[:1]
        if kind in _BOOLEAN and len(text) > 1:
            return args
        if node in self._arcs:
            return ()
        if kind is Kind.ALTERNATION and not node.is_regular:
            return tuple(part for part in args if self.first_bytes(part) >> text[0] & 1)
        if kind in _BOOLEAN:
            return args
        if node.is_regular and not node.has_munch:
            return ()
        if kind is Kind.RULE:
            self._refuse_left_recursion(node)
            return (args[0].body,)
        if kind is Kind.REPEAT:
            return args[:1]
        return self._stepped_in_tail(node, text[0]) if kind is Kind.MUNCH else ()

    def _after(self, node: Node, values: list[Node], text: bytes) -> Node:
        """The derivative of `node` by a text, given those of the terms that `_stepped` returns."""
        kind, args = node.kind, node.args
        if kind is Kind.CONCAT:
            begun = nodes.concat(values[0] if values else self._after(args[0], values, text), args[1])
            return nodes.alternation((begun, values[1])) if len(values) > 1 else begun
        if kind is Kind.LITERAL:
            return nodes.literal(args[0][len(text) :]) if args[0].startswith(text) else EMPTY
        if kind is Kind.REPEAT:
            target = EPSILON if len(text) > 1 else values[0] if values else self._target(args[0], text[0])
            return nodes.concat(target, nodes.fewer(node, len(text)))
        if kind in _OF_WORDS and not node.nullable:
            lo, hi, depth = nodes.narrowed(text, args[0].words, *args[-3:])
            if kind is Kind.WORDS:
                return nodes.word_range(args[0], lo, hi, depth)
            return field_range(args[0], args[1], lo, hi, depth)
        if kind is Kind.ALTERNATION and (values or (not node.is_regular and node not in self._arcs)):
            return nodes.alternation(values)
        if kind is Kind.MUNCH and (values or node not in self._arcs):
            return self._after_munch(node, values, text[0])
        if not values:
            return self._target(node, text[0])
        if kind is Kind.RULE:
            return values[0]
        return nodes.intersection(values) if kind is Kind.INTERSECTION else nodes.complement(values[0])

    def _stepped_in_tail(self, node: Node, byte: int) -> tuple[Node, ...]:
        """The tail of a MUNCH where its derivative by a byte is needed."""
        head, tail, rival = node.args
        is_begun = head.nullable and not self._kept_from_tail(head, rival) >> byte & 1
        return (tail,) if is_begun else ()

    def _after_munch(self, node: Node, values: list[Node], byte: int) -> Node:
        """The derivative of a MUNCH by a byte, given that of its tail where `_stepped_in_tail` returns it; as `_munch` and `_guarded`."""
        head, tail, rival = node.args
        if head is EPSILON:
            return nodes.munch(EPSILON, values[0], self._target(rival, byte)) if values else EMPTY
        if values:
            return values[0]
        target = next((target for mask, target in self.live_arcs(head) if mask >> byte & 1), EMPTY)
        other = next((other for mask, other in self.live_arcs(rival) if mask >> byte & 1), EMPTY)
        return nodes.munch(target, tail, other)

    def _refuse_left_recursion(self, rule: Node) -> None:
        """Raise `ExpressionError` if a rule refers to itself before it reads a byte; else neither do those with which it may begin."""
        if rule in self._sound:
            return
        stack, open_nodes = [(rule, iter(_needed(rule)))], {rule}
        done = set[Node]()
        while stack:
            top, parts = stack[-1]
            part = next((part for part in parts if part not in done), None)
            if part is None:
                stack.pop()
                open_nodes.discard(top)
                done.add(top)
            elif part in open_nodes:
                _refuse_left_recursion([top for top, _ in stack])
            else:
                stack.append((part, iter(_needed(part))))
                open_nodes.add(part)
        self._sound.update(part for part in done if part.kind is Kind.RULE)

    def _target(self, node: Node, byte: int) -> Node:
        return next((target for mask, target in self.arcs(node) if mask >> byte & 1), EMPTY)

    def _heavy_step(self) -> Exception:
        problem = f"one step of the expression takes more than {self.max_step:,} steps of work: {work.HEAVY}"
        return exceeded("max_step", self.max_step, problem)

    def _combine(self, node: Node) -> Arcs:
        kind, args, arcs = node.kind, node.args, self._arcs
        if kind is Kind.LITERAL:
            text = args[0]
            return ((1 << text[0], nodes.literal(text[1:])),)
        if kind is Kind.BYTES:
            return ((args[0], EPSILON),)
        if kind is Kind.CONCAT:
            head, tail = args
            if head.kind is Kind.CONCAT:
                return arcs[nodes.opened(node)]
            out = tuple((mask, nodes.concat(target, tail)) for mask, target in arcs[head])
            return self._union((out, arcs[tail])) if head.nullable else out
        if kind is Kind.REPEAT:
            rest = nodes.fewer(node)
            return tuple((mask, nodes.concat(target, rest)) for mask, target in arcs[args[0]])
        if kind is Kind.ALTERNATION:
            return self._alternation(args)
        if kind is Kind.WORDS:
            return tuple((1 << byte, target) for byte, target in nodes.split_words(*args))
        if kind is Kind.RULE:
            return arcs[node.args[0].body]
        if kind is Kind.INTERSECTION:
            pairs = product(arcs[child] for child in args)
            return _merge((mask, self._join(nodes.intersection, targets)) for mask, targets in pairs)
        if kind is Kind.COMPLEMENT:
            return _merge((mask, nodes.complement(t)) for mask, t in completed(arcs[args[0]], EMPTY))
        if kind is Kind.FIELDS:
            return tuple((1 << byte, target) for byte, target in args[0].split(*args[1:]))
        if kind is Kind.MEMBERS:
            return arcs[args[0].expand(args[1])]
        if kind is Kind.CHECK:
            return arcs[args[0]]
        if kind is Kind.MUNCH:
            return self._munch(*args)
        if kind is Kind.MACHINE:
            return _merge(args[0].arcs(args[1], arcs))
        if kind is Kind.CONTINUATION:
            head, rest, behind = args
            out = _merge(continuations.arcs(head, rest, behind, arcs))
            return self._union((out, arcs[continuations.entered(rest, behind)])) if head.nullable else out
        return ()

    def _alternation(self, members: Sequence[Node]) -> Arcs:
        """The arcs of a union; the tails of loops with one body are united once, and not for each first byte of the body."""
        found, tails = list[Arcs](), dict[Node, list[Node]]()
        for member in members:
            head, tail = nodes.first_and_rest(member)
            if head.kind is Kind.REPEAT:
                tails.setdefault(head.args[0], []).append(nodes.concat(nodes.fewer(head), tail))
                if head.nullable:
                    found.append(self._arcs[tail])
            else:
                found.append(self._arcs[member])
        for body, rest in tails.items():
            tail = nodes.alternation(rest)
            found.append(tuple((mask, nodes.concat(target, tail)) for mask, target in self._arcs[body]))
        return self._union(found)

    def _union(self, lists: Iterable[Arcs]) -> Arcs:
        by_mask: dict[int, list[Node]] = {}
        for arcs in lists:
            for mask, target in arcs:
                by_mask.setdefault(mask, []).append(target)
        return _merge((mask, self._join(nodes.alternation, tuple(targets))) for mask, targets in disjoint(by_mask))

    def _join(self, operator: Callable[[Iterable[Node]], Node], targets: tuple[Node, ...]) -> Node:
        """A union or an intersection of targets; many states have the same ones."""
        if len(targets) == 1:
            return targets[0]
        key = operator, *targets
        found = self._joined.get(key)
        if found is None:
            if len(self._joined) >= _MAX_JOINED:
                self._joined.clear()
            found = self._joined[key] = operator(targets)
        return found

    def is_inhabited(self, node: Node, alphabet: int = ALL_BYTES) -> bool:
        """True when some text over `alphabet` (a 256-bit mask of bytes) belongs to `node`.

        Intersections and complements take a best-first search of their derivatives, other terms a fixed point over their parts.

        Raises:
            BudgetExceeded: a search visited `max_search` nodes without an answer.
        """
        known = self._known(node, alphabet)
        if known is not None:
            return known
        with self._lock:
            self._solve(node, alphabet)
            return self._inhabited[node, alphabet]

    def _known(self, node: Node, alphabet: int) -> bool | None:
        """The answer where it takes no visit of all parts."""
        if alphabet == ALL_BYTES:
            if node.kind is Kind.FIELDS and not node.is_inhabited:
                table, start, lo, hi, _ = node.args
                node.is_inhabited = table.is_known(start, lo, hi)
            if node.is_inhabited:
                return True
        return self._inhabited.get((node, alphabet))

    def _solve(self, root: Node, alphabet: int) -> None:
        """Find whether `root` has a text, and so for the terms below it that this takes."""
        if len(self._inhabited) > self.max_memo:
            drain(self._inhabited)
            drain(self._left)
        if root.has_munch and root.kind not in _SEARCHED:
            value = (
                {root: True}
                if alphabet == ALL_BYTES and self.free_texts.has(root)
                else {root: Rivals(self, alphabet, self._left.setdefault(alphabet, {})).has_text(root)}
            )
        else:
            value = self._fixed_point(root, alphabet)
        for node, answer in value.items():
            self._inhabited[node, alphabet] = answer
            if answer and alphabet == ALL_BYTES:
                node.is_inhabited = True

    def _fixed_point(self, root: Node, alphabet: int) -> dict[Node, bool]:
        """Which terms below `root`, which has no MUNCH, have a text: the least fixed point of `_has_text`, as rules form cycles."""
        inner, value = list[Node](), dict[Node, bool]()

        def parts(node: Node) -> tuple[Node, ...]:
            if self._known(node, alphabet) is not None or node.kind in _SEARCHED:
                return ()
            inner.append(node)
            return nodes.children(node)

        value.update((part, self._leaf(part, alphabet)) for part in list(nodes.reached(root, parts)))
        changed = True
        while changed:
            changed = False
            for node in reversed(inner):
                if not value[node] and _has_text(node, value, alphabet):
                    value[node] = changed = True
        return value

    def _munch(self, head: Node, tail: Node, rival: Node) -> Arcs:
        """Continue the head if that is possible, else begin the tail, unless the rival could continue; see `node.munch`."""
        if head is EPSILON:
            return self._guarded(tail, rival)
        own, others = self.live_arcs(head), self.live_arcs(rival)
        steps = product((own, completed(others, EMPTY)))
        out = [(mask, nodes.munch(target, tail, other)) for mask, (target, other) in steps]
        if head.nullable:
            taken = covered((*own, *others))
            out += [(mask & ~taken, target) for mask, target in self._arcs[tail] if mask & ~taken]
        return _merge(out)

    def _guarded(self, tail: Node, rival: Node) -> Arcs:
        """The arcs of a tail of which no prefix is a text of the rival."""
        pairs = product((self.arcs(tail), completed(self.arcs(rival), EMPTY)))
        return _merge((mask, nodes.munch(EPSILON, *pair)) for mask, pair in pairs if not pair[1].nullable)

    def _leaf(self, node: Node, alphabet: int) -> bool:
        known = self._known(node, alphabet)
        if known is not None:
            return known
        kind = node.kind
        if kind is Kind.BYTES:
            return bool(node.args[0] & alphabet)
        if kind is Kind.LITERAL:
            return all(alphabet >> b & 1 for b in node.args[0])
        if kind is Kind.WORDS:
            word_list, lo, hi, depth = node.args
            return any(all(alphabet >> b & 1 for b in w[depth:]) for w in word_list.words[lo:hi])
        if kind is Kind.MACHINE and alphabet == ALL_BYTES and (like := node.args[0].like(node.args[1])) is not None:
            return self.is_inhabited(like)
        if kind is Kind.INTERSECTION:
            return self._has_common_text(node, alphabet)
        return self._search(node, alphabet) if kind in _SEARCHED else node.nullable

    def _has_common_text(self, node: Node, alphabet: int) -> bool:
        """Search for a text of an intersection; with a counted loop it has one if it has one with fewer counts, and none if none with more.

        So few searches are needed for all the counts that a text passes through; fewer counts are tried first.
        """
        counted = max(filter(None, map(_around_count, node.args)), key=lambda one: one[2][2] - one[2][1], default=None)
        if counted is None or node.nullable:
            return self._search(node, alphabet)
        part, before, (body, lo, hi), after = counted
        others = [one for one in node.args if one is not part]
        if len(self._counted) >= _MAX_JOINED:
            self._counted.clear()
        found = self._counted.setdefault((alphabet, body, after, *before, EPSILON, *others), {})
        least = max(self._distances.of(node) - sum(map(self._distances.of, before)), 0)
        for most in (*(lo + times * least for times in (1, 2) if lo + times * least < hi), hi):
            answer = next((known for within, known in found.items() if _tells(within, known, lo, most)), None)
            if answer is None:
                fewer = nodes.sequence((*before, nodes.repeat(body, lo, most), after))
                answer = found[lo, most] = self._search(nodes.intersection((*others, fewer)), alphabet)
            if answer:
                return True
        return False

    def _search(self, root: Node, alphabet: int) -> bool:
        """Best-first search for a text of `root`: a short one of sets of alternatives, which compares equal languages in few states, one of
        single alternatives, of which there may be far fewer than of their sets, and a long one of sets. All three together may take
        ten steps of work for each of `max_search` states.
        """
        few, limit = min(_FEW_STATES, self.max_search), work.done() + 10 * max(self.max_search, 2 * _FEW_STATES)
        for most, takes_sets in ((few, self._by_sets), (self.max_search, False), (self.max_search, True)):
            found = self._search_within(root, alphabet, most, takes_sets, limit)
            if found is not None:
                return found
        problem = f"the search for a text of an intersection or negation has no answer after {self.max_search:,} states or much work"
        raise exceeded("max_search", self.max_search, problem)

    def _search_within(self, root: Node, alphabet: int, max_states: int, takes_sets: bool, limit: int) -> bool | None:
        """Search by the estimated length of the rest; None if that takes more states, or more work than up to `limit`."""
        memo, distance = self._inhabited, self._distances.of
        came_from: dict[Node, Node | None] = {root: None}
        if root.nullable:
            self._is_found(root, came_from, alphabet)
            return True
        queue = [(0, 0, root)]
        while queue:
            _, _, node = heappop(queue)
            targets = [(target, node) for mask, target in self.arcs(node) if mask & alphabet]
            for target, before in targets:
                if target in came_from or memo.get((target, alphabet)) is False:
                    continue
                if len(came_from) > max_states or work.done() > limit:  # by the alternatives of one target, too
                    return None
                came_from[target] = before
                if target.nullable or self._known(target, alphabet):
                    self._is_found(target, came_from, alphabet)
                    return True
                members = () if takes_sets else members_of(target)
                work.add(len(members))
                targets += [(member, target) for member in members]
                if not members:
                    heappush(queue, (distance(target), len(came_from), target))
        for node in came_from:
            memo[node, alphabet] = False
        return False

    def _is_found(self, found: Node, came_from: dict[Node, Node | None], alphabet: int) -> None:
        """Cache that `found` and the terms on the way to it have a text."""
        node: Node | None = found
        while node is not None:
            self._inhabited[node, alphabet] = True
            node.is_inhabited = node.is_inhabited or alphabet == ALL_BYTES
            node = came_from[node]

    def live_arcs(self, node: Node) -> Arcs:
        """The arcs of `node` whose target has at least one accepted text."""
        arcs = self.arcs(node)
        if node.is_plain:
            return arcs
        return tuple(arc for arc in arcs if arc[1].is_plain or self.is_inhabited(arc[1]))


def _tells(known: tuple[int, int], answer: bool, lo: int, hi: int) -> bool:
    """True if an answer for some counts is one for `lo` to `hi`: these have a text if fewer do, and none if more have none."""
    return (lo <= known[0] and known[1] <= hi) if answer else (known[0] <= lo and hi <= known[1])


def _around_count(part: Node) -> tuple[Node, list[Node], tuple[Node, int, int], Node] | None:
    """A term that begins with a counted loop, perhaps inside an iteration: the term, what is before, the loop, and what is after it."""
    before, loop, after = list[Node](), *nodes.first_and_rest(part)
    while loop.kind is not Kind.REPEAT and after is not EPSILON and len(before) < _MAX_BEFORE_COUNT:
        before.append(loop)
        loop, after = nodes.first_and_rest(after)
    return (part, before, loop.args, after) if loop.kind is Kind.REPEAT and loop.args[2] is not None else None


def members_of(node: Node) -> Sequence[Node]:
    """Terms whose union `node` is, as it or a part of it begins with alternatives; none for another one.

    A search of each meets fewer terms than one of all sets of them.
    """
    if node.kind is Kind.ALTERNATION:
        return node.args
    for part in node.args if node.kind is Kind.INTERSECTION else ():
        first, rest = nodes.first_and_rest(part)
        if first.kind is Kind.ALTERNATION:
            others = [one for one in node.args if one is not part]
            return [nodes.intersection((nodes.concat(way, rest), *others)) for way in first.args]
    return ()


def _has_text(node: Node, value: dict[Node, bool], alphabet: int) -> bool:
    """Whether a term has a text, given for which of its parts this is known."""
    kind, args = node.kind, node.args
    if kind is Kind.FIELDS:
        return bool(args[0].is_inhabited(*args[1:], value, alphabet))
    if kind is Kind.MEMBERS:
        return bool(args[0].is_inhabited(args[1], value))
    if kind in (Kind.CONCAT, Kind.RULE, Kind.CHECK):
        return all(value[c] for c in nodes.children(node))
    if kind is Kind.ALTERNATION:
        return any(value[c] for c in args)
    return kind is Kind.REPEAT and (args[1] == 0 or value[args[0]])


@lru_cache(maxsize=4096)
def bytes_in(mask: int) -> bytes:
    """The bytes in a 256-bit mask, ascending."""
    return bytes(byte for byte in range(256) if mask >> byte & 1)


def _num_leading(text: bytes, mask: int) -> int:
    """How many bytes a text begins with that are in a 256-bit mask."""
    return len(text) - len(text.lstrip(bytes_in(mask)))


def _needed(node: Node) -> tuple[Node, ...]:
    """The terms of which `_combine` needs the arcs."""
    if node.kind is Kind.CONCAT:
        head, _ = node.args
        return (nodes.opened(node),) if head.kind is Kind.CONCAT else node.args if head.nullable else (head,)
    if node.kind is Kind.MEMBERS:
        return (node.args[0].expand(node.args[1]),)
    if node.kind is Kind.MUNCH:
        head, tail, rival = node.args
        return (head, rival, tail) if head.nullable else (head, rival)
    if node.kind is Kind.CONTINUATION:
        return continuations.parts(*node.args)
    if node.kind is Kind.ALTERNATION:
        return tuple(part for member in node.args for part in _after_loops(member))
    return () if node.kind is Kind.FIELDS else nodes.children(node)


def _after_loops(member: Node) -> tuple[Node, ...]:
    """For a member that begins with a loop: its body, and the tail where the loop may be skipped; else the member."""
    head, tail = nodes.first_and_rest(member)
    if head.kind is not Kind.REPEAT:
        return (member,)
    return (head.args[0], tail) if head.nullable else head.args[:1]


def _refuse_left_recursion(stack: list[Node]) -> None:
    names = sorted({n.args[0].name for n in stack if n.kind is Kind.RULE})
    raise ExpressionError(
        f"left recursion: a rule among {names!r} refers to itself before it reads anything. "
        "Put something that is read before the reference, or write a repetition."
    )


def _merge(arcs: Iterable[Arc]) -> Arcs:
    """Join arcs with one target, and drop those to the empty language."""
    masks: dict[Node, int] = {}
    for mask, target in arcs:
        if target is not EMPTY:
            masks[target] = masks.get(target, 0) | mask
    return tuple((mask, target) for target, mask in masks.items())
