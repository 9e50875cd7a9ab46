r"""`translate`: a grammar in the dialect of llguidance as one that Lark reads, with a term for each part that Lark does not know, which is
declared as a terminal there: terminals (with `&`, `~`, `%regex` and ranges, evaluated here: a lexeme takes the longest match), rules with
`[lazy]` or `[suffix="..."]` (the shortest one), `%json {...}`, `%lark {...}`, `@name` and special tokens (`<|tool|>`). `expr{2,5}` is
rewritten, and so are `-` in names and `""`.

Refused by name, as no language has them: `[stop=...]`, `[max_tokens=...]`, `[temperature=...]`, token ids (`<[42]>`), and parametric rules.
`[capture]` changes no text, and is listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from lark import Token
from lark.exceptions import LarkError
from lark.load_grammar import _literal_to_pattern, load_grammar

from fsm.errors import ExpressionError, GrammarError, clip
from fsm.expression import Expression
from fsm.lark.lexeme import Lexeme
from fsm.limits import Limits
from fsm.pattern.python_pattern import regex
from fsm.terms import node as nodes
from fsm.terms import rule as texts
from fsm.terms.characters import utf8
from fsm.terms.node import ALL_BYTES, EPSILON, Node
from fsm.terms.special_token import symbol

Nested = Callable[[str], Expression]
"""Compiles the JSON of `%json`, or the text of `%lark`."""

_KINDS = {
    "COMMENT": r"(?://|\#)[^\n]*",
    "SPACE": r"[ \t\f\r]+",
    "LINE": r"\n",
    "STRING": r'"(?:\\.|[^"\\\n])*"i?',
    "REGEXP": r"/(?!/)(?:\\.|[^/\\])*/[imslux]*",
    "SPECIAL": r"<[^<>\s]+>",
    "REFERENCE": r"@[\w-]+",
    "DIRECTIVE": r"%[a-z]+",
    "COUNT": r"\{[ \t]*(?:\d+[ \t]*(?:,[ \t]*\d*[ \t]*)?|,[ \t]*\d+[ \t]*)\}",
    "NUMBER": r"\d+(?:\.\d+)?",
    "NAME": r"_?[A-Za-z](?:\w|-(?!>))*",
    "SIGN": r"->|\.\.|::|.",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.DOTALL)
_OPEN, _CLOSE = "([", ")]"
_LOOPS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_OPTIONS = frozenset({"no_forcing", "allow_invalid_utf8", "skip_repetition", "no_initial_skip"})
_REFUSED = {
    "stop": "what the model writes there is no part of the text. Write `suffix`, which keeps it, or `lazy`",
    "stop_capture": "what the model writes there is no part of the text. Write `suffix`",
    "max_tokens": "a language counts characters, not tokens. Bound them in the pattern, as in `/.{1,20}/`",
    "temperature": "a language draws nothing. Set it in the sampler",
}


class _Piece(NamedTuple):
    """A token of the text of a grammar, at a position; `data` is the JSON or text in braces after a directive, `is_first` of a name that it
    begins a line."""

    kind: str
    text: str
    position: int
    data: str = ""
    is_first: bool = False


class Translation(NamedTuple):
    """A grammar for Lark, the terms of its declared terminals, and what the result is made of.

    Attributes:
        text: the grammar.
        lexemes: for each declared terminal its term.
        parts: nested languages and special tokens.
        captures: the names of rules with `[capture]`.
    """

    text: str
    lexemes: dict[str, Lexeme]
    parts: list[Expression]
    captures: list[str]


def translate(
    text: str, grammars: Mapping[str, Expression], json_language: Nested, lark_language: Nested, limits: Limits
) -> Translation | None:
    """Return a grammar for Lark; None if the text has nothing that Lark does not know.

    Raises:
        BudgetExceeded: terminals that Lark is to write out are longer than `max_expansion`, or terms take more work than `max_work`.
        GrammarError: it uses what is not supported, or is malformed; the message has the line.
    """
    pieces = _Reader(text).read()
    if _is_dialect(pieces):
        return _Translator(text, pieces, grammars, json_language, lark_language).run()
    _check_terminals(pieces, limits)
    return None


def _is_dialect(pieces: list[_Piece]) -> bool:
    """True if some token is none of Lark's."""
    for number, piece in enumerate(pieces[:-1]):
        after = pieces[number + 1]
        if piece.kind in ("SPECIAL", "REFERENCE", "COUNT") or piece.text in (*_NESTED, "&", "::", '""'):
            return True
        if (piece.kind == "NAME" and "-" in piece.text) or (piece.text == "~" and after.kind != "NUMBER"):
            return True
        if piece.is_first and after.text == "[":
            closing = next((i for i, other in enumerate(pieces) if i > number and other.text == "]"), -2)
            if pieces[closing + 1].text == ":":
                return True
    return False


