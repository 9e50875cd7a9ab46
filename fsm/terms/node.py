"""`Node`: hash-consed terms, regular expressions over bytes with intersection, complement, counters, recursive rules, and `Kind`s of their
own for word lists, members of objects, lookarounds and maximal munch. They are immutable and interned in a table of weak
references, so a state of an automaton can be a node. The functions that build them simplify by algebraic laws, which does not find all
equal languages, and expand no counters; `&` and `~` refuse rules and checks.

A `Machine` adds any automaton, a `Check` a condition beyond automata. Rules are in `rule.py`, derivatives in `derivative.py`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar
from weakref import ref

from fsm.errors import ExpressionError
from fsm.terms import byte_classes, work

Value = TypeVar("Value")
Vertex = TypeVar("Vertex", bound=Hashable)

ALL_BYTES = byte_classes.ALL_BYTES
MAX_LITERAL = 64  # bytes; a longer literal is a chain of these, so that the derivative of one stays cheap
MAX_COPIED = 64  # factors of a term that are put in front of what follows it; a longer term is shared
_MET_PER_WORK = 8  # members of a union are looked at in 0.5 us each
_FACTORS_PER_WORK = 4  # factors are put in front of others at 1 us each


class Kind:
    """The operator of a node; the comment gives its `args`. There is one object of each: compare them with `is`.

    Not an `Enum`: looking up a member of one takes five times as long in Python 3.11, and this is the most frequent operation here.
    """

    __slots__ = ("interned", "name")

    EMPTY: ClassVar[Kind]  # (): no text at all
    EPSILON: ClassVar[Kind]  # (): the empty text
    BYTES: ClassVar[Kind]  # (mask,): one byte; bit b of the 256-bit integer allows byte b
    LITERAL: ClassVar[Kind]  # (bytes,): this text
    WORDS: ClassVar[Kind]  # (WordList, lo, hi, depth): words lo..hi of a sorted list without their first `depth` bytes
    CONCAT: ClassVar[
        Kind
    ]  # (head, tail): head is a CONCAT only where it has many factors; see `concat` and `first_and_rest`
    ALTERNATION: ClassVar[Kind]  # (child, ...), by serial number
    INTERSECTION: ClassVar[Kind]  # (child, ...), by serial number
    COMPLEMENT: ClassVar[Kind]  # (child,)
    REPEAT: ClassVar[Kind]  # (body, lo, hi or None)
    RULE: ClassVar[Kind]  # (Rule,): the body of the rule; see `rule.py`
    FIELDS: ClassVar[Kind]  # (FieldList, start, lo, hi, depth): optional fields in order; see `optional_fields.py`
    MEMBERS: ClassVar[Kind]  # (MemberTable, state): members of an object in any order; see `object_members.py`
    MUNCH: ClassVar[Kind]  # (head, tail, rival): maximal munch of the head, then the tail; see `munch`
    CHECK: ClassVar[Kind]  # (body, Check): the texts of the body that pass the check; see `checker.py`
    MACHINE: ClassVar[
        Kind
    ]  # (Machine, state): the texts that an automaton of its own kind accepts from a state; see `Substrings`
    CONTINUATION: ClassVar[Kind]  # (head, Continuation, behind): the head, then a pattern with lookarounds

    def __init__(self, name: str) -> None:
        self.name = name
        self.interned: dict[tuple[Any, ...], _Entry] = {}

    def __repr__(self) -> str:
        return f"Kind.{self.name}"


for _name in Kind.__annotations__:
    setattr(Kind, _name, Kind(_name))


@dataclass(eq=False, slots=True, weakref_slot=True, repr=False)
class Node:
    """One term.

    Attributes:
        kind, args: the operator, and its operands or arguments.
        nullable: the empty text belongs to it.
        is_regular: it contains no rule.
        is_plain: neither it nor any of its derivatives is empty, by construction.
        is_checked: it contains a check, or a rule, which may contain one.
        has_munch: it may contain a MUNCH.
        is_guarded: the empty text belongs to it, and a MUNCH inside of it restricts the next byte.
        is_inhabited: some text is known to belong to it; the only attribute that changes, so that no search is repeated.
        serial: the number of terms made before it, which is the order of operands.
    """

    kind: Kind
    args: tuple[Any, ...]
    nullable: bool
    is_regular: bool
    is_plain: bool
    is_checked: bool
    has_munch: bool
    is_guarded: bool
    is_inhabited: bool
    serial: int

    def __repr__(self) -> str:
        return f"<{self.kind.name.lower()} {self.serial}>"


class Content:
    """Base of immutable arguments of nodes, equal where their content is; its hash is computed once, so that they are cheap to intern."""

    __slots__ = ("_content", "_hash")

    def __init__(self, *content: Hashable) -> None:
        self._content = content
        self._hash = hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._content == other._content)


class WordList(Content):
    """A sorted tuple of distinct words."""

    __slots__ = ("words",)

    def __init__(self, words: tuple[bytes, ...]) -> None:
        super().__init__(words)
        self.words = words


class _Entry(ref[Node]):
    """A weak reference with its kind and its key in it; it takes a third of the memory of an entry of a WeakValueDictionary."""

    __slots__ = ("key", "kind")

    key: tuple[Any, ...]
    kind: Kind


_lock = threading.RLock()  # a node may die, and so call `_forget`, while its own thread has the lock
_serial = iter(range(1 << 62))
PREFIX_KINDS = frozenset({Kind.EPSILON, Kind.BYTES, Kind.LITERAL, Kind.CONCAT, Kind.ALTERNATION, Kind.REPEAT})
"""The kinds of terms that a prefix consists of, such as the rest of a number."""
_BY_SERIAL, _IS_GUARDED = attrgetter("serial"), attrgetter("is_guarded")
_MAY_CHECK = frozenset({Kind.RULE, Kind.CHECK})
_CHAINS = frozenset({Kind.CONCAT, Kind.ALTERNATION})
_FINITE = frozenset({Kind.EMPTY, Kind.EPSILON, Kind.LITERAL, Kind.WORDS})
_NOT_PLAIN = frozenset({Kind.INTERSECTION, Kind.COMPLEMENT, Kind.RULE, Kind.MUNCH, Kind.CONTINUATION, Kind.EMPTY})


def intern(
    kind: Kind,
    args: tuple[Any, ...],
    nullable: bool,
    children: tuple[Node, ...] = (),
    key: tuple[Any, ...] | None = None,
) -> Node:
    """The one node with these arguments, made if need be; the functions below simplify before they call this one.

    Args:
        kind, args, nullable: of the node.
        children: the terms whose properties the node has, too.
        key: identifies it among those of its kind, in place of arguments that refer back to the node.
    """
    table = kind.interned
    if key is None:
        key = args  # one tuple for both, as the collector visits every one that has nodes in it
    entry = table.get(key)
    if entry is not None and (node := entry()) is not None:
        return node
    regular, plain = kind is not Kind.RULE, kind not in _NOT_PLAIN
    checked, munches = kind in _MAY_CHECK, kind is Kind.MUNCH
    if kind is Kind.RULE:
        plain, munches = args[0].is_sure, args[0].has_munch
    for child in children:
        regular &= child.is_regular
        plain &= child.is_plain
        checked |= child.is_checked
        munches |= child.has_munch
    if kind is Kind.INTERSECTION or kind is Kind.COMPLEMENT:
        plain = _excludes_few(kind, args)
    guarded = munches and nullable and (kind is Kind.MUNCH or (kind in _CHAINS and any(map(_IS_GUARDED, args))))
    with _lock:
        entry = table.get(key)
        node = None if entry is None else entry()
        if node is None:
            inhabited = plain or nullable or (kind is Kind.RULE and args[0].is_inhabited)
            node = Node(kind, args, nullable, regular, plain, checked, munches, guarded, inhabited, next(_serial))
            entry = table[key] = _Entry(node, _forget)
            entry.key, entry.kind = key, kind
    return node


def _excludes_few(kind: Kind, children: tuple[Node, ...]) -> bool:
    """True if finitely many texts are excluded from all texts, or from a language whose derivatives are all infinite.

    Then no derivative is empty. An example are the keys of an object that are not declared: any string but a few.
    """
    if kind is Kind.COMPLEMENT:
        return children[0].kind in _FINITE
    others = [child for child in children if child.kind is not Kind.COMPLEMENT or child.args[0].kind not in _FINITE]
    return not others or (len(others) == 1 and others[0].is_plain and ends_in_loop(others[0]))


def ends_in_loop(node: Node) -> bool:
    """True if a term ends in a loop without an upper bound, so that no derivative of it is finite if it is plain."""
    while node.kind is Kind.CONCAT:
        node = node.args[1]
    return node.kind is Kind.REPEAT and node.args[2] is None and not node.args[0].nullable


def _forget(entry: Any, lock: Any = _lock) -> None:
    with lock:  # a default, since nodes also die after this module when the process ends
        table = entry.kind.interned
        if table.get(entry.key) is entry:
            del table[entry.key]


EMPTY = intern(Kind.EMPTY, (), False)
EPSILON = intern(Kind.EPSILON, (), True)


def byte_set(mask: int) -> Node:
    """One byte out of a 256-bit mask."""
    if not mask:
        return EMPTY
    if mask & (mask - 1) == 0:
        return intern(Kind.LITERAL, (bytes((mask.bit_length() - 1,)),), False)
    return intern(Kind.BYTES, (mask,), False)


def byte_range(first: int, last: int) -> Node:
    """One byte from `first` to `last`, both included."""
    return byte_set((1 << (last + 1)) - (1 << first))


def literal(text: bytes) -> Node:
    """Exactly this text, which may be empty."""
    if 0 < len(text) <= MAX_LITERAL:
        return intern(Kind.LITERAL, (text,), False)
    node = EPSILON
    for start in reversed(range(0, len(text), MAX_LITERAL)):
        piece = intern(Kind.LITERAL, (text[start : start + MAX_LITERAL],), False)
        node = piece if node is EPSILON else intern(Kind.CONCAT, (piece, node), False, (piece, node))
    return node


def words(texts: Iterable[bytes]) -> Node:
    """One of these texts, as a sorted list of which derivatives are ranges. Cost: one sort."""
    ordered = tuple(sorted(set(texts)))
    return word_range(WordList(ordered), 0, len(ordered), 0)


def word_range(word_list: WordList, lo: int, hi: int, depth: int) -> Node:
    """The words `lo <= i < hi` of a list, equal in their first `depth` bytes, without those bytes."""
    if lo == hi:
        return EMPTY
    if hi - lo == 1:
        return literal(word_list.words[lo][depth:])
    return intern(Kind.WORDS, (word_list, lo, hi, depth), len(word_list.words[lo]) == depth)


def next_words(texts: Sequence[bytes], lo: int, hi: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield each byte at `depth` of the sorted texts lo..hi, equal before it and longer, and the range of texts that have it."""
    while lo < hi:
        byte = texts[lo][depth]
        end = hi if byte == 255 else bisect_left(texts, texts[lo][:depth] + bytes((byte + 1,)), lo, hi)
        yield byte, lo, end
        lo = end


