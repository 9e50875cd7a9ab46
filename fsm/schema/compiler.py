"""`json_schema`: compiles a JSON schema (drafts 3 to 2020-12) or a Python type into an expression, by a case split (a disjunctive normal
form). `anyOf`, `oneOf`, `if` and negations, pushed inwards, become alternatives (`documents/cases.py`); for each of them and each JSON type
one term is built from all schemas that apply. A schema inside itself is a recursive rule with bounded nesting. What no term expresses, or
only with too much work, is checked, mostly when the value is complete (`check.py`), or refused (`strict`).

So it is no product of automata: schemas that apply to the same value (`allOf`, `$ref` with other keywords, a property in two of them) are
collected as places, and only the keywords of one string, number or key are intersected. The builders are coroutines that yield the schemas
whose terms they need, run on an explicit stack, so that deep nesting does not exhaust Python's. Also here: the report and the warnings.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cache, partial
from typing import Any, Literal, get_args

from fsm.errors import (
    BudgetExceeded,
    EmptyLanguage,
    FSMError,
    NotRegular,
    SchemaError,
    SchemaWarning,
    is_one_of,
    reference,
    shorten,
    stacklevel_of_user,
)
from fsm.expression import Expression, Report, ReportLine
from fsm.limits import DEFAULT_LIMITS, Limits, check_limits, work_bound
from fsm.recipe import remembered
from fsm.schema import spelling
from fsm.schema.array import array_node
from fsm.schema.blame import Build, SchemaOrigin, empty_place, is_empty
from fsm.schema.check import NOT_REGULAR, SchemaCheck, is_checkable
from fsm.schema.context import BOOLEAN, NULL, Context, KeyOrder, Whitespace, syntax_of
from fsm.schema.documents.cases import CaseFinder, Cases, Negations, TooCostly, TooManyCases
from fsm.schema.documents.document import Document, Remark
from fsm.schema.documents.tool import refuse_wrapper
from fsm.schema.keywords.keyword import KEYWORDS, NUMERIC
from fsm.schema.keywords.place import (
    JSON_TYPES,
    Builder,
    Conjunction,
    NegatedKeyword,
    Place,
    Schema,
    check_schema,
    expected,
    negated_values_of,
    values_of,
)
from fsm.schema.keywords.value import VALIDATOR, types_at
from fsm.schema.object import object_node
from fsm.schema.scalars.enumeration import names, scalar_node
from fsm.schema.scalars.number import INTEGER, NUMBER, decimals_in, number_node
from fsm.schema.scalars.string import STRING, FormatPolicy, string_node
from fsm.schema.term_table import Dependence, Frame, Key, TermTable
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import EMPTY, Check, Node

_MAX_WARNED = 8
_BLAME_WORK = 20_000
_HEAVY = "thousands of objects, or keywords whose alternatives multiply"
_ADVICE = "Make it smaller, or give a larger `limits=Limits(max_work=...)`"
_FRAME_WORK = 15
_OF_WORK = frozenset({"max_work", "max_step", "max_search", "max_key_kinds"})


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

    Every text of the language is JSON whose value satisfies the schema. Conversely, each valid value usually has one spelling: strings as
    `json.dumps(x, ensure_ascii=False)` writes them, whole numbers as plain digits (see `number.py`), the members of an object in the order
    of the schema, declared ones before additional ones, or in any order. No key is repeated. Values of any type, and those of recursive
    schemas, are nested at most `limits.max_nesting` (64) deep.

    Args:
        schema: a schema as dict, as JSON text or as bool; or a type that pydantic understands (see `model.py`).
        whitespace: `one_space` allows one space after `:` and `,`; `none` allows no space at all; `spaced` requires one after each, as
            `json.dumps` and most chat templates write it.
        strict: refuse what is not exact: keywords that need a check, a keyword that looks misspelt, an unknown format. `report` lists
            them.
        key_order: `schema`, or `any` order of the members of an object; the more orders, the more states.
        formats: `assert` enforces the formats that are known, `annotate` ignores all (except for types, whose formats are always enforced).
        registry: schemas by URI, which references may name; the standard metaschemas are known. Nothing is ever fetched.
        dialect: a draft from `draft-03` to `draft/2020-12`, or `openapi-3.0`; None: the one that `$schema` names, `openapi-3.0` inside a
            document with `openapi: 3.0.x`, or else the latest draft. Keywords of older drafts (`dependencies`, a list of `items`, ...)
            are read in every dialect; see `documents/document.py`.
        limits: bounds of compiling.

    Raises:
        SchemaError: the schema is malformed, or wrapped in something such as a tool definition; the message has a JSON pointer.
        EmptyLanguage: no value satisfies the schema.
        BudgetExceeded: a bound of `limits` is exceeded.

    Warns:
        SchemaWarning: a keyword looks misspelt, or a format or metaschema is not known, so that it rejects nothing; once for all of them.

    Cost: linear in the schema, about 20 us per property; counts, lengths and the size of an enum do not multiply.
    """
    _check_options(whitespace, strict, key_order, formats, registry, limits)
    is_type = not isinstance(schema, str | dict | bool)
    asserts_format = is_type or formats == "assert"
    root, validators = _read(schema, limits)
    refuse_wrapper(root)
    read = partial(
        Document, root, limits, registry, asserts_format=asserts_format, validators=validators, dialect=dialect
    )
    # An unknown format in the schema of a type would be an error of this package, so it is strict.
    document, context, node = _compile(partial(read, is_strict=strict or is_type), whitespace, key_order, strict)
    read_again = partial(_read_again, partial(read, is_strict=False), whitespace)
    if node is EMPTY:
        raise EmptyLanguage(
            f"no JSON value satisfies the schema {shorten(schema)}{_where_it_is_empty(read_again, None)}. Look for bounds that cross, a "
            "required property that is false or needs itself, or values that another keyword excludes."
        )
    suspect = {at: remark.text for at, remark in document.remarks.items() if remark.is_suspect}
    _warn("parts of this schema are not enforced; `strict=True` refuses them", suspect)
    impossible = {
        pointer: f"no value satisfies it{_where_it_is_empty(read_again, place) or f', {shorten(place.schema)}'}"
        for pointer, place in context.impossible.items()
    }
    if strict and impossible:
        pointer, text = next(iter(impossible.items()))
        raise SchemaError(text, pointer)
    _warn(
        "no value fits parts of this schema, so that they are never written; `false` says that this is meant",
        impossible,
    )
    found = dict(document.keywords), dict(document.remarks), dict(context.checked), impossible
    reported = cache(partial(_report, *found, dict(context.spellings), context.unbounded))
    origin = SchemaOrigin(read_again, key_order == "schema")
    return Expression(node, reported=reported, source=f"json_schema({shorten(schema)})", origin=origin)