_MOST = 10**9  # larger sizes are cut to this
_NESTED = ("%json", "%regex", "%lark", "%llguidance")


@dataclass
class _Reader:
    """Divides the text of a grammar into tokens, without comments and space inside of lines."""

    text: str

    def read(self) -> list[_Piece]:
        found: list[_Piece] = []
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            assert match is not None, "a sign is any character"
            kind, text = match.lastgroup or "", match[0]
            piece = _Piece(kind, text, position)
            position = match.end()
            if text in _NESTED:
                data, position = self._nested(text, position)
                piece = piece._replace(data=data)
            if kind == "NAME" and (not found or found[-1].kind == "LINE" or found[-1].text in ("?", "!")):
                piece = piece._replace(is_first=True)
            if kind not in ("COMMENT", "SPACE"):
                found.append(piece)
        return [*found, _Piece("LINE", "\n", len(self.text))]

    def _nested(self, directive: str, start: int) -> tuple[str, int]:
        """The JSON, or the grammar in braces, after a directive, and the position after it."""
        start += len(self.text[start:]) - len(self.text[start:].lstrip())
        if directive != "%lark":
            try:
                _, end = json.JSONDecoder().raw_decode(self.text, start)
            except ValueError as error:
                _refuse(self.text, start, f"the JSON after `{directive}` cannot be read: {error}")
            return self.text[start:end], end
        depth, position = 0, start
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            assert match is not None
            position = match.end()
            if match[0] in _NESTED:
                position = self._nested(match[0], position)[1]
            depth += (match[0] == "{") - (match[0] == "}")
            if depth <= 0:
                break
        if depth or self.text[start : start + 1] != "{":
            _refuse(self.text, start, "expected a grammar in braces after `%lark`")
        return self.text[start + 1 : position - 1], position


def _refuse(text: str, position: int, problem: str) -> NoReturn:
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    raise GrammarError(f"the grammar cannot be read: at line {line} column {column}: {problem}.")


def _statements(pieces: list[_Piece]) -> list[list[_Piece]]:
    """The tokens of each statement; a line that begins with `|`, or stands in brackets, continues the one before."""
    found: list[list[_Piece]] = [[]]
    depth = 0
    for piece, after in zip(pieces, [*pieces[1:], pieces[-1]], strict=True):
        depth += (piece.text in _OPEN) - (piece.text in _CLOSE) if piece.kind == "SIGN" else 0
        if piece.kind != "LINE":
            found[-1].append(piece)
        elif depth <= 0 and after.text != "|" and after.kind != "LINE":
            found.append([])
    return [statement for statement in found if statement]


def _check_terminals(pieces: list[_Piece], limits: Limits) -> None:
    """Raise `BudgetExceeded` if terminals are long once those that they name are put in, before Lark does that."""
    bodies: dict[str, list[_Piece]] = {}
    for statement in _statements(pieces):
        colon = next((number for number, piece in enumerate(statement) if piece.text == ":"), len(statement))
        name = next((piece.text for piece in statement[:colon] if piece.kind == "NAME"), "")
        if name.lstrip("_")[:1].isupper():
            bodies.setdefault(name, []).extend(statement[colon + 1 :])
    named = {
        name: list(dict.fromkeys(piece.text for piece in body if piece.text in bodies)) for name, body in bodies.items()
    }
    sizes: dict[str, int] = {}
    for component in reversed(
        [*nodes.components(named)]
    ):  # those that a terminal names come before it; Lark refuses a cycle
        for name in component:
            inner = sum(sizes.get(piece.text, 0) for piece in bodies[name])
            sizes[name] = min(len(bodies[name]) + inner, _MOST)
    written = sum(sizes.values()) - sum(map(len, bodies.values()))
    limits.check("max_expansion", written, "symbols of terminals, with those that they name put in", None)


