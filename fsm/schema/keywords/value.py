"""The keywords of values of any type, as `Keyword` objects: `type`, `enum`, `const`, annotations, and those of Python types. The functions
read the types (`types_at`) and the listed values (`values_at`) of a place; listed arrays and objects become schemas (`schemas_listed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsm.schema.keywords import place as shapes
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, PYTHON_TYPE, STRING, Failure, Keyword, Part, Role
from fsm.schema.keywords.place import NegatedKeyword, Place, Shape, check_text, expected, is_number, to_decimal
from fsm.terms.node import Node

TEXT = "fsm:text"
VALIDATOR = "fsm:validator"


def types_named(value: Any) -> frozenset[str]:
    """The JSON types that a value of `type` allows; `number` stands for numbers that are not whole."""
    found = frozenset((value,) if isinstance(value, str) else (name for name in value if isinstance(name, str)))
    return found | {"integer"} if "number" in found else found


def types_at(place: Place) -> frozenset[str]:
    """The JSON types that a place allows; `number` stands for numbers that are not whole."""
    if isinstance(place.schema, NegatedKeyword):
        return place.schema.types
    value = place.get("type")
    return ALL_TYPES if value is None else types_named(value)


def listing_at(place: Place) -> Keyword | None:
    """The keyword that lists the values of a place (`CaseFinder` separates two of them); None if it has none."""
    return KEYWORDS.with_roles(place, Role.VALUES)[0] if place.has_any(KEYWORDS.listing) else None


def values_at(place: Place) -> list[Any] | None:
    """The values that a place lists; None if it has no such keyword."""
    keyword = listing_at(place)
    if keyword is None:
        return None
    value = place.get(keyword.name)
    return [value] if keyword.is_single else value


def pointer_to(place: Place, position: int) -> str:
    """The pointer to the value at a position of `values_at`."""
    keyword = listing_at(place)
    assert keyword is not None
    return place.at(keyword.name) if keyword.is_single else place.at(keyword.name, position)


def identity(value: Any) -> tuple[str, Any]:
    """A hashable form of a scalar, equal for scalars that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or value is None:
        return ("name", value)
    if isinstance(value, str):
        return ("text", value)
    return ("number", to_decimal(value)) if is_number(value) else ("other", id(value))


def schemas_listed(place: Place) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield schemas that stand for the listed values of a place, with pointers: one for all scalars, one for each list and object."""
    values = values_at(place) or []
    scalars = [value for value in values if not isinstance(value, dict | list)]
    if scalars:
        yield {"enum": scalars}, place.pointer
    for position, value in enumerate(values):
        if isinstance(value, dict | list):
            pointer = pointer_to(place, position)
            yield _schema_of(value, pointer), pointer


def _schema_of(value: dict[str, Any] | list[Any], pointer: str) -> dict[str, Any]:
    """A schema that only this list or object satisfies; its items and members are listed values again."""
    if isinstance(value, list):
        schema: dict[str, Any] = {"type": "array", "minItems": len(value), "maxItems": len(value)}
        return schema | ({"prefixItems": [{"enum": [item]} for item in value]} if value else {})
    for key in value:
        check_text(key, pointer)
    return {
        "type": "object",
        "properties": {key: {"enum": [item]} for key, item in value.items()},
        "required": list(value),
        "additionalProperties": False,
    }


def _type_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    yield (NegatedKeyword(keyword.name, value, ALL_TYPES - types_named(value)),)


def _listed_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    values = [value] if keyword.is_single else value
    scalars = tuple(value for value in values if not isinstance(value, list | dict))
    parts: list[Part] = [NegatedKeyword("enum", scalars, ALL_TYPES)]
    for value in values:
        if isinstance(value, list | dict):
            parts.append(place.beside(_schema_of(value, place.at(keyword.name)), keyword.name, negated=True))
    yield tuple(parts)


ANY_VALUE = (
    Keyword("type", shapes.TYPES, since="draft-04", failures=_type_failures, is_built=True),
    Keyword("enum", shapes.VALUES, role=Role.VALUES, since="draft-04", failures=_listed_failures),
    Keyword("const", shapes.VALUE, role=Role.VALUES, since="draft-06", failures=_listed_failures, is_single=True),
)


def _note(name: str, shape: Shape = shapes.ANYTHING, since: str | None = None) -> Keyword:
    return Keyword(name, shape, frozenset(), Role.ANNOTATION, since)


_NOTES = (
    "$comment $id $recursiveAnchor $schema $vocabulary additionalItems contentEncoding contentMediaType contentSchema deprecated "
    "description discriminator nullable readOnly title writeOnly"
)

ANNOTATIONS = (
    *map(_note, _NOTES.split()),
    _note("$anchor", since="draft/2019-09"),
    _note("$dynamicAnchor", since="draft/2020-12"),
    *(_note(name, shapes.ANY_VALUES) for name in ("default", "example", "examples")),
    *(_note(name, shapes.ANY_SCHEMA_MAP) for name in ("$defs", "definitions")),
)


@dataclass(frozen=True, slots=True)
class TextLanguage:
    """The strings of a Python type, without quotes, as a term, and a sentence for the report on what it leaves out.

    It is never copied: pydantic copies the schemas of definitions deeply, and a term is shared.
    """

    node: Node
    spelling: str | None

    def __copy__(self) -> TextLanguage:
        return self

    def __deepcopy__(self, memo: object) -> TextLanguage:
        return self


def _check_language(value: object, pointer: str) -> None:
    if not isinstance(value, TextLanguage):
        raise expected("the language of a Python type", value, pointer)


_python_type = partial(Keyword, since=PYTHON_TYPE, is_built=True)
PYTHON_TYPES = (
    _python_type(
        TEXT,
        Shape(_check_language),
        STRING,
        language=lambda text, pointer, limits: text.node,
        spelling=lambda text: text.spelling,
    ),
    _python_type(VALIDATOR, shapes.TEXT),
)
"""The internal keywords in the schemas of Python types: a language of strings, and the name of code that checks the value."""
