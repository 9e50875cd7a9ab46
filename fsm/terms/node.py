"""`Node`: terms, which are regular expressions over bytes with intersection, complement, counters and recursive rules, hash-consed.

Terms are immutable, and equal ones are one object, found in a table of weak references; so a state of an automaton can be a node. The
functions that build nodes simplify them by algebraic laws, which does not find all equal languages. Counters, sets of words and rules are
not expanded. Other languages are added as a `Machine`, conditions beyond automata as a `Check`. Derivatives are in `derivative.py`, public
operators in `expression.py`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar
from weakref import ref

from fsm.errors import ExpressionError
from fsm.terms import work_budget as work

Value = TypeVar("Value")

ALL_BYTES = (1 << 256) - 1
MAX_LITERAL = 64  # a longer literal is a chain of such pieces, so that taking off one byte stays cheap


class Kind:
    """The operator of a node; the comment gives its `args`. There is one object of each: compare them with `is`.

    Not an `Enum`: looking up a member of one takes five times as long in Python 3.11, and this is the most frequent operation here.
    """

    __slots__ = ("name",)

    EMPTY: ClassVar[Kind]  # (): no text at all
    EPSILON: ClassVar[Kind]  # (): the empty text
    BYTES: ClassVar[Kind]  # (mask,): one byte; bit b of the 256-bit integer allows byte b
    LITERAL: ClassVar[Kind]  # (bytes,): this text
    WORDS: ClassVar[Kind]  # (WordList, lo, hi, depth): words lo..hi of a sorted list without their first `depth` bytes
    CONCAT: ClassVar[Kind]  # (head, tail): head is never a CONCAT
    ALTERNATION: ClassVar[Kind]  # (child, ...), by serial number
    INTERSECTION: ClassVar[Kind]  # (child, ...), by serial number
    COMPLEMENT: ClassVar[Kind]  # (child,)
    REPEAT: ClassVar[Kind]  # (body, lo, hi or None)
    RULE: ClassVar[Kind]  # (Rule,): what the rule stands for
    DIVISIBLE: ClassVar[Kind]  # (divisor, remainder, most): at most so many digits that, after `remainder`, divide
    FIELDS: ClassVar[Kind]  # (FieldList, start, lo, hi, depth): optional fields in order; see `optional_fields.py`
    MEMBERS: ClassVar[Kind]  # (MemberTable, state): members of an object in any order; see `object_members.py`
    MUNCH: ClassVar[Kind]  # (head, tail, rival): the head as long as it or a rival beside it can go on, then the tail
    CHECK: ClassVar[Kind]  # (body, Check): the texts of the body that pass the check; see `check.py`
    MACHINE: ClassVar[Kind]  # (Machine, state): what a machine of its own kind reads from that state on; see `luhn.py`
    CONTINUATION: ClassVar[
        Kind
    ]  # (head, Continuation, (behind, ...)): the head, then its continuation; see `continuation.py`

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Kind.{self.name}"


for _name in Kind.__annotations__:
    setattr(Kind, _name, Kind(_name))


class Node:
    """One term.

    `nullable`: the empty text belongs to it; `is_regular`: no rule inside; `is_plain`: never empty by construction; `is_checked`:
    there is a check inside, or a rule, which may hold one; `is_inhabited`: some text is known to belong to it (the only attribute that
    ever changes: a search that found a text need not be repeated).
    """

    __slots__ = (
        "__weakref__",
        "args",
        "is_checked",
        "is_inhabited",
        "is_plain",
        "is_regular",
        "kind",
        "nullable",
        "serial",
    )

    kind: Kind
    args: tuple[Any, ...]
    nullable: bool
    is_regular: bool
    is_plain: bool
    is_checked: bool
    is_inhabited: bool
    serial: int

    def __repr__(self) -> str:
        return f"<{self.kind.name.lower()} {self.serial}>"


class Rule:
    """A named term that may refer to itself; it is given its body once, with `define` or by `build` when it is first needed.

    The body must not match the empty text (JSON values never do), so that nullability needs no fixed point. A rule keeps its body. Where
    the body refers to the rule, the two would form a reference cycle: make such rules with `Rules`.

    Args:
        name: for messages.
        build: makes the body; it may be called by any thread, and refer to rules that are not built yet.
        is_sure: a promise that the body is not empty, nor what any of its texts begins.
        is_inhabited: a promise that some text belongs to the body; so it need not be built to find that out.
        family: what rules have in common that differ in how deep they may be nested; they hold the same checks.
        keeps: what must live as long as the rule.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_build",
        "_family",
        "_keeps",
        "_rules",
        "is_inhabited",
        "is_sure",
        "name",
        "number",
    )

    def __init__(
        self,
        name: str,
        build: Callable[[], Node] | None = None,
        *,
        is_sure: bool = False,
        is_inhabited: bool = False,
        family: Hashable = None,
        keeps: object = None,
    ) -> None:
        self.name = name
        self.number = next(_numbers)
        self.is_sure = is_sure
        self.is_inhabited = is_sure or is_inhabited
        self._family, self._keeps = family, keeps
        self._build = build
        self._body: Node | None = None
        self._rules: ref[Rules] | None = None

    @property
    def family(self) -> Hashable:
        """What this rule has in common with others; itself where it has nothing."""
        return self if self._family is None else self._family

    @property
    def is_built(self) -> bool:
        """Whether the body is there already."""
        return self._known() is not None

    @property
    def body(self) -> Node:
        """What the rule stands for.

        Raises:
            ExpressionError: the rule was never defined, or the rules that it is one of are gone.
        """
        body = self._known()
        if body is None:
            with _building:
                body = self._known()
                if body is None:
                    if self._build is None:
                        raise ExpressionError(
                            f"rule {self.name!r} has no body. Define it before the expression is used, and keep the expression "
                            "as long as what is left of it."
                        )
                    with work.uncounted():
                        body = self._build()
                        self.define(body)
        return body

    def _known(self) -> Node | None:
        if self._rules is None:
            return self._body
        rules = self._rules()
        return None if rules is None else rules.bodies.get(self)

    def define(self, body: Node) -> None:
        """Set what the rule stands for.

        Raises:
            ExpressionError: the rule has a body already, or `body` matches the empty text.
        """
        if self._known() is not None:
            raise ExpressionError(f"rule {self.name!r} is defined already. Give each rule one body.")
        if body.nullable:
            raise ExpressionError(
                f"rule {self.name!r} matches the empty text. Make the place that uses it optional instead."
            )
        rules = None if self._rules is None else self._rules()
        if rules is None:
            self._body, self._build = body, None
        else:
            rules.bodies[self] = body


