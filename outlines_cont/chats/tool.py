"""`Tool`: a tool that a model may call: a Python function, a pydantic model or a JSON description (OpenAI, Anthropic, MCP), with the JSON
Schema and the language of its arguments (one space after `:` and `,`), described by its docstring; or one with a text of a language as its
only argument, `input` (a custom tool of OpenAI). `ToolCall`: a call that a model has written, which runs only by `ToolCall.run`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from pydantic import BaseModel

import fsm
from fsm.schema.documents.closing import closed
from fsm.schema.model import arguments_of
from outlines_cont.errors import OptionError, shortened
from outlines_cont.events.partial_type import PartialType

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_LIMITS = fsm.Limits()
_ARGUMENT = re.compile(r"^\s*(\w+)(?: ?\([^)]*\))?:\s*(.+)$")


@dataclass(frozen=True, slots=True, eq=False)
class ToolCall:
    """A call that a model has written; it was not run.

    Attributes:
        name: the name of the tool.
        arguments: the values by name; of a Python function with the types of its hints, else as `json.loads` returns them.
        id: identifies the call in the conversation.
        function: the Python function, or the constructor of the pydantic model; None if the tool was given as a dict.
        unread: the text of arguments that do not fit the tool, such as those of a call that was cut, in a message that was given; `run`
            refuses it.
    """

    name: str
    arguments: dict[str, Any]
    id: str
    function: Callable[..., Any] | None = field(default=None, repr=False)
    unread: str = ""

    def run(self) -> Any:
        """Call the function and return its result; for a pydantic model return the object.

        Raises:
            OptionError: the tool was given as a dict, or its arguments are incomplete.
            Exception: an error of the function.
        """
        if self.unread:
            raise OptionError(
                f"expected complete arguments of {self.name!r}, to call it, got {shortened(repr(self.unread), 200)}",
                "arguments",
            )
        if self.function is None:
            raise OptionError(
                f"expected a tool that is a Python function, to call it, got {self.name!r}, which is only a description. Pass the "
                "function: `Chat(model, tools=[...])`, or for a saved conversation `Chat.load(path, model, tools=[...])`.",
                "tools",
            )
        return self.function(**self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool that a model may call.

    Attributes:
        name: the name of the tool.
        description: what it does, for the model.
        parameters: the JSON Schema of its arguments, for the model.
        expression: the language of its arguments as JSON.
        function: the Python function, or the constructor of a pydantic model, if there is one.
        model: the pydantic model of its arguments, if there is one.
        text: the language of `input`, its only argument, a text; None for other arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    expression: fsm.Expression
    function: Callable[..., Any] | None = None
    model: type[BaseModel] | None = None
    text: fsm.Expression | None = None

    @classmethod
    def of_text(
        cls,
        name: str,
        description: str,
        text: fsm.Expression,
        shown: str = "",
        *,
        function: Callable[..., Any] | None = None,
    ) -> Tool:
        """Return a tool that takes a text of a language, such as a program, as its one argument `input`.

        Args:
            name: of the tool.
            description: what it does, for the model.
            text: the language.
            shown: what the model is told of the language.
            function: takes `input`.
        """
        described = {"type": "string", **({"description": shown} if shown else {})}
        schema = {
            "type": "object",
            "properties": {"input": described},
            "required": ["input"],
            "additionalProperties": False,
        }
        written = '{"input": ' + fsm.json_string(text) + "}"
        return cls(name, description, schema, written, function, text=text)

    @classmethod
    def of(cls, tool: object, limits: fsm.Limits = _LIMITS) -> Tool:
        """Return a tool for a function with type hints, a pydantic model, or a tool of OpenAI, Anthropic or MCP as a dict.

        Arguments have no other members than those that the schema names, unless it says that they may: `"additionalProperties": true`.
        A custom tool of OpenAI takes a text, which may have a grammar: of Lark, or a regular expression. `limits` bound compiling the
        schema or the grammar of a dict.

        Raises:
            OptionError: it is something else.
            fsm.SchemaError: its arguments cannot be described.
        """
        if isinstance(tool, Tool):
            return tool
        if isinstance(tool, FunctionType):
            return cls._of_model(tool.__name__, inspect.getdoc(tool) or "", arguments_of(tool), tool)
        if isinstance(tool, type) and issubclass(tool, BaseModel):
            # `ToolCall` has validated arguments.
            return cls._of_model(tool.__name__, inspect.getdoc(tool) or "", tool, tool.model_construct)
        if isinstance(tool, Mapping):
            is_custom = tool.get("type") == "custom" and "input_schema" not in tool
            described = tool.get("custom" if is_custom else "function", tool)
            if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
                raise OptionError(f"expected a tool with a name, got {tool!r}", "tools")
            if is_custom:
                name, description = described["name"], str(described.get("description") or "")
                return cls.of_text(name, description, *_custom_language(described.get("format"), limits))
            schema = fsm.tool_schema(dict(tool))
            # Programs call functions with what is written, and know no other arguments.
            arguments = _language(closed(schema), limits)
            return cls(described["name"], str(described.get("description") or ""), schema, arguments)
        raise OptionError(
            "expected a tool that is a function with type hints, a pydantic model, or the description of a tool as a dict, got "
            f"{tool!r}",
            "tools",
        )

    @classmethod
    def _of_model(cls, name: str, doc: str, model: type[BaseModel], function: Callable[..., Any] | None) -> Tool:
        schema = model.model_json_schema()
        described = _argument_docs(doc)
        properties = {
            key: {
                **({"description": described[key]} if key in described else {}),
                **{name: value for name, value in part.items() if name != "title"},
            }
            for key, part in schema.get("properties", {}).items()
        }
        kept: dict[str, Any] = {key: schema[key] for key in ("$defs", "required") if key in schema}
        parameters = {"type": "object", "properties": properties, **kept}
        return cls(name, doc.split("\n\n")[0].replace("\n", " "), parameters, _language(model), function, model)

    @property
    def partial_type(self) -> PartialType:
        """The type of its arguments as a dict, for the partial values of a stream."""
        if self.model is None:
            return PartialType.of(Any)
        return PartialType.of(self.model, lambda value: dict(iter(value)))

    @property
    def message(self) -> dict[str, Any]:
        """The tool as templates read it."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments from JSON with the types of the tool."""
        if self.model is None:
            return dict(arguments)
        return dict(iter(self.model.model_validate(dict(arguments))))


