"""`TerminalEnd`: maximal munch (longest match) for a terminal, as a negative condition on what may follow each of its texts: nothing that
extends it to a longer text of the terminal or of a rival that the lexer prefers, nor what it excludes. Extensions of up to `MAX_BYTES`
bytes are enumerated in the product automaton of both; longer ones are approximated by their first bytes, which excludes a few texts and
allows no wrong one.

So the number `1` may end before `..`, since only a digit after the dot makes a longer number. Above `MAX_PLACES` product states the
condition is evaluated while the text is read (a term of kind MUNCH).

`Terminals`: the term of each terminal of a grammar in a context, the set of terminals that are possible at the same position. It has
the leftmost-first matches, without those that Lark's contextual lexer would read as another terminal there (an intersection with
complements), each only where what follows does not extend it (`terminal_end.py`). Refused: patterns that look at the text around them,
except by `(?!...)` or `\b` at the end. Also here: ignored texts (`gap`), and `collision` of two regular expressions.

Lark reads a grammar in two ways, and a text that is written here is read as the same terminals by both:

- its default parser tries at each position every terminal that is possible there, and each takes what `re.match` takes;
- its contextual lexer (`parser="lalr"`) takes at each position the first terminal that matches, of those that the parser would accept
  and of those that are ignored, in the order of priority, longest possible text, length of the pattern, and name. A match of a regular
  expression that is also the whole of a string is the string: so a name is not a keyword, where the keyword is possible.

The lexer of llguidance (`greedy`) reads on while any terminal that is possible there can continue, and then takes all that match. A lazy
lexeme ends it at once. Terms that Lark does not know (`Lexeme`) are terminals of this lexer.

How much of the second is imitated is an option (`Lexing`). A few texts more than needed are left out, and no wrong one is allowed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cache, cached_property, reduce, wraps
from itertools import combinations, islice, permutations, takewhile
from operator import or_
from typing import Any, Literal, NamedTuple, TypeVar

from lark.lexer import PatternStr, TerminalDef

from fsm.automaton.lazy_dfa import DEAD, Automaton, shortest_text
from fsm.errors import BudgetExceeded, ExpressionError, GrammarError, clip
from fsm.lark.lexeme import Lexeme
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import looks_outside, preferred_texts, regex, without_last_look
from fsm.terms import node as nodes
from fsm.terms.byte_classes import completed, product
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY, EPSILON, Kind, Node
from fsm.terms.rendering import render
from fsm.terms.state_elimination import MAX_STATES, Arcs, as_loops, eliminated

MAX_PLACES = 3_000  # states of the product automaton of head and rival
MAX_BYTES = 8  # of an extension; longer ones are approximated by their first bytes

_Pair = tuple[int, int]
"""A state of the head, and one of the rival."""

_NO_TEXT = Automaton(EPSILON)
_Argument = TypeVar("_Argument", bound=Hashable)
_Owner = TypeVar("_Owner")
_Found = TypeVar("_Found")


def cached_method(find: Callable[[_Owner, _Argument], _Found]) -> Callable[[_Owner, _Argument], _Found]:
    """Cache a method of one argument in the dictionary `_memo` of its object; a cache of bound methods would be a reference cycle."""

    @wraps(find)
    def cached(self: Any, argument: _Argument) -> _Found:
        memo: dict[Any, Any] = self._memo
        if (find, argument) not in memo:
            memo[find, argument] = find(self, argument)
        return memo[find, argument]  # type: ignore[no-any-return]

    return cached


class TerminalEnd:
    """The texts of `head`, each followed by nothing that extends it to a longer text of `head` or of a rival, nor by a text of `avoided`.

    `rival` is the automaton of other terminals that the lexer would prefer.
    """

    def __init__(self, head: Node, rival: Automaton, avoided: Node = EMPTY, most: int = MAX_BYTES) -> None:
        self.head = head
        self._most = most  # bytes of an extension that are read; 0: one that could begin one is enough
        self._rival, self._avoided = rival, avoided
        self._memo: dict[Any, Any] = {}

    def short(self, head: Node, after: int) -> Node:
        """The same as `before` for a part of the texts of the head."""
        guards = self._guards(after)
        if guards is not None and len(set(guards.values())) <= 1:
            return nodes.concat(head, next(iter(guards.values()), EPSILON))
        tail = nodes.munch(EPSILON, EPSILON, self._avoided)
        return nodes.munch(head, tail, self._rival.nodes[Automaton.initial_state])

    @cached_method
    def before(self, after: int) -> Node:
        """The texts before the end, or before one of the bytes of a mask."""
        guards = self._guards(after)
        if guards is not None and len(set(guards.values())) > 1:
            kinds = _kinds(self.head)
            if len(kinds) > 1:
                ends = (TerminalEnd(kind, self._rival, self._avoided, self._most) for kind in kinds)
                return nodes.alternation(end.before(after) for end in ends)
            if len(self._arcs) <= MAX_STATES:
                return eliminated(self._arcs, self._first, guards)
        return self.short(self.head, after)

    def _guards(self, after: int) -> dict[_Pair, Node] | None:
        """For each state where a text can end, the condition on the rest; None with too many states."""
        if len(self._arcs) > MAX_PLACES:
            return None
        ends = (pair for pair in self._arcs if self._texts.is_accepting(pair[0]))
        avoided = self._avoided
        if avoided is not EMPTY and not Derivatives().first_bytes(avoided) & after:
            avoided = EMPTY
        more = {pair: nodes.alternation((self._more(pair, after), avoided)) for pair in ends}
        return {pair: nodes.munch(EPSILON, EPSILON, rest) for pair, rest in more.items()}

    @cached_property
    def _texts(self) -> Automaton:
        return _NO_TEXT if self.head.kind is Kind.LITERAL else Automaton(self.head)

    @property
    def _first(self) -> _Pair:
        return self._texts.initial_state, self._rival.initial_state

    @cached_property
    def _arcs(self) -> Arcs[_Pair]:
        """The transitions of the product automaton while the head is alive; with too many states more than `MAX_PLACES`, incomplete."""
        if self.head.kind is Kind.LITERAL:  # only the state after the text is needed
            return {(_NO_TEXT.initial_state, self._rival.next_state(self._rival.initial_state, self.head.args[0])): []}
        found: Arcs[_Pair] = {}
        for pair in nodes.reached(self._first, lambda pair: [target for _, target in found[pair]]):
            found[pair] = [(mask, target) for mask, target in self._steps(pair) if target[0] != DEAD]
            if len(found) > MAX_PLACES:
                break
        return found

    def _steps(self, pair: _Pair) -> list[tuple[int, _Pair]]:
        """The transitions of a state of the product automaton of head and rival: disjoint masks of bytes, and their targets."""
        own = self._texts.arcs(pair[0]) if pair[0] != DEAD else []
        others = self._rival.arcs(pair[1]) if pair[1] != DEAD else []
        steps = product((completed(own, DEAD), completed(others, DEAD)))
        return [(mask, (target, rival)) for mask, (target, rival) in steps if (target, rival) != (DEAD, DEAD)]

    def _more(self, pair: _Pair, after: int, depth: int = 0) -> Node:
        """The shortest texts from a state to acceptance by the head or the rival; their first byte is one of a mask."""
        texts = []
        for mask, target in self._steps(pair):
            if mask & after:
                is_end = depth == self._most or any(
                    state != DEAD and automaton.is_accepting(state)
                    for automaton, state in zip((self._texts, self._rival), target, strict=True)
                )
                rest = EPSILON if is_end else self._any_more((target, depth + 1))
                texts.append(nodes.concat(nodes.byte_set(mask & after), rest))
        return nodes.alternation(texts)

    @cached_method
    def _any_more(self, at: tuple[_Pair, int]) -> Node:
        """The same for any first byte, from a state and a number of bytes that were read; many texts pass through the same ones."""
        return self._more(at[0], nodes.ALL_BYTES, at[1])


def _kinds(head: Node) -> list[Node]:
    """Terms whose union a head is, as its texts are of kinds that begin with different bytes, such as plain and quoted names.

    No text of one is longer than one of another and begins with it, so each has its own ends.
    """
    parts = [*head.args] if head.kind is Kind.INTERSECTION else [head]
    union = next((part for part in parts if part.kind is Kind.ALTERNATION), None)
    if union is None or union.nullable:
        return []
    first_bytes = Derivatives().first_bytes
    seen = 0
    for member in union.args:
        if seen & first_bytes(member):
            return []
        seen |= first_bytes(member)
    others = [part for part in parts if part is not union]
    kinds = (nodes.intersection((*others, member)) for member in union.args)
    return [kind for kind in kinds if Derivatives().is_inhabited(kind)]


Ignored = Literal["one", "any"]
Lexing = Literal["none", "keywords", "all", "greedy"]
"""How much of the contextual lexer is imitated: nothing, keywords before names, the order of all terminals; or that of llguidance."""
Context = frozenset[str]
"""The names of the terminals that are allowed at a position, without those that are ignored."""
MAX_IGNORED = 32  # bytes of an ignored text of white space
_BLANKS = regex(r"\s*").node
_MAX_COMPARED = 500  # states in which the texts of two terminals are compared
# Where no part is of these kinds, a term is made of loops.
_OPAQUE = frozenset({Kind.INTERSECTION, Kind.COMPLEMENT, Kind.MACHINE, Kind.CONTINUATION})
_MAX_SEARCH = 3_000  # states that are visited in the search for a text of a terminal that no other one takes
MAX_COMMON = 3_000  # states that are visited in the search for a text that two terminals match; at most 0.2 ms each


class _Terminal:
    """One terminal: its texts, and its rank in the order of the lexer."""

    def __init__(self, definition: TerminalDef) -> None:
        pattern = definition.pattern
        self.name = definition.name
        self.priority = definition.priority
        self.text = pattern.value.encode() if isinstance(pattern, PatternStr) else None
        self.flags = frozenset(pattern.flags)
        self.order = -definition.priority, -pattern.max_width, -len(pattern.value), definition.name
        self.is_plain = self.text is not None and not self.flags  # it has one text
        self.pattern = pattern.to_regexp()
        self.kind = "greedy"

    @cached_property
    def _matched(self) -> Node:
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
        if not Derivatives().is_inhabited(node):
            raise GrammarError(f"terminal {self.name!r} matches no text. Leave it out, or correct its pattern.")
        if node.nullable and parts is not None:
            raise GrammarError(
                f"terminal {self.name!r} looks at the text after it, and matches the empty text. Make it optional where it is used."
            )
        return node

    @property
    def is_nullable(self) -> bool:
        """True when the pattern matches the empty text, which is none of the texts below."""
        return self._matched.nullable

    @cached_property
    def language(self) -> Node:
        """The texts that the pattern matches; the errors are those of a pattern that is not supported."""
        return nodes.not_empty(self._matched)

    @cached_property
    def _parts(self) -> tuple[Node, Node] | None:
        """The texts of a pattern that looks at the text after it, and what must not follow; None if it looks at its own text only.

        Raises:
            GrammarError: the pattern looks outside in another way, or a text of it may begin with another one.
        """
        if self.is_plain or not looks_outside(self.pattern):
            return None
        parts = without_last_look(self.pattern)
        if parts is None or not _is_one_at_a_time(*parts):
            raise GrammarError(
                f"terminal {self.name!r}: an anchor or a lookaround looks at the text around the terminal. At its end `(?!...)` may, and "
                "`\\b` after a word character, where that determines the end. Write what the terminal itself is made of."
            )
        return parts

    @property
    def avoided(self) -> Node:
        """What must not follow a text."""
        return EMPTY if self._parts is None else self._parts[1]

    @cached_property
    def beginning(self) -> Node:
        """A text of the terminal, and after it anything that the pattern allows there."""
        return nodes.concat(self.language, nodes.complement(nodes.concat(self.avoided, ANYTHING)))

    @cached_property
    def taken(self) -> Node:
        """The texts that `re.match` takes whole; the simpler term of `language` where these are all."""
        found = self._matched
        if not self.is_plain and self._parts is None:
            found = simplest(preferred_texts(self.pattern), found)
        found = nodes.not_empty(found)
        is_made_of_loops = all(part.kind not in _OPAQUE for part in nodes.all_parts(found))
        return found if is_made_of_loops else as_loops(found) or found

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
        """True when `other` is a string that the lexer of this one matches, and then reads as that string."""
        if self.text is not None or other.text is None or self.priority != other.priority:
            return False
        return self.automaton.accepts(other.text) and self.taking.accepts(other.text)

    def meets(self, other: _Terminal) -> bool:
        """True when a text of one of both may be a prefix of a text of the other."""
        if self.is_plain and other.is_plain and self.text is not None and other.text is not None:
            return self.text.startswith(other.text) or other.text.startswith(self.text)
        if not self.first_bytes & other.first_bytes:
            return False
        both = (nodes.concat(self.language, ANYTHING), nodes.concat(other.language, ANYTHING))
        try:
            return Derivatives(max_search=_MAX_COMPARED).is_inhabited(nodes.intersection(both))
        except BudgetExceeded:
            return True


class _Declared(_Terminal):
    """A terminal that is a term."""

    _parts = None

    def __init__(self, name: str, lexeme: Lexeme) -> None:
        self.name, self.kind, self.pattern = name, lexeme.kind, render(lexeme.node)
        self.priority, self.text, self.flags, self.is_plain = 0, None, frozenset[str](), False
        self.order = 0, 0, 0, name
        self._matched = lexeme.node


class Collision(NamedTuple):
    """Two terminals of equal priority, by name, and one of the shortest texts that both match: the grammar is ambiguous there."""

    first: str
    second: str
    text: str


class Terminals:
    """The terms of terminals, each for a context: the set of terminals that are allowed at the same position."""

    def __init__(
        self,
        definitions: Iterable[TerminalDef],
        lexemes: Mapping[str, Lexeme],
        ignored: Iterable[str],
        mode: Ignored,
        lexing: Lexing,
    ) -> None:
        self._by_name = {definition.name: _Terminal(definition) for definition in definitions}
        self._by_name |= {name: _Declared(name, lexeme) for name, lexeme in lexemes.items()}
        self._ignored = frozenset(ignored)
        self._mode, self._lexing = mode, lexing
        self._ends: dict[tuple[str, Context], TerminalEnd] = {}
        self._automaton = cache(Automaton)
        self._memo: dict[Any, Any] = {}
        self._plain: dict[bytes, list[_Terminal]] = {}
        for terminal in self._by_name.values():
            if terminal.text is not None and terminal.is_plain:
                self._plain.setdefault(terminal.text, []).append(terminal)
        self._texts = sorted(self._plain)
        self.patterns = [terminal for terminal in self._by_name.values() if not terminal.is_plain]

    @cached_method
    def rivals(self, name: str) -> Context:
        """The terminals that change what this one reads where they are possible, too.

        Raises:
            GrammarError: the terminal has no pattern, or one that is not supported.
        """
        if self._lexing == "none":
            return frozenset()
        own, is_ordered = self._terminal(name), self._lexing == "all"
        others = (other for other in self._may_meet(own) if other is not own)
        if self._lexing == "greedy":
            pair = (other for other in others if "foreign" not in (own.kind, other.kind))
            return frozenset(other.name for other in pair if own.meets(other))
        return frozenset(o.name for o in others if o.holds(own) or own.holds(o) or (is_ordered and o.meets(own)))

    def _may_meet(self, own: _Terminal) -> Iterable[_Terminal]:
        """All terminals; for a string without the strings that are neither prefixes of it nor have it as prefix."""
        text = own.text
        if text is None or not own.is_plain:
            return self._by_name.values()
        first = bisect_left(self._texts, text)
        longer = takewhile(lambda other: other.startswith(text), islice(self._texts, first, None))
        shorter = (text[:size] for size in range(1, len(text)) if text[:size] in self._plain)
        return (*self.patterns, *(other for found in (*shorter, *longer) for other in self._plain[found]))

    def symbol(self, name: str, context: Context, following: Context) -> Node:
        """A terminal where those of `context` are possible, before one of `following`; what is ignored after it, but for `greedy`."""
        own = self._terminal(name)
        if own.kind == "foreign" and not own.language.is_regular:
            return own.language
        found = self._read(name, context).before(self._first_bytes(following | self._ignored))
        return found if self._lexing == "greedy" else nodes.concat(found, self.gap(following))

    @cached_method
    def gap(self, context: Context) -> Node:
        """The ignored texts before a position where the terminals of `context` are possible.

        White space is one text or two of different terminals; so a line can end and the next begin. Comments are any number, as one that
        has begun, and ends in a line break, would end the program otherwise.
        """
        after = self._first_bytes(context | self._ignored)
        texts = {name: self._read(name, context) for name in sorted(self._ignored)}
        if self._mode == "any":
            return nodes.repeat(nodes.alternation(text.before(after) for text in texts.values()))
        blanks = {name: text for name, text in texts.items() if self._is_blank(name)}
        if len(self._ignored) == 1:
            after = self._first_bytes(context) if blanks else after
        short = {name: text.short(_shortened(text.head), after) for name, text in blanks.items()}
        pairs = [nodes.concat(short[one], short[other]) for one, other in permutations(short, 2)]
        blank = nodes.optional(nodes.alternation((*short.values(), *pairs)))
        others = nodes.alternation(text.before(after) for name, text in texts.items() if name not in blanks)
        return nodes.concat(blank, nodes.repeat(nodes.concat(others, blank)))

    def blanks(self) -> tuple[list[str], int]:
        """The ignored terminals of white space, and a mask of the bytes with which their texts may begin."""
        names = [name for name in sorted(self._ignored) if self._is_blank(name)]
        return names, self._first_bytes(frozenset(names))

    @cached_method
    def _is_blank(self, name: str) -> bool:
        """True if a terminal has texts of white space alone, so that a model may write it for ever."""
        return Derivatives().is_inhabited(nodes.intersection((self._terminal(name).language, _BLANKS)))

    def collision(self, contexts: Iterable[Context]) -> Collision | None:
        """Two regular expressions of equal priority that match one text if both are possible; None if there are none.

        Strings do not count: a keyword that a name also matches is meant to be the keyword. Each context is a set of terminals that are
        possible at one position. Cost: one search of two automata per pair that may begin alike.

        Raises:
            GrammarError: a terminal has no pattern, or one that is not supported.
            BudgetExceeded: the product automaton of two of them is too large to decide it.
        """
        seen = set[tuple[str, str]]()
        for context in contexts:
            terminals = map(self._terminal, sorted(context | self._ignored))
            for first, second in combinations([terminal for terminal in terminals if terminal.text is None], 2):
                pair = first.name, second.name
                if pair not in seen and first.priority == second.priority:
                    text = _common_text(first, second)
                    if text is not None:
                        return Collision(*pair, text)
                seen.add(pair)
        return None

    def is_nullable(self, name: str) -> bool:
        """True when a terminal matches the empty text; `symbol` has its other texts."""
        return self._terminal(name).is_nullable

    def written(self, name: str) -> str:
        """The regular expression of a terminal, for messages."""
        return f"/{clip(self._terminal(name).pattern)}/"

    @cached_method
    def _first_bytes(self, names: Context) -> int:
        """A mask of the bytes with which a text of some terminals may begin."""
        return reduce(or_, (self._terminal(name).first_bytes for name in names), 0)

    def _read(self, name: str, context: Context) -> TerminalEnd:
        context = (context | self._ignored) & self.rivals(name)
        if (name, context) not in self._ends:
            others = [self._terminal(other) for other in sorted(context)]
            self._ends[name, context] = self._among(self._terminal(name), others)
        return self._ends[name, context]

    def _among(self, own: _Terminal, others: list[_Terminal]) -> TerminalEnd:
        """The texts of a terminal that are read as such among others."""
        if self._lexing == "greedy":
            return self._greedy(own, others)
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
        left_out = EMPTY if head is own.taken else own.taken  # the lexer matches these, too, as another terminal
        avoided = nodes.alternation(terminal.avoided for terminal in (own, *holders))
        return TerminalEnd(head, self._automaton(nodes.alternation((_texts([*rivals, *holders]), left_out))), avoided)

    def _greedy(self, own: _Terminal, others: list[_Terminal]) -> TerminalEnd:
        """The same for the lexer of llguidance: no text begins with one that a lazy terminal takes, nor is one that is ignored."""
        lazy = nodes.alternation(other.language for other in others if other.kind == "lazy")
        more = nodes.repeat(nodes.byte_set(ALL_BYTES), int(own.kind == "lazy"))  # two of them may end at one place
        ignored = [other.language for other in others if other.name in self._ignored and own.name not in self._ignored]
        left_out = nodes.alternation((nodes.concat(lazy, more), *ignored))
        head = own.language
        if left_out is not EMPTY:
            head = nodes.intersection((head, nodes.complement(left_out)))
            head = head if Derivatives(max_search=_MAX_SEARCH).is_inhabited(head) else EMPTY
        rivals = nodes.alternation(other.language for other in others if own.kind != "lazy")
        return TerminalEnd(head, self._automaton(rivals), most=0)

    def _terminal(self, name: str) -> _Terminal:
        if name not in self._by_name:
            raise GrammarError(
                f"terminal {name!r} is declared and has no pattern; a lexer in Python would find it, such as indentation. "
                "Give it a pattern, or leave it out."
            )
        return self._by_name[name]


def _common_text(first: _Terminal, second: _Terminal) -> str | None:
    """One of the shortest texts that two terminals match, or None."""
    if not first.first_bytes & second.first_bytes:
        return None
    both = nodes.intersection((first.language, second.language))
    with suppress(BudgetExceeded):
        if not Derivatives(max_search=MAX_COMMON).is_inhabited(both):
            return None
        text = shortest_text(both, max_states=MAX_COMMON)
        if text is not None:
            return text.decode()
    raise BudgetExceeded(
        f"whether the terminals {first.name!r} and {second.name!r} match one text was not decided within {MAX_COMMON:,} states. "
        "Simplify one of them, give them priorities, or leave out `strict`.",
        "max_search",
        MAX_COMMON,
    )


def _texts(terminals: Iterable[_Terminal]) -> Node:
    """All texts of some terminals; those of strings as one list of words."""
    found = list(terminals)
    words = nodes.words(terminal.text or b"" for terminal in found if terminal.is_plain)
    return nodes.alternation((words, *(terminal.language for terminal in found if not terminal.is_plain)))


def _is_one_at_a_time(texts: Node, avoided: Node) -> bool:
    """True if no text is a proper prefix of another: then the order in which they are tried does not matter."""
    rest = nodes.intersection((nodes.complement(nodes.concat(avoided, ANYTHING)), nodes.complement(EPSILON)))
    return not Derivatives().is_inhabited(nodes.intersection((texts, nodes.concat(texts, rest))))


def _without(head: Node, terminals: list[_Terminal]) -> Node:
    """The texts that begin with no text of some terminals."""
    if not terminals:
        return head
    beginnings = [terminal.beginning for terminal in terminals if terminal.avoided is not EMPTY]
    beginnings.append(nodes.concat(_texts(terminal for terminal in terminals if terminal.avoided is EMPTY), ANYTHING))
    return nodes.intersection((head, nodes.complement(nodes.alternation(beginnings))))


def _shortened(head: Node) -> Node:
    """The texts of at most `MAX_IGNORED` bytes."""
    if head.kind is Kind.REPEAT and head.args[0].kind in (Kind.BYTES, Kind.LITERAL) and head.args[2] is None:
        body, least, _ = head.args
        if body.kind is Kind.BYTES or len(body.args[0]) == 1:
            return nodes.repeat(body, least, MAX_IGNORED)
    return nodes.intersection((head, nodes.repeat(nodes.byte_set(ALL_BYTES), 1, MAX_IGNORED)))
