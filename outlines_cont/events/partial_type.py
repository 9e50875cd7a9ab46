"""`PartialType`: a node of pydantic's core schema, made lazily, that reads parts of incomplete JSON for `PartialValue`, which walks the
text: `closed` validates a complete part by itself (`MISSING` if that fails), `open_text` an open string by the first text type of a union
that accepts it, `shapes` lists the candidate types of an open object or array; `PartialValue` waits until one is left. Open models are
built from the members so far, not validated as a whole; dataclasses once every required field is there; other scalars only when complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import SchemaValidator, core_schema

from outlines_cont.user_code import shielded


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""In place of a value that cannot be shown yet."""

_AROUND = frozenset(["default", "nullable", "function-after", "function-before", "function-wrap"])
_FUNCTIONS = frozenset(["function-after", "function-before", "function-wrap"])
_LISTS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "set": set, "frozenset": frozenset}


@dataclass(frozen=True, eq=False)
class PartialShape:
    """One interpretation of an open object or array.

    Attributes:
        build: returns the value so far for its members, a dict by the names of `member`, or a list.
        member: returns the name and the type of a member by its key, or by its number in an array; None if there is no such member.
        shows_open: whether the incomplete member is shown; in a set it would become another member.
    """

    build: Callable[[Any], Any]
    member: Callable[[Any], tuple[Any, PartialType] | None]
    shows_open: bool = True


@dataclass(eq=False)
class _Source:
    """The context of a core schema: the definitions that it may refer to, and a cache of the types of its parts."""

    definitions: Mapping[str, Any]
    types: dict[tuple[int, int], PartialType] = field(default_factory=dict)