@dataclass
class _Translator:
    """Rewrites the statements of a grammar one by one."""

    text: str
    pieces: list[_Piece]
    grammars: Mapping[str, Expression]
    json_language: Nested
    lark_language: Nested
    lexemes: dict[str, Lexeme] = field(default_factory=dict)
    parts: list[Expression] = field(default_factory=list)
    captures: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # names without `-`
    terminals: dict[str, list[_Piece]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)  # the path of a terminal of a library of Lark
    open: list[str] = field(default_factory=list)  # terminals that are being evaluated
    values: dict[str, Node] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)  # rules of parts of rules

    def __post_init__(self) -> None:
        self.upper = self.text.upper()

    def run(self) -> Translation:
        """Translate; the statements stay in their lines, so that the errors of Lark name these."""
        lines: dict[int, str] = {}
        rules: list[tuple[list[_Piece], list[_Piece], list[_Piece] | None]] = []
        ignored: list[list[_Piece]] = []
        for statement in _statements(self.pieces):
            first = statement[0]
            if first.text == "%ignore":
                ignored.append(statement)
            elif first.text == "%llguidance":
                self._check_options(first)
            elif first.kind == "DIRECTIVE":
                self._note_import(statement)
                lines[self._line(first)] = self.text[first.position : statement[-1].position + len(statement[-1].text)]
            else:
                head, body = self._divided(statement)
                name = next(piece.text for piece in head if piece.kind == "NAME")
                if name.lstrip("_")[:1].isupper():
                    if len(head) > 1:
                        problem = "priorities and attributes of terminals are not supported. Attributes are for rules, in small letters"
                        self._refuse(head[1], problem)
                    self.terminals[name] = body
                else:
                    rules.append((head, body, self._attributes(head)))
        for name in self.terminals:
            self.lexemes[self._plain(name)] = Lexeme(self._terminal(name, None))
        for head, body, ending in rules:
            if ending is None:
                lines[self._line(head[0])] = self._rule(head, body)
            else:
                text = nodes.concat(self._value(body), self._value(ending))
                lines[self._line(head[0])] = f"{self._head(head)}: {self._declared(Lexeme(_shortest(text), 'lazy'))}"
        for first, *body in ignored:
            lines[self._line(first)] = f"%ignore {self._declared(Lexeme(self._value(body)))}"
        written = [lines.get(number, "") for number in range(1, max(lines, default=0) + 1)]
        written += self.counted
        written += [f"%declare {name}" for name in self.lexemes]
        return Translation("\n".join(written), self.lexemes, self.parts, self.captures)

    def _line(self, piece: _Piece) -> int:
        return self.text.count("\n", 0, piece.position) + 1

    def _refuse(self, at: _Piece | None, problem: str) -> NoReturn:
        _refuse(self.text, at.position if at else 0, problem)

    # -- statements --------------------------------------------------------------------------------------------------------------

    def _divided(self, statement: list[_Piece]) -> tuple[list[_Piece], list[_Piece]]:
        """What stands before and after the colon of a definition."""
        for number, piece in enumerate(statement):
            if piece.text == "::":
                self._refuse(piece, "parametric rules (`::`) are not supported. Write a rule for each value")
            if piece.text == ":" and any(part.kind == "NAME" for part in statement[:number]):
                return statement[:number], statement[number + 1 :]
        self._refuse(statement[0], "expected a definition, as in `name: ...`")

    def _attributes(self, head: list[_Piece]) -> list[_Piece] | None:
        """Remove the attributes of a rule from its head; return its suffix, empty for `lazy`, or None if it is neither."""
        start = next((number for number, piece in enumerate(head) if piece.text == "["), None)
        if start is None:
            return None
        given, head[start:] = head[start + 1 : -1], []
        ending: list[_Piece] | None = None
        while given:
            key, has_value = given[0], len(given) > 2 and given[1].text == "="
            value, given = (given[2:3], given[3:]) if has_value else ([], given[1:])
            given = given[1:] if given and given[0].text == "," else given
            if key.text in _REFUSED:
                self._refuse(key, f"`[{key.text}]` is not supported: {_REFUSED[key.text]}")
            elif key.text == "capture":
                name = next(piece for piece in head if piece.kind == "NAME").text
                self.captures.append(json.loads(value[0].text) if value else name)
            elif key.text == "lazy":
                ending = ending or []
            elif key.text == "suffix" and value:
                ending = value
            else:
                self._refuse(key, f"unknown attribute {key.text!r}. Known are `lazy`, `suffix` and `capture`")
        return ending

    def _check_options(self, piece: _Piece) -> None:
        options = json.loads(piece.data)
        odd = sorted(set(options) - _OPTIONS) if isinstance(options, dict) else [piece.data]
        if odd:
            self._refuse(piece, f"the option {odd[0]!r} of `%llguidance` is not known. Remove it")

    def _note_import(self, statement: list[_Piece]) -> None:
        """Note the terminals of an import by their names here."""
        texts = [piece.text for piece in statement]
        if texts[0] != "%import" or len(texts) < 4 or texts[2] != ".":
            return
        library, names = texts[1], texts[3:]
        if "->" in names:
            self.imported[names[-1]] = f"{library}.{names[0]}"
        else:
            self.imported.update({name: f"{library}.{name}" for name in names if name[:1].isalpha()})

    # -- rules -------------------------------------------------------------------------------------------------------------------

    def _rule(self, head: list[_Piece], body: list[_Piece]) -> str:
        """A rule as Lark reads it."""
        out: list[str] = []
        opened: list[int] = []
        last, skipped = 0, 0  # where the last item begins
        for number, piece in enumerate(body):
            if skipped:
                skipped -= 1
            elif piece.kind == "SIGN" and piece.text in _OPEN:
                opened.append(len(out))
                out.append(piece.text)
            elif piece.kind == "SIGN" and piece.text in _CLOSE and opened:
                last = opened.pop()
                out.append(piece.text)
            elif piece.kind == "COUNT":
                lo, hi = self._counts(piece)
                item = " ".join(out[last:])
                out[last:] = [_counted(self._part(item) if lo > 1 and hi is None else item, lo, hi)]
            elif piece.text == "&" or (piece.text == "~" and body[number + 1].kind != "NUMBER"):
                self._refuse(piece, f"`{piece.text}` is for terminals. Write this part as one, in capital letters")
            elif piece.text == "->":
                skipped = 1
            elif piece.text in ("..", "~", "*", "+", "?") or piece.kind == "NUMBER":
                out.append(piece.text)
            else:
                last = len(out)
                out.append(self._item(piece))
        return f"{self._head(head)}: {' '.join(out)}"

    def _part(self, item: str) -> str:
        """The name of a new rule for a part of a rule that is written twice."""
        name = f"_part_{len(self.counted)}"
        while name in self.text:
            name += "_"
        self.counted.append(f"{name}: {item}")
        return name

    def _head(self, head: list[_Piece]) -> str:
        return "".join(self._plain(piece.text) if piece.kind == "NAME" else piece.text for piece in head)

    def _item(self, piece: _Piece) -> str:
        """An item of a rule as Lark reads it."""
        if piece.kind == "NAME":
            return self._plain(piece.text)
        if piece.text in ("%json", "%lark"):
            nested = (self.json_language if piece.text == "%json" else self.lark_language)(piece.data)
            return self._nested(nested, piece)
        if piece.text == "%regex":
            return self._declared(Lexeme(self._structured(piece)))
        if piece.kind == "REFERENCE":
            name = piece.text[1:]
            if name not in self.grammars:
                known = ", ".join(map(repr, self.grammars)) or "none"
                self._refuse(piece, f"`@{name}` is none of the given `grammars` ({known})")
            return self._nested(self.grammars[name], piece)
        if piece.kind == "SPECIAL":
            return self._special(piece)
        if piece.text == '""':
            return self._declared(Lexeme(EPSILON))
        return piece.text

    def _special(self, piece: _Piece) -> str:
        if piece.text.startswith("<["):
            self._refuse(
                piece, f"token ids (`{piece.text}`) are not supported, as they are of one tokenizer. Write the name"
            )
        self.parts.append(Expression(nodes.literal(symbol(piece.text)), specials=frozenset((piece.text,))))
        return self._declared(Lexeme(self.parts[-1].node, "foreign"))

    def _nested(self, language: Expression, piece: _Piece) -> str:
        if language.node.nullable and not language.node.is_regular:
            self._refuse(
                piece, "a recursive language that may be empty is not supported here. Make it optional with `?`"
            )
        self.parts.append(language)
        return self._declared(Lexeme(language.node, "foreign"))

    def _declared(self, lexeme: Lexeme) -> str:
        """The name of a terminal for a term."""
        name = self._new(f"PART_{len(self.lexemes)}")
        self.lexemes[name] = lexeme
        return name

    def _new(self, name: str) -> str:
        """A name that Lark gives to no text of the grammar, such as `B` to `"b"`."""
        while name in self.upper:
            name += "_"
        return name

    def _plain(self, name: str) -> str:
        """A name as Lark writes it."""
        if name not in self.renamed:
            plain = name.replace("-", "_")
            while plain != name and plain in (*self.renamed.values(), *(piece.text for piece in self.pieces)):
                plain += "_"
            self.renamed[name] = self._new(plain) if name in self.terminals else plain
        return self.renamed[name]

    # -- terminals ---------------------------------------------------------------------------------------------------------------

    def _terminal(self, name: str, at: _Piece | None) -> Node:
        """The term of a terminal."""
        if name in self.open:
            self._refuse(at, f"the terminal {name!r} contains itself. Write a rule, in small letters")
        if name not in self.values:
            if name not in self.terminals and name not in self.imported:
                self._refuse(at, f"the terminal {name!r} is not there. Add `{name}: ...`")
            self.open.append(name)
            self.values[name] = (
                self._value(self.terminals[name]) if name in self.terminals else _library(self.imported[name])
            )
            self.open.pop()
        return self.values[name]

    def _value(self, body: list[_Piece]) -> Node:
        """The term of an expression of terminals; of no tokens, the empty text."""
        rest = [piece for piece in body if piece.kind != "LINE"]
        value = self._union(rest)
        if rest:
            self._refuse(rest[0], f"expected a terminal, received {rest[0].text!r}")
        return value

    def _union(self, rest: list[_Piece]) -> Node:
        ways = [self._intersection(rest)]
        while rest and rest[0].text == "|":
            del rest[0]
            ways.append(self._intersection(rest))
        if rest and rest[0].text == "->":
            del rest[:2]
        return nodes.alternation(ways)

    def _intersection(self, rest: list[_Piece]) -> Node:
        found = self._sequence(rest)
        while rest and rest[0].text == "&":
            del rest[0]
            found = texts.intersection(found, self._sequence(rest))
        return found

    def _sequence(self, rest: list[_Piece]) -> Node:
        items: list[Node] = []
        while rest and rest[0].text not in ("|", "&", "->", *_CLOSE):
            items.append(self._loop(rest))
        return nodes.sequence(items) if items else EPSILON

    def _loop(self, rest: list[_Piece]) -> Node:
        node = self._atom(rest)
        while rest:
            if rest[0].text in _LOOPS:
                counts = _LOOPS[rest.pop(0).text]
            elif rest[0].kind == "COUNT":
                counts = self._counts(rest.pop(0))
            elif rest[0].text == "~" and len(rest) > 1 and rest[1].kind == "NUMBER":
                lo = int(rest[1].text)
                is_range = len(rest) > 3 and rest[2].text == ".."
                counts = lo, int(rest[3].text) if is_range else lo
                del rest[: 4 if is_range else 2]
            else:
                break
            node = nodes.repeat(node, *counts)
        return node

    def _counts(self, piece: _Piece) -> tuple[int, int | None]:
        lo, comma, hi = piece.text.strip("{} \t").partition(",")
        least, most = int(lo or 0), (int(hi) if hi.strip() else None) if comma else int(lo)
        if most is not None and most < least:
            self._refuse(piece, f"the counts of {piece.text!r} are the wrong way round")
        return least, most

    def _atom(self, rest: list[_Piece]) -> Node:
        piece = rest.pop(0)
        if piece.text == "~":
            return texts.complement(self._atom(rest))
        if piece.text in ("(", "["):
            inside = self._union(rest)
            if not rest or rest.pop(0).text != _CLOSE[_OPEN.index(piece.text)]:
                self._refuse(piece, f"`{piece.text}` is not closed")
            return inside if piece.text == "(" else nodes.optional(inside)
        if piece.kind == "STRING" and len(rest) > 1 and rest[0].text == "..":
            del rest[0]
            return self._range(piece, rest.pop(0))
        if piece.kind in ("STRING", "REGEXP"):
            return self._literal(piece)
        if piece.text == "%regex":
            return self._structured(piece)
        if piece.kind == "NAME":
            return self._terminal(piece.text, piece)
        self._refuse(piece, f"{piece.text!r} cannot be a part of a terminal, nor of a rule that is `lazy`")

    def _literal(self, piece: _Piece) -> Node:
        if piece.text in ('""', '""i'):
            return EPSILON
        try:
            pattern: Any = _literal_to_pattern(Token(piece.kind, piece.text))  # type: ignore[no-untyped-call]
            if piece.kind == "STRING" and not pattern.flags:
                return nodes.literal(pattern.value.encode())
            return regex(pattern.to_regexp()).node
        except (LarkError, AssertionError, ExpressionError, UnicodeError) as error:
            self._refuse(piece, f"{clip(piece.text)} cannot be read: {error}")

    def _range(self, first: _Piece, last: _Piece) -> Node:
        ends = [
            json.loads(piece.text) for piece in (first, last) if piece.kind == "STRING" and piece.text.endswith('"')
        ]
        if len(ends) < 2 or len(ends[0]) != 1 or len(ends[1]) != 1 or ends[0] > ends[1]:
            self._refuse(first, 'expected a range of characters, as in `"a".."z"`')
        return utf8(((ord(ends[0]), ord(ends[1])),))

    def _structured(self, piece: _Piece) -> Node:
        """The stretches of a list of texts, of `%regex`."""
        given: Any = json.loads(piece.data)
        key, value = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else ("", None)
        chunks: Any = None
        if key == "substring_chunks" and isinstance(value, list):
            chunks = value
        elif key in ("substring_words", "substring_chars") and isinstance(value, str):
            chunks = list(value) if key == "substring_chars" else re.findall(r"\w+|\W", value)
        if chunks is None or not all(isinstance(chunk, str) for chunk in chunks):
            known = "`substring_chunks`, `substring_words` and `substring_chars`"
            self._refuse(piece, f"this `%regex` is not supported. Known are {known}")
        return _stretches(chunks)