def split_words(word_list: WordList, lo: int, hi: int, depth: int) -> Iterator[tuple[int, Node]]:
    """Yield each next byte of a range of words with the range that it leaves."""
    texts = word_list.words
    for byte, first, last in next_words(texts, lo + (len(texts[lo]) == depth), hi, depth):
        yield byte, word_range(word_list, first, last, depth + 1)


def narrowed(text: bytes, words: Sequence[bytes], lo: int, hi: int, depth: int) -> tuple[int, int, int]:
    """Narrow the sorted words lo..hi, equal in their first `depth` bytes, by a text; it ends where one of them does.

    Returns:
        The new lo, hi and depth; lo equals hi where no word is left. Cost: two bisections for each byte that several words have.
    """
    end = depth + len(text)
    while depth < end and hi - lo > 1 and len(words[lo]) > depth:
        before, byte = words[lo][:depth], text[depth - end]
        lo = bisect_left(words, before + bytes((byte,)), lo, hi)
        hi = hi if byte == 255 else bisect_left(words, before + bytes((byte + 1,)), lo, hi)
        depth += 1
    if hi - lo == 1 and depth < end:
        word, begun = words[lo], depth
        depth = min(end, len(word))
        lo += not text.startswith(word[begun:depth], begun - end + len(text))
    return lo, hi, depth