class Rules:
    """Rules whose bodies lead back to them, and these bodies.

    Such a rule finds its body here and does not keep it; what keeps all bodies is the term from outside, `entrance`. So nothing keeps
    itself, and everything is freed with the last term that holds an entrance.

    What is left of an entrance after some bytes does not keep the bodies that it refers to: the caller that derives it further keeps the
    entrance, as an automaton keeps its first state.

    Attributes:
        bodies: of the rules that are defined.
    """

    __slots__ = ("__weakref__", "bodies")

    def __init__(self) -> None:
        self.bodies: dict[Rule, Node] = {}

    def rule(self, name: str, *, is_sure: bool = False) -> Rule:
        """A rule whose body will lie here; see `Rule`."""
        made = Rule(name, is_sure=is_sure)
        made._rules = ref(self)
        return made

    def entrance(self, rule: Rule) -> Node:
        """The term of a rule, which keeps all bodies alive.

        Raises:
            ExpressionError: the rule has no body yet.
        """
        outer = Rule(rule.name, is_sure=rule.is_sure, is_inhabited=rule.is_inhabited, family=rule, keeps=self)
        outer.define(rule.body)
        return reference(outer)


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
    """A weak reference that knows its place in the table; a third of what an entry of a WeakValueDictionary costs."""

    __slots__ = ("key",)

    key: tuple[Any, ...]