def _shortest(node: Node) -> Node:
    """The texts of which no other is a beginning."""
    more = nodes.concat(node, nodes.repeat(nodes.byte_set(ALL_BYTES), 1))
    return nodes.intersection((node, nodes.complement(more)))


def _stretches(chunks: list[str]) -> Node:
    """The adjacent chunks of a list, joined: any start, then the beginnings of the rest."""
    rest, ways = EPSILON, [EPSILON]
    for chunk in reversed(chunks):
        rest = nodes.optional(nodes.concat(nodes.literal(chunk.encode()), rest)) if chunk else rest
        ways.append(rest)
    return nodes.alternation(ways)


def _counted(item: str, lo: int, hi: int | None) -> str:
    """An item of a rule with counts, as Lark writes them."""
    if hi is not None:
        return f"( {item} ~ {lo}..{hi} )"
    return f"( {item} ~ {lo} {item} * )" if lo > 1 else f"( {item} {'+' if lo else '*'} )"


def _library(path: str) -> Node:
    """The term of a terminal of a library of Lark."""
    try:
        loaded, _ = load_grammar(f"%import {path} -> IMPORTED\nstart: IMPORTED", "<library>", [], False)  # type: ignore[no-untyped-call]
        terminals, _, _ = loaded.compile(["start"], set())
    except (LarkError, OSError):
        problem = f"expected the terminal of a library of Lark, as in `%import common.WORD`, received {clip(path)!r}"
        raise GrammarError(f"{problem}. Correct the import.") from None
    return regex(terminals[0].pattern.to_regexp()).node
