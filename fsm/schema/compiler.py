"""`json_schema`: compile a JSON schema (drafts 3 to 2020-12) or a Python type into an expression.

The method is a case split (a disjunctive normal form of the schema), not a product of automata. Schemas that apply to one value together
(`allOf`, `$ref` beside other keywords, a property in two of them) are collected as places; `anyOf`, `oneOf`, `if` and negations, which are
pushed inwards, become alternatives (`documents/cases.py`). For each alternative and each JSON type one term (an extended regular
expression) is built from all places at once; only patterns, formats and languages of keys are intersected. A schema that contains itself
becomes a recursive rule, as in a context-free grammar, with bounded nesting. Keywords that no term can express exactly are checked when the
value is complete (`check.py`). The builders are generators that yield the schemas whose terms they need, run on an explicit stack, so that
deep nesting does not exhaust Python's.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary, ref

from fsm.caller import stacklevel_of_user
from fsm.errors import (
    BudgetExceeded,
    EmptyLanguage,
    FSMError,
    NotRegular,
    SchemaError,
    SchemaWarning,
    reference,
    shorten,
)
from fsm.expression import Expression, Report, ReportLine
from fsm.limits import DEFAULT_LIMITS, Limits
from fsm.pattern.ecma_pattern import ecma_search
from fsm.recipe import remembered
from fsm.schema import matching, spelling
from fsm.schema.array import array_node
from fsm.schema.blame import Build, SchemaOrigin
from fsm.schema.check import SchemaCheck, is_checkable
from fsm.schema.context import Context, KeyOrder
from fsm.schema.documents.cases import CaseFinder, Cases, Negations, TooCostly, TooManyCases
from fsm.schema.documents.document import Document
from fsm.schema.documents.tool import refuse_wrapper
from fsm.schema.empty_place import empty_place
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.python_type import VALIDATOR
from fsm.schema.keywords.value import types_at
from fsm.schema.object import object_node
from fsm.schema.places.place import Builder, Conjunction, NegatedKeyword, Place, negated_values_of, values_of
from fsm.schema.places.shape import JSON_TYPES, Schema
from fsm.schema.scalars.enumeration import names, scalar_node
from fsm.schema.scalars.number import INTEGER, NUMBER, decimals_in, number_node
from fsm.schema.scalars.quoted import STRING
from fsm.schema.scalars.string import FormatPolicy, string_node
from fsm.schema.syntax import BOOLEAN, NULL, Whitespace, syntax_of
from fsm.terms import node as nodes
from fsm.terms import work_budget as work
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, Check, Node
from fsm.terms.rule import Rule
from fsm.terms.work_bound import work_bound


@remembered
def json_schema(
    schema: dict[str, Any] | str | bool | type | Any,
    *,
    whitespace: Whitespace = "one_space",
    strict: bool = False,
    key_order: KeyOrder = "schema",
    formats: FormatPolicy = "assert",
    registry: Mapping[str, dict[str, Any]] | None = None,
    dialect: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Expression:
    """Return the JSON texts that are valid under `schema`.

    Every text of the language is JSON whose value satisfies the schema. The other way it is one spelling: strings as
    `json.dumps(x, ensure_ascii=False)` writes them, whole numbers as plain digits (see `number.py`), the members of an
    object in the order of the schema, declared ones before additional ones, or in any order. No key comes twice.
    Values of any type, and those of recursive schemas, are nested at most `limits.max_nesting` (64) deep.

    Args:
        schema: a schema as dict, as JSON text or as bool; or a type that pydantic understands (see `model.py`).
        whitespace: `one_space` allows one space after `:` and `,`; `none` allows no space at all; `spaced` requires one after each, as
            `json.dumps` and most chat templates write it.
        strict: refuse whatever is not exact: keywords that need a check, a keyword that looks misspelt, an unknown format.
            `report` lists them.
        key_order: `schema`, or `any` order of the members of an object; the more orders, the more states.
        formats: `assert` enforces the formats that are known, `annotate` ignores all (but for types, whose formats are always enforced).
        registry: schemas by URI, which references may lead to; the standard metaschemas are known. Nothing is ever fetched.
        dialect: what the schema is written in: a draft from `draft-03` to `draft/2020-12`, or `openapi-3.0`; None: what its `$schema`
            says, `openapi-3.0` inside a document that says `openapi: 3.0.x`, or else the latest draft. What an older draft says otherwise
            (`dependencies`, a list of `items`, ...) is read in every one; see `older_word.py`.
        limits: bounds of compiling.

    Raises:
        SchemaError: the schema is malformed, or something around a schema, such as a tool; the message has a JSON pointer.
        EmptyLanguage: no value satisfies the schema.
        BudgetExceeded: a bound of `limits` is exceeded.

    Warns:
        SchemaWarning: a keyword looks misspelt, or a format or metaschema is not known, so that it rejects nothing; once for all of them.

    Cost: linear in the schema, about 20 us per property; counts, lengths and the size of an enum do not multiply.
    """
    _check_options(whitespace, strict, key_order, formats)
    is_type = not isinstance(schema, str | dict | bool)
    asserts_format = is_type or formats == "assert"
    root, validators = _read(schema, limits)
    refuse_wrapper(root)
    read = partial(
        Document, root, limits, registry, asserts_format=asserts_format, validators=validators, dialect=dialect
    )
    # What a type says is ours to know.
    document, context, node = _compile(
        partial(read, is_strict=strict or is_type), limits, whitespace, key_order, strict
    )

    def read_again() -> tuple[Document, Build]:
        document = read(is_strict=False)
        cases = CaseFinder(document)
        cases.disable_budget()

        def build(places: Conjunction, order: KeyOrder) -> Node:
            context = Context(document, syntax_of(whitespace), limits, order)
            return _BuildPass(_TermTable(document, context, cases), limits.max_nesting, is_outermost=True).build(places)

        return document, build

    if node is EMPTY:
        raise EmptyLanguage(
            f"no JSON value satisfies the schema {shorten(schema)}{_where_it_is_empty(read_again, None)}. Look for bounds that cross, a "
            "required property that is false or needs itself, or values that another keyword excludes."
        )
    suspect = {at: remark.text for at, remark in document.remarks.items() if remark.is_suspect}
    _warn("parts of this schema are not enforced; `strict=True` refuses them", suspect)
    impossible = _impossible(context, read_again)
    if strict:
        for pointer, text in impossible.items():
            raise SchemaError(text, pointer)
    never = "no value fits parts of this schema, so that they are never written; `false` says that this is meant"
    _warn(never, impossible)
    report = _report(document, context, impossible).with_notes(context.spellings, context.unbounded)
    origin = SchemaOrigin(read_again, key_order == "schema")
    return Expression(node, report=report, source=f"json_schema({shorten(schema)})", origin=origin)


def _compile(
    read: Callable[[], Document], limits: Limits, whitespace: Whitespace, key_order: KeyOrder, strict: bool
) -> tuple[Document, Context, Node]:
    """A schema as it was read last, and its term, EMPTY where no value satisfies it: as exact as it can be within `max_work`.

    Args:
        read: makes a document of the schema.
        limits, whitespace, key_order, strict: as for `json_schema`.

    Raises:
        BudgetExceeded: it is too much work though all that may be is left to checks, or `strict` forbids that.
    """
    negations: Negations
    readings: list[tuple[Negations, bool]] = [(negations, False) for negations in get_args(Negations)]
    most = limits.max_work
    while True:
        negations, is_coarse = readings.pop(0)
        document = read()
        cases = CaseFinder(document, negations, is_coarse=is_coarse)
        context = Context(document, syntax_of(whitespace), limits, key_order, strict, is_coarse)
        try:
            with work_bound("max_work", most, "compiling the schema", _HEAVY, _ADVICE):
                node = _BuildPass(_TermTable(document, context, cases), limits.max_nesting, is_outermost=True).build(
                    (document.root,)
                )
                is_empty = node is EMPTY or not Derivatives(max_search=10_000).is_inhabited(node)
        except TooCostly:
            continue
        except BudgetExceeded as error:
            can_be_coarser = cases.can_be_coarser or context.can_be_coarser
            if error.limit not in _OF_WORK or is_coarse or strict or not can_be_coarser:
                raise
            most //= 4
            readings = [("none", True)]
            continue
        cases.disable_budget()
        return document, context, EMPTY if is_empty else node


def _impossible(context: Context, read: Callable[[], tuple[Document, Build]]) -> dict[str, str]:
    """Say of each optional property that no value satisfies, by its pointer, why that is."""
    return {
        pointer: f"no value satisfies it{_where_it_is_empty(read, place) or f', {shorten(place.schema)}'}"
        for pointer, place in context.impossible.items()
    }


def _where_it_is_empty(read: Callable[[], tuple[Document, Build]], start: Place | None) -> str:
    """Say which part of an empty schema is empty by itself; nothing where that is the whole, or takes too much work.

    Args:
        read: reads the schema again.
        start: a part of it that is empty; None: the whole.
    """
    with (
        suppress(FSMError, TooCostly),
        work_bound("max_work", _BLAME_WORK, "looking for the empty part", _HEAVY, _ADVICE),
    ):
        document, build = read()
        start = start or document.root
        place = empty_place(document, start, lambda one: build((one,), "schema"))
        if place.pointer != start.pointer:
            return f": what is at {reference(place.pointer)!r} excludes everything, {shorten(place.schema)}"
    return ""


def _report(document: Document, context: Context, impossible: Mapping[str, str]) -> Report:
    remarks, lines = dict(document.remarks), list[ReportLine]()
    for pointer, keyword in document.keywords.items():
        level: Literal["exact", "checked", "annotated"] = "checked" if pointer in context.checked else "exact"
        notes = [context.checked.get(pointer, ""), remarks.pop(pointer).text if pointer in remarks else ""]
        lines.append(ReportLine(reference(pointer), keyword, level, "; ".join(filter(None, notes))))
    lines += (ReportLine(reference(at), said.keyword, "annotated", said.text) for at, said in remarks.items())
    lines += (ReportLine(reference(at), "properties", "exact", text) for at, text in impossible.items())
    return Report(lines)


def _warn(what: str, places: Mapping[str, str]) -> None:
    """Warn once, at the call that gave the schema, of what there is to say of some places, by their pointers."""
    said = [f"{reference(at)!r}: {text}" for at, text in places.items()]
    if said:
        more = f"\n... and {len(said) - _MAX_SAID} more; `report` has all" if len(said) > _MAX_SAID else ""
        text = f"{what}:\n" + "\n".join(said[:_MAX_SAID]) + more
        warnings.warn(text, SchemaWarning, stacklevel=stacklevel_of_user())


_MAX_SAID = 8


def _check_options(whitespace: object, strict: object, key_order: object, formats: object) -> None:
    for name, value, allowed in (
        ("whitespace", whitespace, get_args(Whitespace)),
        ("key_order", key_order, ("schema", "any")),
        ("formats", formats, ("assert", "annotate")),
        ("strict", strict, (True, False)),
    ):
        if value not in allowed:
            raise SchemaError(
                f"`{name}` is one of {', '.join(map(repr, allowed))}, received {value!r}. Choose one of them"
            )


def _read(schema: object, limits: Limits) -> tuple[Schema, dict[str, Check]]:
    """A schema from its text, from a type, or as it is; and the validators that a type has."""
    if isinstance(schema, str):
        return _parse(schema, limits), {}
    if isinstance(schema, dict | bool):
        return schema, {}
    if schema is None or isinstance(schema, list | tuple | int | float | bytes):
        raise SchemaError(
            f"expected a schema (a dict, JSON text, a bool or a type), received {shorten(schema)}. "
            "For JSON null write {'type': 'null'}"
        )
    from fsm.schema.model import schema_of_type  # pydantic takes longer to load than all of this package

    return schema_of_type(schema)


def _parse(text: str, limits: Limits) -> Schema:
    limits.check("max_schema_characters", len(text), "characters of the schema", "")
    try:
        schema = json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply to be read. Make it flatter with `$defs`") from None
    except ValueError as error:
        if text.endswith(".json"):
            raise SchemaError(
                f"expected a schema as JSON text, received {shorten(text)}: a path is not read. Give what the file holds, "
                "such as `Path(...).read_text()`"
            ) from None
        raise SchemaError(f"the schema is not JSON: {error}. Give JSON text, or a dict") from None
    if not isinstance(schema, dict | bool):
        raise SchemaError(
            f"expected a schema (an object, true or false), received {shorten(schema)}. Correct the schema"
        )
    return schema


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


_BLAME_WORK = 20_000
_HEAVY = "thousands of objects, or keywords whose alternatives multiply"
_ADVICE = "Make it smaller, or give a larger `limits=Limits(max_work=...)`"
_OF_WORK = frozenset({"max_work", "max_step", "max_search", "max_key_kinds"})

Key = tuple[tuple[tuple[object, ...], ...], ...]


@dataclass(slots=True)
class _Frame:
    """A term in the making.

    Attributes:
        key: what tells it from others.
        places: what the value must satisfy.
        builder: what builds it.
        name: a pointer, for people.
        nesting: how many arrays and objects may be open at once within the value.
        is_value: false for one that only chooses among others for the same value: it adds nothing to the depth.
        bound: how the term depends on the nesting.
        height: how many arrays and objects may be open at once in what does not depend on it.
        left_out: keywords that the term does not enforce exactly.
        endless: keywords that would bound its length.
    """

    key: Key
    places: Conjunction
    builder: Builder
    name: str
    nesting: int
    is_value: bool = True
    bound: _Bound = 0
    height: int = 0
    left_out: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)

    @property
    def inner_nesting(self) -> int:
        """The nesting of the values inside."""
        return self.nesting - self.is_value


_Bound = int
"""How a term depends on the depth. 0: not at all; 1: roughly, it holds values of any type; 2: it holds its own kind."""
_STEP = 16
_FRAME_WORK = 15


class _TermTable:
    """The terms of one document: one per value that a text may hold, and per depth where that matters.

    What a schema says of a value inside itself is a rule, one for each depth, and built when a text first comes there. A rule that is not
    built yet keeps all this, so nothing here keeps a term with rules but while `at_work`: then they are freed with their expression.
    """

    def __init__(self, document: Document, context: Context, cases: CaseFinder) -> None:
        self.document, self.context, self.cases = document, context, cases
        self._known: dict[tuple[Key, _Bound, int], tuple[Node, _Frame]] = {}
        self._with_rules: dict[tuple[Key, int], tuple[ref[Node], _Frame]] = {}
        self._references: WeakValueDictionary[tuple[Key, int], Node] = WeakValueDictionary()
        self._family = object()
        self._num_at_work = 0
        self._in_use: list[Node] = []
        self._searches: Derivatives | None = None
        self._tried: dict[Key, int] = {}
        self._fewest: dict[Key, int] = {}
        self._sure: dict[Key, tuple[bool, bool]] = {}
        self._recursive: set[Key] = set()

    def find(self, key: Key, nesting: int, is_outermost: bool) -> tuple[Node, _Frame] | None:
        """A term that was built and fits, and the frame in which it was."""
        for bound in (0, 1):
            known = self._known.get((key, bound, bound and self.roughly(nesting)))
            if known is not None and (is_outermost or bound > 0 or known[1].height <= nesting):
                return known
        found = self._with_rules.get((key, nesting))
        node = None if found is None else found[0]()
        return None if found is None or node is None else (node, found[1])

    def keep(self, frame: _Frame, node: Node, is_outermost: bool) -> None:
        """Remember a term, for the next request of the same."""
        key, bound, nesting = frame.key, frame.bound, frame.nesting
        if bound < 2:
            self._known[key, bound, bound and self.roughly(nesting)] = node, frame
            return
        self._with_rules[key, nesting] = ref(node), frame
        self._in_use.append(node)
        if is_outermost:
            self._recursive.add(key)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep all terms that are made inside, as they may be needed again soon."""
        self._num_at_work += 1
        try:
            yield
        finally:
            self._num_at_work -= 1
            if not self._num_at_work:
                self._in_use.clear()
                self._searches = None

    def roughly(self, nesting: int) -> int:
        """A bound for values of any type, at most `nesting`: seldom another, so that depths and schemas share terms and masks."""
        most = self.context.limits.max_nesting
        steps = -(-(most - nesting) // _STEP)
        rounded = most - steps * _STEP
        return rounded if rounded > 0 else max(nesting, 0)

    def reference(self, key: Key, places: Conjunction, nesting: int, name: str) -> Node:
        """The term of a value inside itself, EMPTY where no value is so flat."""
        self.context.note_spellings(spelling.nested(self.context.limits.max_nesting))
        if nesting <= 0 or not self._reaches(key, places, nesting):
            return EMPTY
        known = self._references.get((key, nesting))
        if known is None:
            is_sure, is_inhabited = self._sure[key]
            known = self._references[key, nesting] = Rule(
                name,
                lambda: _BuildPass(self, nesting).build(places),
                is_sure=is_sure,
                is_inhabited=is_inhabited,
                family=(self._family, key),
            ).term
        self._in_use.append(known)
        return known

    def is_recursive(self, key: Key) -> bool:
        """True where a term with room for everything was built, and holds values of its own kind: there is one for each depth."""
        return key in self._recursive

    def _reaches(self, key: Key, places: Conjunction, nesting: int) -> bool:
        """Whether some value of at most so many levels exists. The flattest value contains no value of its own kind."""
        while key not in self._fewest and self._tried.get(key, 0) < nesting:
            tried = self._tried[key] = min(_next_try(self._tried.get(key, 0)), nesting)
            node = _BuildPass(self, tried).build(places)
            if node is not EMPTY:
                self._fewest[key], self._sure[key] = tried, (node.is_plain, self._has_text(node))
        return nesting >= self._fewest.get(key, nesting + 1)

    def _has_text(self, node: Node) -> bool:
        """Whether it is sure that a term holds a text; what may be nested deeper holds that text as well."""
        if self._searches is None:
            self._searches = Derivatives(max_search=300, max_memo=20_000)
        try:
            return self._searches.is_inhabited(node)
        except BudgetExceeded:
            return False


def _next_try(tried: int) -> int:
    return tried + 1 if tried < 4 else 2 * tried


class _BuildPass:
    """One pass over values that are nested in each other, down to where a value turns out to hold its own kind.

    Args:
        terms: of the document.
        nesting: how many arrays and objects may be open at once.
        is_outermost: whether nothing is around these values.
    """

    def __init__(self, terms: _TermTable, nesting: int, *, is_outermost: bool = False) -> None:
        self._terms, self._context, self._nesting, self._is_outermost = terms, terms.context, nesting, is_outermost
        self._document, self._limits, self._cases = terms.document, terms.context.limits, terms.cases
        self._open: dict[Key, _Frame] = {}
        self._frames: list[_Frame] = []
        self._num_opened = 0

    def build(self, places: Conjunction) -> Node:
        """The term of some places."""
        with self._terms.at_work():
            try:
                return self._build(places)
            finally:  # builders that an error has interrupted hold this object
                self._frames.clear()
                self._open.clear()

    def _build(self, places: Conjunction) -> Node:
        """Run builders on a stack of our own until the term is there."""
        answer = self._look_up(places)
        frames = self._frames
        frames += [answer] if isinstance(answer, _Frame) else []
        depth = sum(frame.is_value for frame in frames)
        while frames:
            frame = frames[-1]
            self._context.left_out, self._context.endless = frame.left_out, frame.endless
            self._context.is_outermost = self._is_outermost
            try:
                need = next(frame.builder) if isinstance(answer, _Frame) else frame.builder.send(answer)
            except StopIteration as stop:
                depth -= frames.pop().is_value
                answer = self._close(frame, stop.value)
                continue
            answer = self._look_up(need)
            if isinstance(answer, _Frame):
                frames.append(answer)
                depth += answer.is_value
                self._limits.check("max_depth", depth, "values one inside the other", answer.name)
        assert isinstance(answer, Node)
        return answer

    def _look_up(self, places: Conjunction) -> Node | _Frame:
        """The term of some places: known, a reference to its own kind further in, or a new builder."""
        places = tuple(p if p.via is not None or p.negated else self._document.behind(p) for p in places)
        if len(places) == 1 and (simple := self._simple(places[0])) is not None:
            return simple
        pointer = places[0].pointer if places else ""
        branches = self._cases.branches(places)
        if branches is not None:
            return self._open_frame((("any of", places[0].key),), places, self._any_of(branches), pointer, False)  # type: ignore[arg-type]
        cases = self._find_cases(places)
        found = self._open_frame(cases.key, places, self._union(cases), pointer)
        if isinstance(found, _Frame):
            self._cases.spend(cases.cost)
        return found

    def _simple(self, place: Place) -> Node | None:
        """The term of a place that names one scalar type and nothing else; the most common of all needs no frame."""
        normalized = place if place.negated else self._document.normalize_draft(place)
        node = None if place.negated else _simple_node(normalized.schema)
        if node is not None:
            self._document.check_keywords(normalized)
            self._note_spellings((normalized,), types_at(normalized))
            if node is STRING:
                self._context.note_met(STRING, place.pointer)
                self._context.note_endless(STRING, ["maxLength"])
            self._depend(0)
        return node

    def _any_of(self, branches: Conjunction) -> Builder:
        """One of several schemas, each for itself, so that what they share is compiled once."""
        members = []
        for branch in branches:
            members.append((yield (branch,)))
        return nodes.alternation(members)

    def _open_frame(
        self, key: Key, places: Conjunction, builder: Builder, pointer: str, is_value: bool = True
    ) -> Node | _Frame:
        nesting = self._frames[-1].inner_nesting if self._frames else self._nesting
        if places or not self._frames:
            self._context.note_met(key, pointer)
        else:  # any value, in an array or an object
            self._frames[-1].endless.append("type")
        known = self._terms.find(key, nesting, self._is_outermost)
        if known is not None:
            self._depend(known[1].bound, known[1].height)
            return known[0]
        around = self._open.get(key)
        if around is not None:
            self._depend(2)
            if around.nesting == nesting:
                return EMPTY  # a value that is what it is, or another: only the other counts
            return self._terms.reference(key, places, nesting, pointer or "#")
        if self._frames and self._frames[-1].is_value and self._terms.is_recursive(key):
            self._depend(2)  # it was built for another depth already; this one can wait until a text comes there
            return self._terms.reference(key, places, nesting, pointer or "#")
        self._num_opened += 1
        work.add(_FRAME_WORK if is_value else 1)
        work.check()
        self._limits.check("max_subschemas", self._num_opened, "subschemas", pointer)
        frame = self._open[key] = _Frame(key, places, builder, pointer, nesting, is_value)
        return frame

    def _depend(self, bound: _Bound, height: int = 0) -> None:
        """Note on what the frame that is being built depends: on a term inside with this bound and height."""
        if self._frames:
            frame = self._frames[-1]
            frame.bound, frame.height = max(frame.bound, bound), max(frame.height, height + frame.is_value)

    def _find_cases(self, places: Conjunction) -> Cases:
        """The cases of some places; where the exact ones are too many, those that leave out what a check can tell."""
        try:
            return self._cases.find(places)
        except BudgetExceeded as error:
            if error.limit != "max_alternatives" or self._context.is_strict:
                raise
        except TooManyCases as reason:
            if self._context.is_strict:
                raise SchemaError(f"{reason}: they are only checked. Leave `strict` out", "") from None
        return self._cases.find(places, loosely=True)

    def _close(self, frame: _Frame, node: Node) -> Node:
        del self._open[frame.key]
        if frame.endless and node is not EMPTY:
            self._context.note_endless(frame.key, frame.endless)
        if frame.left_out:
            # Where no check can be asked of the value alone, it is asked of one around it; the outermost always can.
            is_alone = not self._document.is_dynamic and is_checkable(frame.places)
            if is_alone or (self._is_outermost and not self._frames):
                node = nodes.checked(node, SchemaCheck(self._document, frame.places, ecma_search))
            elif self._frames:
                self._frames[-1].left_out += frame.left_out
        self._depend(frame.bound, frame.height)
        self._terms.keep(frame, node, self._is_outermost)
        return node

    def _union(self, cases: Cases) -> Builder:
        self._context.leave_all_out(cases.missing, "too many cases")
        if len(cases.alternatives) == 1:
            return (yield from self._typed(cases.alternatives[0]))
        members = []
        for places in cases.alternatives:
            members.append((yield from self._typed(places)))
        return nodes.alternation(members)

    def _typed(self, places: Conjunction) -> Builder:
        """The values that satisfy places without cases, and pass their validators."""
        node = yield from self._of_types(places)
        for place, name in values_of(places, VALIDATOR):
            self._context.note_check(place, VALIDATOR, "it is Python code")
            node = nodes.checked(node, self._document.validators[name])
        return node

    def _of_types(self, places: Conjunction) -> Builder:
        """The values that satisfy places without cases: a term for each JSON type that is left."""
        context = self._context
        if not places:
            self._depend(1)
            self._note_spellings((), frozenset(JSON_TYPES))
            context.note_spellings(spelling.nested(self._limits.max_nesting))
            context.endless.append("type")
            return context.syntax.any_value(self._terms.roughly(self._frames[-1].nesting))
        if len(places) == 1 and (simple := _simple_node(places[0].schema)) is not None:
            context.endless += ["maxLength"] if simple is STRING else []
            return simple
        types = self._that_fit(frozenset(JSON_TYPES).intersection(*map(types_at, places)))
        left_out: list[tuple[Place, str]] = []
        listed = scalar_node(places, types, limits=self._limits, left_out=left_out)
        if listed is not None:
            context.note_spellings(*spelling.of_listed(places, types))
            context.leave_all_out(left_out, matching.NOTE)
            return listed
        self._leave_to_checks(places, types)
        self._note_spellings(places, types)
        members = [nodes.literal(text) for _, text in names(places, types)]
        if not types.isdisjoint(("integer", "number")):
            members.append(self._numbers(places, types))
        if "string" in types:
            members.append(self._strings(places))
        if "array" in types:
            members.append((yield from array_node(places, context)))
        if "object" in types:
            members.append((yield from object_node(places, context)))
        return nodes.alternation(members)

    def _leave_to_checks(self, places: Conjunction, types: frozenset[str]) -> None:
        """Leave out the keywords that no term holds, where values of their types are left."""
        for name in KEYWORDS.only_checked:
            if not types.isdisjoint(KEYWORDS[name].checked_types):
                for place, _ in (*values_of(places, name), *negated_values_of(places, name)):
                    self._context.leave_out(place, name, "no automaton knows it")

    def _that_fit(self, types: frozenset[str]) -> frozenset[str]:
        """The types for which there is room: no more arrays and objects where too many are open, but for what the schema itself nests."""
        if types.isdisjoint(_NESTED):
            return types
        self._depend(0)
        if self._is_outermost or self._frames[-1].nesting > 0:
            return types
        self._depend(2)
        return types - _NESTED

    def _note_spellings(self, places: Conjunction, types: frozenset[str]) -> None:
        """Note what is never written of values of these types."""
        context = self._context
        if "string" in types:
            context.note_spellings(*spelling.of_strings(places))
        if not types.isdisjoint(("integer", "number")):
            decimals, is_bounded = decimals_in(places, types, self._limits)
            context.note_spellings(spelling.of_numbers(decimals, is_bounded=is_bounded))
        if not types.isdisjoint(_NESTED):
            context.note_spellings(_SPACES[context.syntax])
        if "object" in types:
            is_ordered = context.key_order == "schema" and any(place.says(_NAMING) for place in places)
            context.note_spellings(*((spelling.ORDERED,) if is_ordered else ()), spelling.ONCE)

    def _numbers(self, places: Conjunction, types: frozenset[str]) -> Node:
        try:
            return number_node(places, types, limits=self._limits)
        except NotRegular:
            for found in (values_of, negated_values_of):
                for place, _ in found(places, "multipleOf"):
                    self._context.leave_out(place, "multipleOf", "its multiples are not regular")
            return number_node(places, types, limits=self._limits, loosely=True)

    def _strings(self, places: Conjunction) -> Node:
        left_out: list[tuple[Place, str]] = []
        node = string_node(places, limits=self._limits, left_out=left_out)
        self._context.leave_all_out(left_out, matching.NOTE)
        self._context.note_strings(node)
        return node


_NESTED = frozenset({"array", "object"})
_SPACES = {
    syntax_of("none"): spelling.NO_SPACE,
    syntax_of("one_space"): spelling.ONE_SPACE,
    syntax_of("spaced"): spelling.SPACED,
}
_NAMING = frozenset({"properties", "required"})
_SIMPLE = {"null": NULL, "boolean": BOOLEAN, "integer": INTEGER, "number": NUMBER, "string": STRING}


def _simple_node(schema: Schema | NegatedKeyword) -> Node | None:
    """The term of a schema that names one scalar type and nothing else."""
    if not isinstance(schema, dict) or not KEYWORDS.besides_type.isdisjoint(schema):
        return None
    name = schema.get("type")
    return _SIMPLE.get(name) if isinstance(name, str) else None
