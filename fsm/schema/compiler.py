"""`json_schema`: a JSON schema (draft 2020-12) or a Python type becomes an expression.

A schema is taken as what it says about each JSON type. Schemas that hold together for one value (`allOf`, `$ref` beside other
keywords, a property named by two of them) are merged keyword by keyword; `anyOf` is carried through as alternatives. So no
intersection of automata is needed but for `pattern`, `format` and keys. A place that needs itself becomes a recursive rule.
Builders are generators that yield the schemas whose terms they need: no schema, however deeply nested, exhausts Python's stack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from fsm import node as nodes
from fsm.derivative import Derivatives
from fsm.errors import EmptyLanguage, SchemaError
from fsm.expression import Expression
from fsm.limits import DEFAULT_LIMITS, Limits
from fsm.node import EMPTY, Node, Rule
from fsm.schema.array import array_node
from fsm.schema.disjoint import types_at
from fsm.schema.document import Document
from fsm.schema.enumeration import scalar_node
from fsm.schema.keyword import JSON_TYPES, KEYWORDS, Schema, shorten
from fsm.schema.number import INTEGER, NUMBER, number_node
from fsm.schema.object import object_node
from fsm.schema.place import Conjunction, Steps
from fsm.schema.string import STRING, FormatPolicy, string_node
from fsm.schema.syntax import BOOLEAN, NULL, Syntax, Whitespace, syntax_of


def json_schema(
    schema: dict[str, Any] | str | bool | type | Any,
    *,
    whitespace: Whitespace = "one_space",
    strict: bool = False,
    key_order: Literal["schema", "any"] = "schema",
    formats: FormatPolicy = "assert",
    registry: Mapping[str, dict[str, Any]] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Expression:
    """Return the JSON texts that are valid under `schema`.

    Every text of the language is JSON whose value satisfies the schema. The other way it is one spelling: strings as
    `json.dumps(x, ensure_ascii=False)` writes them, whole numbers as plain digits (see `number.py`), the members of an
    object in the order of the schema, declared ones before additional ones. Additional keys may repeat among themselves.
    Values of type "any" and recursive schemas may be nested without bound.

    Args:
        schema: a schema as dict, as JSON text or as bool; or a type that pydantic understands (see `model.py`).
        whitespace: `one_space` allows one space after `:` and `,`; `none` allows no space at all.
        strict: refuse whatever is not exact; all that is supported so far is exact.
        key_order: `schema`; `any` is not supported yet.
        formats: `assert` enforces `format`, `annotate` ignores it (but for types, whose formats are always enforced).
        registry: schemas that `$ref` may lead to; not supported yet.
        limits: bounds of compiling.

    Raises:
        SchemaError: the schema is malformed, or uses something that would not be enforced; a JSON pointer says where.
        EmptyLanguage: no value satisfies the schema.
        BudgetExceeded: a bound of `limits` is exceeded.

    Cost: linear in the schema, about 20 us per property; counts, lengths and the size of an enum do not multiply.
    """
    _check_options(whitespace, strict, key_order, formats, registry)
    is_type = not isinstance(schema, str | dict | bool)
    document = Document(_read(schema, limits), limits)
    formats = "assert" if is_type else formats
    node = _Compiler(document, syntax_of(whitespace), formats, limits).compile()
    if node is EMPTY or not Derivatives().is_inhabited(node):
        raise EmptyLanguage(
            f"no JSON value satisfies the schema {shorten(schema)}. Look for bounds that cross, a required property that is "
            "false or needs itself, or values that another keyword excludes."
        )
    return Expression(node, report=tuple(document.report))


def _check_options(
    whitespace: object, strict: object, key_order: object, formats: object, registry: Mapping[str, Any] | None
) -> None:
    for name, value, allowed in (
        ("whitespace", whitespace, ("none", "one_space")),
        ("key_order", key_order, ("schema", "any")),
        ("formats", formats, ("assert", "annotate")),
        ("strict", strict, (True, False)),
    ):
        if value not in allowed:
            raise SchemaError(
                f"`{name}` is one of {', '.join(map(repr, allowed))}, received {value!r}. Choose one of them"
            )
    if key_order == "any":
        raise SchemaError("key_order='any' is not supported yet. Use key_order='schema'")
    if registry:
        raise SchemaError("`registry` is not supported yet. Copy the schemas into `$defs`")


def _read(schema: object, limits: Limits) -> Schema:
    """A schema from its text, from a type, or as it is."""
    if isinstance(schema, str):
        return _parse(schema, limits)
    if isinstance(schema, dict | bool):
        return schema
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
        raise SchemaError(f"the schema is not JSON: {error}. Give JSON text, or a dict") from None
    if not isinstance(schema, dict | bool):
        raise SchemaError(
            f"expected a schema (an object, true or false), received {shorten(schema)}. Correct the schema"
        )
    return schema


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(slots=True)
class _Frame:
    """A term in the making; `rule` stands for it once it turns out to need itself."""

    key: tuple[tuple[int, ...], ...]
    steps: Steps
    name: str
    rule: Rule | None = None


class _Compiler:
    """Builds the term of one document."""

    def __init__(self, document: Document, syntax: Syntax, formats: FormatPolicy, limits: Limits) -> None:
        self._document, self._syntax, self._formats, self._limits = document, syntax, formats, limits
        self._known: dict[tuple[tuple[int, ...], ...], Node] = {}
        self._open: dict[tuple[tuple[int, ...], ...], _Frame] = {}

    def compile(self) -> Node:
        """Run builders on a stack of our own until the root's term is there."""
        answer = self._look_up((self._document.root,))
        frames = [answer] if isinstance(answer, _Frame) else []
        while frames:
            frame = frames[-1]
            try:
                need = next(frame.steps) if isinstance(answer, _Frame) else frame.steps.send(answer)
            except StopIteration as stop:
                frames.pop()
                answer = self._close(frame, stop.value)
                continue
            answer = self._look_up(need)
            if isinstance(answer, _Frame):
                frames.append(answer)
                self._limits.check("max_depth", len(frames), "values one inside the other", answer.name)
        assert isinstance(answer, Node)
        return answer

    def _look_up(self, places: Conjunction) -> Node | _Frame:
        """The term of some places: known, a reference to one in the making, or a new builder."""
        pointer = places[0].pointer if places else ""
        alternatives = self._document.alternatives(places)
        key = tuple(tuple(id(place.schema) for place in a) for a in alternatives)
        known = self._known.get(key)
        if known is not None:
            return known
        frame = self._open.get(key)
        if frame is not None:
            if frame.rule is None:
                frame.rule = Rule(frame.name or "#")
            return nodes.reference(frame.rule)
        self._limits.check("max_subschemas", len(self._known) + len(self._open) + 1, "subschemas", pointer)
        frame = self._open[key] = _Frame(key, self._union(alternatives), pointer)
        return frame

    def _close(self, frame: _Frame, node: Node) -> Node:
        del self._open[frame.key]
        if frame.rule is not None:
            frame.rule.define(node)
            node = nodes.reference(frame.rule)
        self._known[frame.key] = node
        return node

    def _union(self, alternatives: list[Conjunction]) -> Steps:
        if len(alternatives) == 1:
            return (yield from self._typed(alternatives[0]))
        members = []
        for places in alternatives:
            members.append((yield from self._typed(places)))
        return nodes.alternation(members)

    def _typed(self, places: Conjunction) -> Steps:
        """The values that satisfy places without cases: a term for each JSON type that is left."""
        if not places:
            return self._syntax.any_value
        if len(places) == 1 and (simple := _simple_node(places[0].schema)) is not None:
            return simple
        types = set(JSON_TYPES).intersection(*map(types_at, places))
        listed = scalar_node(places, types, self._formats, self._limits)
        if listed is not None:
            return listed
        members = []
        if "null" in types:
            members.append(NULL)
        if "boolean" in types:
            members.append(BOOLEAN)
        if "integer" in types:
            members.append(number_node(places, integers="number" not in types, limits=self._limits))
        if "string" in types:
            members.append(string_node(places, self._formats, self._limits))
        if "array" in types:
            members.append((yield from array_node(places, self._syntax)))
        if "object" in types:
            members.append((yield from object_node(places, self._syntax, self._limits)))
        return nodes.alternation(members)


_SIMPLE = {"null": NULL, "boolean": BOOLEAN, "integer": INTEGER, "number": NUMBER, "string": STRING}
_SAYS_MORE = frozenset(KEYWORDS) - {"type"}


def _simple_node(schema: Schema) -> Node | None:
    """The term of a schema that names one scalar type and nothing else; the most common of all."""
    if not isinstance(schema, dict) or not _SAYS_MORE.isdisjoint(schema):
        return None
    name = schema.get("type")
    return _SIMPLE.get(name) if isinstance(name, str) else None