_interned: dict[tuple[Any, ...], _Entry] = {}
_building = threading.RLock()
_lock = threading.RLock()  # a node may die, and so call `_forget`, while its own thread holds the lock
_serial = iter(range(1 << 62))
_numbers = iter(range(1 << 62))  # of rules
PREFIX_KINDS = frozenset({Kind.EPSILON, Kind.BYTES, Kind.LITERAL, Kind.CONCAT, Kind.ALTERNATION, Kind.REPEAT})
"""The kinds of terms that a prefix consists of, such as the rest of a number."""
_MAY_CHECK = frozenset({Kind.RULE, Kind.CHECK})
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
        key: what tells it from others, where the arguments would lead from there back to the node.
    """
    if key is None:
        key = (kind, *args)
    entry = _interned.get(key)
    node = None if entry is None else entry()
    if node is not None:
        return node
    is_regular, is_plain, is_checked = kind is not Kind.RULE, kind not in _NOT_PLAIN, kind in _MAY_CHECK
    if kind is Kind.RULE:
        is_plain = args[0].is_sure
    for child in children:
        is_regular, is_plain = is_regular and child.is_regular, is_plain and child.is_plain
        is_checked = is_checked or child.is_checked
    if kind is Kind.INTERSECTION or kind is Kind.COMPLEMENT:
        is_plain = _excludes_few(kind, args)
    with _lock:
        entry = _interned.get(key)
        node = None if entry is None else entry()
        if node is None:
            node = Node()
            node.kind, node.args, node.nullable = kind, args, nullable
            node.is_regular, node.is_plain, node.is_checked = is_regular, is_plain, is_checked
            node.is_inhabited = is_plain or nullable or (kind is Kind.RULE and args[0].is_inhabited)
            node.serial = next(_serial)
            entry = _interned[key] = _Entry(node, _forget)
            entry.key = key
    return node


def _excludes_few(kind: Kind, children: tuple[Node, ...]) -> bool:
    """True where at most finitely many texts are left out: of all, or of one endless language that is never empty itself.

    Whatever such a language has begun with, endlessly many texts go on, so that it is never empty either. The keys of an object
    that are not declared are one: any string but these.
    """
    if kind is Kind.COMPLEMENT:
        return children[0].kind in _FINITE
    others = [child for child in children if child.kind is not Kind.COMPLEMENT or child.args[0].kind not in _FINITE]
    return not others or (len(others) == 1 and others[0].is_plain and _is_endless(others[0]))


def _is_endless(node: Node) -> bool:
    """True where a text of `node` ends in a loop without bound; false may mean that it was not found out."""
    while node.kind is Kind.CONCAT:
        node = node.args[1]
    return node.kind is Kind.REPEAT and node.args[2] is None and not node.args[0].nullable


def _forget(entry: ref[Node]) -> None:
    assert isinstance(entry, _Entry)
    with _lock:
        if _interned.get(entry.key) is entry:
            del _interned[entry.key]


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
    node = EPSILON
    for start in reversed(range(0, len(text), MAX_LITERAL)):
        piece = intern(Kind.LITERAL, (text[start : start + MAX_LITERAL],), False)
        node = piece if node is EPSILON else intern(Kind.CONCAT, (piece, node), False, (piece, node))
    return node


def words(texts: Iterable[bytes]) -> Node:
    """One of these texts; a sorted list that is narrowed as bytes arrive, never expanded. Cost: one sort."""
    ordered = tuple(sorted(set(texts)))
    return word_range(WordList(ordered), 0, len(ordered), 0)


def word_range(word_list: WordList, lo: int, hi: int, depth: int) -> Node:
    """The words `lo <= i < hi` of a list, all alike in their first `depth` bytes, without those bytes."""
    if lo == hi:
        return EMPTY
    if hi - lo == 1:
        return literal(word_list.words[lo][depth:])
    return intern(Kind.WORDS, (word_list, lo, hi, depth), len(word_list.words[lo]) == depth)


def next_words(texts: Sequence[bytes], lo: int, hi: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield each byte at `depth` of the sorted texts lo..hi, alike before it and longer, and the range of texts that have it."""
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


def narrowed(
    data: bytes, position: int, texts: Sequence[bytes], lo: int, hi: int, depth: int
) -> tuple[int, int, int, int]:
    """Narrow the sorted texts lo..hi, alike in their first `depth` bytes, by bytes of `data`, while several are left and none of them ends.

    Returns:
        The new lo, hi and depth, and the position after the last byte that was read. Cost: two searches per byte.
    """
    while position < len(data) and hi - lo > 1 and len(texts[lo]) > depth:
        before, byte = texts[lo][:depth], data[position]
        lo = bisect_left(texts, before + bytes((byte,)), lo, hi)
        hi = hi if byte == 255 else bisect_left(texts, before + bytes((byte + 1,)), lo, hi)
        depth, position = depth + 1, position + 1
    return lo, hi, depth, position