class PartialType:
    """A pydantic type, or a part of one, for incomplete values; `shown` maps a value to the one that is shown."""

    def __init__(self, schema: Any, source: _Source, config: Any = None) -> None:
        self._schema, self._source, self._config = schema, source, config
        self.shown: Callable[[Any], Any] = lambda value: value

    @staticmethod
    def of(kind: Any, shown: Callable[[Any], Any] | None = None) -> PartialType:
        """Return the `PartialType` of a type of pydantic, or of `Any` for all JSON. Cost: that of a `TypeAdapter`."""
        schema: Any = TypeAdapter(kind).core_schema
        definitions: dict[str, Any] = {}
        if schema["type"] == "definitions":
            definitions = {part["ref"]: part for part in schema["definitions"]}
            schema = schema["schema"]
        whole = PartialType(schema, _Source(definitions))
        whole.shown = shown or whole.shown
        return whole

    def closed(self, text: str) -> Any:
        """Return the value of a complete JSON text; MISSING if it fails validation. Cost: that of validation."""
        try:
            return shielded(self._validator.validate_json, text)
        except Exception:  # a validator of a user may raise anything
            return MISSING

    def open_text(self, text: str) -> Any:
        """Return the value of an incomplete string; MISSING unless the type accepts strings, and this one."""
        for part in self._texts:
            value = part.closed(json.dumps(text))
            if value is not MISSING:
                return value
        return MISSING

    @cached_property
    def _validator(self) -> SchemaValidator:
        schema = self._schema
        if self._source.definitions:
            definitions = list(self._source.definitions.values())
            if any(schema is other for other in definitions):
                schema = core_schema.definition_reference_schema(schema["ref"])
            schema = core_schema.definitions_schema(schema, definitions)
        return SchemaValidator(schema, self._config)

    @cached_property
    def _texts(self) -> list[PartialType]:
        return [self._part(outer) for outer, inner in self._choices() if inner["type"] in ("str", "any")]

    @cached_property
    def shapes(self) -> dict[str, list[PartialShape]]:
        """The possible interpretations of an incomplete object (`{`) and of an incomplete array (`[`)."""
        parts = [inner for _, inner in self._choices()]
        found = {"{": [self._object(part) for part in parts], "[": [self._array(part) for part in parts]}
        return {opening: [shape for shape in shapes if shape is not None] for opening, shapes in found.items()}

    def _choices(self) -> list[tuple[Any, Any]]:
        """Return the types of a union, or the only type: each with the validators around it, and without them."""
        found, seen = [], set[int]()
        stack = [(self._schema, self._schema)]
        while stack:
            outer, inner = stack.pop()
            if inner["type"] == "definition-ref":
                inner = self._source.definitions[inner["schema_ref"]]
                if id(inner) in seen:
                    continue  # a union that has itself among its types
                seen.add(id(inner))
            kind = inner["type"]
            if kind in _AROUND:
                inside = inner["schema"]
                keeps = outer is not inner or kind in _FUNCTIONS
                stack.append((outer if keeps else inside, inside))
            elif kind in ("union", "tagged-union"):
                choices = inner["choices"].values() if kind == "tagged-union" else inner["choices"]
                parts = [choice[0] if isinstance(choice, tuple) else choice for choice in choices]
                stack += [(part, part) for part in reversed(parts)]
            elif kind in ("lax-or-strict", "json-or-python"):
                stack.append((outer, inner["lax_schema" if kind == "lax-or-strict" else "json_schema"]))
            else:
                found.append((outer, inner))
        return found

    def _part(self, schema: Any, config: Any = None) -> PartialType:
        config = self._config if config is None else config
        key = id(schema), id(config)
        if key not in self._source.types:
            self._source.types[key] = PartialType(schema, self._source, config)
        return self._source.types[key]

    def _object(self, schema: Any) -> PartialShape | None:
        kind = schema["type"]
        if kind == "any":
            return PartialShape(dict, lambda key: (key, self._part(schema)))
        if kind == "dict":
            values = schema.get("values_schema", core_schema.any_schema())
            keys = self._part(schema.get("keys_schema", core_schema.any_schema()))

            def member(key: Any) -> tuple[Any, PartialType] | None:
                name = keys.closed(json.dumps(key))
                return None if name is MISSING else (name, self._part(values))

            return PartialShape(dict, member)
        if kind == "typed-dict":
            return PartialShape(partial(_declared_first, schema["fields"]), self._fields(schema, schema.get("config")))
        if kind == "dataclass":
            fields = _inside(schema["schema"]).get("fields", ())
            by_name = {"fields": {part["name"]: part for part in fields}}
            return PartialShape(partial(_made, schema["cls"]), self._fields(by_name, schema.get("config")))
        if kind == "model":
            inside = _inside(schema["schema"])
            if inside["type"] == "model-fields":
                build = partial(partial_model, schema["cls"])
                return PartialShape(build, self._fields(inside, schema.get("config")))
        return self._root(schema, "{")

    def _array(self, schema: Any) -> PartialShape | None:
        kind = schema["type"]
        if kind == "any":
            return PartialShape(list, lambda number: (number, self._part(schema)))
        if kind == "tuple":
            items, variadic = schema["items_schema"], schema.get("variadic_item_index")
            return PartialShape(tuple, lambda number: self._item(items, variadic, number))
        if kind in _LISTS:
            items = schema.get("items_schema", core_schema.any_schema())
            return PartialShape(_LISTS[kind], lambda number: (number, self._part(items)), kind == "list")
        return self._root(schema, "[")

    def _root(self, schema: Any, opening: str) -> PartialShape | None:
        """Return the interpretation of a root model, which has a single value."""
        if schema["type"] != "model" or not schema.get("root_model"):
            return None
        shapes = self._part(schema["schema"], schema.get("config")).shapes[opening]
        if len(shapes) != 1:
            return None
        cls, shape = schema["cls"], shapes[0]
        return replace(shape, build=lambda values: partial_model(cls, {"root": shape.build(values)}))

    def _item(self, items: list[Any], variadic: int | None, number: int) -> tuple[int, PartialType] | None:
        index = number if variadic is None else min(number, variadic)
        return (number, self._part(items[index])) if index < len(items) else None

    def _fields(self, schema: Any, config: Any) -> Callable[[Any], tuple[Any, PartialType] | None]:
        """Return a function from the key of a member, its alias or its name, to its name and type."""
        members = {}
        for name, part in schema["fields"].items():
            alias = part.get("validation_alias")
            member = name, self._part(part["schema"], config)
            members[name] = members[alias if isinstance(alias, str) else name] = member
        if schema.get("extra_behavior", (config or {}).get("extra_fields_behavior")) != "allow":
            return members.get
        extras = self._part(schema.get("extras_schema", core_schema.any_schema()), config)
        return lambda key: members.get(key, (key, extras))


def partial_model(cls: type[BaseModel], fields: Mapping[str, Any]) -> BaseModel:
    """Return an object of a model with these fields only, not validated, in the order of the model, as after validation.

    Other fields, and those with defaults, are missing.
    """
    record, known = cls.__new__(cls), cls.model_fields
    extra = {name: value for name, value in fields.items() if name not in known}
    object.__setattr__(record, "__dict__", {name: fields[name] for name in known if name in fields})
    object.__setattr__(record, "__pydantic_fields_set__", set(fields))
    object.__setattr__(record, "__pydantic_extra__", extra if cls.model_config.get("extra") == "allow" else None)
    object.__setattr__(record, "__pydantic_private__", None)
    return record


def _declared_first(names: Iterable[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a typed dict in the order of validation: declared ones in the order of the type, then the others."""
    return {name: fields[name] for name in names if name in fields} | fields


def _inside(schema: Any) -> Any:
    """Return a schema without the defaults, nullability and validator functions around it."""
    while schema["type"] in _AROUND:
        schema = schema["schema"]
    return schema


def _made(cls: Any, values: dict[str, Any]) -> Any:
    """Return an object of a dataclass; MISSING if a field is missing, or `__post_init__` raises."""
    try:
        return shielded(cls, **values)
    except Exception:
        return MISSING
