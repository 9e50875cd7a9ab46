"""`gbnf`: grammars in the notation of llama.cpp (GBNF) as terms: rules over characters, without a lexer, so that nothing is skipped between
two parts, and a text belongs to the language if the plain context-free grammar derives it.

Rules that do not contain themselves are put in where they are used; a grammar without recursion is a regular language, which `&` and `~`
take. Others are recursive rules of a term, one `Rules` for those that contain each other. `<think>` is a special token. Refused by name:
left recursion, as by llama.cpp, and token ids (`<[42]>`) and negated tokens (`!<think>`), as these are of one vocabulary.

A rule is a program in postfix order, evaluated on a stack several times: for the rules that may be empty, for those that derive a text, and
for the terms.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fsm.errors import EmptyLanguage, GrammarError, clip
from fsm.expression import Expression
from fsm.lark.advice import DIFFERENCE, other_notation
from fsm.limits import DEFAULT_LIMITS, Limits, check_limits, work_bound
from fsm.pattern.postfix import Character, Choose, Combination, Join, Loop, Text, evaluated
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms.characters import ALL_CHARACTERS, MAX_CODE_POINT, invert, normalize, utf8
from fsm.terms.node import EMPTY, EPSILON, Node
from fsm.terms.rule import Rules
from fsm.terms.special_token import symbol

MAX_INLINED = 10_000  # leaves of a rule that is put in where it is used
_ADVICE = "Make it smaller, or give a larger `limits=Limits(max_work=...)`"


@remembered
def gbnf(text: str, start: str = "root", *, limits: Limits = DEFAULT_LIMITS) -> Expression:
    r"""Return the texts that a grammar in the notation of llama.cpp describes.

    Args:
        text: rules `name ::= ...` of `"texts"`, `[a-z]`, `[^"\\]`, `.`, special tokens such as `<think>`, names, `( )`, `|`, `*`, `+`, `?`,
            `{m,n}` and comments (`#`).
        start: the rule that a whole text is.
        limits: bounds of compiling.

    Raises:
        GrammarError: the grammar is malformed, left-recursive, or uses something that is not supported; the message has the line.
        EmptyLanguage: no text ends a derivation of `start`.
        BudgetExceeded: a bound of `limits` is exceeded.
    """
    if not isinstance(text, str) or not isinstance(start, str):
        given = f"{type(text).__name__} and {type(start).__name__}"
        raise GrammarError(f"expected a grammar as text and the name of a rule, received {given}")
    check_limits(limits, GrammarError)
    limits.check("max_grammar_characters", len(text), "characters of the grammar", None)
    try:
        rules = _Parser(text).read()
    except GrammarError as error:
        other = other_notation(text, is_lark=False)
        raise GrammarError(f"the grammar cannot be read: {other}") if other else error from None
    if start not in rules:
        raise GrammarError(
            f"expected a rule {start!r}, with which every text begins, received a grammar without one. "
            f"Add `{start} ::= ...`, or name another rule with `start`."
        )
    with work_bound("max_work", limits.max_work, "compiling the grammar", advice=_ADVICE):
        node = _parts(rules)[start].whole
    if node is EMPTY:
        raise EmptyLanguage(
            f"no text satisfies the grammar: the rule {start!r} never ends. Give it an alternative without itself."
        )
    specials = frozenset(step.special for program in rules.values() for step in program if isinstance(step, _Special))
    return Expression(node, source=f"gbnf({clip(text)!r})", specials=specials)


class _Special(NamedTuple):
    """Push a special token."""

    special: str


class _Name(NamedTuple):
    """Push the texts of a rule, named in a line."""

    name: str
    line: int


_Leaf = Text | Character | _Special | _Name
_Program = list[_Leaf | Combination]
_EMPTY_TEXT = Text("")


_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_DEFINED = re.compile("::=")
_SPECIAL = re.compile(r"<[^<>\s]+>")
_COUNTS = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_ESCAPE = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([tnr\\"\[\]]))')
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}
_LOOPS = {"*": Loop(0, None), "+": Loop(1, None), "?": Loop(0, 1)}


@dataclass(slots=True)
class _Group:
    """An open group, or a rule: where it starts, its complete alternatives, the items of the current one."""

    start: int
    alternatives: int = 0
    items: int = 0


@dataclass(slots=True)
class _Parser:
    """Reads the rules of a grammar, without recursion."""

    text: str
    position: int = 0
    program: _Program = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)

    def read(self) -> dict[str, _Program]:
        """The rules by name."""
        found: dict[str, _Program] = {}
        self._skip(_SPACE_AND_LINES)
        while self.position < len(self.text):
            if found and self._is_at("|"):
                raise self._error(
                    "a rule ends with its line. Write `|` at the end of the line before, or put the alternatives in ( )"
                )
            name = self._match(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            self._match(_DEFINED, "`::=` after the name of a rule")
            if name in found:
                raise self._error(f"the rule {name!r} is there twice. Join them by `|`")
            found[name] = self.program = []
            self._read_rule()
            self._skip(_SPACE_AND_LINES)
        for program in found.values():
            for step in program:
                if isinstance(step, _Name) and step.name not in found:
                    if not step.name.strip("-"):
                        raise GrammarError(f"the grammar cannot be read: at line {step.line}: {DIFFERENCE}.")
                    problem = f"the rule {step.name!r} in line {step.line} is not there"
                    raise GrammarError(f"{problem}. Add `{step.name} ::= ...`, or put it in quotes if it is a text.")
        return found

    def _read_rule(self) -> None:
        self.groups = [_Group(self.position)]
        self._skip(_SPACE_AND_LINES)
        while self.groups:
            is_over = self.position == len(self.text) or self.text[self.position] in "\r\n"
            if is_over and len(self.groups) > 1:
                raise self._error("unclosed group. Close it with `)`", self.groups[-1].start)
            if is_over:
                self._close_group()
            else:
                self._read_item()
                self._skip(_SPACE if len(self.groups) <= 1 else _SPACE_AND_LINES)

    def _read_item(self) -> None:
        character, group = self.text[self.position], self.groups[-1]
        if character == "|":
            self.position += 1
            self._end_alternative()
            self._skip(_SPACE_AND_LINES)
        elif character == "(":
            self.groups.append(_Group(self.position))
            self.position += 1
            self._skip(_SPACE_AND_LINES)
        elif character == ")" and len(self.groups) > 1:
            self.position += 1
            self._close_group()
            self._read_loops()
            self.groups[-1].items += 1
        else:
            self.program.append(self._read_leaf(character))
            self._read_loops()
            group.items += 1

    def _end_alternative(self) -> None:
        group = self.groups[-1]
        self.program.append(Join(group.items))
        group.items, group.alternatives = 0, group.alternatives + 1

    def _close_group(self) -> None:
        self._end_alternative()
        self.program.append(Choose(self.groups.pop().alternatives))

    def _read_leaf(self, character: str) -> _Leaf:
        if character == '"':
            return self._read_text()
        if character == "[":
            return self._read_class()
        if character == ".":
            self.position += 1
            return Character(ALL_CHARACTERS)
        if character == "<" and not self._is_at("<["):
            return _Special(self._match(_SPECIAL, "a special token, such as `<think>`")[0])
        if character in "<!":
            raise self._error(
                "token ids and negated tokens are not supported, as they are of one vocabulary. Write a name, as in `<think>`"
            )
        line = self._line(self.position)
        return _Name(self._match(_NAME, "a text in quotes, a set in brackets, a group or the name of a rule")[0], line)

    def _read_loops(self) -> None:
        while True:
            before = self.position
            self._skip(_SPACE if len(self.groups) <= 1 else _SPACE_AND_LINES)
            character = self.text[self.position : self.position + 1]
            if character in _LOOPS:
                self.program.append(_LOOPS[character])
                self.position += 1
            elif character == "{":
                lo, comma, hi = self._match(_COUNTS, "counts such as `{2}`, `{2,}` or `{2,5}`").groups()
                most = int(lo) if not comma else int(hi) if hi else None
                if most is not None and most < int(lo):
                    raise self._error("the counts of a repetition are the wrong way round", before)
                self.program.append(Loop(int(lo), most))
            else:
                self.position = before
                return

    def _read_class(self) -> Character:
        start, found = self.position, list[tuple[int, int]]()
        self.position += 1
        is_negated = self._is_at("^")
        self.position += is_negated
        while not self._is_at("]"):
            first = last = self._character(start)
            if self._is_at("-") and not self._is_at("-]"):
                self.position += 1
                last = self._character(start)
            if last < first:
                raise self._error("the ends of a range are the wrong way round", start)
            found.append((first, last))
        self.position += 1
        if not found and not is_negated:
            raise self._error('the set `[]` has no character. Write some, or `""` for the empty text', start)
        return Character(invert(normalize(found)) if is_negated else normalize(found))

    def _read_text(self) -> Text:
        start, found = self.position, list[int]()
        self.position += 1
        while not self._is_at('"'):
            found.append(self._character(start))
        self.position += 1
        return Text("".join(map(chr, found)))

    def _character(self, start: int) -> int:
        """The next character of a text or a set that begins at `start`, an escape or itself."""
        if self.position == len(self.text):
            raise self._error("unclosed text or set. Close it", start)
        character = self.text[self.position]
        if character != "\\":
            self.position += 1
            return ord(character)
        escape = self._match(
            _ESCAPE, r"an escape: \n, \r, \t, \\, \", \[, \], \x and 2, \u and 4, or \U and 8 hexadecimal digits"
        )
        *numbers, plain = escape.groups()
        point = int(next(filter(None, numbers)), 16) if plain is None else ord(_ESCAPED.get(plain, plain))
        if point > MAX_CODE_POINT or 0xD800 <= point <= 0xDFFF:
            raise self._error(f"{escape[0]} is no character. Remove it", escape.start())
        return point

    def _is_at(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self.text, self.position)
        if found is None:
            raise self._error(
                f"expected {what}, received {clip(self.text[self.position :], 20)!r}. Correct the grammar"
            )
        self.position = found.end()
        return found

    def _error(self, problem: str, position: int | None = None) -> GrammarError:
        at = self.position if position is None else position
        column = at - self.text.rfind("\n", 0, at)
        return GrammarError(f"the grammar cannot be read: at line {self._line(at)} column {column}: {problem}.")

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1


class _Part(NamedTuple):
    """The texts of a part of a grammar, and those of them that are not empty."""

    whole: Node
    some: Node


def _parts(rules: dict[str, _Program]) -> dict[str, _Part]:
    """The terms of all rules."""
    names = {name: [*dict.fromkeys(s.name for s in program if isinstance(s, _Name))] for name, program in rules.items()}
    found: dict[str, _Part] = {}
    sizes: dict[str, int] = {}
    for component in reversed([*nodes.components(names)]):  # those that a rule names come before it
        own = {name: rules[name] for name in component}
        nullable = _least(own, lambda name: found[name].whole.nullable, lambda step: step == _EMPTY_TEXT)
        ending = _least(own, lambda name: found[name].whole is not EMPTY, lambda step: step != Character(()))
        _refuse_left_recursion(own, nullable, found)
        name = component[0]
        sizes[name] = evaluated(
            own[name], lambda step: sizes.get(getattr(step, "name", ""), 1), lambda _, sizes: sum(sizes)
        )
        if len(own) == 1 and name not in names[name] and sizes[name] <= MAX_INLINED:
            found[name] = evaluated(own[name], lambda step: _leaf(step, found), _combined)
        else:
            sizes.update(dict.fromkeys(own, 1))
            found.update(_recursive(own, nullable, ending, found))
    return found


def _least(own: dict[str, _Program], others: Callable[[str], bool], leaf: Callable[[_Leaf], bool]) -> set[str]:
    """The rules of a component for which a property holds that a union has from one part, others from all; the least fixed point."""
    found = set[str]()

    def holds(step: _Leaf) -> bool:
        if not isinstance(step, _Name):
            return leaf(step)
        return step.name in found if step.name in own else others(step.name)

    def combine(step: Combination, values: list[bool]) -> bool:
        if isinstance(step, Loop):
            return step.lo == 0 or values[0]
        return all(values) if isinstance(step, Join) else any(values)

    while new := {name for name in own.keys() - found if evaluated(own[name], holds, combine)}:
        found |= new
    return found


def _refuse_left_recursion(own: dict[str, _Program], nullable: set[str], found: dict[str, _Part]) -> None:
    """Raise `GrammarError` if a rule may begin with itself."""

    def leaf(step: _Leaf) -> tuple[list[str], bool]:
        if not isinstance(step, _Name):
            return [], step == _EMPTY_TEXT
        return ([step.name], step.name in nullable) if step.name in own else ([], found[step.name].whole.nullable)

    def combine(step: Combination, values: list[tuple[list[str], bool]]) -> tuple[list[str], bool]:
        if isinstance(step, Loop):
            return values[0][0], step.lo == 0 or values[0][1]
        if isinstance(step, Choose):
            return [name for names, _ in values for name in names], any(is_empty for _, is_empty in values)
        first = list[str]()
        for names, is_empty in values:
            first += names
            if not is_empty:
                return first, False
        return first, True

    leading = {name: [*dict.fromkeys(evaluated(program, leaf, combine)[0])] for name, program in own.items()}
    for component in nodes.components(leading):
        if len(component) > 1 or component[0] in leading[component[0]]:
            raise GrammarError(
                f'left recursion: the rule {component[0]!r} may begin with itself. Write a repetition, as in `list ::= item ("," item)*`.'
            )


def _recursive(
    own: dict[str, _Program], nullable: set[str], ending: set[str], found: dict[str, _Part]
) -> dict[str, _Part]:
    """The terms of rules that contain each other, for use outside of them."""
    alive = {name for name in own if name in ending}
    while True:
        bodies = Rules()
        named = {name: bodies.rule(name, is_sure=True) for name in own if name in alive}
        inner = {name: _part(named[name].term if name in named else EMPTY, name in nullable) for name in own}
        leaf = partial(_leaf, parts=ChainMap(inner, found))
        made = {name: evaluated(program, leaf, _combined) for name, program in own.items()}
        dead = {name for name in alive if made[name].some is EMPTY}
        if not dead:
            break
        alive -= dead  # a rule whose only text is the empty one
    for name, rule in named.items():
        rule.define(made[name].some)
    return {name: _part(bodies.entrance(named[name]) if name in named else EMPTY, name in nullable) for name in own}


def _part(some: Node, is_nullable: bool) -> _Part:
    return _Part(nodes.optional(some) if is_nullable else some, some)


def _leaf(step: _Leaf, parts: Mapping[str, _Part]) -> _Part:
    if isinstance(step, _Name):
        return parts[step.name]
    if isinstance(step, Character):
        return _part(utf8(step.ranges), False)
    if isinstance(step, _Special):
        return _part(nodes.literal(symbol(step.special)), False)
    return _part(nodes.literal(step.text.encode()) if step.text else EMPTY, not step.text)


def _combined(step: Combination, parts: list[_Part]) -> _Part:
    if isinstance(step, Choose):
        return _Part(nodes.alternation(part.whole for part in parts), nodes.alternation(part.some for part in parts))
    if isinstance(step, Loop):
        is_nullable = step.lo == 0 or parts[0].whole.nullable
        least = 1 if parts[0].whole.nullable else max(step.lo, 1)
        return _part(EMPTY if step.hi == 0 else nodes.repeat(parts[0].some, least, step.hi), is_nullable)
    rest, some = EPSILON, EMPTY
    for part in reversed(parts):
        begun = nodes.concat(part.some, rest)
        some = nodes.alternation((begun, some)) if part.whole.nullable else begun
        rest = nodes.concat(part.whole, rest)
    return _Part(rest, some)
