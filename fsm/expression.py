"""`Expression`: a regular or context-free language of texts as an immutable value, with `|`, `+`, `&`, `~` and `repeat`. It wraps an
interned term (`node.py`), with names for messages and captures and a `Report` of how each keyword of its schema is enforced. Equality is
that of terms, after simplification, not of languages. `&` and `~`, the complement among texts in UTF-8, raise `ExpressionError` for an
operand with rules or checks. Also here: `literal`, `lift` (a `str` as an expression), `from_interegular`.

A special token (`fsm.special`) is a symbol beyond these texts. `~` and the shortcuts of `fsm.terms.rule` are for languages of texts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal, Self, TypeAlias

from fsm.automaton import origin as origins
from fsm.automaton.captures import CapturedPart, Captures, together
from fsm.automaton.character_dfa import character_dfa, make_fsm, read_fsm
from fsm.automaton.checker import Checker, checks_of, has_checks
from fsm.automaton.lazy_dfa import Automaton
from fsm.automaton.origin import GrammarOrigin, NamedOrigin, Origin
from fsm.automaton.rejection import rejection
from fsm.drawing import StateGraph, expression_graph, picture
from fsm.errors import BudgetExceeded, ExpressionError, clip
from fsm.recipe import Call, follow, recipe, remembered
from fsm.terms import node as nodes
from fsm.terms import rule as texts
from fsm.terms.node import Node
from fsm.terms.rendering import render
from fsm.terms.special_token import symbol

PICTURE_STATES = 24
"""How many states a picture in a notebook has at most; `draw` takes any number."""


@dataclass(frozen=True, slots=True)
class ReportLine:
    """How one keyword of a schema is enforced.

    Attributes:
        pointer: JSON pointer to the keyword, such as `#/properties/age/minimum`.
        keyword: its name.
        level: `exact` (in the automaton), `checked` (validated when the value closes) or `annotated` (it rejects nothing).
        note: why it is not exact, or how an ambiguous value was read.
    """

    pointer: str
    keyword: str
    level: Literal["exact", "checked", "annotated"]
    note: str = ""


class Report(tuple[ReportLine, ...]):
    """How the keywords of a schema are enforced: a tuple of lines, which prints as a table.

    Attributes:
        spelling: what the language leaves out though the schema allows it, one sentence each; see `docs/json_text.md`.
        unbounded: the values of any length, numbers excepted: a JSON pointer, such as `#/properties/name`, and the keyword that would
            bound it.
    """

    spelling: tuple[str, ...] = ()
    unbounded: tuple[tuple[str, str], ...] = ()

    def with_notes(self, spelling: Iterable[str], unbounded: Iterable[tuple[str, str]] = ()) -> Report:
        """The same lines with other attributes, without duplicates."""
        report = Report(self)
        report.spelling, report.unbounded = tuple(dict.fromkeys(spelling)), tuple(dict.fromkeys(unbounded))
        return report

    def __add__(self, other: tuple[Any, ...]) -> Report:
        spelling, unbounded = getattr(other, "spelling", ()), getattr(other, "unbounded", ())
        lines = dict.fromkeys((*self, *other))  # once each, so that the report of `e + e` is that of `e`
        return Report(lines).with_notes((*self.spelling, *spelling), (*self.unbounded, *unbounded))

    def __str__(self) -> str:
        width = max((len(line.pointer) for line in self), default=0)
        lines = (f"{line.level:9}  {line.pointer:{width}}  {line.note}".rstrip() for line in self)
        return "\n".join((*lines, *(f"spelling   {sentence}" for sentence in self.spelling)))

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str, str]] = [(line.level, line.pointer, line.note) for line in self]
        rows += [("spelling", "", text) for text in self.spelling]
        cells = ("".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) for row in rows)
        head = "<tr><th>enforced</th><th>where</th><th>note</th></tr>"
        return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@dataclass(frozen=True, slots=True)
class Expression:
    """A language of texts in UTF-8; immutable, hashable, equal when its term is the same object.

    Attributes:
        node: the term; internal, may change in any version.
        name: a name for messages, or empty.
        reported: returns its `report`.
        source: its source, shortened; empty if only the term is known.
        parts: the tree of its named parts, for captures; None if no part has a name. Internal.
        specials: the names of the special tokens that are symbols of it.
        origin: names the part of its source that rejects a text; None: only its name is known. Internal.
        made_by: the call that made it, by which it is pickled; None: not recorded. Internal.
    """

    node: Node
    name: str = field(default="", compare=False)
    reported: Callable[[], Report] = field(default=Report, compare=False, repr=False)
    source: str = field(default="", compare=False)
    parts: CapturedPart | None = field(default=None, compare=False, repr=False)
    specials: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)
    # Not copied by `dataclasses.replace`: a changed copy is not the result of the call.
    made_by: Call | None = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Take the term of all texts for one that is seen to have them all, so that the complement of a complement is the term."""
        if not self.specials and texts.has_all(self.node):
            object.__setattr__(self, "node", texts.TEXTS)

    @property
    def report(self) -> Report:
        """One line per keyword of the schema that it came from, made when it is first read; empty for other sources."""
        return self.reported()

    def _repr_svg_(self) -> str | None:
        """Return a picture of up to `PICTURE_STATES` states, for notebooks; None if that exceeds a bound of the automaton."""
        try:
            return picture(self.state_graph(PICTURE_STATES))
        except BudgetExceeded:
            return None

    def state_graph(self, max_states: int, max_tokens: int = 0) -> StateGraph:
        """Return the graph that `fsm.draw` draws, of the DFA over characters."""
        return expression_graph(self.node, max_states)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the calls that made it; its terms belong to this process.

        Raises:
            TypeError: a part of it was not made by a public function of `fsm`.
        """
        return follow, (recipe(self),)

    @remembered
    def union(self, other: Expression | str) -> Expression:
        """Texts of either."""
        other = lift(other)
        has_specials = self.specials or other.specials
        node = nodes.alternation((self.node, other.node)) if has_specials else texts.union(self.node, other.node)
        return self._with(node, "|", "either", other)

    @remembered
    def concatenate(self, other: Expression | str) -> Expression:
        """A text of the left followed by a text of the right."""
        return self._with(nodes.concat(self.node, lift(other).node), "+", "sequence", lift(other))

    @remembered
    def intersect(self, other: Expression | str) -> Expression:
        """Texts of both.

        Raises:
            ExpressionError: one of the two is recursive, or has a check.
        """
        other = lift(other)
        unite = nodes.intersection if self.specials or other.specials else lambda pair: texts.intersection(*pair)
        return self._with(unite((self.node, other.node)), "&", "both", other)

    @remembered
    def negate(self) -> Expression:
        """Every text that does not belong to this language; `~~e` is `e`.

        Raises:
            ExpressionError: the expression is recursive, or has a check or a special token.
        """
        if self.specials:
            raise ExpressionError(
                f"`~` is every other text, and {clip(self._label())} has special tokens, which no text contains. Negate its texts alone."
            )
        report = self.report.with_notes(self.report.spelling)  # other texts may have another length
        return Expression(texts.complement(self.node), reported=lambda: report, source=clip(f"(~{self._label()})"))

    @remembered
    def repeat(self, lo: int = 0, hi: int | None = None) -> Expression:
        """At least `lo` and at most `hi` texts in a row; None: no bound. Cost: constant, counters are not unrolled.

        Raises:
            ExpressionError: not 0 <= lo <= hi.
            TypeError: a count is not an int.
        """
        for count in (lo, 0 if hi is None else hi):
            if not isinstance(count, int):
                raise TypeError(f"expected an int as the count of a repetition, received {count!r}")
        counts = f"{lo}" if hi is None else f"{lo}, {hi}"
        source = clip(f"{self._label()}.repeat({counts})")
        parts = CapturedPart("repeat", (self.parts,), lo=lo, hi=hi) if self.parts else None
        node = nodes.repeat(self.node, lo, hi)
        return Expression(node, reported=self.reported, source=source, parts=parts, specials=self.specials)

    @remembered
    def named(self, name: str) -> Expression:
        """The same language with a name, by which `captures` finds its part of a text in any expression that contains it.

        Raises:
            ExpressionError: names are nested more than 100 deep.
            TypeError: the name is not a `str`.
        """
        if not isinstance(name, str):
            raise TypeError(f"expected a str as the name of a part, received {name!r}")
        return replace(self, name=name, parts=CapturedPart("named", (self._as_part(),), name=name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts, from left to right; those inside `~` do not count."""
        return self.parts.names if self.parts else ()

    def captures(self, text: Text) -> dict[str, str | None] | None:
        """The text of every named part; None for one that was not used. `Captures.find` says how ambiguous texts are divided.

        Returns:
            None if the whole of `text` does not belong to the language.

        Raises:
            TypeError: `text` is not a `Text`.
        """
        return Captures(self._as_part()).find(as_bytes(text))

    def accepts(self, data: Text) -> bool:
        """True when the whole of `data` belongs to the language and passes its checks. Cost: one derivative per new state.

        Raises:
            TypeError: `data` is not a `Text`.
            BudgetExceeded: see `Automaton`.
        """
        text = as_bytes(data)
        return Checker(self.node).accepts(text) if self.has_checks else Automaton(self.node).accepts(text)

    def blame(self, text: Text, *, is_whole: bool = False) -> tuple[str, ...]:
        """The parts of the source that reject a text: JSON pointers to keywords of a schema, or a pattern.

        Args:
            text: the text up to and with the first byte that is rejected.
            is_whole: whether the end after the text is rejected, and not its last byte.

        Returns:
            Several if several reject it. Behind a pointer a remark in parentheses says where only the order of keys rejects it.
            None if the byte is allowed (`explain` has nothing to say of it), if the text is not JSON at all (`explain` of
            `json_schema(True)` rejects it, too), or else if nothing is known, as the keyword is too deep in the schema.

        Raises:
            TypeError: `text` is not a `Text`.

        Cost: the text is read again, and the keywords around its end are compiled one by one: milliseconds.
        """
        data = as_bytes(text)
        return self._as_origin().names(data, is_whole) if data or is_whole else ()

    def explain(self, text: Text) -> str | None:
        """Why a whole text is not in the language, as a message; None if it is.

        It names the first character that does not fit (or the end, where something is missing), what would fit, what must follow there as a
        pattern, and the parts of the source that require it, as `blame` does.

        Raises:
            TypeError: `text` is not a `Text`.
            BudgetExceeded: see `Automaton`.

        Cost: one derivative per new state, and that of `blame`.
        """
        return rejection(Automaton(self.node), as_bytes(text), self.blame, lambda: self.accepts(text))

    @property
    def has_checks(self) -> bool:
        """True when the automaton accepts more than the language, so that whole values must be checked."""
        return has_checks(self.node)

    @property
    def checks(self) -> tuple[str, ...]:
        """Descriptions of the checks, each once."""
        return tuple(dict.fromkeys(str(check) for check in checks_of(self.node)))

    def to_interegular(self, *, max_states: int = 10_000, max_symbols: int = 200_000) -> Any:
        """Return the same texts as an automaton of the library `interegular`, an `interegular.FSM`.

        The largest of its classes of characters is `anything_else`. Characters that have no UTF-8 (surrogates) are read
        as that, too, though no text of the expression has one.

        Args:
            max_states: most states.
            max_symbols: most characters that are symbols of their own.

        Raises:
            ExpressionError: the expression is recursive, or has checks, so that it is no finite automaton, or has special tokens.
            BudgetExceeded: a bound is exceeded; `.limit` names it.

        Cost: some 20 us per state and byte that leads somewhere else, and 0.2 us per symbol.
        """
        nodes.require_regular(self.node, "to_interegular")
        if self.specials:
            raise ExpressionError(
                f"{clip(self._label())} has special tokens, which are no characters. Convert the texts between them."
            )
        return make_fsm(character_dfa(Automaton(self.node), max_states), max_symbols)

    def is_empty(self) -> bool:
        """True when no text at all belongs to the language."""
        return Automaton(self.node).is_empty()

    def _with(
        self, node: Node, sign: str, kind: Literal["sequence", "either", "both"], other: Expression
    ) -> Expression:
        source = clip(f"({self._label()} {sign} {other._label()})")
        parts = together(kind, self._as_part(), other._as_part()) if self.parts or other.parts else None
        report, origin = self.report + other.report, None
        if kind == "both":  # one may bound the length of the other
            report = report.with_notes(report.spelling)
        else:
            origin = origins.together(kind, (self.node, self._as_origin()), (other.node, other._as_origin()))
        specials = self.specials | other.specials
        return Expression(node, reported=lambda: report, source=source, parts=parts, specials=specials, origin=origin)

    def _as_origin(self) -> Origin:
        if self.origin is not None:
            return self.origin
        label = self._label()
        return NamedOrigin(label) if self.node.is_regular else GrammarOrigin(self.node, label)

    def _as_part(self) -> CapturedPart:
        return self.parts or CapturedPart("leaf", node=self.node)

    def _label(self) -> str:
        """A short text for this expression as a part of another: its name, its source, or its term."""
        return self.name or self.source or f"<{render(self.node)}>"

    def __or__(self, other: Expression | str) -> Expression:
        return self.union(other) if isinstance(other, Expression | str) else NotImplemented

    def __ror__(self, other: str) -> Expression:
        return lift(other).union(self) if isinstance(other, str) else NotImplemented

    def __add__(self, other: Expression | str) -> Expression:
        return self.concatenate(other) if isinstance(other, Expression | str) else NotImplemented

    def __radd__(self, other: str) -> Expression:
        return lift(other).concatenate(self) if isinstance(other, str) else NotImplemented

    def __and__(self, other: Expression | str) -> Expression:
        return self.intersect(other) if isinstance(other, Expression | str) else NotImplemented

    def __rand__(self, other: str) -> Expression:
        return lift(other).intersect(self) if isinstance(other, str) else NotImplemented

    def __invert__(self) -> Expression:
        return self.negate()

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value. Instead of `a and b` write `a & b`, instead of `a or b` write `a | b`, "
            "instead of `not a` write `~a`; to test for the empty language call `.is_empty()`."
        )

    def __repr__(self) -> str:
        written = self.source or f"<expression {render(self.node)}>"
        return f"{written}.named({clip(self.name)!r})" if self.name else written


