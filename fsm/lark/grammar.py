r"""`grammar`: context-free grammars in the language of Lark as terms, with the lexical rules of Lark's parsers.

The library `lark` reads the text and expands its rules to plain productions; it never parses what is generated. Each rule becomes a
recursive rule of a term, left recursion becomes repetition, and each terminal is read as the lexers of Lark read it (`terminal.py`):

- a terminal is a leftmost-first match, as `re.match` finds it, by maximal munch: `a b` of two names needs a space between them;
- where both a keyword (`"if"`) and a name may come, the keyword is not a name, and a longer name is not a keyword. Where only one of them
  may come, it is read as that one. Which terminals may come is decided by the terminal before: all that follow it in the grammar;
- where Lark's LALR parser takes the grammar without conflicts, the order of its lexer applies to all terminals, priorities included;
- ignored terminals (`%ignore`) are allowed after a terminal: one text of at most 32 bytes, since a model that may write unlimited white
  space sometimes does; with `ignored="any"` any number of them, also before the first terminal.

A finished text is parsed by `lark.Lark(text).parse` and, where it takes the grammar without conflicts, by
`lark.Lark(text, parser="lalr").parse`. A few texts that both would parse are left out: where what follows could extend a terminal, and
only more than a few bytes would show that it does not. `lexer="dynamic"` is for the first parser only: then names may be keywords.
Refused: `%declare` (indentation and other work of a lexer in Python), imports of other files, empty terminals, regular expressions
that `fsm.regex` refuses, and those that look at the text around the terminal, except for `(?!...)` and `\b` at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from lark import Lark
from lark.exceptions import LarkError

from fsm.errors import EmptyLanguage, GrammarError, TerminalCollision
from fsm.expression import Expression
from fsm.lark.conflict import accepted_terminals, is_lalr
from fsm.lark.rule_template import check_templates
from fsm.lark.terminal import Context, Ignored, Lexing, Terminals, perhaps
from fsm.limits import DEFAULT_LIMITS, Limits
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Kind, Node
from fsm.terms.rendering import shorten
from fsm.terms.rule import Rules

_TEMPLATE = re.compile(r"\w\s*\{")
_LIBRARIES = ("common", "lark", "python", "unicode")
_IMPORT = re.compile(r"^\s*%import\s+(\.*\w*)", re.MULTILINE)
Lexer = Literal["contextual", "dynamic"]
MAX_PLACES_PER_RULE = 8
_MAX_BEGINNINGS = 100


@remembered
def grammar(
    text: str,
    start: str = "start",
    *,
    ignored: Ignored = "one",
    lexer: Lexer = "contextual",
    strict: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Expression:
    """Return the texts that a grammar describes.

    Args:
        text: a grammar in the language of Lark.
        start: the rule that a whole text is.
        ignored: how many ignored texts (`%ignore`) are allowed between two terminals; see the top of this module.
        lexer: whether `lark.Lark(text, parser="lalr")` reads what is written, too; see the top of this module.
        strict: refuse a grammar in which two regular expressions of one priority match one text where both may come, as Lark's
            strict mode does. Where the LALR parser of Lark takes the grammar, its states tell what may come; else all that follows the
            last terminal anywhere in the grammar.
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
        raise GrammarError(
            f"expected a grammar as text and the name of a rule, received {type(text).__name__} and {type(start).__name__}"
        )
    limits.check("max_grammar_characters", len(text), "characters of the grammar", None)
    if ignored not in ("one", "any"):
        raise GrammarError(f"`ignored` is 'one' or 'any', received {ignored!r}")
    if lexer not in ("contextual", "dynamic"):
        raise GrammarError(f"`lexer` is 'contextual' or 'dynamic', received {lexer!r}")
    parser = _read(text, start, limits)
    lexing: Lexing = "none"
    if lexer == "contextual":
        lexing = "all" if is_lalr(parser.rules, start) else "keywords"
    productions = _Productions(parser, start, limits, ignored, lexing)
    if strict:
        productions.refuse_collisions(accepted_terminals(parser.rules, start) if lexer == "contextual" else None, text)
    node = productions.whole()
    if node is EMPTY or not Derivatives().is_inhabited(node) or _is_dead(node):
        raise EmptyLanguage(
            f"no text satisfies the grammar: the rule {start!r} never comes to an end, or one terminal takes what the next should "
            "be. Give it an alternative without itself, or put something between the two."
        )
    return Expression(node, source=f"grammar({shorten(text)!r})")