def _read_again(read: Callable[[], Document], whitespace: Whitespace) -> tuple[Document, Build]:
    """A document, and a function that builds terms of its places with exact cases; for explanations."""
    document = read()
    cases = CaseFinder(document)
    cases.disable_budget()
    return document, lambda places, order: _build(Context(document, syntax_of(whitespace), order), cases, places)


def _build(context: Context, cases: CaseFinder, places: Conjunction) -> Node:
    """The term of some places as a whole text."""
    table = TermTable(context, lambda table, places, nesting: _BuildPass(table, cases, nesting).build(places))
    return _BuildPass(table, cases, context.document.limits.max_nesting, is_outermost=True).build(places)


def _compile(
    read: Callable[[], Document], whitespace: Whitespace, key_order: KeyOrder, strict: bool
) -> tuple[Document, Context, Node]:
    """Compile a schema as exactly as `max_work` permits, with fewer negations in each new attempt, at last with coarse cases.

    `read` makes a document of the schema, a new one for each attempt. The result has the document and context of the last attempt, and
    the term, EMPTY where no value satisfies the schema. With `strict` nothing more is left to checks.
    """
    attempts: list[tuple[Negations, bool]] = [(negations, False) for negations in get_args(Negations)]
    while True:
        negations, is_coarse = attempts.pop(0)
        document = read()
        most = document.limits.max_work // (4 if is_coarse else 1)
        cases = CaseFinder(document, negations, is_coarse=is_coarse)
        context = Context(document, syntax_of(whitespace), key_order, strict, is_coarse)
        try:
            with work_bound("max_work", most, "compiling the schema", _HEAVY, _ADVICE):
                node = _build(context, cases, (document.root,))
                node = EMPTY if is_empty(node) else node
        except TooCostly:
            continue
        except BudgetExceeded as error:
            can_be_coarser = cases.can_be_coarser or context.can_be_coarser
            if error.limit not in _OF_WORK or is_coarse or strict or not can_be_coarser:
                raise
            attempts = [("none", True)]
            continue
        cases.disable_budget()
        return document, context, node


