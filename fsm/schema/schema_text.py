"""`schema_text`: a JSON schema as a short text that a model reads in its prompt, in the notation of TypeScript's types: names, types,
choices and bounds, with descriptions as comments. It tells what to write, and is no check: keywords without a short form are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from pydantic import TypeAdapter

from fsm.errors import SchemaError, shorten
from fsm.schema.model import arguments_of

_WIDTH = 100
_INDENT = "  "
_BOUNDS = (
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("multipleOf", "a multiple of {}"),
    ("pattern", "matches {}"),
    ("format", "{}"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
)


def schema_text(schema: Any) -> str:
    """Return a short text of a schema for a prompt.

    Args:
        schema: a JSON schema as a dict or as JSON text, a type that pydantic understands, or a function for its arguments.

    Raises:
        SchemaError: it is none of these.
    """
    if isinstance(schema, FunctionType):
        schema = arguments_of(schema)
    try:
        given: Any = json.loads(schema) if isinstance(schema, str) else schema
        return _Text(given if isinstance(given, Mapping | bool) else TypeAdapter[Any](given).json_schema()).whole()
    except Exception as error:  # of JSON, of pydantic for an unknown type, of a schema that is malformed
        said = next(iter(str(error).splitlines()), type(error).__name__)
        what = "a schema (a dict, JSON text, a bool or a type)"
        raise SchemaError(f"expected {what}, received {shorten(schema)}: {said}") from error


class _Text:
    """The text of one document; schemas that refer to themselves are types with names, before the whole."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[str] = []
        self._named: dict[str, str] = {}
        self._recursive: set[str] = set()

    def whole(self) -> str:
        """Return the types with names, then the type of the document."""
        found = self._type(self._root, "")
        types = [f"type {self._name(at)} = {self._named[at]}" for at in sorted(self._recursive)]
        return "\n".join([*types, found])

    def _type(self, schema: Any, indent: str) -> str:
        if not isinstance(schema, Mapping):
            return "never" if schema is False else "any"
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), indent)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        for keyword, joint in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
            if keyword in schema:
                parts = [self._type(one, indent) for one in schema[keyword]]
                return joint.join(dict.fromkeys(parts))
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(self._type({**schema, "type": one}, indent) for one in kind)
        if kind == "object" or "properties" in schema:
            return self._object(schema, indent)
        if kind == "array" or "items" in schema or "prefixItems" in schema:
            return self._array(schema, indent)
        return str(kind or "any")

    def _referred(self, at: str, indent: str) -> str:
        if at in self._open:
            self._recursive.add(at)
            return self._name(at)
        if at in self._recursive:
            return self._name(at)
        self._open.append(at)
        found = self._type(self._target(at), indent)
        self._open.pop()
        if at not in self._recursive:
            return found
        self._named[at] = self._type_alone(at)
        return self._name(at)

    def _type_alone(self, at: str) -> str:
        self._open.append(at)
        found = self._type(self._target(at), "")
        self._open.pop()
        return found

    def _target(self, at: str) -> Any:
        found = self._root
        for part in at.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), True) if isinstance(found, Mapping) else True
        return found

    def _name(self, at: str) -> str:
        return at.rstrip("#/").rpartition("/")[2] or "Root"

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        required, inner = set(schema.get("required", ())), indent + _INDENT
        members = []
        for key, part in schema.get("properties", {}).items():
            name = key if key.isidentifier() else json.dumps(key, ensure_ascii=False)
            members.append((f"{name}{'' if key in required else '?'}: {self._type(part, inner)}", self._note(part)))
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if isinstance(others, Mapping) or (others is True and not members):
            members.append((f"[key: string]: {self._type(others, inner)}", self._note(others)))
        if not members:
            return "{}" if others is False else "object"
        line = "{ " + ", ".join(text for text, _ in members) + " }"
        if not any(note for _, note in members) and len(indent) + len(line) <= _WIDTH and "\n" not in line:
            return line
        last = len(members) - 1
        lines = [
            f"{inner}{text}{',' if i < last else ''}{f'  // {note}' if note else ''}"
            for i, (text, note) in enumerate(members)
        ]
        return "\n".join(["{", *lines, indent + "}"])

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        if "prefixItems" in schema:
            return f"[{', '.join(self._type(one, indent) for one in schema['prefixItems'])}]"
        item = self._type(schema.get("items", True), indent)
        return f"({item})[]" if " | " in item or " & " in item else f"{item}[]"

    def _note(self, schema: Any) -> str:
        """Return the description of a member, and its bounds, as a comment."""
        if not isinstance(schema, Mapping):
            return ""
        found = [" ".join(str(schema["description"]).split())] if schema.get("description") else []
        for one in (schema, *(part for part in schema.get("anyOf", ()) if isinstance(part, Mapping))):
            found += [text.format(one[name]) for name, text in _BOUNDS if name in one]
            items = one.get("items")
            if isinstance(items, Mapping):
                found += [f"each {text.format(items[name])}" for name, text in _BOUNDS if name in items]
        return ", ".join(found)