def _is_dead(node: Node) -> bool:
    """True where none of all reachable states, which are few, accepts: each terminal may take what the next one needs."""
    derivatives = Derivatives()
    seen, queue = {node}, [node]
    for state in queue:
        if state.nullable or state.is_plain or len(seen) > _MAX_BEGINNINGS:
            return False
        new = dict.fromkeys(target for _, target in derivatives.live_arcs(state) if target not in seen)
        seen.update(new)
        queue += new
    return True


def _read(text: str, start: str, limits: Limits) -> Lark:
    for found in _IMPORT.finditer(text):
        if found[1] not in _LIBRARIES:
            raise GrammarError(
                f"expected an import from one of {', '.join(_LIBRARIES)}, received {found[1]!r}: no file is ever read. "
                "Copy what is needed into the grammar."
            )
    try:
        if _TEMPLATE.search(text):
            check_templates(text, limits)
        return Lark(text, start=start, parser="earley", lexer="dynamic")
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply to be read. Name parts of it as rules.") from None
    except (LarkError, AssertionError, ValueError, KeyError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()
        if said[0].startswith("Using an undefined rule"):
            raise GrammarError(
                f"expected a rule {start!r}, with which every text begins, received a grammar without one. "
                f"Add `{start}: ...`, or name another rule with `start`."
            ) from None
        if _is_quoted_wrongly(text, error):
            raise GrammarError(
                f"the grammar cannot be read: {' '.join(said[:4])}. Strings take double quotes: write \"x\", not 'x'."
            ) from None
        raise GrammarError(f"the grammar cannot be read: {' '.join(said[:4])}. Correct it.") from None


def _is_quoted_wrongly(text: str, error: Exception) -> bool:
    """True where what Lark could not read begins with a single quote."""
    found = re.search(r"at line (\d+) column (\d+)", str(error))
    lines = text.splitlines()
    if not found or int(found[1]) > len(lines):
        return False
    return lines[int(found[1]) - 1][int(found[2]) - 1 :].startswith("'")


def _place(name: str, text: str) -> str:
    """In which line of a grammar a terminal is defined; nothing where it has no name, or was imported."""
    found = re.search(rf"^\s*{re.escape(name)}\s*(?:\.\s*-?\d+\s*)?:", text, re.MULTILINE)
    return f" in line {text.count(chr(10), 0, found.end()) + 1}" if found else ""


class _Symbol(NamedTuple):
    """A rule or terminal where it stands, with the terminals that may come in its place and are read otherwise for one another."""

    name: str
    is_term: bool
    context: Context = frozenset()


class _Facts:
    """Facts about the symbols of a grammar (NULLABLE, FIRST, LAST and FOLLOW sets), from its productions."""

    def __init__(self, rules: dict[str, list[tuple[_Symbol, ...]]]) -> None:
        self.nullable: set[str] = set()
        self.first: dict[str, set[str]] = {name: set() for name in rules}
        self.last: dict[str, set[str]] = {name: set() for name in rules}
        self.following: dict[str, set[str]] = {}
        productions = [(name, symbols) for name, options in rules.items() for symbols in options]
        _until_unchanged(lambda: [self._find_empty(*production) for production in productions])
        _until_unchanged(lambda: [self._find_edges(*production) for production in productions])
        for _, symbols in productions:
            self._find_following(symbols)

    def is_nullable(self, symbol: _Symbol) -> bool:
        """True when the symbol may be empty."""
        return not symbol.is_term and symbol.name in self.nullable

    def firsts(self, symbol: _Symbol) -> set[str]:
        """The terminals that may come first in a symbol."""
        return {symbol.name} if symbol.is_term else self.first[symbol.name]

    def lasts(self, symbol: _Symbol) -> set[str]:
        """The terminals that may come last in a symbol."""
        return {symbol.name} if symbol.is_term else self.last[symbol.name]

    def _find_empty(self, name: str, symbols: tuple[_Symbol, ...]) -> bool:
        if name in self.nullable or not all(map(self.is_nullable, symbols)):
            return False
        self.nullable.add(name)
        return True

    def _find_edges(self, name: str, symbols: tuple[_Symbol, ...]) -> bool:
        edges = (self.first[name], symbols, self.firsts), (self.last[name], symbols[::-1], self.lasts)
        changed = False
        for known, row, of in edges:
            before = len(known)
            for symbol in row:
                known |= of(symbol)
                if not self.is_nullable(symbol):
                    break
            changed = changed or len(known) > before
        return changed

    def _find_following(self, symbols: tuple[_Symbol, ...]) -> None:
        open_ends: set[str] = set()
        for symbol in symbols:
            for terminal in open_ends:
                self.following.setdefault(terminal, set()).update(self.firsts(symbol))
            open_ends = self.lasts(symbol) | (open_ends if self.is_nullable(symbol) else set())


def _until_unchanged(work: Callable[[], list[bool]]) -> None:
    while any(work()):
        pass


class _Productions:
    """The rules of a grammar as terms.

    A rule is read once for each set of terminals that may come where it begins, as far as these are read otherwise for one another.
    After a terminal may come what follows it anywhere in the grammar.
    """

    def __init__(self, parser: Lark, start: str, limits: Limits, ignored: Ignored, lexing: Lexing) -> None:
        self._limits, self._ignored = limits, ignored
        self._terminals = Terminals(parser.terminals, parser.ignore_tokens, ignored, lexing)
        written: dict[str, list[tuple[_Symbol, ...]]] = {}
        for rule in parser.rules:
            symbols = tuple(_Symbol(symbol.name, symbol.is_term) for symbol in rule.expansion)
            written.setdefault(rule.origin.name, []).append(symbols)
        self._facts = _Facts(written)
        self._rivals = {
            name: frozenset().union(*map(self._terminals.rivals, self._facts.first[name])) for name in written
        }
        self._start = self._placed(_Symbol(start, is_term=False), frozenset(self._facts.first[start]))
        self._rules = self._spread(written)
        sure = self._sure()
        self._bodies = Rules()
        self._named = {symbol: self._bodies.rule(symbol.name, is_sure=symbol in sure) for symbol in self._rules}
        for component in _components({symbol: self._leading(symbol) for symbol in self._rules}):
            self._define(component)

    def _sure(self) -> set[_Symbol]:
        """The rules of which every beginning can be completed: each derives a text, and none of its terminals restricts what follows."""
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
        """Add a rule that has a row of parts that end; True where it is new."""
        if symbol in ended or not any(
            all(self._reference(part) is not EMPTY if part.is_term else part in ended for part in row)
            for row in self._rules[symbol]
        ):
            return False
        ended.add(symbol)
        return True

    def _has_plain_terminals(self, symbol: _Symbol) -> bool:
        return all(self._reference(part).is_plain for row in self._rules[symbol] for part in row if part.is_term)

    def whole(self) -> Node:
        """Whole texts: one rule, with what is ignored around it."""
        margin = (
            self._terminals.gap(frozenset(self._facts.first[self._start.name])) if self._ignored == "any" else EPSILON
        )
        start = self._bodies.entrance(self._named[self._start])
        return nodes.concat(margin, nodes.optional(start) if self._facts.is_nullable(self._start) else start)

    def refuse_collisions(self, contexts: Iterable[Context] | None, text: str) -> None:
        """Raise where two regular expressions match one text.

        Args:
            contexts: for each place, the terminals that may come there; None: what follows a terminal anywhere.
            text: the grammar.

        Raises:
            TerminalCollision: they do, and have one priority.
        """
        if contexts is None:
            first = self._facts.first[self._start.name]
            contexts = dict.fromkeys(map(frozenset, (first, *self._facts.following.values())))
        found = self._terminals.collision(contexts)
        if found is None:
            return
        one, other = (
            f"{name!r} {self._terminals.written(name)}{_place(name, text)}" for name in (found.first, found.second)
        )
        raise TerminalCollision(
            f"expected terminals of which no two match one text where both may come, received {one} and {other}, which both match "
            f"{shorten(found.text)!r}. Give one of them a higher priority, as in `NAME.1: ...`, change a pattern, or leave out `strict`.",
            (found.first, found.second),
            found.text,
        )

    def _spread(self, written: dict[str, list[tuple[_Symbol, ...]]]) -> dict[_Symbol, list[tuple[_Symbol, ...]]]:
        """The productions of each rule in each of its places; where these are too many, rules are read as if everything might come."""
        most = MAX_PLACES_PER_RULE * len(written)
        found: dict[_Symbol, list[tuple[_Symbol, ...]]] = {}
        queue = [self._start]
        for symbol in queue:
            if symbol in found:
                continue
            if len(found) > most:
                return self._spread_coarsely(written)
            found[symbol] = [self._with_contexts(symbols, symbol.context) for symbols in written[symbol.name]]
            queue += [part for symbols in found[symbol] for part in symbols if not part.is_term]
        return found

    def _spread_coarsely(
        self, written: dict[str, list[tuple[_Symbol, ...]]]
    ) -> dict[_Symbol, list[tuple[_Symbol, ...]]]:
        everything = frozenset().union(*self._facts.first.values(), *self._facts.following.values())
        self._start = self._placed(self._start, everything)
        return {
            self._placed(_Symbol(name, is_term=False), everything): [
                tuple(self._placed(part, everything) for part in symbols) for symbols in productions
            ]
            for name, productions in written.items()
        }

    def _placed(self, symbol: _Symbol, context: Context) -> _Symbol:
        rivals = self._terminals.rivals(symbol.name) if symbol.is_term else self._rivals[symbol.name]
        return symbol._replace(context=context & rivals)

    def _with_contexts(self, symbols: tuple[_Symbol, ...], context: Context) -> tuple[_Symbol, ...]:
        placed = []
        for symbol in symbols:
            placed.append(self._placed(symbol, context))
            after = frozenset().union(*(self._facts.following.get(name, ()) for name in self._facts.lasts(symbol)))
            context = after | context if self._facts.is_nullable(symbol) else after
        return tuple(placed)

    def _reference(self, symbol: _Symbol) -> Node:
        """The texts of a symbol that are not empty."""
        if symbol.is_term:
            following = frozenset(self._facts.following.get(symbol.name, ()))
            return self._terminals.symbol(symbol.name, symbol.context, following)
        return self._named[symbol].term

    def _symbol(self, symbol: _Symbol) -> Node:
        node = self._reference(symbol)
        return nodes.optional(node) if self._facts.is_nullable(symbol) else node

    def _cases(self, name: _Symbol) -> Iterator[tuple[_Symbol, Node]]:
        """The texts of a rule by the first symbol that is not empty in them, each with what comes after it."""
        for symbols in self._rules[name]:
            rest = EPSILON
            cases = []
            for symbol in reversed(symbols):
                cases.append((symbol, rest))
                rest = nodes.concat(self._symbol(symbol), rest)
            for symbol, after in reversed(cases):
                yield symbol, after
                if not self._facts.is_nullable(symbol):
                    break

    def _leading(self, name: _Symbol) -> list[_Symbol]:
        """The rules that a rule may begin with."""
        found: dict[_Symbol, None] = {}
        for symbols in self._rules[name]:
            for symbol in symbols:
                if not symbol.is_term:
                    found[symbol] = None
                if not self._facts.is_nullable(symbol):
                    break
        return list(found)

    def _define(self, names: list[_Symbol]) -> None:
        """Give rules that begin with one another their bodies: alternatives without left recursion, and then any number of steps."""
        self._limits.check("max_left_recursion", len(names), "rules that begin with one another", None)
        first: dict[_Symbol, list[Node]] = {name: [] for name in names}
        steps: dict[tuple[_Symbol, _Symbol], list[Node]] = {}
        for name in names:
            for symbol, after in self._cases(name):
                if symbol in first:
                    steps.setdefault((symbol, name), []).append(after)
                else:
                    first[name].append(nodes.concat(self._reference(symbol), after))
        begin = {name: _one_of(options) for name, options in first.items()}
        walks = _closure(names, {pair: nodes.alternation(options) for pair, options in steps.items()}) if steps else {}
        for name in names:
            ways = [nodes.concat(begin[a], walk) for (a, b), walk in walks.items() if b == name != a]
            ways.append(nodes.concat(begin[name], perhaps(walks.get((name, name), EMPTY))))
            self._named[name].define(nodes.alternation(ways))


def _closure(names: list[_Symbol], steps: dict[tuple[_Symbol, _Symbol], Node]) -> dict[tuple[_Symbol, _Symbol], Node]:
    """All walks of one step or more from one name to another, as terms (Kleene's algorithm)."""
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


def _components(edges: dict[_Symbol, list[_Symbol]]) -> Iterator[list[_Symbol]]:
    """The strongly connected components of a graph, without recursion (Kosaraju's algorithm)."""
    order: list[_Symbol] = []
    seen: set[_Symbol] = set()
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
    backwards: dict[_Symbol, list[_Symbol]] = {name: [] for name in edges}
    for name in edges:
        for following in edges[name]:
            backwards[following].append(name)
    done: set[_Symbol] = set()
    for root in reversed(order):
        component, queue = [], [] if root in done else [root]
        done.update(queue)
        while queue:
            name = queue.pop()
            component.append(name)
            new = [n for n in dict.fromkeys(backwards[name]) if n not in done]
            done.update(new)
            queue += new
        if component:
            yield component
