"""`tool_schema`: the schema inside a tool definition or a response format of OpenAI, Anthropic or MCP, by a table of their forms. As a
schema, such a dict has no keyword that rejects anything, or a `type` that JSON has not; `refuse_wrapper` raises `SchemaError` if one, an
OpenAPI document or the like is passed as a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsm.errors import SchemaError, shorten
from fsm.schema.documents.closing import closed
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.place import JSON_TYPES, Schema, expected

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to write a tool or a response format.

    Attributes:
        name: for messages.
        kind: the value of `type` in the wrapper, which may be absent; not a type of JSON.
        path: the keys that lead to the schema.
        is_tool: whether the schema is that of arguments, which are an object; without it there are none.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    is_tool: bool = True

    @property
    def pointer(self) -> str:
        """A JSON pointer to the schema."""
        return "".join(f"/{key}" for key in self.path)

    def fits(self, value: Mapping[str, Any]) -> bool:
        """Whether a value has this form."""
        around = value.get(self.path[0]) if len(self.path) == 2 else value
        if value.get("type", self.kind) != self.kind or not isinstance(around, dict):
            return False
        is_function = self.kind == "function" and "type" in value and isinstance(around.get("name"), str)
        return self.path[-1] in around or is_function


_FORMS = (
    _Form("OpenAI's form of a tool", "function", ("function", "parameters")),
    _Form("OpenAI's form of a response format", "json_schema", ("json_schema", "schema"), is_tool=False),
    _Form("Anthropic's form of a tool", "custom", ("input_schema",)),
    _Form("MCP's form of a tool", "", ("inputSchema",)),
    _Form("OpenAI's form of a tool", "function", ("parameters",)),
    _Form("OpenAI's form of a response format", "json_schema", ("schema",), is_tool=False),
)
_BESIDE_SCHEMA = (
    "name title description strict annotations cache_control input_examples outputSchema icons _meta execution"
)
_OTHERS = "parametersJsonSchema response_format responseFormat jsonSchema toolSpec functionDeclarations tools"


def tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments, or of a response format: what `json_schema` and `generate.json` take.

    It accepts the tools of OpenAI (`{"type": "function", "function": {"parameters": ...}}`, `{"type": "function", "parameters": ...}`,
    `{"name", "parameters"}`), its response formats (`{"type": "json_schema", "json_schema": {"schema": ...}}`, `{"type":
    "json_schema", "schema": ...}`, `{"name", "schema"}`), the tools of Anthropic (`{"name", "input_schema"}`) and of MCP (`{"name",
    "inputSchema"}`). Arguments are an object, always: a schema without `type` is that of an object, and there are no arguments without a
    schema (absent or null), or with one that names no members and says nothing of others. With `strict` true, objects have no other
    members than those that they name.

    Raises:
        SchemaError: it has none of these forms, or no schema where one should be, or arguments that are no object.
    """
    form = _form_of(tool) if isinstance(tool, dict) else None
    if form is None and _has_no_schema(tool):
        return dict(_NO_ARGUMENTS)
    if form is None:
        raise SchemaError(
            f"expected one tool of OpenAI, Anthropic or MCP as a dict, or a response format; {_received(tool)}"
        )
    schema = _at(tool, form.path)
    if schema is None and form.is_tool:
        return dict(_NO_ARGUMENTS)
    if not isinstance(schema, dict):
        raise expected(f"a schema there in {form.name}", schema, form.pointer, "Correct the tool")
    schema = _of_objects(schema, form.pointer) if form.is_tool else schema
    around: Any = _at(tool, form.path[:-1])
    found: dict[str, Any] = closed(schema) if around.get("strict") is True else schema
    return found


def _has_no_schema(tool: object) -> bool:
    """Whether a value is the description of a tool without arguments, in the form of Anthropic or MCP."""
    return (
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and tool.keys() <= {*_BESIDE_SCHEMA.split()}
        and _is_bare(tool)
    )


