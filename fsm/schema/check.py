"""Checks: what a schema asks and no automaton holds, asked of a value when its text is complete.

A check takes the text of one value. The validator is the library `jsonschema-rs`, which is told that formats count or not as the
automaton is, and never fetches anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import quote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.schema import matching
from fsm.schema.documents.translation import Translation, needs_translation
from fsm.schema.formats.number_format import NUMBER_FORMATS
from fsm.schema.keywords.keyword import KEYWORDS, Keyword
from fsm.schema.keywords.python_type import Text
from fsm.schema.places.dialect import LATEST
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.schema.places.schema_document import SchemaDocument
from fsm.schema.places.shape import escape


def is_checkable(places: Conjunction) -> bool:
    """True when these places can be told to a validator: each is a part of a document, asked for or not."""
    return not any(isinstance(place.schema, NegatedKeyword) or place.says(KEYWORDS.of_python_types) for place in places)


class SchemaCheck:
    """A value satisfies the schemas at some places of a document.

    Args:
        document: where the places are.
        places: what holds together.
        search: makes terms of patterns.

    Cost: some 10 us per check; the validator is made at the first one.
    """

    telling_bytes: ClassVar = frozenset[int]()

    def __init__(self, document: SchemaDocument, places: Conjunction, search: matching.Search) -> None:
        self._document, self._places, self._search = document, places, search

    def holds(self, data: bytes) -> bool:
        """True when the value that `data` spells in JSON is valid.

        Raises:
            BudgetExceeded: a pattern takes too many steps of backtracking to tell; see `matching.py`.
        """
        return matching.is_valid(self._validator, json.loads(data))

    def fault(self, data: bytes) -> int | None:
        """Nothing: the validator looks at whole values."""
        return None

    @cached_property
    def _validator(self) -> Any:
        document, asserts = self._document, self._document.asserts_format
        wanted = _with_proper_references([self._reference(place) for place in self._places])
        document_to_validate = document.schema if self._translation is None else self._translation.root
        name = LATEST.name if self._translation else document.dialect.name
        uri = f"{_SCHEMES[name]}://json-schema.org/{name}/schema"
        root = plain(document_to_validate, asserts_format=asserts)
        if isinstance(root, dict):
            root["$schema"] = uri  # whatever it names itself
        resources = {
            uri.removesuffix("#"): plain(schema, asserts_format=asserts) for uri, schema in document.registry.items()
        }
        resources[document.resources.uri.removesuffix("#")] = root  # whatever the registry says
        draft = getattr(jsonschema_rs, _DRAFTS[name])
        backtracks = matching.may_backtrack(json.dumps([wanted, resources]))
        try:
            return jsonschema_rs.validator_for(
                {"$schema": uri, "allOf": wanted},
                registry=jsonschema_rs.Registry(list(resources.items()), draft=draft),
                validate_formats=document.asserts_format,
                offline=True,
                keywords={
                    **_own_checks(),
                    **({"pattern": matching.pattern_keyword(self._search)} if backtracks else {}),
                },
            )
        except (jsonschema_rs.ValidationError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            raise SchemaError(
                f"the validator does not take this schema, though a part of it must be checked: {problem}. Correct it, or "
                "write the part without what is only checked",
                self._places[0].pointer if self._places else "",
            ) from None

    @cached_property
    def _translation(self) -> Translation | None:
        """The root in words that the validator knows; None where it has no others."""
        root, dialect = self._document.schema, self._document.dialect
        return Translation(root, dialect) if needs_translation(root, dialect) else None

    def _reference(self, place: Place) -> Any:
        document, translation = self._document, self._translation
        assert not isinstance(place.schema, NegatedKeyword)  # see `is_checkable`
        uri = document.resources.uri
        found = translation.pointer_to(place.schema) if translation else _pointer(document.schema, place.schema)
        if found is None:
            for name, other in document.registry.items():
                found = _pointer(other, place.schema)
                if found is not None:
                    uri = name
                    break
        if found is not None:
            schema: Any = {"$ref": f"{uri.partition('#')[0]}#{found}"}
        else:
            read = place.schema if translation is None else Translation(place.schema, document.dialect).root
            schema = plain(read, asserts_format=document.asserts_format)
        return {"not": schema} if place.negated else schema

    def __str__(self) -> str:
        return f"the value satisfies the schema at {', '.join(reference(place.pointer) for place in self._places)}"


def _own_checks() -> dict[str, type]:
    """What the validator is told of keywords that are in no draft."""
    return {keyword.name: _check_of(keyword) for keyword in KEYWORDS.with_accepts}


def _check_of(keyword: Keyword) -> type:
    class Check:
        """A keyword in a schema, as the validator makes and calls it."""

        def __init__(self, parent: Any, value: Any, path: Any) -> None:
            self._value = value

        def validate(self, instance: Any) -> None:
            """Raise `ValueError` where the keyword does not accept a value."""
            if not keyword.takes(self._value, instance):
                raise ValueError(f"`{keyword.name}` does not accept it")

    return Check


_DRAFTS = {
    "draft/2020-12": "Draft202012",
    "draft/2019-09": "Draft201909",
    "draft-07": "Draft7",
    "draft-06": "Draft6",
    "draft-04": "Draft4",
}
_SAFE = "%/:?#@!$&'()*+,;=~-._"  # what a URI may hold as it is, beside letters and digits
_SCHEMES = {name: "https" if "/" in name else "http" for name in _DRAFTS}


def _pointer(root: Any, wanted: Any) -> str | None:
    """A pointer to this very object."""
    stack = [(root, "")]
    while stack:
        node, pointer = stack.pop()
        if node is wanted and not isinstance(node, bool):
            return pointer
        below: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            below = node.items()
        elif isinstance(node, list):
            below = enumerate(node)
        stack += [(child, f"{pointer}/{escape(str(key))}") for key, child in below]
    return None


def plain(value: Any, *, asserts_format: bool = False) -> Any:
    """A schema as the validator wants it: without `Decimal`s, references proper URIs, formats of numbers in other keywords."""
    made = _with_proper_references(json.loads(json.dumps(value, default=_float)))
    return _with_bounds_for_formats(made) if asserts_format else made


def _with_bounds_for_formats(value: Any) -> Any:
    """The same with what formats such as `int32` say in one more member of `allOf`, as the validator does not know them."""
    if isinstance(value, list):
        return [_with_bounds_for_formats(part) for part in value]
    if not isinstance(value, dict):
        return value
    made = {key: part if key in KEYWORDS.listing else _with_bounds_for_formats(part) for key, part in value.items()}
    name = value.get("format")
    said = NUMBER_FORMATS.get(name) if isinstance(name, str) else None
    return made | {"allOf": [*made.get("allOf", ()), said]} if said else made


def _with_proper_references(value: Any) -> Any:
    """The same with `#/$defs/Row<Cell>` percent-encoded, as generated schemas often leave it."""
    if isinstance(value, list):
        return [_with_proper_references(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: quote(part, safe=_SAFE)
        if key == "$ref" and isinstance(part, str)
        else (part if key in KEYWORDS.listing else _with_proper_references(part))
        for key, part in value.items()
    }


def _float(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.adjusted() < 40 else float(value)
    if isinstance(value, Text):  # what a Python type says in a term, its own code says again
        return True
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
