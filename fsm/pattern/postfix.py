"""The compiler from regular expressions in postfix order to terms, shared by all dialects.

A parser (`python_pattern.py`, `ecma_pattern.py`) turns text into instructions: `ab|c*` is Text(a) Text(b) Join(2) Text(c) Loop(0, None)
Choose(2). Postfix needs an explicit stack and no recursion, however deeply a pattern is nested.

Anchors are exact. A pattern compiles to a `Table`: its texts by what they assert about the position before their first character and
after their last one. Concatenation keeps of each part what the assertions of the other allow. Lookarounds are conditions on the whole
rest of the text, or on all of it so far: the pattern is kept as alternatives of pieces until it is complete, and each condition is then
an intersection (`(?=x)rest` is `rest & x.*`).
What this leaves to `lookaround.py`: line anchors inside a repetition, an anchor inside a repetition of at least nine times, lookarounds
inside a repetition, and a lookbehind of more than one character after a lookahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from fsm.terms import node as nodes
from fsm.terms.characters import Ranges, Speller, invert
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node

MAX_ANCHORED_COUNT = 8  # such a loop is unrolled, and each turn may split the table
MAX_ANCHORED_LOOPS = 4  # and where they are nested, their lengths multiply
_TAKE_OUT = "Take the anchor out of the repetition: it can hold in one turn only."


class Before(IntEnum):
    """What is asserted about the place before the first character; each level implies those below it."""

    ANY = 0
    LINE_START = 1
    TEXT_START = 2


class After(IntEnum):
    """What is asserted about the place after the last character; each level implies those below it."""

    ANY = 0
    LINE_END = 1
    LAST_LINE_END = 2  # at the end of the text, or before a newline that ends it
    TEXT_END = 3


Table = dict[tuple[Before, After], Node]
"""The texts of a pattern by what they assert; the absent entries are empty."""

FREE = (Before.ANY, After.ANY)
_NOTHING: Table = {FREE: EPSILON}
_NEWLINE = nodes.literal(b"\n")
_NOT_EMPTY = nodes.complement(EPSILON)
_ENDS_IN_NEWLINE = nodes.concat(nodes.repeat(nodes.byte_set(ALL_BYTES)), _NEWLINE)


@dataclass(frozen=True, slots=True)
class Text:
    """Push exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Character:
    """Push one character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Assert:
    """Push the empty text where the assertion holds."""

    before: Before = Before.ANY
    after: After = After.ANY


@dataclass(frozen=True, slots=True)
class Join:
    """Replace the last `count` by their concatenation."""

    count: int


@dataclass(frozen=True, slots=True)
class Choose:
    """Replace the last `count` by their union."""

    count: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Replace the last one by its repetition, `lo` to `hi` times (None: no bound); `is_lazy` says that less is tried first."""

    lo: int
    hi: int | None
    is_lazy: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Replace the last one by the condition that its texts come next (or stand just before), or that none of them does."""

    is_behind: bool = False
    is_negative: bool = False


Instruction = Text | Character | Assert | Join | Choose | Loop | Look


@dataclass(frozen=True, slots=True)
class Condition:
    """A lookaround.

    Attributes:
        node: what the rest of the text is, or all before; negation is in it already.
        is_behind: whether it looks back.
        is_local: whether it looks back at one character only.
        is_negative: whether it holds where there is nothing to look at.
    """

    node: Node
    is_behind: bool
    is_local: bool = False
    is_negative: bool = False


Piece = dict[tuple["Before", "After"], Node] | Condition


@dataclass(frozen=True, slots=True)
class Looked:
    """A pattern with lookarounds: alternatives, each a sequence of tables and conditions."""

    alternatives: tuple[tuple[Piece, ...], ...]


MAX_CONDITIONS = 8  # lookarounds of one alternative: the states of their texts multiply
MAX_LOOKED = 64  # alternatives of a pattern with lookarounds


class NotSupported(Exception):
    """A construct that is not regular, or not exact here; `python_pattern.py` and `ecma_pattern.py` make it a public error."""

    def __init__(self, construct: str, advice: str) -> None:
        super().__init__(construct, advice)
        self.construct = construct
        self.advice = advice


def compile_postfix(program: Iterable[Instruction], spell: Speller) -> Table | Looked:
    """Run the instructions and return the table of the pattern, or its alternatives where it has lookarounds.

    Args:
        program: a well-formed pattern in postfix order.
        spell: how a character is written in bytes.

    Raises:
        NotSupported: an anchor or a lookaround stands where it is not handled.

    Cost: linear in the pattern; counts cost nothing.
    """
    stack: list[Table | Looked] = []
    anchored_loops = 0
    any_text = nodes.repeat(spell(((0, 0x10FFFF),)))
    spelled: dict[str, Node] = {}
    for step in program:
        if isinstance(step, Text):
            stack.append({FREE: _spell_text(step.text, spell, spelled)})
        elif isinstance(step, Character):
            stack.append({FREE: spell(step.ranges)})
        elif isinstance(step, Assert):
            stack.append({(step.before, step.after): EPSILON})
        elif isinstance(step, Loop):
            body = _plain_body(stack.pop(), step)
            if isinstance(body, Looked):
                stack.append(body)
                continue
            anchored_loops += not body.keys() <= {FREE} and step.hi not in (0, 1)
            if anchored_loops > MAX_ANCHORED_LOOPS:
                raise NotSupported(f"more than {MAX_ANCHORED_LOOPS} repetitions with an anchor inside", _TAKE_OUT)
            stack.append(_loop(body, step.lo, step.hi))
        elif isinstance(step, Look):
            stack.append(Looked(((_condition(stack.pop(), step, any_text, spell),),)))
        else:
            operands = stack[len(stack) - step.count :]
            del stack[len(stack) - step.count :]
            stack.append(_combined(operands, step))
    (found,) = stack
    return found


def full_match(pattern: Table | Looked) -> Node:
    """The texts that a pattern matches from end to end."""
    if isinstance(pattern, Looked):
        return nodes.alternation(
            full_match(_resolved(local)) for pieces in pattern.alternatives for local in _localised(pieces)
        )
    return nodes.alternation(pattern.values())


def search(pattern: Table | Looked, spell: Speller) -> Node:
    """The texts in which a pattern is found somewhere."""
    around: Table = {FREE: nodes.repeat(spell(((0, 0x10FFFF),)))}
    if isinstance(pattern, Looked):
        return full_match(Looked(tuple((around, *pieces, around) for pieces in pattern.alternatives)))
    return full_match(_join([around, pattern, around]))


def boundary(word: Ranges, *, is_inside: bool, holds_in_nothing: bool = True) -> Iterator[Instruction]:
    r"""Push `\b`, or `\B` with `is_inside`: a word character on one side, or on both sides or none.

    `holds_in_nothing` says whether `\B` holds in the empty text.
    """
    other = invert(word)
    sides: list[tuple[Ranges, bool, Ranges, bool]] = [(word, False, word, True), (word, True, word, False)]
    if is_inside:
        sides = [(word, False, word, False), (word, True, word, True)]
        if not holds_in_nothing:
            sides[1:] = [(other, False, word, True), (word, True, other, False)]
    for before, none_before, after, none_after in sides:
        yield Character(before)
        yield Look(is_behind=True, is_negative=none_before)
        yield Character(after)
        yield Look(is_negative=none_after)
        yield Join(2)
    yield Choose(len(sides))


def _combined(operands: Sequence[Table | Looked], step: Join | Choose) -> Table | Looked:
    tables = [operand for operand in operands if not isinstance(operand, Looked)]
    if len(tables) == len(operands):
        return _join(tables) if isinstance(step, Join) else _choose(tables)
    options = [operand.alternatives if isinstance(operand, Looked) else ((operand,),) for operand in operands]
    found: list[tuple[Piece, ...]] = [()]
    if isinstance(step, Choose):
        found = [pieces for option in options for pieces in option]
    for option in options if isinstance(step, Join) else ():
        found = [(*left, *right) for left in found for right in option]
        if len(found) > MAX_LOOKED:
            break
    if len(found) > MAX_LOOKED:
        raise NotSupported(f"lookarounds in more than {MAX_LOOKED} alternatives", "Take them out of the alternatives.")
    return Looked(tuple(found))


def _plain_body(body: Table | Looked, step: Loop) -> Table | Looked:
    """The body of a loop, which must be free of lookarounds; with `?` they become an alternative."""
    if isinstance(body, Looked):
        if step.hi == 0:
            return _NOTHING
        if step.hi != 1:
            raise NotSupported(
                "a lookaround inside a repetition",
                "Take it out of the repetition, or write the characters that may stand there.",
            )
        return Looked((*body.alternatives, ())) if step.lo == 0 else body
    return body


def _localised(pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, ...]]:
    """Move each look back at one character into the piece before it, or past that where it is empty."""
    waiting = [pieces]
    while waiting:
        pieces = waiting.pop()
        found = next((n for n, p in enumerate(pieces) if isinstance(p, Condition) and p.is_local), None)
        if found is None:
            yield pieces
            continue
        condition, before, after = pieces[found], pieces[:found], pieces[found + 1 :]
        assert isinstance(condition, Condition)
        skipped: tuple[Piece, ...] = ()
        for place in reversed(range(found)):
            piece = before[place]
            if isinstance(piece, Condition):
                skipped = (piece, *skipped)
                continue
            full = {key: nodes.intersection((node, condition.node, _NOT_EMPTY)) for key, node in piece.items()}
            waiting.append((*before[:place], {k: n for k, n in full.items() if n is not EMPTY}, *skipped, *after))
            empty: Table = {key: EPSILON for key, node in piece.items() if node.nullable}
            if not empty:
                break
            skipped = (empty, *skipped)
        else:
            if condition.is_negative:
                waiting.append((*skipped, *after))


def _condition(body: Table | Looked, step: Look, any_text: Node, spell: Speller) -> Condition:
    """The texts that may come after (or before) a place where a lookaround holds."""
    around: Table = {FREE: any_text}
    alternatives = body.alternatives if isinstance(body, Looked) else ((body,),)
    whole = []
    for pieces in alternatives:
        if any(isinstance(piece, Condition) and piece.is_behind != step.is_behind for piece in pieces):
            raise NotSupported("a lookbehind inside a lookahead, or the other way round", "Write it outside.")
        table = _resolved((around, *pieces) if step.is_behind else (*pieces, around))
        for (before, after), node in table.items():
            if (after is not After.ANY) if step.is_behind else (before is not Before.ANY):
                raise NotSupported("an anchor at the inner end of a lookaround", "Take the anchor out.")
            whole.append(node)
    node = nodes.alternation(whole)
    character = spell(((0, 0x10FFFF),))
    is_local = False
    if step.is_behind and not isinstance(body, Looked):  # an anchor in it would look further than at one character
        is_local = body.keys() <= {FREE} and all(_is_within(n, character) for n in body.values())
    return Condition(nodes.complement(node) if step.is_negative else node, step.is_behind, is_local, step.is_negative)


@lru_cache(maxsize=64)  # each `\b` asks the same of the Unicode letters, which takes 0.1 s
def _is_within(node: Node, other: Node) -> bool:
    return not Derivatives().is_inhabited(nodes.intersection((node, nodes.complement(other))))


def _resolved(pieces: Sequence[Piece]) -> Table:
    """One table for pieces that begin and end where the whole text does; conditions are intersected."""
    if sum(isinstance(piece, Condition) for piece in pieces) > MAX_CONDITIONS:
        raise NotSupported(
            f"more than {MAX_CONDITIONS} lookarounds in a row", "Write some of them as patterns of their own."
        )
    behind = max((n for n, piece in enumerate(pieces) if isinstance(piece, Condition) and piece.is_behind), default=-1)
    ahead = [n for n, piece in enumerate(pieces) if isinstance(piece, Condition) and not piece.is_behind]
    if ahead and min(ahead) < behind:
        raise NotSupported("a lookbehind after a lookahead", "Write the conditions with `&` of two expressions.")
    left, right = _NOTHING, _NOTHING
    for piece in pieces[: behind + 1]:
        left = _kept(left, piece.node, at_end=False) if isinstance(piece, Condition) else _join([left, piece])
    for piece in reversed(pieces[behind + 1 :]):
        right = _kept(right, piece.node, at_end=True) if isinstance(piece, Condition) else _join([piece, right])
    return _join([left, right])


def _kept(table: Table, condition: Node, *, at_end: bool) -> Table:
    """The texts that satisfy a condition, which begin (or with `at_end` end) where the whole text does: what is asserted there holds."""
    gathered: dict[tuple[Before, After], list[Node]] = {}
    for (before, after), node in table.items():
        key = (before, After.ANY) if at_end else (Before.ANY, after)
        gathered.setdefault(key, []).append(nodes.intersection((node, condition)))
    return {key: nodes.alternation(options) for key, options in gathered.items()}


def _spell_text(text: str, spell: Speller, spelled: dict[str, Node]) -> Node:
    characters = set(text)
    for character in characters.difference(spelled):
        spelled[character] = spell(((ord(character), ord(character)),))
    if all(spelled[character].kind is Kind.LITERAL for character in characters):
        return nodes.literal(b"".join([spelled[character].args[0] for character in text]))
    return nodes.sequence([spelled[character] for character in text])


def _join(tables: Sequence[Table]) -> Table:
    if all(table.keys() == {FREE} for table in tables):
        return {FREE: nodes.sequence([table[FREE] for table in tables])}
    joined = _NOTHING
    for table in reversed(tables):
        joined = _product(table, joined)
    return joined


def _choose(tables: Iterable[Table]) -> Table:
    gathered: dict[tuple[Before, After], list[Node]] = {}
    for table in tables:
        for key, node in table.items():
            gathered.setdefault(key, []).append(node)
    return {key: _one_of(options) for key, options in gathered.items()}


def _one_of(options: Sequence[Node]) -> Node:
    """The union; many plain texts become a sorted list of words, which costs the same however many they are."""
    texts, others = [], []
    for option in options:
        text = _literal_bytes(option)
        if text is None or len(text) < 2:
            others.append(option)
        else:
            texts.append(text)
    return nodes.alternation((*others, nodes.words(texts))) if texts else nodes.alternation(others)


def _literal_bytes(node: Node) -> bytes | None:
    pieces = []
    while node.kind is Kind.CONCAT:
        head, node = node.args
        if head.kind is not Kind.LITERAL:
            return None
        pieces.append(head.args[0])
    return b"".join((*pieces, node.args[0])) if node.kind is Kind.LITERAL else None


def _product(left: Table, right: Table) -> Table:
    """Every text of `left` followed by every text of `right`, as far as their assertions hold."""
    gathered: dict[tuple[Before, After], list[Node]] = {}
    for (before_left, after_left), head in left.items():
        for (before_right, after_right), tail in right.items():
            for first, before in _allow_before(head, before_left, before_right):
                for last, after in _allow_after(tail, after_right, after_left):
                    gathered.setdefault((before, after), []).append(nodes.concat(first, last))
    unions = {key: nodes.alternation(options) for key, options in gathered.items()}
    return {key: node for key, node in unions.items() if node is not EMPTY}


def _allow_before(head: Node, own: Before, asserted: Before) -> Iterator[tuple[Node, Before]]:
    """What of `head` may stand before a place where `asserted` holds, and what that asserts about its own start."""
    if asserted is Before.ANY:
        yield head, own
        return
    if head.nullable:
        yield EPSILON, max(own, asserted)
    if asserted is Before.LINE_START and head is not EPSILON:
        line = nodes.intersection((head, _ENDS_IN_NEWLINE))
        if Derivatives().is_inhabited(line):
            yield line, own


def _allow_after(tail: Node, own: After, asserted: After) -> Iterator[tuple[Node, After]]:
    """What of `tail` may stand after a place where `asserted` holds, and what that asserts about its own end."""
    if asserted is After.ANY:
        yield tail, own
        return
    if tail.nullable:
        yield EPSILON, max(own, asserted)
    if asserted in (After.LINE_END, After.LAST_LINE_END):
        rest = _after_newline(tail)
        if asserted is After.LINE_END:
            yield nodes.concat(_NEWLINE, rest), own
        elif rest.nullable:
            yield _NEWLINE, After.TEXT_END


def _after_newline(node: Node) -> Node:
    return next((target for mask, target in Derivatives().arcs(node) if mask >> 0x0A & 1), EMPTY)


def _loop(body: Table, lo: int, hi: int | None) -> Table:
    free = body.get(FREE, EMPTY)
    if body.keys() <= {FREE}:
        return {FREE: nodes.repeat(free, lo, hi)}
    if hi == 0:
        return _NOTHING
    if hi == 1:
        return body if lo == 1 else _choose((_NOTHING, body))
    _check_anchored_loop(body, lo)
    return _join([body] * lo + [_at_most(body, None if hi is None else hi - lo)])


def _check_anchored_loop(body: Table, lo: int) -> None:
    if any(Before.LINE_START is before or After.LINE_END is after for before, after in body):
        raise NotSupported(
            "a line anchor ('^' or '$' under MULTILINE) inside a repetition",
            r"Write the newline itself, for example '(?:line\n)*' instead of '(?:^line$\n)*'.",
        )
    if lo > MAX_ANCHORED_COUNT:
        raise NotSupported(
            f"an anchor inside a repetition of at least {lo} times",
            _TAKE_OUT,
        )


def _at_most(body: Table, hi: int | None) -> Table:
    """`body` up to `hi` times, where some of its texts are anchored to the start or the end of the whole text.

    Turns that read nothing may be left out: what they assert only makes the language smaller. Of the others, only the
    first can be anchored to the start; one that is anchored to the end is the last, or stands before a final newline,
    which is then one turn more. So there are three turns at most beside those that are free.
    """
    free = body.get(FREE, EMPTY)
    anchored = {key: node for key, node in body.items() if key != FREE}
    options = []
    for first, last, newline in ((i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)):
        rest = None if hi is None else hi - first - last - newline
        if rest is None or rest >= 0:
            middle: Table = {FREE: nodes.repeat(free, 0, rest)}
            options.append(_join([anchored] * first + [middle] + [anchored] * last + [body] * newline))
    return _choose(options)
