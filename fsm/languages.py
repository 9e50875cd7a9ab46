"""`choice`: the finite language of some given texts, as one term with their sorted list, whose derivatives are ranges of it. An empty list
is refused.

`until`: any text up to and including the first occurrence of a mark, as an intersection with a complement: the texts that end in the
mark, without those that continue after an occurrence. Its lazy DFA has about one state per byte of the mark, like that of Knuth, Morris and
Pratt.

`substring`: the language of all substrings of a text, the empty one included, as its suffix automaton over characters, built in one
pass with at most two states and three transitions per character. A state is one of these and the bytes read of a character, so no substring
begins or ends inside one. At an end mark of one character the text is divided; a longer one is an intersection with `until`.

`json_string`: the JSON strings whose texts belong to a language, by its derivatives.

Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from fsm.errors import ExpressionError, clip, shorten
from fsm.expression import Expression, lift
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms import rule as texts
from fsm.terms.characters import ALL_CHARACTERS, json_text, utf8
from fsm.terms.node import EMPTY, Node

_OF_ENUM = "For the values of an Enum write `generate.format(model, TheEnum)`, or list their texts."


@remembered
def choice(options: Sequence[str]) -> Expression:
    """One of `options`, exactly.

    Raises:
        ExpressionError: `options` is not a list, is empty, or contains something that is not text or has a lone surrogate.

    Cost: one sort; 50,000 options are fine.
    """
    received, advice = "", "Write `list(...)` of what to choose from."
    if isinstance(options, str):
        received, advice = f"one string {options!r}", f"Write [{options!r}] for a single option."
    elif isinstance(options, type):
        received, advice = f"the class {options.__name__}", _OF_ENUM
    elif isinstance(options, Mapping) or not isinstance(options, Sequence):
        received = shorten(options)
    elif not options:
        received, advice = "an empty one", "Give at least one text to choose from."
    if received:
        raise ExpressionError(f"expected a list of options, received {received}. {advice}")
    options = [*options]  # a `deque` is a sequence without slices
    for position, option in enumerate(options):
        if not isinstance(option, str):
            raise ExpressionError(
                f"expected text for every option, received {option!r} at position {position}. "
                + (_OF_ENUM if isinstance(option, Enum) else "Convert it with str() first.")
            )
    spelled = [texts.encode(option, f"the option at position {position}") for position, option in enumerate(options)]
    few = ", ".join(repr(clip(option, 30)) for option in options[:4])
    more = f", ... {len(options)} in all" if len(options) > 4 else ""
    return Expression(nodes.words(spelled), source=f"choice([{few}{more}])")


@remembered
def until(mark: str) -> Expression:
    """Any text whose first and only occurrence of `mark` is its end, such as the thoughts of a model before `</think>`.

    Raises:
        ExpressionError: `mark` is empty, not text, or contains a lone surrogate.

    Cost: one state per byte of the mark.
    """
    if not isinstance(mark, str) or not mark:
        raise ExpressionError(
            f"expected a text with which the free text ends, received {shorten(mark)}. Give at least one character."
        )
    ends_so = nodes.concat(texts.TEXTS, nodes.literal(texts.encode(mark, "the mark")))
    goes_on = nodes.sequence((ends_so, utf8(ALL_CHARACTERS), texts.TEXTS))
    node = nodes.intersection((ends_so, nodes.complement(goes_on)))
    return Expression(node, source=f"until({clip(mark)!r})")


State = tuple[int, bytes]
"""A state of the suffix automaton, and the first bytes of the next character."""


class Substrings(nodes.Content, nodes.Machine):
    """Reads the substrings of some texts, the empty one included; every state leads to one of them.

    Attributes:
        texts: the texts with these substrings; no substring spans two of them.
    """

    __slots__ = ("_length", "_link", "_next", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        super().__init__(self.texts)
        self._next: list[dict[str, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        for text in self.texts:
            last = 0
            for character in text:
                last = self._extend(last, character)

    def is_accepting(self, state: State) -> bool:
        """True between characters."""
        return not state[1]

    def arcs(self, state: State, known: object) -> Iterator[tuple[int, Node]]:
        """One arc per next byte of the characters that may follow."""
        at, begun = state
        after: dict[int, State] = {}
        for character, target in self._next[at].items():
            data = character.encode()
            if data.startswith(begun):
                is_whole = len(data) == len(begun) + 1
                after[data[len(begun)]] = (target, b"") if is_whole else (at, data[: len(begun) + 1])
        for byte, state_after in after.items():
            yield 1 << byte, nodes.machine(self, state_after, is_plain=True)

    def _extend(self, last: int, character: str) -> int:
        """Add a character after the state `last`, that of a whole prefix; return the state of the longer one."""
        known = self._next[last].get(character)
        if known is not None:  # another text has it already
            return known if self._length[known] == self._length[last] + 1 else self._split(last, character, known)
        new = self._add({}, 0, self._length[last] + 1)
        at = last
        while at >= 0 and character not in self._next[at]:
            self._next[at][character] = new
            at = self._link[at]
        if at >= 0:
            target = self._next[at][character]
            is_next = self._length[target] == self._length[at] + 1
            self._link[new] = target if is_next else self._split(at, character, target)
        return new

    def _split(self, at: int, character: str, target: int) -> int:
        """Split the shorter substrings of `target` from the longer ones, which end at fewer positions."""
        copy = self._add({**self._next[target]}, self._link[target], self._length[at] + 1)
        self._link[target] = copy
        while at >= 0 and self._next[at].get(character) == target:
            self._next[at][character] = copy
            at = self._link[at]
        return copy

    def _add(self, arcs: dict[str, int], link: int, length: int) -> int:
        self._next.append(arcs)
        self._link.append(link)
        self._length.append(length)
        return len(self._next) - 1


@remembered
def substring(text: str, *, end: str = "") -> Expression:
    """Any stretch of `text`, the empty one included; with `end`, one without that mark, and the mark behind it.

    So a quotation is `'"' + fsm.substring(source, end='"')`: the text between the marks occurs in the source, and the first
    mark ends it.

    Raises:
        ExpressionError: `text` or `end` is not text, or contains a lone surrogate.

    Cost: one pass over `text`, 3 us per character; an arc per next character when a state is reached.
    """
    for name, value in (("text", text), ("end", end)):
        if not isinstance(value, str):
            raise ExpressionError(f"expected a text as `{name}`, received {shorten(value)}.")
        texts.encode(value, f"`{name}`")
    # A mark of one character divides the text into parts without it.
    parts = text.split(end) if len(end) == 1 else [text]
    node = nodes.concat(nodes.machine(Substrings(parts), (0, b""), is_plain=True), nodes.literal(end.encode()))
    if len(end) > 1:
        node = nodes.intersection((node, until(end).node))
    mark = f", end={end!r}" if end else ""
    return Expression(node, source=f"substring({clip(text)!r}{mark})")


_ESCAPES = {byte: json_text(chr(byte)) for byte in (*range(0x20), 0x22, 0x5C)}
_ESCAPED = sum(1 << byte for byte in _ESCAPES)


class JSONSpelling(nodes.Content, nodes.Machine):
    """Reads texts of a term as the inside of a JSON string. A state is the term of the rest."""

    __slots__ = ()

    def is_accepting(self, state: Node) -> bool:
        """True if the text may end."""
        return state.nullable

    def parts(self, state: Node) -> tuple[Node, ...]:
        """The term."""
        return (state,)

    def like(self, state: Node) -> Node:
        """The term: each of its texts has a spelling."""
        return state

    def arcs(self, state: Node, known: Mapping[Node, Sequence[tuple[int, Node]]]) -> Iterator[tuple[int, Node]]:
        """The arcs of the term, with a backslash and the rest of an escape in place of a byte that has one."""
        escaped = []
        for mask, target in known[state]:
            if plain := mask & ~_ESCAPED:
                yield plain, self.spelled(target)
            rest = nodes.words([escape[1:] for byte, escape in _ESCAPES.items() if mask >> byte & 1])
            escaped.append(nodes.concat(rest, self.spelled(target)))
        if (found := nodes.alternation(escaped)) is not EMPTY:
            yield 1 << ord("\\"), found

    def spelled(self, term: Node) -> Node:
        """Return the texts of a term, spelled."""
        return EMPTY if term is EMPTY else nodes.machine(self, term, is_plain=term.is_plain)


@remembered
def json_string(language: Expression | str) -> Expression:
    """The JSON strings, quotes included, whose texts belong to a language; each text has the one spelling of `fsm.json_schema`.

    Raises:
        ExpressionError: the language has checks or special tokens.

    Cost: that of the language.
    """
    language = lift(language)
    if language.specials or language.has_checks:
        raise ExpressionError(
            f"expected a language of texts without checks and special tokens, for a JSON string, received {language!r}. Leave these out."
        )
    node = nodes.sequence([nodes.literal(b'"'), JSONSpelling().spelled(language.node), nodes.literal(b'"')])
    return Expression(node, reported=language.reported, source=f"json_string({language!r})")
