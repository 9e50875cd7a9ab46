"""Grammars in the language of Lark: `grammar`.

The library `lark` reads the text and writes its rules out as plain productions; it never parses what is generated. A language of
terminals and rules becomes a term: each rule is a recursive rule, rules that begin with themselves are turned into repetitions, and
each terminal is read as a lexer reads it:

- a terminal takes as much as it can: after it comes only what could not go on with it. So `a b` of two names needs a space. A terminal
  with a lazy repetition (`.*?`) takes as little as it can.
  Of alternatives in a pattern it takes the longest that fits, where Lark takes the first: `/x|xy/` is `xy` here and `x` there, so
  write the longer one first;
- a name is no keyword: where the text of a string terminal (`"if"`) is also a text of a regular expression, the latter does not produce
  it, and after such a keyword comes nothing that would make a longer name of it;
- what `%ignore` names may stand after a terminal: one text of at most 32 bytes, since models that may write blanks for ever do; with
  `ignored="any"` any number of them, also before the first terminal.

But for such alternatives, what finishes parses with `lark.Lark(text).parse`; a few texts that Lark would parse are left out by these
rules. Priorities decide only which tree a text has, so they say nothing here.
Refused: `%declare` (indentation and other work of a lexer in Python), imports of other files, empty terminals, and regular expressions
that `fsm.regex` refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

from lark import Lark
from lark.exceptions import LarkError
from lark.lexer import PatternStr, TerminalDef

from fsm import node as nodes
from fsm.automaton import Automaton
from fsm.derivative import Derivatives
from fsm.errors import EmptyLanguage, ExpressionError, GrammarError
from fsm.expression import Expression
from fsm.limits import DEFAULT_LIMITS, Limits
from fsm.node import ALL_BYTES, EMPTY, EPSILON, Kind, Node, Rule
from fsm.pattern import regex
from fsm.rendering import shorten

_LIBRARIES = ("common", "lark", "python", "unicode")
_IMPORT = re.compile(r"^\s*%import\s+(\.*\w*)", re.MULTILINE)
Ignored = Literal["one", "any"]
MAX_IGNORED = 32  # bytes of what is ignored in one place
_SOME_TEXT = nodes.repeat(nodes.byte_set(ALL_BYTES), 1)


def grammar(
    text: str, start: str = "start", *, ignored: Ignored = "one", limits: Limits = DEFAULT_LIMITS
) -> Expression:
    """Return the texts that a grammar describes.

    Args:
        text: a grammar in the language of Lark.
        start: the rule that a whole text is.
        ignored: how much of what `%ignore` names may stand in one place; see the top of this module.
        limits: bounds of compiling.

    Raises:
        GrammarError: the grammar is malformed, or uses something that is not supported; see the top of this module.
        EmptyLanguage: no text ends a derivation of `start`.
        BudgetExceeded: a bound of `limits` is exceeded.

    Cost: what `lark` needs to read it (some 10 ms), and linear in the productions but for left recursion.
    """
    if not isinstance(text, str) or not isinstance(start, str):
        raise GrammarError(
            f"expected a grammar as text and the name of a rule, received {type(text).__name__} and {type(start).__name__}"
        )
    limits.check("max_grammar_characters", len(text), "characters of the grammar", "")
    if ignored not in ("one", "any"):
        raise GrammarError(f"`ignored` is 'one' or 'any', received {ignored!r}")
    node = _Productions(_read(text, start), limits, ignored).whole(start)
    if node is EMPTY or not Derivatives().is_inhabited(node):
        raise EmptyLanguage(
            f"no text satisfies the grammar: the rule {start!r} never comes to an end. Give it an alternative without itself."
        )
    return Expression(node, source=f"grammar({shorten(text)!r})")


def _read(text: str, start: str) -> Lark:
    for found in _IMPORT.finditer(text):
        if found[1] not in _LIBRARIES:
            raise GrammarError(
                f"expected an import from one of {', '.join(_LIBRARIES)}, received {found[1]!r}: no file is ever read. "
                "Copy what is needed into the grammar."
            )
    try:
        return Lark(text, start=start, parser="earley", lexer="dynamic")
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply to be read. Name parts of it as rules.") from None
    except (LarkError, AssertionError, ValueError, KeyError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()
        raise GrammarError(f"the grammar cannot be read: {' '.join(said[:4])}. Correct it.") from None


class _Terminals:
    """The terms of terminals, each with what it does not stop before."""

    def __init__(self, terminals: Iterable[TerminalDef], names: Iterable[str], ignored: Ignored) -> None:
        self._by_name = {terminal.name: terminal for terminal in terminals}
        self._languages: dict[str, Node] = {}
        self._symbols: dict[str, Node] = {}
        if ignored == "any":
            self.gap = self.margin = nodes.repeat(nodes.alternation(self._alone(name) for name in names))
        else:
            self.gap, self.margin = nodes.optional(nodes.alternation(self._short(name) for name in names)), EPSILON

    def symbol(self, name: str) -> Node:
        """A terminal, and what is ignored after it.

        Raises:
            GrammarError: it has no pattern, or one that is not supported.
        """
        known = self._symbols.get(name)
        if known is None:
            known = self._symbols[name] = nodes.concat(self._alone(name), self.gap)
        return known

    def _alone(self, name: str) -> Node:
        terminal = self._terminal(name)
        language = self._language(name)
        if isinstance(terminal.pattern, PatternStr):
            return nodes.munch(language, EPSILON, self._longer(terminal.pattern.value.encode()))
        taken = [text for text in self._keywords if self._automaton(name).accepts(text)]
        if taken:
            language = nodes.intersection((language, nodes.complement(nodes.words(taken))))
        if _is_lazy(terminal):
            language = nodes.intersection((language, nodes.complement(nodes.concat(language, _SOME_TEXT))))
        return nodes.munch(language, EPSILON)

    def _short(self, name: str) -> Node:
        some = nodes.repeat(nodes.byte_set(ALL_BYTES), 1, MAX_IGNORED)
        return nodes.munch(nodes.intersection((self._language(name), some)), EPSILON)

    def _terminal(self, name: str) -> TerminalDef:
        if name not in self._by_name:
            raise GrammarError(
                f"terminal {name!r} is declared and has no pattern; it would be the work of a lexer in Python, such as "
                "indentation. Give it a pattern, or leave it out."
            )
        return self._by_name[name]

    def _language(self, name: str) -> Node:
        if name not in self._languages:
            pattern = self._terminal(name).pattern.to_regexp()
            try:
                node = regex(pattern).node
            except ExpressionError as error:
                raise GrammarError(f"terminal {name!r}: {error}") from None
            if node.nullable or not Derivatives().is_inhabited(node):
                raise GrammarError(
                    f"terminal {name!r} matches no text, or the empty one. Make the place that uses it optional."
                )
            self._languages[name] = node
        return self._languages[name]

    def _automaton(self, name: str) -> Automaton:
        return Automaton(self._language(name))

    @cached_property
    def _keywords(self) -> list[bytes]:
        return [t.pattern.value.encode() for t in self._by_name.values() if isinstance(t.pattern, PatternStr)]

    def _longer(self, keyword: bytes) -> int:
        """The bytes with which a keyword becomes the beginning of a longer text of a terminal that it is a text of."""
        found = 0
        for name, terminal in self._by_name.items():
            if isinstance(terminal.pattern, PatternStr):
                continue
            automaton = self._automaton(name)
            state = automaton.next_state(automaton.initial_state, keyword)
            if state and automaton.is_accepting(state):
                for mask, _ in automaton.arcs(state):
                    found |= mask
        return found


def _is_lazy(terminal: TerminalDef) -> bool:
    return re.search(r"(?<!\\)(?:[*+?]|\})\?", terminal.pattern.value) is not None


class _Productions:
    """The rules of a grammar as terms."""

    def __init__(self, parser: Lark, limits: Limits, ignored: Ignored) -> None:
        self._limits = limits
        self._terminals = _Terminals(parser.terminals, parser.ignore_tokens, ignored)
        self._rules: dict[str, list[tuple[Any, ...]]] = {}
        for rule in parser.rules:
            self._rules.setdefault(rule.origin.name, []).append(tuple(rule.expansion))
        self._nullable = self._find_nullable()
        self._named = {name: Rule(name) for name in self._rules}
        for component in _components({name: self._leading(name) for name in self._rules}):
            self._define(component)

    def whole(self, start: str) -> Node:
        """Whole texts: one rule, with what is ignored around it."""
        rule = self._reference(start)
        return nodes.concat(self._terminals.margin, nodes.optional(rule) if start in self._nullable else rule)

    def _find_nullable(self) -> set[str]:
        found: set[str] = set()
        changed = True
        while changed:
            changed = False
            for name, productions in self._rules.items():
                if name not in found and any(all(s.name in found for s in symbols) for symbols in productions):
                    found.add(name)
                    changed = True
        return found

    def _reference(self, name: str) -> Node:
        """The texts of a rule that are not empty."""
        return nodes.reference(self._named[name])

    def _symbol(self, symbol: Any) -> Node:
        if symbol.is_term:
            return self._terminals.symbol(symbol.name)
        node = self._reference(symbol.name)
        return nodes.optional(node) if symbol.name in self._nullable else node

    def _cases(self, name: str) -> Iterator[tuple[Any, Node]]:
        """The texts of a rule by the first symbol that is not empty in them, each with what comes after it."""
        for symbols in self._rules[name]:
            rest = EPSILON
            cases = []
            for symbol in reversed(symbols):
                cases.append((symbol, rest))
                rest = nodes.concat(self._symbol(symbol), rest)
            for symbol, after in reversed(cases):
                yield symbol, after
                if symbol.is_term or symbol.name not in self._nullable:
                    break

    def _leading(self, name: str) -> list[str]:
        return [symbol.name for symbol, _ in self._cases(name) if not symbol.is_term]

    def _define(self, names: list[str]) -> None:
        """Give rules that begin with one another their bodies: what begins with none of them, and then any number of steps."""
        self._limits.check("max_left_recursion", len(names), "rules that begin with one another", "")
        first: dict[str, list[Node]] = {name: [] for name in names}
        steps: dict[tuple[str, str], list[Node]] = {}
        for name in names:
            for symbol, after in self._cases(name):
                if not symbol.is_term and symbol.name in first:
                    steps.setdefault((symbol.name, name), []).append(after)
                else:
                    head = self._terminals.symbol(symbol.name) if symbol.is_term else self._reference(symbol.name)
                    first[name].append(nodes.concat(head, after))
        begin = {name: nodes.alternation(options) for name, options in first.items()}
        walks = _closure(names, {pair: nodes.alternation(options) for pair, options in steps.items()}) if steps else {}
        for name in names:
            ways = [nodes.concat(begin[a], walk) for (a, b), walk in walks.items() if b == name != a]
            ways.append(nodes.concat(begin[name], _perhaps(walks.get((name, name), EMPTY))))
            self._named[name].define(nodes.alternation(ways))


def _closure(names: list[str], steps: dict[tuple[str, str], Node]) -> dict[tuple[str, str], Node]:
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


def _perhaps(walk: Node) -> Node:
    """A walk or none."""
    is_loop = walk.kind is Kind.REPEAT and walk.args[1:] == (1, None)
    return nodes.repeat(walk.args[0]) if is_loop else nodes.optional(walk)


def _components(edges: dict[str, list[str]]) -> Iterator[list[str]]:
    """The strongly connected components of a graph, without recursion (Kosaraju's algorithm)."""
    order: list[str] = []
    seen: set[str] = set()
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
    backwards: dict[str, list[str]] = {name: [] for name in edges}
    for name in edges:
        for following in edges[name]:
            backwards[following].append(name)
    done: set[str] = set()
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