def _custom_language(form: Any, limits: fsm.Limits) -> tuple[fsm.Expression, str]:
    """Return the language of the input of a custom tool, and what the model is told of it."""
    if form is None or form == {"type": "text"}:
        return fsm.regex(r"[\s\S]*"), ""
    given = form.get("grammar", form) if isinstance(form, Mapping) else {}
    syntax, definition = given.get("syntax"), given.get("definition")
    makers: dict[Any, Callable[[str], fsm.Expression]] = {
        "lark": partial(fsm.grammar, limits=limits),
        "regex": fsm.regex,
    }
    if syntax not in makers or not isinstance(definition, str):
        raise OptionError(
            "expected {'type': 'text'} or {'type': 'grammar', 'syntax': 'lark' or 'regex', 'definition': ...} as the format of a "
            f"custom tool, got {form!r}",
            "tools",
        )
    return makers[syntax](
        definition
    ), f"A text of this {'grammar of Lark' if syntax == 'lark' else 'regular expression'}:\n{definition}"


def _language(schema: Any, limits: fsm.Limits = _LIMITS) -> fsm.Expression:
    """Return the arguments of a tool as templates write JSON: one space after each `:` and `,`."""
    return fsm.json_schema(schema, whitespace="spaced", limits=limits)


def _argument_docs(doc: str) -> dict[str, str]:
    parts = _SECTION.split(doc, maxsplit=1)
    found: dict[str, str] = {}
    for line in (parts[-1] if len(parts) > 1 else "").splitlines():
        if match := _ARGUMENT.match(line):
            found[match[1]] = match[2].strip()
        elif line and not line.startswith(" "):
            break
    return found
