r"""`Terminals`: the terms of a grammar's terminals, restricted to what the lexers of Lark read as that terminal in its context.

Lark reads a grammar in two ways, and a text that is written here is read as the same terminals by both:

- its default parser tries at each position every terminal that may come, and each takes what `re.match` takes;
- its contextual lexer (`parser="lalr"`) takes at each position the first terminal that matches, of those that the parser would accept
  and of those that are ignored, in the order of priority, longest possible text, length of the pattern, and name. A match of a regular
  expression that is also the whole of a string is the string: so a name is not a keyword, where the keyword may come.

So the texts of a terminal are its leftmost-first matches, by maximal munch, without those that the contextual lexer reads as another
terminal at that position (an intersection with complements); and a terminal does not end where the following bytes could extend it
(`terminal_end.py`). This leaves out a few texts more than needed, and allows no wrong one.
A pattern that ends in `(?!...)`, or after a word character in `\b`, must not be followed by what that excludes. Refused: patterns that
look beyond their own text in another way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from itertools import combinations, islice, takewhile
from typing import Literal, NamedTuple

from lark.lexer import PatternStr, TerminalDef

from fsm.automaton.lazy_dfa import Automaton, shortest_text
from fsm.errors import BudgetExceeded, ExpressionError, GrammarError, clip
from fsm.lark.terminal_end import TerminalEnd
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import looks_outside, preferred_texts, regex, without_last_look
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY, EPSILON, Kind, Node
from fsm.terms.state_elimination import as_loops

Ignored = Literal["one", "any"]
Lexing = Literal["none", "keywords", "all"]
"""How much of the contextual lexer is imitated: nothing, keywords before names, or the order of all terminals."""
Context = frozenset[str]
"""The names of the terminals that are allowed at a position, without those that are ignored."""
MAX_IGNORED = 32  # bytes of what is ignored in one place
_MAX_COMPARED = 500  # states in which the texts of two terminals are compared
# Where no part is of these kinds, a term is made of loops.
_OPAQUE = frozenset({Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION})
_MAX_SEARCH = 3_000  # states that are visited in the search for a text of a terminal that no other one takes
MAX_COMMON = (
    3_000  # states that are visited in the search for a text that two terminals match; 0.2 ms each at the worst
)


class _Terminal:
    """One terminal: its texts, and its rank in the order of the lexer."""

    def __init__(self, definition: TerminalDef) -> None:
        pattern = definition.pattern
        self.name = definition.name
        self.priority = definition.priority
        self.text = pattern.value.encode() if isinstance(pattern, PatternStr) else None
        self.flags = frozenset(pattern.flags)
        self.order = -definition.priority, -pattern.max_width, -len(pattern.value), definition.name
        self.is_string = isinstance(pattern, PatternStr)
        self.pattern = pattern.to_regexp()

    @cached_property
    def language(self) -> Node:
        """All texts that the pattern matches.

        Raises:
            GrammarError: the terminal has no texts, or its pattern is not supported.
        """
        if self.is_plain:
            assert self.text is not None
            return nodes.literal(self.text)
        try:
            parts = self._parts
            node = regex(self.pattern).node if parts is None else parts[0]
        except ExpressionError as error:
            raise GrammarError(f"terminal {self.name!r}: {error}") from None
        if node.nullable or not Derivatives().is_inhabited(node):
            raise GrammarError(
                f"terminal {self.name!r} matches no text, or the empty one. Make the place that uses it optional."
            )
        return node

    @cached_property
    def _parts(self) -> tuple[Node, Node] | None:
        """The texts of a pattern that looks at what comes after it, and what must not come there; None where it looks at itself only.

        Raises:
            GrammarError: the pattern looks outside in another way, or there may be several texts after which that holds.
        """
        if self.is_plain or not looks_outside(self.pattern):
            return None
        parts = without_last_look(self.pattern)
        if parts is None or not _is_one_at_a_time(*parts):
            raise GrammarError(
                f"terminal {self.name!r}: an anchor or a lookaround sees what stands around the terminal. At its end `(?!...)` may, "
                "and `\\b` after a word character, where that leaves one place for the end. Write what the terminal itself is made of."
            )
        return parts

    @property
    def avoided(self) -> Node:
        """What must not come after a text."""
        return EMPTY if self._parts is None else self._parts[1]

    @cached_property
    def beginning(self) -> Node:
        """All that begins with a text of the terminal, and is followed by what the pattern allows there."""
        rest = nodes.complement(nodes.concat(self.avoided, ANYTHING))
        return nodes.concat(self.language, rest)

    @cached_property
    def taken(self) -> Node:
        """The texts that `re.match` takes whole; a simpler term where these are all."""
        if self.is_plain:
            return self.language
        language = self.language
        found = simplest(preferred_texts(self.pattern), language) if self._parts is None else language
        if all(part.kind not in _OPAQUE for part in nodes.all_parts(found)):
            return found
        return as_loops(found) or found

    @property
    def is_plain(self) -> bool:
        """True for one text."""
        return self.text is not None and not self.flags

    @cached_property
    def automaton(self) -> Automaton:
        """Reads `language`."""
        return Automaton(self.language)

    @cached_property
    def taking(self) -> Automaton:
        """Reads `taken`."""
        return self.automaton if self.taken is self.language else Automaton(self.taken)

    @cached_property
    def first_bytes(self) -> int:
        """A mask of the bytes with which a text may begin."""
        return Derivatives().first_bytes(self.language)

    def holds(self, other: _Terminal) -> bool:
        """True when the lexer looks up whether what it took for this one is the text of `other`, a string."""
        if self.text is not None or other.text is None or self.priority != other.priority:
            return False
        return self.automaton.accepts(other.text) and self.taking.accepts(other.text)

    def meets(self, other: _Terminal) -> bool:
        """True when a text of one of both may be a prefix of a text of the other."""
        if self.is_plain and other.is_plain:
            assert self.text is not None
            assert other.text is not None
            return self.text.startswith(other.text) or other.text.startswith(self.text)
        if not self.first_bytes & other.first_bytes:
            return False
        both = (nodes.concat(self.language, ANYTHING), nodes.concat(other.language, ANYTHING))
        try:
            return Derivatives(max_search=_MAX_COMPARED).is_inhabited(nodes.intersection(both))
        except BudgetExceeded:
            return True


class Collision(NamedTuple):
    """Two terminals of equal priority, by name, and one of the shortest texts that both match: the grammar is ambiguous there."""

    first: str
    second: str
    text: str


class Terminals:
    """The terms of terminals, each for a context: the set of terminals that are allowed at the same position."""

    def __init__(
        self, definitions: Iterable[TerminalDef], ignored: Iterable[str], mode: Ignored, lexing: Lexing
    ) -> None:
        self._by_name = {definition.name: _Terminal(definition) for definition in definitions}
        self._ignored = frozenset(ignored)
        self._mode, self._lexing = mode, lexing
        self._known: dict[tuple[str, Context], TerminalEnd] = {}
        self._gaps: dict[Context, Node] = {}
        self._rivals: dict[str, Context] = {}
        self._automata: dict[Node, Automaton] = {}
        self._beginnings: dict[Context, int] = {}
        self._plain: dict[bytes, list[_Terminal]] = {}
        for terminal in self._by_name.values():
            if terminal.text is not None and terminal.is_plain:
                self._plain.setdefault(terminal.text, []).append(terminal)
        self._texts = sorted(self._plain)
        self.patterns = [terminal for terminal in self._by_name.values() if not terminal.is_plain]

    def rivals(self, name: str) -> Context:
        """The terminals whose being allowed beside this one changes what it reads.

        Raises:
            GrammarError: the terminal has no pattern, or one that is not supported.
        """
        found = self._rivals.get(name)
        if found is None:
            own = self._terminal(name)
            others = [other for other in self._may_meet(own) if other is not own and self._lexing != "none"]
            is_ordered = self._lexing == "all"
            names = (o.name for o in others if o.holds(own) or own.holds(o) or (is_ordered and o.meets(own)))
            found = self._rivals[name] = frozenset(names)
        return found

    def _may_meet(self, own: _Terminal) -> Iterable[_Terminal]:
        """All terminals but, for a string, those strings that neither begin it nor begin with it."""
        text = own.text
        if text is None or not own.is_plain:
            return self._by_name.values()
        first = bisect_left(self._texts, text)
        longer = takewhile(lambda other: other.startswith(text), islice(self._texts, first, None))
        shorter = (text[:size] for size in range(1, len(text)) if text[:size] in self._plain)
        return (*self.patterns, *(other for found in (*shorter, *longer) for other in self._plain[found]))

    def symbol(self, name: str, context: Context, following: Context) -> Node:
        """A terminal where those of `context` may come, and what is ignored after it, where then those of `following` may come."""
        read = self._read(name, context)
        return nodes.concat(read.before(self._first_bytes(following | self._ignored)), self.gap(following))

    def gap(self, context: Context) -> Node:
        """The ignored texts before a position where the terminals of `context` are allowed."""
        known = self._gaps.get(context)
        if known is None:
            texts = [self._read(name, context) for name in sorted(self._ignored)]
            if self._mode == "any":
                after = self._first_bytes(context | self._ignored)
                known = nodes.repeat(nodes.alternation(text.before(after) for text in texts))
            else:
                after = self._first_bytes(context)
                known = perhaps(nodes.alternation(text.short(_shortened(text.head), after) for text in texts))
            self._gaps[context] = known
        return known

    def collision(self, contexts: Iterable[Context]) -> Collision | None:
        """Two regular expressions of equal priority that match one text where both may come; None where there are none.

        Strings do not count: a keyword that a name also matches is meant to be the keyword.

        Args:
            contexts: for each place, the terminals that may come there.

        Raises:
            GrammarError: a terminal has no pattern, or one that is not supported.
            BudgetExceeded: the product automaton of two of them is too large to decide it.

        Cost: one search of two automata per pair that may begin alike.
        """
        seen = set[tuple[str, str]]()
        for context in contexts:
            terminals = map(self._terminal, sorted(context | self._ignored))
            for first, second in combinations([terminal for terminal in terminals if not terminal.is_string], 2):
                pair = first.name, second.name
                if pair not in seen and first.priority == second.priority:
                    text = _common_text(first, second)
                    if text is not None:
                        return Collision(*pair, text)
                seen.add(pair)
        return None

    def written(self, name: str) -> str:
        """The regular expression of a terminal, for messages."""
        return f"/{clip(self._terminal(name).pattern)}/"

    def _first_bytes(self, names: Context) -> int:
        """A mask of the bytes with which a text of some terminals may begin."""
        mask = self._beginnings.get(names)
        if mask is None:
            mask = 0
            for name in names:
                mask |= self._terminal(name).first_bytes
            self._beginnings[names] = mask
        return mask

    def _read(self, name: str, context: Context) -> TerminalEnd:
        context = (context | self._ignored) & self.rivals(name)
        known = self._known.get((name, context))
        if known is None:
            others = [self._terminal(other) for other in sorted(context)]
            known = self._known[name, context] = self._among(self._terminal(name), others)
        return known

    def _among(self, own: _Terminal, others: list[_Terminal]) -> TerminalEnd:
        """The texts of a terminal that are read as such among others."""
        holders = [other for other in others if other.holds(own)]
        last = max(terminal.order for terminal in (own, *holders))
        rivals = [other for other in others if other not in holders and other.order < last and other.meets(own)]
        rivals = rivals if self._lexing == "all" else []
        head = own.taken
        keywords = _texts(other for other in others if own.holds(other))
        if keywords is not EMPTY:
            head = nodes.intersection((head, nodes.complement(keywords)))
        for holder in holders if own.flags else ():
            spelled = [holder.taken] if own.flags <= holder.flags else [holder.taken, _without(ANYTHING, [holder])]
            head = nodes.intersection((head, nodes.alternation(spelled)))
        head = _without(head, rivals)
        if not Derivatives(max_search=_MAX_SEARCH).is_inhabited(head):
            head = EMPTY
        left_out = (
            EMPTY if head is own.taken else own.taken
        )  # the lexer takes these, too, and then reads them otherwise
        avoided = nodes.alternation(terminal.avoided for terminal in (own, *holders))
        return TerminalEnd(head, self._automaton(nodes.alternation((_texts([*rivals, *holders]), left_out))), avoided)

    def _automaton(self, node: Node) -> Automaton:
        """Reads the texts of rivals; one for all places that have these."""
        known = self._automata.get(node)
        if known is None:
            known = self._automata[node] = Automaton(node)
        return known

    def _terminal(self, name: str) -> _Terminal:
        if name not in self._by_name:
            raise GrammarError(
                f"terminal {name!r} is declared and has no pattern; it would be the work of a lexer in Python, such as "
                "indentation. Give it a pattern, or leave it out."
            )
        return self._by_name[name]


def _common_text(first: _Terminal, second: _Terminal) -> str | None:
    """One of the shortest texts that two terminals match, or None."""
    if not first.first_bytes & second.first_bytes:
        return None
    both = nodes.intersection((first.language, second.language))
    text = None
    try:
        if not Derivatives(max_search=MAX_COMMON).is_inhabited(both):
            return None
        text = shortest_text(both, max_states=MAX_COMMON)
    except BudgetExceeded:
        pass
    if text is None:
        raise BudgetExceeded(
            f"expected terminals of which it can be told whether they match one text, received {first.name!r} and {second.name!r}, "
            f"of which {MAX_COMMON:,} states were looked at. Simplify one of them, give them priorities, or leave out `strict`.",
            "max_search",
            MAX_COMMON,
        )
    return text.decode()


def _texts(terminals: Iterable[_Terminal]) -> Node:
    """All texts of some terminals; those of strings as one list of words."""
    found = list(terminals)
    words = nodes.words(terminal.text or b"" for terminal in found if terminal.is_plain)
    return nodes.alternation((words, *(terminal.language for terminal in found if not terminal.is_plain)))


def _is_one_at_a_time(texts: Node, avoided: Node) -> bool:
    """True where no text is a proper prefix of another: then the order in which they are tried does not matter."""
    rest = nodes.intersection((nodes.complement(nodes.concat(avoided, ANYTHING)), nodes.complement(EPSILON)))
    return not Derivatives().is_inhabited(nodes.intersection((texts, nodes.concat(texts, rest))))


def _without(head: Node, terminals: list[_Terminal]) -> Node:
    """The texts that begin with no text of some terminals."""
    if not terminals:
        return head
    beginnings = [terminal.beginning for terminal in terminals if terminal.avoided is not EMPTY]
    beginnings.append(nodes.concat(_texts(terminal for terminal in terminals if terminal.avoided is EMPTY), ANYTHING))
    return nodes.intersection((head, nodes.complement(nodes.alternation(beginnings))))


def perhaps(node: Node) -> Node:
    """The texts of a node and the empty one; of a loop, one loop."""
    if node.kind is Kind.REPEAT and node.args[1] == 1:
        return nodes.repeat(node.args[0], 0, node.args[2])
    return nodes.optional(node)


def _shortened(head: Node) -> Node:
    """The texts of at most `MAX_IGNORED` bytes."""
    if head.kind is Kind.REPEAT and head.args[0].kind in (Kind.BYTES, Kind.LITERAL) and head.args[2] is None:
        body, least, _ = head.args
        if body.kind is Kind.BYTES or len(body.args[0]) == 1:
            return nodes.repeat(body, least, MAX_IGNORED)
    return nodes.intersection((head, nodes.repeat(nodes.byte_set(ALL_BYTES), 1, MAX_IGNORED)))
