r"""`grammar`: context-free grammars in the language of Lark as terms. `lark` expands the rules to plain productions; each rule becomes a
recursive rule of a term, one for each set of terminals possible where it begins (FIRST, and what follows a terminal anywhere). Left
recursion becomes repetition (Kleene's algorithm); terminals are read as Lark's lexers do, and a few texts Lark would parse are left out. A
terminal that may be empty, which Lark refuses, is optional. Refused: `%declare`, imports of files, and lookaround beyond a terminal but for
`(?!...)` or `\b` at its end.

The lexical rules (`terminal.py`):

- a terminal is a leftmost-first match, as `re.match` finds it, by maximal munch: `a b` of two names needs a space between them;
- if both a keyword (`"if"`) and a name are possible, the keyword is not a name, and a longer name is not a keyword. Where only one of
  them is, the text is read as that one. Possible after a terminal are all terminals that follow it anywhere in the grammar;
- where Lark's LALR parser takes the grammar without conflicts, the order of its lexer applies to all terminals, priorities included;
- ignored terminals (`%ignore`) are allowed after a terminal: any number of comments and the like, and between them white space, at most
  one text of a terminal, or of two different ones, of at most 32 bytes each, since models tend to write unlimited white space where they
  may; with `ignored="any"` any number of all of them, also before the first terminal. White space are the terminals that have a text
  of nothing else.

A finished text is parsed by `lark.Lark(text).parse` and, where it takes the grammar without conflicts, by
`lark.Lark(text, parser="lalr").parse`. Left out are texts where what follows could extend a terminal, and only more than a few bytes
would show that it does not. `lexer="dynamic"` imitates the first parser only: then names may be keywords. Also refused are regular
expressions that `fsm.regex` refuses; `(?!...)` and `\b` at the end of a terminal are not.

A grammar in the dialect of llguidance (`dialect.py`), or with `lexer="greedy"`, is read by the lexer of llguidance: a terminal ends where
none that is possible at its place can continue, and all that match there are tried; lazy terminals end at once. Ignored texts are between
two terminals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal, NamedTuple, get_args

from lark import Token, Tree
from lark.exceptions import LarkError, UnexpectedInput
from lark.grammar import Rule
from lark.lexer import TerminalDef
from lark.load_grammar import load_grammar, stdlib_loader

from fsm.automaton.origin import GrammarOrigin, NamedOrigin, Origin
from fsm.errors import EmptyLanguage, GrammarError, RegexSyntaxError, TerminalCollision, clip, is_one_of, shorten
from fsm.expression import Expression, Report, ReportLine
from fsm.lark.advice import advice_at, other_notation, with_patterns
from fsm.lark.conflict import accepted_terminals, check_templates, is_lalr
from fsm.lark.dialect import Translation, translate
from fsm.lark.expansion import bound_expansion
from fsm.lark.lexeme import Lexeme
from fsm.lark.terminal import MAX_IGNORED, Context, Ignored, Lexing, Terminals
from fsm.limits import DEFAULT_LIMITS, Limits, check_limits, work_bound
from fsm.pattern.python_pattern import widths
from fsm.recipe import remembered
from fsm.schema.compiler import json_schema
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.terms.rule import Rules

_SOURCE = "<grammar>"
_LIBRARIES = ("common", "lark", "python", "unicode")
Lexer = Literal["contextual", "dynamic", "greedy"]
MAX_CONTEXTS_PER_RULE = 8
_MAX_DIFFERENT = 6  # texts of different items of an array of `%json`, which has 2 ** 6 states
_HEAVY = "terminals with many alternatives, or rules that begin with one another in many ways"
_ADVICE = "Make it smaller, or give a larger `limits=Limits(max_work=...)`"


@remembered
def grammar(
    text: str,
    start: str = "start",
    *,
    ignored: Ignored = "one",
    lexer: Lexer | None = None,
    strict: bool = False,
    grammars: Mapping[str, Expression] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Expression:
    """Return the texts that a grammar describes.

    Args:
        text: a grammar in the language of Lark, or in the dialect of llguidance (`dialect.py`).
        start: the rule that a whole text is.
        ignored: how many ignored texts (`%ignore`) are allowed between two terminals; see the top of this module.
        lexer: who reads what is written: `contextual`: both parsers of Lark; `dynamic`: its default parser; `greedy`: llguidance. None:
            `greedy` for what only llguidance knows, else `contextual`. See the top of this module.
        strict: refuse a grammar in which two regular expressions of one priority match one text at a position if both are possible, as
            Lark's strict mode does. Possible are the terminals that a state of Lark's LALR parser accepts; without such a parser all that
            follow the last terminal anywhere in the grammar.
        grammars: the languages to which a grammar in the dialect refers as `@name`.
        limits: bounds of compiling.

    Raises:
        TerminalCollision: with `strict`, two terminals collide; the error names both, and a text that both match.
        GrammarError: the grammar is malformed, or uses something that is not supported; see the top of this module.
        EmptyLanguage: no text ends a derivation of `start`.
        BudgetExceeded: a bound of `limits` is exceeded.

    Cost: what `lark` needs to read it (some 10 ms, and 0.2 s more for the first grammar of a program), and linear in the productions
    but for left recursion.
    """
    if not isinstance(text, str) or not isinstance(start, str):
        given = f"{type(text).__name__} and {type(start).__name__}"
        raise GrammarError(f"expected a grammar as text and the name of a rule, received {given}")
    check_limits(limits, GrammarError)
    limits.check("max_grammar_characters", len(text), "characters of the grammar", None)
    for name, value, known in (("ignored", ignored, get_args(Ignored)), ("lexer", lexer, get_args(Lexer))):
        if not is_one_of(value, known) and not (name == "lexer" and value is None):
            raise GrammarError(f"`{name}` is {' or '.join(map(repr, known))}, received {shorten(value)}")
    if not is_one_of(strict, (True, False)):
        raise GrammarError(f"`strict` is True or False, received {shorten(strict)}")
    if grammars is not None and not isinstance(grammars, Mapping):
        raise GrammarError(f"expected a dict of expressions by their names as `grammars`, received {shorten(grammars)}")
    with work_bound("max_work", limits.max_work, "compiling the grammar", _HEAVY, _ADVICE):
        return _compiled(text, start, ignored, lexer, strict, grammars or {}, limits)


def _compiled(
    text: str,
    start: str,
    ignored: Ignored,
    lexer: Lexer | None,
    strict: bool,
    grammars: Mapping[str, Expression],
    limits: Limits,
) -> Expression:
    try:
        translation = _translated(text, grammars, limits)
        read = _read(text if translation is None else translation.text, start, limits)
    except GrammarError as error:
        other = other_notation(text, is_lark=True)
        raise GrammarError(f"the grammar cannot be read: {other}") if other else error from None
    work.check()  # Lark may have taken long
    lexemes = {} if translation is None else translation.lexemes
    if translation is not None and (lexer not in (None, "greedy") or strict):
        raise GrammarError(
            "the grammar is in the dialect of llguidance, which Lark does not read. Leave out `lexer` and `strict`, or what Lark has not."
        )
    lexer = lexer or ("contextual" if translation is None else "greedy")
    has_order = lexer == "contextual" and all(
        one.pattern.min_width for one in read.terminals
    )  # Lark refuses empty ones
    lexings: dict[Lexer, Lexing] = {"contextual": "keywords", "dynamic": "none", "greedy": "greedy"}
    lexing = "all" if has_order and is_lalr(read.rules, start) else lexings[lexer]
    work.check()
    try:
        productions = _Productions(read, lexemes, start, limits, ignored, lexing)
    except GrammarError as error:
        raise GrammarError(with_patterns(str(error), text, read.terminals)) from None
    if strict:
        productions.refuse_collisions(accepted_terminals(read.rules, start) if has_order else None, text)
    node = productions.whole()
    if node is EMPTY or not Derivatives().is_inhabited(node):
        raise EmptyLanguage(
            f"no text satisfies the grammar: the rule {start!r} never ends, or one terminal takes what the next should "
            "be. Give it an alternative without itself, or put something between the two."
        )
    source = f"grammar({clip(text)!r})"
    origin = productions.origin(node, source)
    if translation is None:
        return Expression(node, source=source, origin=origin)
    report = reduce(add, (part.report for part in translation.parts), Report())
    lines = (
        ReportLine(f"rule {name}", "capture", "annotated", "name a part with `named`") for name in translation.captures
    )
    specials = frozenset(name for part in translation.parts for name in part.specials)
    report += tuple(lines)
    return Expression(node, source=source, reported=lambda: report, specials=specials, origin=origin)


def _translated(text: str, grammars: Mapping[str, Expression], limits: Limits) -> Translation | None:
    """The grammar for Lark where the text is in the dialect of llguidance, else None."""

    def schema(written: str) -> Expression:
        # The end of a terminal depends on all of its states, which are as many as sets of different items.
        return json_schema(written, limits=replace(limits, max_different=min(limits.max_different, _MAX_DIFFERENT)))

    try:
        return translate(
            text,
            grammars,
            schema,
            lambda inner: grammar(inner, lexer="greedy", grammars=grammars, limits=limits),
            limits,
        )
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply to be read. Name parts of it as rules.") from None


@dataclass(frozen=True, slots=True)
class IgnoredOrigin:
    """A grammar whose ignored white space is bounded: names that bound where more white space is refused, after the rules.

    Attributes:
        rules: names the rules.
        ignored: the terminals of white space, for messages.
        blanks: the bytes with which they begin, as a 256-bit mask.
    """

    rules: Origin
    ignored: str
    blanks: int

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """The rules, and `%ignore` where it has taken all white space that it may."""
        found = self.rules.names(text, is_whole)
        if is_whole or not all(self.blanks >> byte & 1 for byte in text[-2:]):
            return found
        bound = (
            f"at most one text of {MAX_IGNORED} bytes, or two of different terminals, between two terminals or comments"
            if len(text) > 1
            else "none before the first terminal"
        )
        return (*found, f'`%ignore {self.ignored}` ({bound}; `ignored="any"` allows more)')


class _Grammar(NamedTuple):
    """What Lark reads in a grammar: terminals, productions, and the names of ignored terminals."""

    terminals: list[TerminalDef]
    rules: list[Rule]
    ignored: list[str]


def _read(text: str, start: str, limits: Limits) -> _Grammar:
    try:
        loaded, _ = load_grammar(text, _SOURCE, [_library], False)  # type: ignore[no-untyped-call]
        bound_expansion(loaded, check_templates(loaded, limits), limits)
        _check_patterns(loaded)
        _drop_aliases(loaded)
        read = _Grammar(*loaded.compile([start], set()))
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply to be read. Name parts of it as rules.") from None
    except GrammarError:
        raise
    except (LarkError, AssertionError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(text, error) from None
    if all(rule.origin.name != start for rule in read.rules):
        raise GrammarError(
            f"expected a rule {start!r}, with which every text begins, received a grammar without one. "
            f"Add `{start}: ...`, or name another rule with `start`."
        )
    return read


def _library(base: object, path: str) -> Any:
    """What Lark reads for an import; it asks here first, and would then look for files."""
    name = path.removesuffix(".lark")
    if base is not None or name not in _LIBRARIES:
        raise GrammarError(
            f"expected an import from one of {', '.join(_LIBRARIES)}, received {name!r}: no file is ever read. "
            "Copy what is needed into the grammar."
        )
    return stdlib_loader(None, path)


def _drop_aliases(loaded: Any) -> None:
    """Replace `x -> name` by `x`: aliases do not change a language, and Lark refuses two expansions that only they distinguish."""
    for _, _, tree, _ in loaded.rule_defs:
        for part in tree.iter_subtrees() if tree is not None else ():
            part.children = [_without_alias(child) for child in part.children]


def _without_alias(child: Any) -> Any:
    return child.children[0] if isinstance(child, Tree) and child.data == "alias" else child


def _check_patterns(loaded: Any) -> None:
    """Raise `GrammarError` if a regular expression of a grammar is malformed; Lark would raise errors of another package."""
    trees = [tree for _, _, tree, _ in loaded.rule_defs] + [tree for _, (tree, _) in loaded.term_defs]
    for tree in filter(None, trees):
        for token in tree.scan_values(lambda value: isinstance(value, Token) and value.type == "REGEXP"):
            pattern, flags = token.rpartition("/")[::2]
            try:
                widths(f"(?{flags}:{pattern[1:]})" if flags else pattern[1:])
            except RegexSyntaxError as error:
                at = f"line {token.line} column {token.column}"
                raise GrammarError(f"the regular expression {clip(token)} at {at} is malformed: {error}") from None


def _unreadable(text: str, error: Exception) -> GrammarError:
    """The error of Lark as one of ours; the line and the caret below it stay on lines of their own."""
    if isinstance(error, TypeError) and isinstance(
        error.__context__, UnexpectedInput
    ):  # raised while Lark explains another one
        error = error.__context__
    shown = error.get_context(text) if isinstance(error, UnexpectedInput) else ""
    first, *context = (str(error).strip() or type(error).__name__).splitlines()
    context = shown.splitlines() or context
    problem = first.replace(f" in {_SOURCE}", "").rstrip(" :.")
    problem = re.sub("^Rule (?='[A-Z_])", "terminal ", problem)  # Lark names both a rule
    advice = "Correct it at the caret" if any(line.strip() == "^" for line in context) else "Correct the grammar"
    place = re.search(r"at line (\d+) column (\d+)", str(error))
    if place and (meant := advice_at(text, int(place[1]), int(place[2]))) is not None:
        advice = meant
    elif "Empty terminals" in problem:
        advice = "Leave it out, or make what it stands for optional with `?`"
    said = f"the grammar cannot be read: {problem[:1].lower()}{problem[1:]}. {advice}."
    return GrammarError("\n".join([said, *(line for line in context if line.strip())]))


def _line_of(name: str, text: str) -> str:
    """The line of a grammar that defines a terminal, for messages; empty if it has no name, or was imported."""
    found = re.search(rf"^\s*{re.escape(name)}\s*(?:\.\s*-?\d+\s*)?:", text, re.MULTILINE)
    return f" in line {text.count(chr(10), 0, found.end()) + 1}" if found else ""


class _Symbol(NamedTuple):
    """A rule or terminal at a position, with the terminals that are possible there and change how one another are read."""

    name: str
    is_term: bool
    context: Context = frozenset()


_Options = list[tuple[_Symbol, ...]]
"""The productions of a rule."""


class _SymbolSets:
    """The NULLABLE, FIRST and LAST sets of the symbols of a grammar, by name, and for each terminal those that may follow it."""

    def __init__(self, rules: dict[str, _Options], may_be_empty: Callable[[str], bool]) -> None:
        productions = [(name, symbols) for name, options in rules.items() for symbols in options]
        terminals = {symbol.name for _, symbols in productions for symbol in symbols if symbol.is_term}
        self.nullable: set[str] = set(filter(may_be_empty, terminals))
        self.first: dict[str, set[str]] = {name: set() for name in rules} | {name: {name} for name in terminals}
        self.last = {name: set(found) for name, found in self.first.items()}
        self.following: dict[str, set[str]] = {name: set() for name in terminals}
        _until_unchanged(lambda: [self._find_empty(*production) for production in productions])
        _until_unchanged(lambda: [self._find_edges(*production) for production in productions])
        for _, symbols in productions:
            self._find_following(symbols)

    def is_nullable(self, symbol: _Symbol) -> bool:
        """True when the symbol may be empty."""
        return symbol.name in self.nullable

    def after(self, symbol: _Symbol) -> Context:
        """The terminals that may follow the last terminal of a symbol."""
        return frozenset().union(*(self.following[name] for name in self.last[symbol.name]))

    def _find_empty(self, name: str, symbols: tuple[_Symbol, ...]) -> bool:
        if name in self.nullable or not all(map(self.is_nullable, symbols)):
            return False
        self.nullable.add(name)
        return True

    def _find_edges(self, name: str, symbols: tuple[_Symbol, ...]) -> bool:
        size = len(self.first[name]) + len(self.last[name])
        for sets, row in ((self.first, symbols), (self.last, symbols[::-1])):
            for symbol in row:
                sets[name] |= sets[symbol.name]
                if not self.is_nullable(symbol):
                    break
        return len(self.first[name]) + len(self.last[name]) > size

    def _find_following(self, symbols: tuple[_Symbol, ...]) -> None:
        last: set[str] = set()
        for symbol in symbols:
            for terminal in last:
                self.following[terminal] |= self.first[symbol.name]
            last = self.last[symbol.name] | (last if self.is_nullable(symbol) else set())


_Rows = tuple[tuple[_Symbol, ...], ...]
"""Some rows of symbols, each once."""


def _rows(rows: Iterable[tuple[_Symbol, ...]]) -> _Rows:
    return tuple(dict.fromkeys(rows))


def _by_first(rows: _Rows) -> dict[_Symbol, _Rows]:
    """The rests of rows after each first symbol."""
    found: dict[_Symbol, list[tuple[_Symbol, ...]]] = {}
    for row in filter(None, rows):
        found.setdefault(row[0], []).append(row[1:])
    return {symbol: _rows(rests) for symbol, rests in found.items()}


def _joined(written: dict[str, _Options], start: str, facts: _SymbolSets) -> tuple[dict[str, _Options], str]:
    """The productions with one rule for all that derive each other alone, as of `a: b` and `b: a | "c"`, and the start rule.

    Their languages are equal; as one rule they have one loop, and not loops inside each other that may all end anywhere.
    """
    alone = {
        name: [
            symbol.name
            for symbols in options
            for place, symbol in enumerate(symbols)
            if not symbol.is_term and all(map(facts.is_nullable, (*symbols[:place], *symbols[place + 1 :])))
        ]
        for name, options in written.items()
    }
    first = {name: component[0] for component in nodes.components(alone) for name in component}
    joined: dict[str, dict[tuple[_Symbol, ...], None]] = {}
    for name, options in written.items():
        for symbols in options:
            renamed = tuple(
                symbol if symbol.is_term else symbol._replace(name=first[symbol.name]) for symbol in symbols
            )
            joined.setdefault(first[name], {})[renamed] = None
    return {
        name: [row for row in rows if [part.name for part in row] != [name]] for name, rows in joined.items()
    }, first[start]


def _until_unchanged(work: Callable[[], list[bool]]) -> None:
    while any(work()):
        pass


class _Productions:
    """The rules of a grammar as terms.

    A rule becomes a term for each context: the set of terminals that are possible where it begins, as far as these change how one another
    are read. Possible after a terminal is what follows it anywhere in the grammar.
    """

    def __init__(
        self,
        read: _Grammar,
        lexemes: Mapping[str, Lexeme],
        start: str,
        limits: Limits,
        ignored: Ignored,
        lexing: Lexing,
    ) -> None:
        self._limits, self._ignored, self._is_greedy = limits, ignored, lexing == "greedy"
        self._terminals = Terminals(read.terminals, lexemes, read.ignored, ignored, lexing)
        written: dict[str, _Options] = {}
        for rule in read.rules:
            symbols = tuple(_Symbol(symbol.name, symbol.is_term) for symbol in rule.expansion)
            written.setdefault(rule.origin.name, []).append(symbols)
        self._facts = _SymbolSets(written, self._terminals.is_nullable)
        written, start = _joined(written, start, self._facts)
        self._rivals = {
            name: frozenset().union(*map(self._terminals.rivals, self._facts.first[name])) for name in written
        }
        self._start = self._in_context(_Symbol(start, is_term=False), frozenset(self._facts.first[start]))
        self._rules = self._spread(written)
        self._inlined: dict[_Symbol, Node] = {}
        self._tails: dict[_Rows, tuple[Node, Node]] = {(): (EMPTY, EMPTY)}
        sure = self._sure()
        self._bodies = Rules()
        self._named = {
            symbol: self._bodies.rule(symbol.name, is_sure=symbol in sure, has_munch=True) for symbol in self._rules
        }
        for symbol in self._helpers():
            self._inline(symbol)
        cases = {symbol: [*self._cases(symbol)] for symbol in self._rules if symbol not in self._inlined}
        leading = {name: [*dict.fromkeys(part for part, _ in found if part in cases)] for name, found in cases.items()}
        for component in nodes.components(leading):
            self._define(component, cases)

    def _helpers(self) -> list[_Symbol]:
        """The rules that Lark writes for loops, those first that others contain; none that is left-recursive but for its rounds."""
        leading = {name: [*self._leading(name)] for name in self._rules}
        alone = {name for name, *others in nodes.components(leading) if not others}
        loops = {name for name in alone if any(row[:1] == (name,) for row in self._rules[name])}
        names = {name for name in loops if name.name.startswith("__") and not self._facts.is_nullable(name)}
        parts = {
            name: [part for row in self._rules[name] for part in row[row[:1] == (name,) :] if part in names]
            for name in self._rules
            if name in names
        }
        components = [*nodes.components(parts)]
        return [one for (one, *others) in reversed(components) if not others and one not in parts[one]]

    def _leading(self, name: _Symbol) -> Iterator[_Symbol]:
        """The rules with which a rule may begin."""
        for row in self._rules[name]:
            for part in row:
                if not part.is_term:
                    yield part
                if not self._facts.is_nullable(part):
                    break

    def _inline(self, symbol: _Symbol) -> None:
        """Note the loop that a rule `a: b | a b` is, so that what uses it has no two terms of one language, before a round and after it."""
        rows = self._rules[symbol]
        first, _ = self._tail(_rows(row for row in rows if row[:1] != (symbol,)))
        again, some = self._tail(_rows(row[1:] for row in rows if row[:1] == (symbol,)))
        if self._is_greedy:
            again = self._between(symbol, again, some)
        if first is not EMPTY and not first.nullable and not again.nullable:
            self._inlined[symbol] = (
                nodes.repeat(first, 1) if first is again else nodes.concat(first, nodes.repeat(again))
            )

    def _sure(self) -> set[_Symbol]:
        """The rules of which every prefix can be completed: each derives a text, and none of its terminals restricts what follows."""
        ended: set[_Symbol] = set()
        _until_unchanged(lambda: [self._ends(symbol, ended) for symbol in self._rules])
        sure = {symbol for symbol in ended if self._has_plain_terminals(symbol)}
        while True:
            parts = {
                symbol: [part for row in self._rules[symbol] for part in row if not part.is_term] for symbol in sure
            }
            less = {symbol for symbol in sure if sure.issuperset(parts[symbol])}
            if len(less) == len(sure):
                return sure
            sure = less

    def _ends(self, symbol: _Symbol, ended: set[_Symbol]) -> bool:
        """Add a rule that has a production of which every part derives a text; True if it is new."""
        if symbol in ended or not any(
            all(self._symbol(part) is not EMPTY if part.is_term else part in ended for part in row)
            for row in self._rules[symbol]
        ):
            return False
        ended.add(symbol)
        return True

    def _has_plain_terminals(self, symbol: _Symbol) -> bool:
        return all(self._reference(part).is_plain for row in self._rules[symbol] for part in row if part.is_term)

    def whole(self) -> Node:
        """The texts of the grammar: the start rule, with what is ignored around it."""
        first = frozenset(self._facts.first[self._start.name])
        margin = self._terminals.gap(first) if self._ignored == "any" and not self._is_greedy else EPSILON
        start = self._bodies.entrance(self._named[self._start])
        return nodes.concat(margin, nodes.optional(start) if self._facts.is_nullable(self._start) else start)

    def origin(self, node: Node, label: str) -> Origin | None:
        """What names the rules and, where white space is refused, the `%ignore` that bounds it; None if it has no bound."""
        names, blanks = self._terminals.blanks()
        if not names or self._ignored == "any":
            return None
        rules = NamedOrigin(label) if node.is_regular else GrammarOrigin(node, label)
        return IgnoredOrigin(rules, ", ".join(names), blanks)

    def refuse_collisions(self, contexts: Iterable[Context] | None, text: str) -> None:
        """Raise `TerminalCollision` if two regular expressions of one priority match one text.

        Each context is a set of terminals that are possible at one position; None stands for those that follow each terminal anywhere.
        """
        if contexts is None:
            first = self._facts.first[self._start.name]
            contexts = dict.fromkeys(map(frozenset, (first, *self._facts.following.values())))
        found = self._terminals.collision(contexts)
        if found is None:
            return
        one, other = (
            f"{name!r} {self._terminals.written(name)}{_line_of(name, text)}" for name in (found.first, found.second)
        )
        raise TerminalCollision(
            f"expected terminals of which no two match one text where both are possible, received {one} and {other}, which both match "
            f"{clip(found.text)!r}. Give one of them a higher priority, as in `NAME.1: ...`, change a pattern, or leave out `strict`.",
            (found.first, found.second),
            found.text,
        )

    def _spread(self, written: dict[str, _Options]) -> dict[_Symbol, _Options]:
        """The productions of each rule in each of its contexts; where these are too many, in one context with all terminals."""
        most = MAX_CONTEXTS_PER_RULE * len(written)
        found: dict[_Symbol, _Options] = {}
        queue = [self._start]
        for symbol in queue:
            if symbol in found:
                continue
            if len(found) > most:
                return self._spread_coarsely(written)
            found[symbol] = [self._with_contexts(symbols, symbol.context) for symbols in written[symbol.name]]
            queue += [part for symbols in found[symbol] for part in symbols if not part.is_term]
        return found

    def _spread_coarsely(self, written: dict[str, _Options]) -> dict[_Symbol, _Options]:
        everything = frozenset().union(*self._facts.first.values(), *self._facts.following.values())
        self._start = self._in_context(self._start, everything)
        return {
            self._in_context(_Symbol(name, is_term=False), everything): [
                tuple(self._in_context(part, everything) for part in symbols) for symbols in productions
            ]
            for name, productions in written.items()
        }

    def _in_context(self, symbol: _Symbol, context: Context) -> _Symbol:
        rivals = self._terminals.rivals(symbol.name) if symbol.is_term else self._rivals[symbol.name]
        return symbol._replace(context=context & rivals)

    def _with_contexts(self, symbols: tuple[_Symbol, ...], context: Context) -> tuple[_Symbol, ...]:
        found = []
        for symbol in symbols:
            found.append(self._in_context(symbol, context))
            after = self._facts.after(symbol)
            context = after | context if self._facts.is_nullable(symbol) else after
        return tuple(found)

    def _reference(self, symbol: _Symbol) -> Node:
        """The texts of a symbol that are not empty."""
        if symbol in self._inlined:
            return self._inlined[symbol]
        if symbol.is_term:
            return self._terminals.symbol(symbol.name, symbol.context, self._facts.after(symbol))
        return self._named[symbol].term

    def _symbol(self, symbol: _Symbol) -> Node:
        node = self._reference(symbol)
        return nodes.optional(node) if self._facts.is_nullable(symbol) else node

    def _cases(self, name: _Symbol) -> Iterator[tuple[_Symbol, Node]]:
        """The texts of a rule by the first symbol that is not empty in them, each with the term after it."""
        rows = [*dict.fromkeys(self._rules[name])]
        seen = set[tuple[_Symbol, ...]](rows)
        for row in rows:  # an empty first symbol leaves the rest
            if row and self._facts.is_nullable(row[0]) and row[1:] not in seen:
                seen.add(row[1:])
                rows.append(row[1:])
        for symbol, rest in _by_first(_rows(rows)).items():
            after, some = self._tail(rest)
            yield symbol, self._between(symbol, after, some) if self._is_greedy else after

    def _tail(self, rows: _Rows) -> tuple[Node, Node]:
        """The texts of some rows of symbols, and those of them that are not empty; equal rests of rows are one term.

        So no rows have to be compared, as the union of a term for each would.
        """
        below = {rows: _by_first(rows)}
        for found in nodes.reached(rows, lambda one: [rest for rest in below[one].values() if rest not in self._tails]):
            below[found] = _by_first(found)
            for rest in below[found].values():
                below.setdefault(rest, _by_first(rest))
        for found in sorted(below, key=lambda one: max(map(len, one), default=0)):
            if found not in self._tails:
                self._tails[found] = self._united(found, below[found])
        return self._tails[rows]

    def _united(self, rows: _Rows, by_first: dict[_Symbol, _Rows]) -> tuple[Node, Node]:
        """`_tail`, given that of the rests."""
        ways, some = [EPSILON] if () in rows else [], list[Node]()
        for symbol, rest in by_first.items():
            after, some_after = self._tails[rest]
            is_optional = self._facts.is_nullable(symbol)
            if not self._is_greedy:
                ways.append(nodes.concat(self._symbol(symbol), after))
                continue
            begun = nodes.concat(self._reference(symbol), self._between(symbol, after, some_after))
            ways += [begun, after] if is_optional else [begun]
            some += [begun, some_after] if is_optional else [begun]
        return nodes.alternation(ways), nodes.alternation(some)

    def _between(self, symbol: _Symbol, rest: Node, some: Node) -> Node:
        """What follows a symbol, where ignored texts are between two terminals alone, as for the lexer of llguidance."""
        after = nodes.concat(self._terminals.gap(self._facts.after(symbol)), some)
        return nodes.alternation((EPSILON, after)) if rest.nullable else after

    def _define(self, names: list[_Symbol], cases: dict[_Symbol, list[tuple[_Symbol, Node]]]) -> None:
        """Set the bodies of rules that are left-recursive with one another: alternatives without left recursion, then any steps."""
        self._limits.check("max_left_recursion", len(names), "left-recursive rules", None)
        first: dict[_Symbol, list[Node]] = {name: [] for name in names}
        steps: dict[tuple[_Symbol, _Symbol], list[Node]] = {}
        for name in names:
            for symbol, after in cases[name]:
                if symbol in first:
                    steps.setdefault((symbol, name), []).append(after)
                else:
                    first[name].append(nodes.concat(self._reference(symbol), after))
        begin = {name: _one_of(options) for name, options in first.items()}
        walks = _closure(names, {pair: nodes.alternation(options) for pair, options in steps.items()}) if steps else {}
        for name in names:
            ways = [nodes.concat(begin[a], walk) for (a, b), walk in walks.items() if b == name != a]
            ways.append(nodes.concat(begin[name], nodes.optional(walks.get((name, name), EMPTY))))
            self._named[name].define(nodes.alternation(ways))


def _closure(names: list[_Symbol], steps: dict[tuple[_Symbol, _Symbol], Node]) -> dict[tuple[_Symbol, _Symbol], Node]:
    """All paths of one step or more from one name to another, as terms (Kleene's algorithm)."""
    for middle in names:
        loop = nodes.repeat(steps.get((middle, middle), EMPTY))
        into = {a: node for (a, b), node in steps.items() if b == middle}
        out = {b: node for (a, b), node in steps.items() if a == middle}
        for a, before in into.items():
            for b, after in out.items():
                if a == b == middle:
                    steps[a, b] = nodes.repeat(after, 1)
                elif middle in (a, b):
                    steps[a, b] = nodes.concat(loop, after) if a == middle else nodes.concat(before, loop)
                else:
                    through = nodes.sequence((before, loop, after))
                    steps[a, b] = nodes.alternation((steps.get((a, b), EMPTY), through))
    return steps


def _one_of(options: list[Node]) -> Node:
    """The union; many texts before one and the same term become a sorted list of words."""
    texts: dict[Node, list[bytes]] = {}
    others: list[Node] = []
    for option in options:
        head, tail = nodes.first_and_rest(option)
        if head.kind is Kind.LITERAL and len(head.args[0]) < nodes.MAX_LITERAL:
            texts.setdefault(tail, []).append(head.args[0])
        else:
            others.append(option)
    return nodes.alternation((*others, *(nodes.concat(nodes.words(found), tail) for tail, found in texts.items())))
