"""`PatternSearch`: incremental search for regular expressions, of `re` or `fsm`, in characters that arrive in chunks: an immutable list of
threads, each one state of a lazy DFA for one starting character. A thread ends when the DFA rejects or matches (so a start has its shortest
match only), or after as many characters as a match may have: by the pattern, or a stated `horizon`; without either it is refused.
Lookarounds see the text around a match, which is found once nothing that follows can undo it, or at the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fsm import Expression, FSMError, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.pattern.python_pattern import looks_outside, widths
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Node, complement, intersection
from outlines_cont.errors import OptionError

_MAX_STATES = 5_000
"""The most states of an automaton whose longest string is computed."""


class SearchPattern:
    """One regular expression to search for, as a lazy DFA, with the bounds of its matches.

    Attributes:
        shown: its source, for errors.
        most: the most characters of a match, those that its lookaheads read included.
        behind: the characters before a match that its lookbehinds read.
    """

    def __init__(self, source: re.Pattern[str] | Expression, horizon: int | None) -> None:
        """Read a pattern of `re`, with its own flags, or an expression of `fsm`.

        Raises:
            OptionError: it matches the empty text, or its length has no bound and no horizon is stated.
            fsm.FSMError: `fsm` does not support the pattern.
        """
        self._looks = False
        self.behind = 0
        if isinstance(source, Expression):
            self.shown = str(source)
            nodes, least, most = self._read_expression(source)
        else:
            self.shown = source.pattern
            nodes, least, most = self._read_pattern(source)
        if not least:
            raise OptionError(
                f"expected patterns that match one character or more, got {self.shown!r}, which matches the empty text. "
                "Write what is to be banned, such as `+` in place of `*`.",
                "phrases",
            )
        bound = min((limit for limit in (most, horizon) if limit is not None), default=None)
        if bound is None:
            raise OptionError(
                f"expected a bound on the length of what {self.shown!r} matches, or a stated `horizon`, as text is held back and taken "
                "back that far. Write `{3,60}` in place of `+`, or `horizon=100` to look for matches of 100 characters or less.",
                "horizon",
            )
        self.most = bound
        self.automaton = Automaton(nodes[0])
        self._starts = [self.automaton.state_of(node) for node in nodes]
        self._begun: dict[bytes, int] = {}
        self._certain: dict[int, bool] = {}

    def start(self, context: bytes) -> int:
        """Return the state before a match that follows `context`, the last `behind` characters or all that there are."""
        state = self._begun.get(context)
        if state is None:
            size = sum(map(_begins_character, context))
            state = self.automaton.next_state(self._starts[min(size, len(self._starts) - 1)], context)
            if len(self._begun) < _MAX_STATES:
                self._begun[context] = state
        return state

    def is_match(self, state: int) -> bool:
        """Return whether the text up to here is a match, whatever follows."""
        if not self._looks or not self.automaton.is_accepting(state):
            return self.automaton.is_accepting(state)
        if state not in self._certain:
            others = intersection((_texts(), complement(self.automaton.nodes[state])))
            self._certain[state] = not Derivatives().is_inhabited(others)
        return self._certain[state]

    def _read_pattern(self, source: re.Pattern[str]) -> tuple[list[Node], int, int | None]:
        flags = "".join(letter for letter, flag in _FLAGS.items() if source.flags & flag)
        body = _LEADING_FLAGS.sub("", source.pattern)
        body = f"(?{flags}:{body}\n)" if "x" in flags else f"(?{flags}:{body})"
        width = widths(body)
        if not looks_outside(body):
            return [regex(body).node], width.least, width.most
        self._looks, self.behind = True, width.behind
        most = None if width.most is None or width.ahead is None else width.most + width.ahead
        nodes = [regex(f"(?s:.{{{before}}}){body}(?s:.*)").node for before in range(self.behind + 1)]
        return nodes, width.least, most

    def _read_expression(self, source: Expression) -> tuple[list[Node], int, int | None]:
        if source.has_checks:
            raise OptionError(
                f"expected an expression that its automaton decides, got {self.shown}, with checks ({', '.join(source.checks)}). "
                "Write what is to be banned as a regular expression.",
                "phrases",
            )
        if source.is_empty():
            raise OptionError(
                f"expected an expression that some text satisfies, got {self.shown}. Leave it out.", "phrases"
            )
        return [source.node], not source.accepts(""), _longest(Automaton(source.node, max_states=2 * _MAX_STATES))


@dataclass(frozen=True, slots=True)
class Thread:
    """The state of one automaton that was started at one character."""

    pattern: int  # the number of the pattern
    start: int  # the offset of its first byte
    first: int  # the number of its first character
    state: int  # the state of the automaton of the pattern


@dataclass(frozen=True, slots=True)
class Found:
    """A match: the number of its phrase or pattern, the offset of its first character, and the number of its first symbol in that."""

    rule: int
    start: int
    symbol: int = 0


@dataclass(frozen=True, slots=True)
class PatternSearch:
    """The state of a search after some characters. Immutable: `push` returns a new one.

    Attributes:
        patterns: the patterns to find, by their numbers.
        threads: possible beginnings of matches, in their order.
        num_chars: the length of the text so far.
        context: the last characters, as many as some pattern has `behind`.
    """

    patterns: Mapping[int, SearchPattern]
    threads: tuple[Thread, ...] = ()
    num_chars: int = 0
    context: bytes = b""

    def push(self, characters: Iterable[tuple[int, bytes]], start: int) -> tuple[PatternSearch, list[Found]]:
        """Return the search after some characters, each with its offset from `start`, and the matches that end in them.

        Cost: 0.3 us per byte and thread.
        """
        if not self.patterns:
            return self, []
        threads, num_chars, context = self.threads, self.num_chars, self.context
        behind = max(pattern.behind for pattern in self.patterns.values())
        found: list[Found] = []
        for offset, character in characters:
            alive = (t for t in threads if num_chars - t.first < self.patterns[t.pattern].most)
            threads = (*alive, *self._begun(context, start + offset, num_chars))
            num_chars += 1
            for byte in character:
                threads = tuple(self._stepped(threads, byte, found))
            context = _last(context + character, behind)
        return PatternSearch(self.patterns, threads, num_chars, context), found

    def at_end(self) -> list[Found]:
        """Return the further matches that there are if the text ends here."""
        return [
            Found(thread.pattern, thread.start)
            for thread in self.threads
            if self.patterns[thread.pattern].automaton.is_accepting(thread.state)
        ]

    def moved(self, offset: int) -> PatternSearch:
        """Return this search with offsets that count from another one."""
        return replace(self, threads=tuple(replace(thread, start=thread.start - offset) for thread in self.threads))

    def _begun(self, context: bytes, offset: int, num_chars: int) -> Iterator[Thread]:
        for number, pattern in self.patterns.items():
            state = pattern.start(_last(context, pattern.behind))
            if state:
                yield Thread(number, offset, num_chars, state)

    def _stepped(self, threads: Sequence[Thread], byte: int, found: list[Found]) -> Iterator[Thread]:
        for thread in threads:
            pattern = self.patterns[thread.pattern]
            state = pattern.automaton.moves(thread.state).get(byte)
            if state is None:
                continue
            if pattern.is_match(state):
                found.append(Found(thread.pattern, thread.start))  # the shortest match of this start is enough
            else:
                yield replace(thread, state=state)


_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII}
_LEADING_FLAGS = re.compile(r"\A(?:\(\?[aiLmsux]+\))+")


@cache
def _texts() -> Node:
    """All texts, as a term."""
    return regex("(?s:.*)").node


def _begins_character(byte: int) -> bool:
    return byte & 0xC0 != 0x80


def _last(data: bytes, count: int) -> bytes:
    """Return the last `count` characters, or all."""
    at = len(data)
    while at and count:
        at -= 1
        count -= _begins_character(data[at])
    return data[at:]


def _longest(automaton: Automaton) -> int | None:
    """Return the bytes of the longest string of a language; None if unbounded (at the first cycle), or with more than 5,000 states.

    A depth-first search, whose post-order is a topological order of the states.
    """
    order, done = list[int](), set[int]()
    entered, pending = set[int](), [automaton.initial_state]
    while pending:
        state = pending[-1]
        if state in entered:
            pending.pop()
            if state not in done:
                done.add(state)
                order.append(state)
            continue
        entered.add(state)
        targets = [target for _, target in automaton.arcs(state)]
        if len(entered) > _MAX_STATES or any(target in entered and target not in done for target in targets):
            return None
        pending += [target for target in targets if target not in entered]
    longest: dict[int, int] = {}
    for state in order:
        longest[state] = max((1 + longest[target] for _, target in automaton.arcs(state)), default=0)
    return longest[automaton.initial_state]


def checked_pattern(source: re.Pattern[str] | Expression, horizon: int | None) -> SearchPattern:
    """Return a pattern to search for.

    Raises:
        OptionError: it is over bytes, `fsm` does not support it, or see `SearchPattern`.
    """
    if isinstance(source, re.Pattern) and isinstance(source.pattern, bytes):
        raise OptionError(
            f"expected patterns over text, got {source.pattern!r}, one over bytes. Write it as a str.", "phrases"
        )
    try:
        return SearchPattern(source, horizon)
    except FSMError as error:
        raise OptionError(f"expected patterns that can be searched for, got {source!r}: {error}", "phrases") from error