def _of_objects(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """The schema of arguments, with the type that they have."""
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    if named is not None and "object" not in names and "any" not in names:
        raise expected("'object', as arguments are one", named, f"{pointer}/type", "Put the value into a property")
    if _names_nothing(schema):
        return {**schema, **_NO_ARGUMENTS}
    if named == "object":
        return schema
    if schema.get("$ref") is None:
        return {**schema, "type": "object"}
    below = schema.get("allOf") or []
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**rest, "type": "object", "allOf": [{"$ref": schema["$ref"]}, *below]}


def _names_nothing(schema: dict[str, Any]) -> bool:
    """Whether a schema of arguments names no members and says nothing of others: nulls and empty lists say nothing."""
    if schema.get("additionalProperties") not in (None, False):
        return False
    says = {key for key, value in schema.items() if value not in (None, [], {}) and key in KEYWORDS.enforced}
    return says <= {"type", "additionalProperties"}


def _form_of(value: Mapping[str, Any]) -> _Form | None:
    return next((form for form in _FORMS if form.fits(value)), None) if _is_bare(value) else None


def _is_bare(value: Mapping[str, Any]) -> bool:
    """True if a value, as a schema, has no keyword that rejects anything, or its `type` is not a type of JSON."""
    named = value.get("type")
    is_ours = isinstance(named, str) and named not in (*JSON_TYPES, "any")
    return is_ours or KEYWORDS.enforced.isdisjoint(value)


def _received(tool: object) -> str:
    if isinstance(tool, list | tuple):
        return "received a list. Give one of them, or `{'anyOf': [fsm.tool_schema(tool) for tool in tools]}` to `json_schema`"
    if not isinstance(tool, dict):
        dump = " Give `tool.model_dump()`" if hasattr(tool, "model_dump") else " Give the dict that the service is sent"
        return f"received {shorten(tool)}.{dump}"
    if not _is_bare(tool):
        return f"received what is a schema itself, with the keys {_keys(tool)}. Give it to `json_schema` as it is"
    return (
        f"received the keys {_keys(tool)}. The schema is looked for under `parameters`, `input_schema`, `inputSchema` and `schema`: give "
        "the schema itself to `json_schema` where it is elsewhere; a tool that the service runs has none"
    )


def _keys(value: Mapping[str, Any]) -> str:
    return ", ".join(shorten(key) for key in list(value)[:8]) or "(none)"


def refuse_wrapper(schema: Schema) -> None:
    """Refuse a schema that rejects nothing and looks like a wrapper around a schema.

    Raises:
        SchemaError: it does; the message shows the correct call.
    """
    if not isinstance(schema, dict) or not _is_bare(schema):
        return
    form = _form_of(schema)
    inner = {} if form is None else _at(schema, form.path)
    is_schema = isinstance(inner, dict) and not KEYWORDS.enforced.isdisjoint(inner)
    if form is not None and ("type" in schema or "name" in schema or is_schema):
        raise SchemaError(
            f"nothing in this schema rejects a value: it is {form.name}, and the schema is at {'#' + form.pointer!r}. Write "
            "`fsm.tool_schema(...)` around it, as in `fsm.json_schema(fsm.tool_schema(tool))`, or give that part alone"
        )
    if isinstance(schema.get("openapi", schema.get("swagger")), str):
        at = "#/definitions/NAME" if "swagger" in schema else "#/components/schemas/NAME"
        raise SchemaError(
            "nothing in this schema rejects a value: it is a document of OpenAPI, which contains many schemas. Choose one: "
            f"`fsm.json_schema({{**document, '$ref': '{at}'}})`"
        )
    for key in _OTHERS.split():
        if isinstance(schema.get(key), dict | list):
            raise SchemaError(
                f"nothing in this schema rejects a value, and its key {key!r} looks like something around a schema. Give the schema "
                "inside: `fsm.json_schema(...)`, and `fsm.tool_schema(tool)` finds it in a tool of OpenAI, Anthropic or MCP",
                f"/{key}",
            )


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
