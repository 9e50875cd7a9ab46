"""`full_match`, `search`: a pattern in postfix order as a term: the texts that it matches from end to end, or in which it is found. A
lookahead or end anchor is an intersection with the rest of the text, a lookbehind or start anchor with the text so far, or a term derived
in parallel; loops around them are unrolled while the text is read (`continuation.py`). Refused: a lookahead inside a lookbehind, more than
8 lookarounds at more than one character, or 50 groups around one, a loop counted above 8 where an iteration may only assert (not `^`, `$`).

A pattern becomes a tree of steps (`combined`); parts without lookarounds are terms at once, and a lookbehind at one character filters the
term before it. Assertions of an iteration that reads nothing are moved out of the repetition.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache

from fsm.errors import BudgetExceeded
from fsm.pattern import postfix
from fsm.terms import node as nodes
from fsm.terms.characters import Ranges, Speller, intersect, invert, ranges_of
from fsm.terms.continuation import After, Alternation, Concatenation, Lookahead, Plain, Repetition, Rest, Step, begin
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY, EPSILON, Kind, Node

MAX_LOOK_DEPTH = 50  # groups around a lookaround
MAX_ASSERTING_ROUNDS = 8
MAX_COMPARED = 500  # states that are visited to decide whether all texts before a lookbehind satisfy it
MAX_FAR_LOOKS = 8  # lookarounds at more than one character: the states of their texts multiply

_NO_BEHIND = frozenset[Node]()
_NOTHING = Concatenation(_NO_BEHIND, ())
_NEVER = Alternation(_NO_BEHIND, ())
_NEWLINE = nodes.literal(b"\n")
_BEFORE = {
    postfix.Anchor.TEXT_START: EPSILON,
    postfix.Anchor.LINE_START: nodes.optional(nodes.concat(nodes.repeat(nodes.byte_set(ALL_BYTES)), _NEWLINE)),
}
_REST = {
    postfix.Anchor.LINE_END: nodes.optional(nodes.concat(_NEWLINE, ANYTHING)),
    postfix.Anchor.LAST_LINE_END: nodes.optional(_NEWLINE),
    postfix.Anchor.TEXT_END: EPSILON,
}

_ENDS = (_REST[postfix.Anchor.TEXT_END], _REST[postfix.Anchor.LAST_LINE_END])


def full_match(program: Iterable[postfix.Instruction], spell: Speller) -> Node:
    """The texts that a pattern matches from end to end.

    Args:
        program: a well-formed pattern in postfix order.
        spell: how a character is written in bytes.

    Raises:
        NotSupported: an anchor or a lookaround is used in a way that is not supported.

    Cost: linear in the pattern; counts cost nothing.
    """
    return begin(_steps(program, spell))


def search(program: Iterable[postfix.Instruction], spell: Speller) -> Node:
    """The texts in which a pattern is found somewhere; see `full_match`."""
    around = plain(_any_text(spell))
    return begin(_joined((around, _steps(program, spell), around)))


def _any_text(spell: Speller) -> Node:
    return nodes.repeat(spell(((0, 0x10FFFF),)))


_Measured = tuple[Step, int, int]
"""A step, the groups around its innermost lookaround, and its lookarounds at more than one character."""


def _steps(program: Iterable[postfix.Instruction], spell: Speller) -> Step:
    characters, spelled = set[Node](), dict[str, Node]()

    def leaf(instruction: postfix.Leaf) -> _Measured:
        if isinstance(instruction, postfix.Assert):
            return asserted(instruction), 0, 0
        if isinstance(instruction, postfix.Text):
            return plain(_spell_text(instruction.text, spell, spelled)), 0, 0
        node = spell(instruction.ranges)
        characters.add(node)
        return plain(node), 0, 0

    def combine(instruction: postfix.Combination, operands: list[_Measured]) -> _Measured:
        steps = [step for step, _, _ in operands]
        step = combined(instruction, steps, spell)
        num_looks = (max if isinstance(instruction, postfix.Choose) else sum)([num for _, _, num in operands])
        if isinstance(instruction, postfix.Look):
            is_near = isinstance(steps[0], Plain) and steps[0].node in characters
            num_looks += not (is_near or (isinstance(step, After) and step.is_local))
        if num_looks > MAX_FAR_LOOKS:
            advice = "Write some of them as patterns of their own."
            raise postfix.NotSupported(f"more than {MAX_FAR_LOOKS} lookarounds", advice)
        is_group = isinstance(instruction, postfix.Join | postfix.Choose) and len(steps) > 1
        depth = 0 if isinstance(step, Plain) else max([depth for _, depth, _ in operands], default=0) + is_group
        if depth > MAX_LOOK_DEPTH:
            advice = "Take it out of some of them."
            raise postfix.NotSupported(f"a lookaround inside more than {MAX_LOOK_DEPTH} groups", advice)
        return step, depth, num_looks

    return postfix.evaluated(program, leaf, combine)[0]


def combined(instruction: postfix.Combination, operands: Sequence[Step], spell: Speller) -> Step:
    """The step that an instruction makes of others.

    Raises:
        NotSupported: see the top of this module.
    """
    if isinstance(instruction, postfix.Join):
        return _joined(operands)
    if isinstance(instruction, postfix.Choose):
        return _either(operands)
    if isinstance(instruction, postfix.Loop):
        return _loop(operands[0], instruction.lo, instruction.hi)
    return _look(operands[0], instruction, spell)


def plain(node: Node) -> Plain:
    """The step that reads a text of a language."""
    return Plain(_NO_BEHIND, node)


def asserted(instruction: postfix.Assert) -> Step:
    """The step of an anchor."""
    if instruction.anchor in _REST:
        return Rest(_NO_BEHIND, _REST[instruction.anchor])
    node = _BEFORE[instruction.anchor]
    return After(frozenset((node,)), node, is_negative=False)


def _joined(operands: Iterable[Step]) -> Step:
    """The concatenation of steps; neighbours without lookarounds are joined."""
    parts, run, flat = list[Step](), list[Plain](), _flat(operands)
    for place in range(1, len(flat)):
        flat[place] = _decided(flat[place], flat[place - 1], is_behind=True)
        flat[place - 1] = _decided(flat[place - 1], flat[place], is_behind=False)
    for part in _flat(flat):
        if isinstance(part, Plain):
            run.append(part)
        elif run and not run[-1].node.nullable and _looks_back(part):
            parts += [_row(run[:-1])] if len(run) > 1 else []
            parts.append(_filtered(run[-1].node, part))
            run = []
        else:
            parts += [_row(run), part] if run else [part]
            run = []
    parts += [_row(run)] if run or not parts else []
    if any(isinstance(part, Plain) and part.node is EMPTY for part in parts):
        return plain(EMPTY)
    return parts[0] if len(parts) == 1 else Concatenation(_behind(parts), tuple(parts))


def _flat(steps: Iterable[Step]) -> list[Step]:
    """The steps of a concatenation, without empty texts."""
    parts = [part for step in steps for part in (step.steps if isinstance(step, Concatenation) else (step,))]
    return [part for part in parts if not (isinstance(part, Plain) and part.node is EPSILON)]


def _row(run: Sequence[Plain]) -> Plain:
    """Terms one after the other, as one."""
    if len(run) == 1:
        return run[0]
    node = nodes.sequence([part.node for part in run])
    ends = (
        (None, None)
        if not run or run[0].node.nullable or run[-1].node.nullable
        else (_end(run[0], 0), _end(run[-1], -1))
    )
    return Plain(_NO_BEHIND, node, *ends)


def _end(text: Plain, place: int) -> Node:
    """With what every text of a term begins (place 0) or ends (-1)."""
    return (text.last if place else text.first) or text.node


def _decided(step: Step, text: Step, *, is_behind: bool) -> Step:
    """A step without the lookarounds at its end (or beginning) that all texts of the term after it (or before it) decide."""
    if not isinstance(text, Plain) or text.node.nullable:
        return step
    if isinstance(step, Alternation):
        ways = [_decided(part, text, is_behind=is_behind) for part in step.steps]
        return step if all(map(operator.is_, ways, step.steps)) else _either(ways)
    if isinstance(step, Concatenation) and step.steps:
        at = 0 if is_behind else -1
        parts = list(step.steps)
        parts[at] = _decided(parts[at], text, is_behind=is_behind)
        return step if parts[at] is step.steps[at] else _joined(parts)
    if isinstance(step, After if is_behind else Rest) and step.is_local:
        is_true = _is_true_beside(_end(text, -1 if is_behind else 0), step)
        if is_true is not None:
            return plain(EPSILON if is_true else EMPTY)
    return step


def _is_true_beside(near: Node, step: After | Rest) -> bool | None:
    """Whether a lookaround at one character is true beside each text of a term, or beside none; None if neither is known."""
    is_negative, written = isinstance(step, After) and step.is_negative, ranges_of(near)
    if written is not None and step.characters is not None:
        is_within, is_apart = not intersect(written, invert(step.characters)), not intersect(written, step.characters)
    else:
        is_within, is_apart = _is_within(near, step.node), _is_within(near, nodes.complement(step.node))
    return None if not (is_within or is_apart) else is_within != is_negative


def _looks_back(step: Step) -> bool:
    """True if a step, or an alternative of it, begins with a lookbehind at one character."""
    if isinstance(step, Alternation):
        return any(map(_looks_back, step.steps))
    first = step.steps[0] if isinstance(step, Concatenation) and step.steps else step
    return isinstance(first, After) and first.is_local


def _filtered(last: Node, step: Step) -> Step:
    """A term, and after it a step that looks back at its last character: the texts of the term for which the lookbehind matches."""
    if isinstance(step, Alternation):
        return _either([_joined((plain(last), part)) for part in step.steps])
    assert isinstance(step, After)
    return plain(step.among(last))


def _either(operands: Sequence[Step]) -> Step:
    texts = [part.node for part in operands if isinstance(part, Plain)]
    others = [part for part in operands if not isinstance(part, Plain)]
    if texts:
        node = _one_of(texts)
        others += [plain(node)] if node is not EMPTY or not others else []
    return others[0] if len(others) == 1 else Alternation(_behind(others), tuple(others))


def _one_of(options: Sequence[Node]) -> Node:
    """The union; many plain texts become a sorted list of words, whose cost does not depend on their number."""
    texts = [_literal_bytes(option) for option in options]
    others = [option for option, text in zip(options, texts, strict=True) if text is None or len(text) < 2]
    words = [text for text in texts if text is not None and len(text) > 1]
    return nodes.alternation((*others, nodes.words(words)) if words else others)


def _literal_bytes(node: Node) -> bytes | None:
    pieces = []
    while node.kind is Kind.CONCAT:
        head, node = nodes.first_and_rest(node)
        if head.kind is not Kind.LITERAL:
            return None
        pieces.append(head.args[0])
    return b"".join((*pieces, node.args[0])) if node.kind is Kind.LITERAL else None


def _spell_text(text: str, spell: Speller, spelled: dict[str, Node]) -> Node:
    characters = set(text)
    for character in characters.difference(spelled):
        spelled[character] = spell(((ord(character), ord(character)),))
    if all(spelled[character].kind is Kind.LITERAL for character in characters):
        return nodes.literal(b"".join([spelled[character].args[0] for character in text]))
    return nodes.sequence([spelled[character] for character in text])


def _behind(parts: Iterable[Step]) -> frozenset[Node]:
    return _NO_BEHIND.union(*(part.behind for part in parts))


def _look(body: Step, look: postfix.Look, spell: Speller) -> Step:
    if look.is_behind:
        if _looks_ahead(body):
            raise postfix.NotSupported("a lookahead inside a lookbehind", "Write it outside.")
        read = begin(_joined((plain(_any_text(spell)), body)))
        is_local = isinstance(body, Plain) and _is_character(body.node, spell)
        return After(frozenset((read,)), read, look.is_negative, is_local, _characters(body, is_local))
    if isinstance(body, Plain):
        rest = nodes.concat(body.node, ANYTHING)
        is_local = _is_character(body.node, spell)
        characters = _characters(body, is_local)
        if look.is_negative:
            rest, characters = nodes.complement(rest), None if characters is None else invert(characters)
        return Rest(_NO_BEHIND, rest, is_local, characters)
    return Lookahead(body.behind, body, look.is_negative)


def _is_character(node: Node, spell: Speller) -> bool:
    """True if all texts of a term are one character."""
    return ranges_of(node) is not None or _is_within(node, spell(((0, 0x10FFFF),)))


def _characters(body: Step, is_local: bool) -> Ranges | None:
    return ranges_of(body.node) if is_local and isinstance(body, Plain) else None


@lru_cache(maxsize=64)  # each `\b` compares the Unicode letters again, which takes 0.1 s
def _is_within(node: Node, other: Node) -> bool:
    """True if all texts of a term are known to belong to another."""
    rest = nodes.intersection((node, nodes.complement(other)))
    try:
        return not Derivatives(max_search=MAX_COMPARED).is_inhabited(rest)
    except BudgetExceeded:
        return False


def _looks_ahead(step: Step) -> bool:
    if isinstance(step, Concatenation | Alternation):
        return any(_looks_ahead(part) for part in step.steps)
    return _looks_ahead(step.body) if isinstance(step, Repetition) else isinstance(step, Lookahead | Rest)


def _loop(body: Step, lo: int, hi: int | None) -> Step:
    if isinstance(body, Plain):
        node = nodes.repeat(body.node, lo, hi)
        return plain(node) if node.nullable else Plain(_NO_BEHIND, node, _end(body, 0), _end(body, -1))
    if hi == 0:
        return plain(EPSILON)
    if hi == 1:
        return body if lo else _either((plain(EPSILON), body))
    turn, silent = _reading(body), _silent(body)
    for place, beside in ((0, _flat([body])[-1]), (-1, _flat([body])[0])):
        other = _decided(body, beside, is_behind=place == 0)
        if other is not body:  # in all iterations but the first, or but the last
            others = _loop(other, max(lo - 1, 0), None if hi is None else hi - 1)
            loop = _joined((others, body) if place else (body, others))
            return loop if lo else _either((plain(EPSILON), loop))
    if silent is None or silent is _NOTHING or lo == 0:
        return Repetition(turn.behind, turn, 0 if silent is _NOTHING else lo, hi)
    ways: list[Step] = [Repetition(turn.behind, turn, lo, hi)]
    for option in silent.steps if isinstance(silent, Alternation) else (silent,):
        for before, after in _splits(option, lo, hi):
            left, right = (Repetition(turn.behind, turn, 0, count) for count in (before, after))
            ways.append(_joined((left, option, right)))
    return _either(ways)


def _splits(silent: Step, lo: int, hi: int | None) -> list[tuple[int | None, int | None]]:
    """The most iterations before and after one that only asserts, for each position that it may have."""
    if hi is None:
        return [(None, None)]
    if hi <= MAX_ASSERTING_ROUNDS:
        return [(before, hi - 1 - before) for before in range(hi)]
    if isinstance(silent, After) and silent.node is EPSILON and not silent.is_negative:
        return [(0, hi - 1)]  # nothing was read before the start of the text
    if isinstance(silent, Rest) and silent.node in _ENDS:
        return [(hi - 1, 0), (hi - 2, 1)]  # only a line break may follow there
    raise postfix.NotSupported(
        f"an anchor or a lookaround that may be a whole iteration, in a repetition of {lo} to {hi} times",
        "Take it out of the repetition.",
    )


def _silent(step: Step) -> Step | None:
    """What a step asserts where it reads nothing: `_NOTHING` where it asserts nothing either, None if it always reads."""
    if isinstance(step, Plain):
        return _NOTHING if step.node.nullable else None
    if isinstance(step, Repetition):
        return _NOTHING if step.lo == 0 else None
    if isinstance(step, Concatenation):
        parts = [_silent(part) for part in step.steps]
        found = [part for part in parts if part is not None and part is not _NOTHING]
        return None if None in parts else _joined(found) if found else _NOTHING
    if isinstance(step, Alternation):
        options = [option for option in map(_silent, step.steps) if option is not None]
        return _NOTHING if _NOTHING in options else _either(options) if options else None
    return step


def _reading(step: Step) -> Step:
    """A step without the empty text."""
    if isinstance(step, Plain):
        return plain(nodes.not_empty(step.node))
    if isinstance(step, Repetition):
        return _NEVER if step.hi == 0 else Repetition(step.behind, step.body, max(step.lo, 1), step.hi)
    if isinstance(step, Alternation):
        return _either([_reading(part) for part in step.steps])
    if not isinstance(step, Concatenation):
        return _NEVER
    ways: list[Step] = []
    before: list[Step] = []
    for number, part in enumerate(step.steps):
        ways.append(_joined((*before, _reading(part), *step.steps[number + 1 :])))
        silent = _silent(part)
        if silent is None:
            break
        before.append(silent)
    return _either(ways)