def read_words(data: bytes, position: int, word_list: WordList, lo: int, hi: int, depth: int) -> tuple[Node, int]:
    """Narrow a range of words by bytes from `position` on: what is left, and the position after it. Cost: see `narrowed`, and one term."""
    lo, hi, depth, position = narrowed(data, position, word_list.words, lo, hi, depth)
    return word_range(word_list, lo, hi, depth), position


def first_and_rest(node: Node) -> tuple[Node, Node]:
    """Read a term as what comes first, and what comes after it."""
    return node.args if node.kind is Kind.CONCAT else (node, EPSILON)


def concat(head: Node, tail: Node) -> Node:
    """`head` followed by `tail`; chains lean to the right, neighbouring literals and neighbouring loops of one body join."""
    if head is EMPTY or tail is EMPTY:
        return EMPTY
    if head is EPSILON:
        return tail
    if tail is EPSILON:
        return head
    kind = head.kind
    if kind is Kind.CONCAT:
        return sequence((*_chain(head), tail))
    if kind is Kind.MUNCH:
        return _munch_on(head, tail)
    if head.nullable:
        if kind is Kind.ALTERNATION and any(map(_is_guarded, head.args)):
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
    return intern(Kind.CONCAT, (head, tail), head.nullable and tail.nullable, (head, tail))


def munch(head: Node, tail: Node, rival: Node = EMPTY) -> Node:
    """`head` as long as it can be, then `tail`: the head is left only where the next byte could not go on with it.

    So two names in a row need something between them, as they do for a lexer. A byte that could begin to go on with the head is
    enough to stay in it, even if the rest does not follow.

    Args:
        head: what is read first.
        tail: what comes after it.
        rival: what another reader would make of the same text; the head is not left where the next byte could go on with that, either.
            After an empty head this is exact: no beginning of the tail is a text of the rival, but for the empty one.
    """
    if head is EMPTY or tail is EMPTY:
        return EMPTY
    if head is EPSILON and rival in (EMPTY, EPSILON):
        return tail
    return intern(Kind.MUNCH, (head, tail, rival), head.nullable and tail.nullable, (head, tail, rival))


def _is_guarded(node: Node) -> bool:
    """True where the empty text belongs to the node, and a MUNCH inside restricts what may follow."""
    while node.kind is Kind.CONCAT and node.nullable:
        if node.args[0].kind is Kind.MUNCH:
            return True
        node = node.args[1]
    return node.kind is Kind.MUNCH


def _munch_on(node: Node, tail: Node) -> Node:
    """`tail` after a MUNCH node: it belongs inside, since it decides where the head ends."""
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


def _chain(node: Node) -> Iterator[Node]:
    while node.kind is Kind.CONCAT:
        yield node.args[0]
        node = node.args[1]
    yield node


def sequence(parts: Sequence[Node]) -> Node:
    """All parts, one after the other; no parts: the empty text."""
    node = EPSILON
    for part in reversed(parts):
        node = concat(part, node)
    return node


def alternation(children: Iterable[Node]) -> Node:
    """Any of the children; none: the empty language.

    Nested alternations are flattened, equal members and single bytes merged, common heads taken out
    (`ab|ac` is `a(b|c)`), neighbouring counts of one loop joined (`x{0,3}y|x{2,7}y` is `x{0,7}y`) and what has the same check
    checked once.
    """
    waiting = [
        _unite(children)
    ]  # a long common head needs as many unions of tails; they wait here, not on Python's stack
    united: Node | None = None
    while True:
        try:
            tails = waiting[-1].send(united)
        except StopIteration as end:
            waiting.pop()
            united = end.value
            if not waiting:
                assert united is not None
                return united
        else:
            waiting.append(_unite(tails))
            united = None


_Union = Generator[list[Node], Node | None, Node]
"""Yields tails whose union it needs, is sent that union, and returns its own."""


def _unite(children: Iterable[Node]) -> _Union:
    mask, members, bodies = 0, dict[Node, None](), dict[Check, list[Node]]()
    stack = list(children)
    while stack:
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
        elif kind is not Kind.EMPTY:
            members[child] = None
    work.add(len(members) + 1)
    work.check()
    for check, found in bodies.items():  # texts that pass one check are read in one way
        united = found[0] if len(found) == 1 else (yield found)
        assert united is not None
        members[checked(united, check)] = None
    if len(members) > 1:
        members = dict.fromkeys((yield from _take_out_heads(members)))
    if mask:
        members[byte_set(mask)] = None
    if EPSILON in members and any(m.nullable and not _is_guarded(m) for m in members if m is not EPSILON):
        del members[EPSILON]
    if len(members) <= 1:
        return next(iter(members), EMPTY)
    ordered = tuple(sorted(members, key=_by_serial))
    return intern(Kind.ALTERNATION, ordered, any(m.nullable for m in ordered), ordered)