def _where_it_is_empty(read: Callable[[], tuple[Document, Build]], start: Place | None) -> str:
    """Name the innermost part of `start` (None: the root) that makes it empty; no text where that is all of it, or hard to find."""
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


def _report(
    keywords: Mapping[str, str],
    remarks: Mapping[str, Remark],
    checked: Mapping[str, str],
    impossible: Mapping[str, str],
    spellings: Iterable[str],
    unbounded: list[tuple[str, str]],
) -> Report:
    remarks, lines = dict(remarks), list[ReportLine]()
    for pointer, keyword in keywords.items():
        level: Literal["exact", "checked", "annotated"] = "checked" if pointer in checked else "exact"
        notes = [checked.get(pointer, ""), remarks.pop(pointer).text if pointer in remarks else ""]
        lines.append(ReportLine(reference(pointer), keyword, level, "; ".join(filter(None, notes))))
    lines += (ReportLine(reference(at), said.keyword, "annotated", said.text) for at, said in remarks.items())
    lines += (ReportLine(reference(at), "properties", "exact", text) for at, text in impossible.items())
    return Report(lines).with_notes(spellings, unbounded)


def _warn(what: str, places: Mapping[str, str]) -> None:
    """Warn once, at the call that gave the schema, of texts by JSON pointers."""
    lines = [f"{reference(at)!r}: {text}" for at, text in places.items()]
    if lines:
        more = f"\n... and {len(lines) - _MAX_WARNED} more; `report` has all" if len(lines) > _MAX_WARNED else ""
        text = f"{what}:\n" + "\n".join(lines[:_MAX_WARNED]) + more
        warnings.warn(text, SchemaWarning, stacklevel=stacklevel_of_user())


def _check_options(
    whitespace: object, strict: object, key_order: object, formats: object, registry: object, limits: object
) -> None:
    for name, value, allowed in (
        ("whitespace", whitespace, get_args(Whitespace)),
        ("key_order", key_order, ("schema", "any")),
        ("formats", formats, ("assert", "annotate")),
        ("strict", strict, (True, False)),
    ):
        if not is_one_of(value, allowed):
            choices = ", ".join(map(repr, allowed))
            raise SchemaError(f"`{name}` is one of {choices}, received {shorten(value)}. Choose one of them")
    if registry is not None and not (isinstance(registry, Mapping) and all(isinstance(one, str) for one in registry)):
        raise SchemaError(f"expected a dict of schemas by their URIs as `registry`, received {shorten(registry)}")
    check_limits(limits, SchemaError)