def first_and_rest(node: Node) -> tuple[Node, Node]:
    """Read a term as a concatenation of its first factor, which is never a CONCAT, and the rest."""
    if node.kind is not Kind.CONCAT:
        return node, EPSILON
    head, rest = node.args
    while head.kind is Kind.CONCAT:
        head, more = head.args
        rest = concat(more, rest)
    return head, rest


def opened(node: Node) -> Node:
    """The same language as a term of which the first factor is no CONCAT."""
    return concat(*first_and_rest(node)) if node.kind is Kind.CONCAT and node.args[0].kind is Kind.CONCAT else node


def fewer(loop: Node, count: int = 1) -> Node:
    """A REPEAT term with `count` iterations less."""
    body, lo, hi = loop.args
    return repeat(body, max(lo - count, 0), None if hi is None else hi - count)


def concat(head: Node, tail: Node) -> Node:
    """`head` followed by `tail`; chains lean to the right, neighbouring literals and neighbouring loops of one body join.

    A head of many factors is shared and not copied: a term that contains another one twice, which contains a third one twice, and so on,
    has as many parts as there are different ones.
    """
    if head is EMPTY or tail is EMPTY:
        return EMPTY
    if head is EPSILON:
        return tail
    if tail is EPSILON:
        return head
    kind, args = head.kind, (head, tail)
    entry = Kind.CONCAT.interned.get(args)  # what is in normal form was made before, and is not looked at again
    if entry is not None and (known := entry()) is not None:
        return known
    if kind is Kind.CONCAT:
        *before, last = islice(factors(head), MAX_COPIED + 1)
        if len(before) == MAX_COPIED:
            return intern(Kind.CONCAT, args, head.nullable and tail.nullable, args)
        work.add(len(before) // _FACTORS_PER_WORK)
        node = concat(last, tail)
        for part in reversed(before):
            node = concat(part, node)
        return node
    if kind is Kind.MUNCH:
        return _munch_then(head, tail)
    if head.nullable:
        if head.is_guarded and kind is Kind.ALTERNATION:
            return alternation(concat(member, tail) for member in head.args)
        if tail is ANYTHING:
            return ANYTHING
    if kind is Kind.LITERAL:
        joined = _join_literals(head, tail)
        if joined is not None:
            return joined
    if kind is Kind.REPEAT:
        first, rest = first_and_rest(tail)
        if first.kind is Kind.REPEAT and first.args[0] is head.args[0]:
            return concat(_add_counts(head, first), rest)
    return intern(Kind.CONCAT, args, head.nullable and tail.nullable, args)


def munch(head: Node, tail: Node, rival: Node = EMPTY) -> Node:
    """`head` by maximal munch, then `tail`: the head ends only where the next byte cannot continue it.

    So two names in a row need something between them, as they do for a lexer. One byte that can continue the head is enough to stay in it,
    even if no text of the head follows.

    Args:
        head: the language that is read first.
        tail: the language after it.
        rival: another language of the same text; the head does not end where the next byte can continue that, either.
            After an empty head this is exact: no prefix of the tail but the empty one is a text of the rival.
    """
    if head is EMPTY or tail is EMPTY:
        return EMPTY
    if head is EPSILON and rival in (EMPTY, EPSILON):
        return tail
    return intern(Kind.MUNCH, (head, tail, rival), head.nullable and tail.nullable, (head, tail, rival))


def _munch_then(node: Node, tail: Node) -> Node:
    """`tail` after a MUNCH node: it becomes a part of it, since it decides where the head ends."""
    heads = []
    while node.kind is Kind.MUNCH:
        heads.append((node.args[0], node.args[2]))
        node = node.args[1]
    out = concat(node, tail)
    for head, rival in reversed(heads):
        out = munch(head, out, rival)
    return out


def _add_counts(left: Node, right: Node) -> Node:
    (body, lo, hi), (_, more_lo, more_hi) = left.args, right.args
    return repeat(body, lo + more_lo, None if hi is None or more_hi is None else hi + more_hi)


def _join_literals(head: Node, tail: Node) -> Node | None:
    first, rest = first_and_rest(tail)
    if first.kind is not Kind.LITERAL or len(head.args[0]) + len(first.args[0]) > MAX_LITERAL:
        return None
    joined = intern(Kind.LITERAL, (head.args[0] + first.args[0],), False)
    return joined if rest is EPSILON else intern(Kind.CONCAT, (joined, rest), False, (joined, rest))


def factors(node: Node) -> Iterator[Node]:
    """The terms that a concatenation consists of, in their order; of another term itself. What `concat` shares is one factor."""
    while node.kind is Kind.CONCAT:
        yield node.args[0]
        node = node.args[1]
    yield node


def sequence(parts: Sequence[Node]) -> Node:
    """The concatenation of all parts; no parts: the empty text."""
    node = EPSILON
    for part in reversed(parts):
        node = concat(part, node)
    return node


def alternation(children: Iterable[Node]) -> Node:
    """The union of the children; none: the empty language.

    Nested alternations are flattened, equal members and single bytes merged, common heads factored out (`ab|ac` is `a(b|c)`),
    adjacent counts of one loop joined (`x{0,3}y|x{2,7}y` is `x{0,7}y`), and members with the same check become one.
    """
    # A union of members with a common head needs the union of their tails first; those that wait are here and not on Python's stack.
    # The same tails stand behind many heads where a language is ambiguous: their union is made once.
    known: dict[tuple[Node, ...], Node] = {}
    members = [child for child in children if child is not EMPTY]
    if len(members) <= 1:
        return members[0] if members else EMPTY
    waiting: list[tuple[tuple[Node, ...], _Unions[Node]]] = [((), _unite(members))]
    united: Node | None = None
    while waiting:
        key, union = waiting[-1]
        try:
            tails = tuple(union.send(united))
        except StopIteration as end:
            waiting.pop()
            united = known[key] = end.value
        else:
            united = known.get(tails)
            if united is None:
                waiting.append((tails, _unite(tails)))
    assert united is not None
    return united


_Unions = Generator[Iterable[Node], Node | None, Value]
"""Yields terms whose union it needs, and is sent that union."""


def _unite(children: Iterable[Node]) -> _Unions[Node]:
    mask, members, bodies, count = 0, dict[Node, None](), dict[Check, list[Node]](), 0
    stack = list(children)
    while stack:
        count += 1
        child = stack.pop()
        kind = child.kind
        if kind is Kind.ALTERNATION:
            stack.extend(child.args)
        elif kind is Kind.BYTES:
            mask |= child.args[0]
        elif kind is Kind.LITERAL and len(child.args[0]) == 1:
            mask |= 1 << child.args[0][0]
        elif child is ANYTHING:
            return ANYTHING
        elif kind is Kind.CHECK:
            bodies.setdefault(child.args[1], []).append(child.args[0])
        else:
            members[child] = None
    work.add(max(len(members), count // _MET_PER_WORK) + 1)  # the same members may be met often
    work.check()
    for check, found in bodies.items():
        members[checked((yield from _union(found)), check)] = None
    if len(members) > 1 and not _differ(members):
        members = dict.fromkeys((yield from _factor_heads(members)))
    if mask:
        members[byte_set(mask)] = None
    if EPSILON in members and any(m.nullable and not m.is_guarded for m in members if m is not EPSILON):
        del members[EPSILON]
    if len(members) <= 1:
        return next(iter(members), EMPTY)
    ordered = tuple(sorted(members, key=_BY_SERIAL))
    return intern(Kind.ALTERNATION, ordered, any(m.nullable for m in ordered), ordered)


def _union(members: list[Node]) -> _Unions[Node]:
    united = members[0] if len(members) == 1 else (yield members)
    assert united is not None
    return united


def _differ(members: Iterable[Node]) -> bool:
    """True if no two members can have a head in common, or adjacent loops of one body."""
    seen = set[Node]()
    for member in members:
        head = member.args[0] if member.kind in (Kind.CONCAT, Kind.MUNCH) else member
        head = _body(head)
        if head in seen:
            return False
        seen.add(head)
    return True


def _factor_heads(members: Iterable[Node]) -> _Unions[list[Node]]:
    tails: dict[Node, list[Node]] = {}
    munched: dict[tuple[Node, Node], list[Node]] = {}
    for member in members:
        if member.kind is Kind.MUNCH:
            head, tail, rival = member.args
            munched.setdefault((head, rival), []).append(tail)
        else:
            head, tail = first_and_rest(member)
            tails.setdefault(head, []).append(tail)
    out: list[Node] = []
    for (head, rival), rest in munched.items():
        tail = yield from _union(rest)
        out.append(munch(head, tail, rival))
    loops: dict[tuple[Node, Node], list[tuple[int, int | None]]] = {}
    for head, rest in tails.items():
        tail = rest[0] if len(rest) == 1 else (yield from _union(rest))
        if head.kind is Kind.REPEAT:
            loops.setdefault((head.args[0], tail), []).append(head.args[1:])
        else:
            out.append(concat(head, tail))
    for (body, tail), counts in loops.items():
        out.extend(concat(repeat(body, lo, hi), tail) for lo, hi in _join_counts(counts))
    return out


def _join_counts(counts: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    counts.sort(key=lambda c: c[0])
    joined = [counts[0]]
    for lo, hi in counts[1:]:
        last_lo, last_hi = joined[-1]
        if last_hi is None:
            break
        if lo > last_hi + 1:
            joined.append((lo, hi))
        else:
            joined[-1] = (last_lo, None if hi is None else max(hi, last_hi))
    return joined


def intersection(children: Iterable[Node]) -> Node:
    """The intersection of the children; none: every byte string.

    Raises:
        ExpressionError: a child contains a rule or a check.
    """
    members, masks, excluded = dict[Node, None](), list[Node](), list[Node]()
    stack = list(children)
    while stack:
        child = stack.pop()
        require_regular(child, "&")
        kind = child.kind
        if kind is Kind.EMPTY:
            return EMPTY
        if kind is Kind.INTERSECTION:
            stack.extend(child.args)
        elif child is not ANYTHING and child not in members:
            members[child] = None
            if kind is Kind.BYTES:
                masks.append(child)
            elif kind is Kind.COMPLEMENT:
                excluded.append(child.args[0])
    if EPSILON in members:
        return EPSILON if all(m.nullable for m in members) else EMPTY
    if any(node in members for node in excluded):
        return EMPTY
    united = [node for node in excluded if node.kind not in _FINITE]
    if len(united) > 1:  # as a union, they may have common heads and adjacent counts
        for node in united:
            del members[complement(node)]
        return intersection((*members, complement(alternation(united))))
    if united and any(m.kind is not Kind.COMPLEMENT and is_among(m, united[0]) for m in members):
        return EMPTY
    if len(masks) > 1:
        mask = ALL_BYTES
        for member in masks:
            mask &= member.args[0]
            del members[member]
        return intersection((*members, byte_set(mask)))
    if len(members) <= 1:
        return next(iter(members), ANYTHING)
    ordered = tuple(sorted(members, key=_BY_SERIAL))
    return intern(Kind.INTERSECTION, ordered, all(m.nullable for m in ordered), ordered)


def is_among(term: Node, union: Node) -> bool:
    """True if all texts of a term are, factor by factor, among those of another one, or of one of its alternatives."""
    head = _body(first_and_rest(term)[0])
    for other in union.args if union.kind is Kind.ALTERNATION else (union,):
        if _body(first_and_rest(other)[0]) is head and _is_within(term, other):
            return True
    return False


def _is_within(term: Node, other: Node) -> bool:
    while term is not other and not (term is EPSILON and other.nullable):
        (head, rest), (first, after) = first_and_rest(term), first_and_rest(other)
        if head is first:
            other = after
        elif first.kind is not Kind.REPEAT or first.args[1:] != (0, None) or first.args[0] is not _body(head):
            return False
        term = rest
    return True


def _body(head: Node) -> Node:
    body: Node = head.args[0] if head.kind is Kind.REPEAT else head
    return body


def complement(child: Node) -> Node:
    """Every byte string that does not belong to `child`.

    Raises:
        ExpressionError: `child` contains a rule or a check.
    """
    require_regular(child, "~")
    if child.kind is Kind.COMPLEMENT:
        inner: Node = child.args[0]
        return inner
    return intern(Kind.COMPLEMENT, (child,), not child.nullable, (child,))


def require_regular(node: Node, operator: str) -> None:
    """Raise `ExpressionError` for an operand of `&` or `~` that is recursive or has checks."""
    if node.is_checked or not node.is_regular:
        reason, what = "refers to a recursive rule", "recursion"
        if node.is_regular:
            reason, what = "has a check of whole values", "checked keyword"
        raise ExpressionError(
            f"{operator!r} takes regular expressions only, and this one {reason}. "
            f"Take the {what} out, or apply the operator to a part without it."
        )


ANYTHING = complement(EMPTY)


def repeat(body: Node, lo: int = 0, hi: int | None = None) -> Node:
    """`body` at least `lo` and at most `hi` times (None: no bound); counted, never unrolled.

    Raises:
        ExpressionError: `lo` is negative or above `hi`.
    """
    if lo < 0 or (hi is not None and hi < lo):
        raise ExpressionError(
            f"a repetition needs 0 <= lo <= hi, received lo={lo!r}, hi={hi!r}. Swap or correct the bounds."
        )
    if hi == 0 or body is EPSILON:
        return EPSILON
    if body is EMPTY:
        return EPSILON if lo == 0 else EMPTY
    if lo == 1 and hi == 1:
        return body
    while body.kind is Kind.REPEAT and _counts_join(body.args[1], body.args[2], lo, hi):
        body, least, most = body.args
        lo, hi = lo * least, None if most is None or hi is None else hi * most
    if body.nullable:
        lo = 0
        if hi is None and (rest := folded(body, _nullable_parts, _without_empty, {})) is not body:
            return repeat(rest)
    return intern(Kind.REPEAT, (body, lo, hi), lo == 0, (body,))


def _nullable_parts(node: Node) -> tuple[Node, ...]:
    if not node.nullable or node.is_guarded:
        return ()
    return node.args[:1] if node.kind is Kind.REPEAT else node.args if node.kind in _CHAINS else ()


def _without_empty(node: Node, parts: list[Node]) -> Node:
    """The body of an unbounded loop, given its nullable parts in the same form: `(a?b*)*` is `(a|b)*`, which has one way to be empty.

    Source: star normal form, Brüggemann-Klein 1993, doi:10.1016/0304-3975(93)90287-4.
    """
    return alternation(parts) if parts else EMPTY if node is EPSILON else node


def _counts_join(least: int, most: int | None, lo: int, hi: int | None) -> bool:
    """True when `(x{least,most}){lo,hi}` leaves no gap, so that it is one loop: nested counts would multiply states."""
    if lo == hi or least <= (1 if lo == 0 else 0):
        return True
    if lo == 0:
        return False
    return most is None or (lo + 1) * least <= lo * most + 1


def optional(body: Node) -> Node:
    """`body` or nothing; of a loop, one loop."""
    if body.kind is Kind.REPEAT and body.args[1] == 1:
        return repeat(body.args[0], 0, body.args[2])
    return alternation((body, EPSILON))


def not_empty(node: Node) -> Node:
    """The texts of a term but the empty one."""
    if not node.nullable:
        return node
    if node.kind is Kind.REPEAT and not node.args[0].nullable:
        return repeat(node.args[0], 1, node.args[2])
    if node.kind is Kind.ALTERNATION and not any(part.nullable for part in node.args if part is not EPSILON):
        return alternation(part for part in node.args if part is not EPSILON)
    return intersection((node, complement(EPSILON)))


class Check(Protocol):
    """The condition of a CHECK node on a whole text; hashable, equal where it is the same condition.

    Attributes:
        telling_bytes: the bytes after which `fault` may find more than before.
    """

    @property
    def telling_bytes(self) -> frozenset[int]:
        """See the attributes; empty if `fault` never finds one."""

    def holds(self, data: bytes) -> bool:
        """True when the whole text passes."""

    def fault(self, data: bytes) -> int | None:
        """The index in a prefix of a text of what no continuation can correct; None if nothing is known to be wrong."""


def checked(body: Node, check: Check) -> Node:
    """The texts of `body` that pass a check; the automaton accepts all texts of `body`."""
    return EMPTY if body is EMPTY else intern(Kind.CHECK, (body, check), body.nullable, (body,))


class Machine(Protocol):
    """An automaton of its own kind, for a language of which no small term is known; the reader of a MACHINE node."""

    def is_accepting(self, state: Any) -> bool:
        """True when the text may end in `state`."""

    def parts(self, state: Any) -> tuple[Node, ...]:
        """The terms of which `arcs` needs the arcs; empty if it computes them by itself."""
        return ()

    def arcs(self, state: Any, known: Mapping[Node, Sequence[tuple[int, Node]]]) -> Iterable[tuple[int, Node]]:
        """Disjoint masks of bytes, each with the derivative; by default those of the only part, which is the language of `state`.

        `known` has the arcs of all `parts`.
        """
        parts = self.parts(state)
        return known[parts[0]] if parts else ()

    def distance(self, state: Any) -> int:
        """About how many bytes the shortest text from `state` on has, for searches; one or more where `state` does not accept."""
        return 1

    def like(self, state: Any) -> Node | None:
        """A term that is empty exactly where the language of `state` is; None if a search must find that out."""
        return None


def machine(reader: Machine, state: Hashable, *, is_plain: bool) -> Node:
    """The texts that `reader` accepts from `state` on; `is_plain` promises that neither they nor any derivative is empty."""
    return intern(Kind.MACHINE, (reader, state), reader.is_accepting(state), () if is_plain else (EMPTY,))


_ATOMS = frozenset({Kind.EMPTY, Kind.EPSILON, Kind.BYTES, Kind.LITERAL, Kind.WORDS})
_NUM_OPERANDS = {
    Kind.CONCAT: 2, Kind.ALTERNATION: None, Kind.INTERSECTION: None, Kind.COMPLEMENT: 1, Kind.REPEAT: 1, Kind.CHECK: 1, Kind.MUNCH: 2
}  # fmt: skip


def children(node: Node) -> tuple[Node, ...]:
    """The terms that a node is built from, the body of a rule included."""
    kind, args = node.kind, node.args
    if kind in _NUM_OPERANDS:
        return args[: _NUM_OPERANDS[kind]]
    found: tuple[Node, ...] = ()
    if kind is Kind.CONTINUATION:
        found = args[0], *args[2]
    elif kind is Kind.RULE:
        found = (args[0].body,)
    elif kind is Kind.MEMBERS:
        found = args[0].parts
    elif kind is Kind.FIELDS or kind is Kind.MACHINE:
        found = args[0].parts(args[1])
    return found


def reached(root: Vertex, successors: Callable[[Vertex], Iterable[Vertex]]) -> Iterator[Vertex]:
    """Everything that can be reached from `root`, itself included, each once, breadth first."""
    seen, queue = {root}, [root]
    for vertex in queue:
        yield vertex
        for successor in successors(vertex):
            if successor not in seen:
                seen.add(successor)
                queue.append(successor)


def reaching(ends: Iterable[Vertex], edges: Iterable[tuple[Vertex, Vertex]]) -> set[Vertex]:
    """The vertices of a graph from which one of some others can be reached, these included."""
    before: dict[Vertex | None, list[Vertex]] = {None: [*ends]}
    for source, target in edges:
        before.setdefault(target, []).append(source)
    found = reached(None, lambda vertex: before.get(vertex, ()))
    return {vertex for vertex in found if vertex is not None}


def components(edges: dict[Vertex, list[Vertex]]) -> Iterator[list[Vertex]]:
    """The strongly connected components of a graph, without recursion (Kosaraju's algorithm)."""
    order: list[Vertex] = []
    seen: set[Vertex] = set()
    for root in edges:
        stack = [] if root in seen else [(root, iter(edges[root]))]
        seen.add(root)
        while stack:
            name, below = stack[-1]
            following = next((n for n in below if n not in seen), None)
            if following is None:
                order.append(name)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(edges[following])))
    backwards: dict[Vertex, list[Vertex]] = {name: [] for name in edges}
    for name in edges:
        for following in edges[name]:
            backwards[following].append(name)
    done: set[Vertex] = set()
    for root in reversed(order):
        if root not in done:
            component = list(reached(root, lambda name: [n for n in backwards[name] if n not in done]))
            done.update(component)
            yield component


def all_parts(root: Node) -> Iterator[Node]:
    """A term and all that it is built from, each once, breadth first; the bodies of rules included."""
    return reached(root, children)


def folded(
    root: Node,
    parts: Callable[[Node], tuple[Node, ...]],
    combine: Callable[[Node, list[Value]], Value],
    known: dict[Node, Value],
) -> Value:
    """Compute `combine` of a term and of the values of its `parts`, bottom up, without recursion; `known` is the memo of all values."""
    stack = [] if root in known else [(root, parts(root))]
    while stack:
        top, below = stack[-1]
        size = len(stack)
        for part in below:
            if part not in known:
                deeper = parts(part)
                if deeper:
                    stack.append((part, deeper))
                else:
                    known[part] = combine(part, [])
        if len(stack) == size:
            stack.pop()
            known[top] = combine(top, [known[part] for part in below])
    return known[root]


def memory(root: Node) -> int:
    """About how many bytes `root` and all that it is built from take, without rules that are not built. Cost: 0.5 us per term."""

    def parts(node: Node) -> tuple[Node, ...]:
        is_left_out = node.kind in _ATOMS or (node.kind is Kind.RULE and not node.args[0].is_built)
        return () if is_left_out else children(node)

    found = list(reached(root, parts))
    word_lists = {node.args[0] for node in found if node.kind is Kind.WORDS}
    return 500 * len(found) + sum(len(word) + 50 for words in word_lists for word in words.words)