def _by_serial(node: Node) -> int:
    return node.serial


def _take_out_heads(members: Iterable[Node]) -> Generator[list[Node], Node | None, list[Node]]:
    tails: dict[Node, list[Node]] = {}
    munched: dict[tuple[Node, Node], list[Node]] = {}
    for member in members:
        if member.kind is Kind.MUNCH:
            head, tail, rival = member.args
            munched.setdefault((head, rival), []).append(tail)
            continue
        head, tail = first_and_rest(member)
        tails.setdefault(head, []).append(tail)
    out: list[Node] = []
    for (head, rival), rest in munched.items():
        united = rest[0] if len(rest) == 1 else (yield rest)
        assert united is not None
        out.append(munch(head, united, rival))
    loops: dict[tuple[Node, Node], list[tuple[int, int | None]]] = {}
    for head, rest in tails.items():
        tail = rest[0] if len(rest) == 1 else (yield rest)
        assert tail is not None
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
    """What belongs to every child; none: every text.

    Raises:
        ExpressionError: a child refers to a rule; only regular languages can be intersected here.
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
    if any(left_out in members for left_out in excluded):
        return EMPTY
    united = [left_out for left_out in excluded if left_out.kind not in _FINITE]
    if len(united) > 1:  # as a union, what is excluded may have common heads and neighbouring counts
        for left_out in united:
            del members[complement(left_out)]
        return intersection((*members, complement(alternation(united))))
    if len(masks) > 1:
        mask = ALL_BYTES
        for member in masks:
            mask &= member.args[0]
            del members[member]
        return intersection((*members, byte_set(mask)))
    if len(members) <= 1:
        return next(iter(members), ANYTHING)
    ordered = tuple(sorted(members, key=_by_serial))
    return intern(Kind.INTERSECTION, ordered, all(m.nullable for m in ordered), ordered)


def complement(child: Node) -> Node:
    """Every byte string that does not belong to `child`.

    Raises:
        ExpressionError: `child` refers to a rule; only regular languages have a complement here.
    """
    require_regular(child, "~")
    if child.kind is Kind.COMPLEMENT:
        inner: Node = child.args[0]
        return inner
    return intern(Kind.COMPLEMENT, (child,), not child.nullable, (child,))


def require_regular(node: Node, operator: str) -> None:
    """Refuse a recursive or checked operand of `&` or `~`."""
    if node.is_regular and node.is_checked:
        raise ExpressionError(
            f"{operator!r} takes regular expressions only, and this one has a check, which looks at whole values. "
            "Take the checked keyword out, or apply the operator to a part without it."
        )
    if not node.is_regular:
        raise ExpressionError(
            f"{operator!r} takes regular expressions only, and this one refers to a recursive rule. "
            "Take the recursion out, or apply the operator to a part without it."
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
    return intern(Kind.REPEAT, (body, lo, hi), lo == 0, (body,))


def _counts_join(least: int, most: int | None, lo: int, hi: int | None) -> bool:
    """True when `(x{least,most}){lo,hi}` leaves no gap, so that it is one loop: nested counts would multiply states."""
    if lo == hi or least <= (1 if lo == 0 else 0):
        return True
    if lo == 0:
        return False
    return most is None or (lo + 1) * least <= lo * most + 1


def optional(body: Node) -> Node:
    """`body` or nothing."""
    return alternation((body, EPSILON))


def reference(rule: Rule) -> Node:
    """What `rule` stands for, looked up when it is first needed."""
    return intern(Kind.RULE, (rule,), False, key=(Kind.RULE, rule.number))


def divisible(divisor: int, remainder: int = 0, most: int | None = None) -> Node:
    """At most `most` decimal digits whose number, `remainder` written before them, is a multiple of `divisor`.

    No digits count as `remainder` itself. Cost: `divisor` times `most` states at the worst, made when reached.
    """
    shortest = most is None or most >= len(str(divisor))
    if not shortest and all(-remainder * 10**n % divisor >= 10**n for n in range((most or 0) + 1)):
        return EMPTY
    return intern(Kind.DIVISIBLE, (divisor, remainder, most), remainder == 0)


class Check(Protocol):
    """The condition of a CHECK node on a whole text; hashable, equal where it is the same condition.

    Attributes:
        telling_bytes: those after which `fault` may know more than before.
    """

    @property
    def telling_bytes(self) -> frozenset[int]:
        """See the attributes; empty where `fault` never finds one."""

    def holds(self, data: bytes) -> bool:
        """True when the whole text passes."""

    def fault(self, data: bytes) -> int | None:
        """Where in the beginning of a text something begins that no continuation mends; None: nothing is known to be wrong."""


def checked(body: Node, check: Check) -> Node:
    """The texts of `body` that pass a check; for the automaton alone, all texts of `body`."""
    return EMPTY if body is EMPTY else intern(Kind.CHECK, (body, check), body.nullable, (body,))


class Machine(Protocol):
    """What a MACHINE node needs: a language given by states and steps, where no term of ours is small."""

    def is_accepting(self, state: Any) -> bool:
        """True when the text may end in `state`."""

    def parts(self, state: Any) -> tuple[Node, ...]:
        """The terms whose arcs `arcs` needs; none where the steps are arithmetic."""
        return ()

    def arcs(self, state: Any, known: Mapping[Node, Sequence[tuple[int, Node]]]) -> Iterable[tuple[int, Node]]:
        """Disjoint masks of bytes, each with the term that is left: those of the only part, which is what `state` accepts.

        `known` has the arcs of all `parts`.
        """
        parts = self.parts(state)
        return known[parts[0]] if parts else ()


def machine(reader: Machine, state: Hashable, *, is_plain: bool) -> Node:
    """What `reader` accepts from `state` on; `is_plain` promises that this is never empty, nor anything that it leads to."""
    return intern(Kind.MACHINE, (reader, state), reader.is_accepting(state), () if is_plain else (EMPTY,))


def children(node: Node) -> tuple[Node, ...]:
    """The terms that a node is built from, the body of a rule included."""
    kind = node.kind
    if kind in (Kind.CONCAT, Kind.ALTERNATION, Kind.INTERSECTION, Kind.COMPLEMENT):
        return node.args
    if kind is Kind.REPEAT or kind is Kind.CHECK:
        return node.args[:1]
    if kind is Kind.MUNCH:
        return node.args[:2]
    if kind is Kind.CONTINUATION:
        return (node.args[0], *node.args[2])
    if kind is Kind.RULE:
        return (node.args[0].body,)
    if kind is Kind.MEMBERS:
        terms: tuple[Node, ...] = node.args[0].parts
        return terms
    if kind in (Kind.FIELDS, Kind.MACHINE):
        parts: tuple[Node, ...] = node.args[0].parts(node.args[1])
        return parts
    return ()


def all_parts(root: Node) -> Iterator[Node]:
    """A term and all that it is built from, each once, breadth first; the bodies of rules included."""
    seen, queue = {root}, [root]
    for node in queue:
        yield node
        new = [child for child in children(node) if child not in seen]
        seen.update(new)
        queue += new


def folded(
    root: Node,
    parts: Callable[[Node], tuple[Node, ...]],
    combine: Callable[[Node, list[Value]], Value],
    known: dict[Node, Value],
) -> Value:
    """What `combine` makes of a term and of the values of its `parts`, from the bottom up, without recursion; `known` keeps all values."""
    stack = [] if root in known else [root]
    while stack:
        below = parts(stack[-1])
        missing = [part for part in below if part not in known]
        stack += missing
        if not missing:
            top = stack.pop()
            known[top] = combine(top, [known[part] for part in below])
    return known[root]


def memory(root: Node) -> int:
    """About how many bytes `root` and all that it is built from take. Cost: 0.5 us per term."""
    seen: set[object] = {root}
    queue, total = [root], 0
    for node in queue:
        total += 500
        if node.kind is Kind.WORDS:
            word_list: WordList = node.args[0]
            if word_list not in seen:
                seen.add(word_list)
                total += sum(map(len, word_list.words)) + 50 * len(word_list.words)
        if node.kind is Kind.RULE and not node.args[0].is_built:
            continue
        for child in children(node):
            if child not in seen:
                seen.add(child)
                queue.append(child)
    return total