Text: TypeAlias = str | bytes | Sequence[str | bytes | Expression]
"""A text; in a list, special tokens may be among its parts."""


def as_bytes(text: Text) -> bytes:
    """Return a text as the bytes that an automaton reads; those of a lone surrogate are not UTF-8, so that no expression accepts them.

    Raises:
        TypeError: `text` is neither `str` nor `bytes`, nor a list of these and of special tokens.
    """
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    if isinstance(text, list | tuple):
        return b"".join(map(_part_bytes, text))
    if not isinstance(text, bytes):
        raise TypeError(f"expected a text, str or bytes, or a list of texts and special tokens, received {text!r}")
    return text


def _part_bytes(part: str | bytes | Expression) -> bytes:
    if isinstance(part, str | bytes):
        return as_bytes(part)
    if not isinstance(part, Expression):
        raise TypeError(f"expected a text, str or bytes, or a special token in a list, received {part!r}")
    (name,) = part.specials if len(part.specials) == 1 else ("",)
    data = symbol(name)
    if part.node is not nodes.literal(data):
        raise TypeError(f"expected texts and special tokens, such as `fsm.special('<|tool|>')`, received {part!r}")
    return data


def lift(term: Expression | str) -> Expression:
    """Return the expression that accepts exactly a text; an expression is returned unchanged.

    Raises:
        ExpressionError: the text contains a lone surrogate.
        TypeError: it is neither text nor an expression.
    """
    if isinstance(term, Expression):
        return term
    if not isinstance(term, str):
        raise TypeError(f"expected an expression or a str as a part of an expression, received {term!r}")
    return literal(term)


@remembered
def literal(term: str) -> Expression:
    """Return the expression that accepts exactly a text.

    Raises:
        ExpressionError: the text contains a lone surrogate.
    """
    return Expression(nodes.literal(texts.encode(term, "a part of an expression")), source=repr(clip(term)))


def from_interegular(fsm: Any) -> Expression:
    """Return the texts that an automaton of interegular accepts.

    Surrogates have no UTF-8, so that texts with one are left out.

    Args:
        fsm: an `interegular.FSM` over characters, such as `interegular.parse_pattern("[a-z]+").to_fsm()`.

    Raises:
        ExpressionError: `fsm` is not an automaton of that library, or its symbols are not characters.

    Cost: linear in its symbols and its arcs; the derivatives of a state are made when it is reached.
    """
    dfa = read_fsm(fsm)
    return Expression(dfa.language(), source=f"from_interegular(<FSM of {len(dfa.transitions)} states>)")