def _read(schema: object, limits: Limits) -> tuple[Schema, dict[str, Check]]:
    """The schema, parsed or made from a type; and the checks that a type has, by name."""
    if isinstance(schema, str):
        return _parse(schema, limits), {}
    if isinstance(schema, dict | bool):
        return schema, {}
    if schema is None or isinstance(schema, list | tuple | int | float | bytes):
        what = "a schema (a dict, JSON text, a bool or a type)"
        raise expected(what, schema, advice="For JSON null write {'type': 'null'}")
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
            advice = "A path is not read: give the text of the file, such as `Path(...).read_text()`"
            raise expected("a schema as JSON text", text, advice=advice) from None
        raise SchemaError(f"the schema is not JSON: {error}. Give JSON text, or a dict") from None
    check_schema(schema, "")
    return schema  # type: ignore[no-any-return]


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


class _BuildPass:
    """One pass over values that are nested in each other, down to where a schema contains itself.

    Args:
        terms: the terms of the document.
        cases: finds the cases of places.
        nesting: how many arrays and objects may be open at once.
        is_outermost: whether these values are whole texts.
    """

    def __init__(self, terms: TermTable, cases: CaseFinder, nesting: int, *, is_outermost: bool = False) -> None:
        self._terms, self._context, self._nesting, self._is_outermost = terms, terms.context, nesting, is_outermost
        self._document, self._cases = terms.context.document, cases
        self._limits = self._document.limits
        self._open: dict[Key, Frame] = {}
        self._frames: list[Frame] = []
        self._num_opened = 0
        self._noted: set[Node] = set()  # scalars without other keywords whose spellings are noted

    def build(self, places: Conjunction) -> Node:
        """The term of some places."""
        with self._terms.at_work():
            try:
                return self._build(places)
            finally:  # builders that an error has interrupted refer to this object
                self._frames.clear()
                self._open.clear()

    def _build(self, places: Conjunction) -> Node:
        """Run builders on an explicit stack until the term is complete."""
        answer = self._look_up(places)
        frames = self._frames
        frames += [answer] if isinstance(answer, Frame) else []
        depth = sum(frame.is_value for frame in frames)
        while frames:
            frame = frames[-1]
            self._context.left_out, self._context.missing_bounds = frame.left_out, frame.missing_bounds
            self._context.is_outermost = self._is_outermost
            try:
                need = next(frame.builder) if isinstance(answer, Frame) else frame.builder.send(answer)
            except StopIteration as stop:
                depth -= frames.pop().is_value
                answer = self._close(frame, stop.value)
                continue
            answer = self._look_up(need)
            if isinstance(answer, Frame):
                frames.append(answer)
                depth += answer.is_value
                self._limits.check("max_depth", depth, "nested values", answer.name)
        assert isinstance(answer, Node)
        return answer

    def _look_up(self, places: Conjunction) -> Node | Frame:
        """The term of some places where it is known, or refers to one that is being built; else a frame with a new builder."""
        asked = places  # a check needs them, as a reference may enter a dynamic scope
        places = tuple([p if p.via is not None or p.negated else self._document.dereference(p) for p in places])
        if len(places) == 1 and not places[0].negated:
            places = (self._document.normalize_draft(places[0]),)
            if (simple := self._simple(places[0])) is not None:
                return simple
        pointer = places[0].pointer if places else ""
        branches = self._cases.branches(places)
        if branches is not None:
            return self._open_frame((("any of", places[0].key),), asked, _any_of(branches), pointer, False)  # type: ignore[arg-type]
        cases = self._find_cases(places)
        found = self._open_frame(cases.key, asked, self._union(cases), pointer)
        if isinstance(found, Frame):
            self._cases.spend(cases.cost)
        return found

    def _simple(self, place: Place) -> Node | None:
        """The term of a normalized place that names one scalar type and nothing else; this common case needs no frame."""
        node = _simple_node(place.schema)
        if node is not None:
            self._document.check_keywords(place)
            if node not in self._noted:
                self._noted.add(node)
                self._note_spellings((place,), types_at(place))
            if node is STRING:
                self._context.note_met(STRING, place.pointer)
                self._context.note_unbounded(STRING, ["maxLength"])
            self._depend(0)
        return node

    def _open_frame(
        self, key: Key, places: Conjunction, builder: Builder, pointer: str, is_value: bool = True
    ) -> Node | Frame:
        nesting = self._frames[-1].nesting - self._frames[-1].is_value if self._frames else self._nesting
        if places or not self._frames:
            self._context.note_met(key, pointer)
        else:  # any value, in an array or an object
            self._frames[-1].missing_bounds.append("type")
        known = self._terms.find(key, nesting, self._is_outermost)
        if known is not None:
            self._depend(known[1].dependence, known[1].height)
            return known[0]
        around = self._open.get(key)
        if around is not None:
            self._depend(2)
            if around.nesting == nesting:
                return EMPTY  # for the same value: the least fixed point adds nothing
            return self._terms.reference(key, places, nesting, pointer or "#")
        if self._frames and self._frames[-1].is_value and key in self._terms.recursive:
            self._depend(2)  # it was built for another nesting; this one is built when a text reaches it
            return self._terms.reference(key, places, nesting, pointer or "#")
        self._num_opened += 1
        work.add(_FRAME_WORK if is_value else 1)
        work.check()
        self._limits.check("max_subschemas", self._num_opened, "subschemas", pointer)
        frame = self._open[key] = Frame(key, places, builder, pointer, nesting, is_value)
        return frame

    def _depend(self, dependence: Dependence, height: int = 0) -> None:
        """Note that the current frame contains a term with this dependence and height."""
        if self._frames:
            frame = self._frames[-1]
            height += frame.is_value
            if dependence > frame.dependence:
                frame.dependence = dependence
            if height > frame.height:
                frame.height = height

    def _find_cases(self, places: Conjunction) -> Cases:
        """The cases of some places; where the exact ones are too many, fewer that leave some keywords to checks."""
        try:
            return self._cases.find(places)
        except BudgetExceeded as error:
            if error.limit != "max_alternatives" or self._context.is_strict:
                raise
        except TooManyCases as reason:
            if self._context.is_strict:
                raise SchemaError(f"{reason}: they are only checked. Leave `strict` out", "") from None
        return self._cases.find(places, loosely=True)

    def _close(self, frame: Frame, node: Node) -> Node:
        del self._open[frame.key]
        if frame.missing_bounds and node is not EMPTY:
            self._context.note_unbounded(frame.key, frame.missing_bounds)
        if frame.left_out:
            # Where the value cannot be checked alone, one around it is checked; the outermost always can be.
            is_alone = not self._document.is_dynamic and is_checkable(frame.places)
            if is_alone or (self._is_outermost and not self._frames):
                node = nodes.checked(node, SchemaCheck(self._document, frame.places))
            elif self._frames:
                self._frames[-1].left_out += frame.left_out
        self._depend(frame.dependence, frame.height)
        self._terms.keep(frame, node, self._is_outermost)
        return node

    def _union(self, cases: Cases) -> Builder:
        self._context.leave_out(cases.missing, "too many cases")
        members = []
        for places in cases.alternatives:
            node = yield from self._of_types(places)
            for place, name in values_of(places, VALIDATOR):
                self._context.note_check(place, VALIDATOR, "it is Python code")
                node = nodes.checked(node, self._document.validators[name])
            members.append(node)
        # One alternative is often a large union already, and to unite it again would be counted as work again.
        return members[0] if len(members) == 1 else nodes.alternation(members)

    def _of_types(self, places: Conjunction) -> Builder:
        """The values that satisfy places without cases: a term for each JSON type that is left."""
        context = self._context
        if not places:
            self._depend(1)
            self._note_spellings((), frozenset(JSON_TYPES))
            context.note_spellings(spelling.nested(self._limits.max_nesting))
            context.missing_bounds.append("type")
            return context.syntax.any_value(self._terms.roughly(self._frames[-1].nesting))
        if len(places) == 1 and (simple := _simple_node(places[0].schema)) is not None:
            context.missing_bounds += ["maxLength"] if simple is STRING else []
            return simple
        types = self._that_fit(frozenset(JSON_TYPES).intersection(*map(types_at, places)))
        left_out: list[tuple[Place, str]] = []
        listed = scalar_node(places, types, limits=self._limits, left_out=left_out)
        if listed is not None:
            context.note_spellings(*spelling.of_listed(places, types))
            context.leave_out(left_out, NOT_REGULAR)
            return listed
        self._leave_to_checks(places, types)
        self._note_spellings(places, types)
        members = [nodes.literal(text) for _, text in names(places, types)]
        if not types.isdisjoint(NUMERIC):
            members.append(self._numbers(places, types))
        if "string" in types:
            strings = string_node(places, limits=self._limits, left_out=left_out)
            context.leave_out(left_out, NOT_REGULAR)
            context.note_strings(strings)
            members.append(strings)
        if "array" in types:
            members.append((yield from array_node(places, context)))
        if "object" in types:
            members.append((yield from object_node(places, context)))
        return nodes.alternation(members)

    def _leave_to_checks(self, places: Conjunction, types: frozenset[str]) -> None:
        """Leave to checks the keywords that no term enforces for some of these types."""
        for name in KEYWORDS.only_checked:
            if not types.isdisjoint(KEYWORDS[name].checked_types):
                found = (*values_of(places, name), *negated_values_of(places, name))
                self._context.leave_out(((place, name) for place, _ in found), "no automaton enforces it")

    def _that_fit(self, types: frozenset[str]) -> frozenset[str]:
        """These types without arrays and objects where `nesting` permits no more of them."""
        if types.isdisjoint(_NESTED):
            return types
        self._depend(0)
        if self._is_outermost or self._frames[-1].nesting > 0:
            return types
        self._depend(2)
        return types - _NESTED

    def _note_spellings(self, places: Conjunction, types: frozenset[str]) -> None:
        """Note which spellings of values of these types are never generated."""
        context = self._context
        if "string" in types:
            context.note_spellings(*spelling.of_strings(places))
        if not types.isdisjoint(NUMERIC):
            decimals, is_bounded = decimals_in(places, types, self._limits)
            context.note_spellings(spelling.of_numbers(decimals, is_bounded=is_bounded))
        if not types.isdisjoint(_NESTED):
            context.note_spellings(_SPACES[context.syntax])
        if "object" in types:
            is_ordered = context.key_order == "schema" and any(place.has_any(KEYWORDS.naming) for place in places)
            context.note_spellings(*((spelling.ORDERED,) if is_ordered else ()), spelling.ONCE)

    def _numbers(self, places: Conjunction, types: frozenset[str]) -> Node:
        try:
            return number_node(places, types, limits=self._limits)
        except NotRegular:
            found = (*values_of(places, "multipleOf"), *negated_values_of(places, "multipleOf"))
            self._context.leave_out(((place, "multipleOf") for place, _ in found), "its multiples are not regular")
            return number_node(places, types, limits=self._limits, loosely=True)


def _any_of(branches: Conjunction) -> Builder:
    """Any of several schemas, each built by itself, so that common parts are compiled once."""
    members = []
    for branch in branches:
        members.append((yield (branch,)))
    return nodes.alternation(members)


_NESTED = frozenset({"array", "object"})
_SPACES = {
    syntax_of("none"): spelling.NO_SPACE,
    syntax_of("one_space"): spelling.ONE_SPACE,
    syntax_of("spaced"): spelling.SPACED,
}
_SIMPLE = {"null": NULL, "boolean": BOOLEAN, "integer": INTEGER, "number": NUMBER, "string": STRING}


def _simple_node(schema: Schema | NegatedKeyword) -> Node | None:
    """The term of a schema that names one scalar type and nothing else."""
    if not isinstance(schema, dict) or not KEYWORDS.besides_type.isdisjoint(schema):
        return None
    name = schema.get("type")
    return _SIMPLE.get(name) if isinstance(name, str) else None
