"""`Tool`: a Python function, a pydantic model or a JSON description (OpenAI, Anthropic, MCP) that a chat model may call, with the JSON
Schema and the language of its arguments (one space after `:` and `,`), described by its docstring; `ToolCall`: a call that a model has
written, which runs only by `ToolCall.run`.

`ToolForm`: the text format of a model's tool calls; it makes their language and parses them. `form_of` infers it: it renders the chat
template with known calls, and splits the result at their names and arguments. Supported are formats of a name and JSON (Hermes, Qwen, Llama
3, Mistral); any other raises `ChatError`. If a template renders no calls it is `GENERIC`: `as_text` writes tools and calls as text.

Not supported: special tokens between a name and its arguments, and arguments that are not JSON.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile
from operator import eq, or_
from types import FunctionType
from typing import Any

from pydantic import BaseModel

import fsm
from fsm.schema.model import arguments_of
from outlines_cont.chats.message import call_arguments, called_functions
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.errors import ChatError, OptionError, shortened
from outlines_cont.events.partial_type import PartialType
from outlines_cont.models.tokenizer.special_names import special_names_of
from outlines_cont.state.row import shown_text

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^\s*(\w+)(?: ?\([^)]*\))?:\s*(.+)$")


@dataclass(frozen=True, slots=True, eq=False)
class ToolCall:
    """A call that a model has written; it was not run.

    Attributes:
        name: the name of the tool.
        arguments: the values by name; of a Python function with the types of its hints, else as `json.loads` returns them.
        id: identifies the call in the conversation.
        function: the Python function, or the constructor of the pydantic model; None if the tool was given as a dict.
    """

    name: str
    arguments: dict[str, Any]
    id: str
    function: Callable[..., Any] | None = field(default=None, repr=False)

    def run(self) -> Any:
        """Call the function and return its result; for a pydantic model return the object.

        Raises:
            OptionError: the tool was given as a dict.
            Exception: an error of the function.
        """
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
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    expression: fsm.Expression
    function: Callable[..., Any] | None = None
    model: type[BaseModel] | None = None

    @classmethod
    def of(cls, tool: object) -> Tool:
        """Return a tool for a function with type hints, a pydantic model, or a tool of OpenAI, Anthropic or MCP as a dict.

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
            schema = fsm.tool_schema(dict(tool))
            described = tool.get("function", tool)
            if not isinstance(described.get("name"), str):
                raise OptionError(f"expected a tool with a name, got {tool!r}", "tools")
            return cls(described["name"], str(described.get("description") or ""), schema, _language(schema))
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


def _language(schema: Any) -> fsm.Expression:
    """Return the arguments of a tool as templates write JSON: one space after each `:` and `,`."""
    return fsm.json_schema(schema, whitespace="spaced")


def call_id(number: int) -> str:
    """Return the id of a call by its number in the conversation: nine letters and digits, which Mistral's templates require."""
    return f"call{number:05d}"


def _argument_docs(doc: str) -> dict[str, str]:
    parts = _SECTION.split(doc, maxsplit=1)
    found: dict[str, str] = {}
    for line in (parts[-1] if len(parts) > 1 else "").splitlines():
        if match := _ARGUMENT.match(line):
            found[match[1]] = match[2].strip()
        elif line and not line.startswith(" "):
            break
    return found


_TAG = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])")
_NAMES, _KEYS, _IDS = ("firstname", "othername"), ("firstkey", "otherkey"), ("firstcall", "othercall")


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The text of a reply that calls tools: `before`, a call, `separator`, a call ..., `after`; a call is a name, `between`, JSON.

    Attributes:
        before: the text before the first name, such as `<tool_call>\\n{"name": "`.
        between: the text between a name and the arguments, such as `", "arguments": `.
        after: the text after the last arguments.
        separator: the text between the arguments of one call and the name of the next; None if a reply has only one call.
        is_generic: the template ignores tools, so they are described in the system message, and calls are plain text.
    """

    before: str
    between: str
    after: str
    separator: str | None = None
    is_generic: bool = False

    def marker(self, special: str | None) -> str:
        """Return the text by which a call is recognised: the special token or the tag in brackets that begins it, else `before`.

        `special` is the first special token in `before`, if there is one.
        """
        if special is not None and self.before.startswith(special):
            return special
        tag = _TAG.match(self.before)
        return tag[0] if tag else self.before

    @property
    def is_whole_reply(self) -> bool:
        """Whether calls have no marker of their own, so that a call is recognised only at the beginning of a reply."""
        return _TAG.match(self.before) is None

    def expression(self, tools: Sequence[Tool], marker: str) -> fsm.Expression:
        """Return the language of the texts that may follow `marker`."""
        call = reduce(or_, [fsm.choice([tool.name + self.between]) + tool.expression for tool in tools])
        whole = call if self.separator is None else call + (self.separator + call).repeat()
        rest = self.before[len(marker) :]
        whole = rest + whole if rest else whole
        return whole + self.after if self.after else whole

    def calls(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Return names and arguments of the calls in a text that begins with `before`; of a cut text those of complete calls."""
        found: list[tuple[str, dict[str, Any]]] = []
        at = len(self.before)
        while True:
            end = text.find(self.between, at)
            if end < 0:
                return found
            try:
                arguments, stop = json.JSONDecoder().raw_decode(text, end + len(self.between))
            except ValueError:
                return found
            found.append((text[at:end], arguments))
            if self.separator is None or not text.startswith(self.separator, stop):
                return found
            at = stop + len(self.separator)

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the text of calls."""
        parts = [name + self.between + json.dumps(arguments, ensure_ascii=False) for name, arguments in calls]
        return self.before + (self.separator or "").join(parts) + self.after


HERMES = ToolForm(
    '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", '}\n</tool_call>\n<tool_call>\n{"name": "'
)
LLAMA3 = ToolForm('{"name": "', '", "parameters": ', "}")
MISTRAL = ToolForm('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]", '}, {"name": "')
GENERIC = replace(HERMES, is_generic=True)
FORMS = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "generic": GENERIC}


def form_of(template: ChatTemplate) -> ToolForm:
    """Return the form in which a template writes calls, `GENERIC` if it ignores them; raise `ChatError` if it is not supported."""
    one, two = _written(template, 1), _written(template, 2)
    if one is None or _NAMES[0] not in one:
        return GENERIC
    arguments = [json.dumps({key: "value"}) for key in _KEYS]
    before, _, rest = one.partition(_NAMES[0])
    between, found, after = rest.partition(arguments[0])
    if not found:
        raise _unsupported(one)
    separator = None
    if two is not None and _NAMES[1] in two:
        separator = _without_id(two.partition(arguments[0])[2].partition(_NAMES[1])[0])
    form = ToolForm(before, between, _without_id(after), separator)
    names = special_names_of(template.model.tokenizer)
    inside = form.before[len(names.first_in(form.before) or "") :]
    for part in (inside, form.between, form.after, form.separator or ""):
        if names.first_in(part) or _IDS[0] in part or _IDS[1] in part:
            raise _unsupported(one)
    return form


def _written(template: ChatTemplate, count: int) -> str | None:
    """Return the text of a reply with `count` calls as a template writes it; None if it raises."""
    tokenizer = template.model.tokenizer
    asked: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    calls = [
        {"type": "function", "id": _IDS[i], "function": {"name": _NAMES[i], "arguments": {_KEYS[i]: "value"}}}
        for i in range(count)
    ]
    results = [{"role": "tool", "content": "1", "name": _NAMES[i], "tool_call_id": _IDS[i]} for i in range(count)]
    described = {"name": "x", "description": "x", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": described}]
    try:
        opened = shown_text(template.token_ids(asked, tools, is_open=True), tokenizer)
        replied = [*asked, {"role": "assistant", "content": "", "tool_calls": calls}]
        whole = shown_text(template.token_ids([*replied, *results], tools), tokenizer)
    except ChatError:
        return None
    reply = whole[sum(takewhile(bool, map(eq, opened, whole))) :]
    ends = {*template.end_token_ids, tokenizer.eos_token_id}
    found = [reply.find(name) for i, name in tokenizer.special_tokens.items() if i in ends]
    return reply[: min(at for at in found if at >= 0)] if max(found, default=-1) >= 0 else None


def _without_id(text: str) -> str:
    return re.sub(rf',\s*"id":\s*"(?:{"|".join(_IDS)})"', "", text)


def _unsupported(written: str) -> ChatError:
    return ChatError(
        "expected a chat template that writes calls of tools as a name and JSON, got one that writes "
        f"{shortened(repr(written), 200)}. Pass the form: `Chat(model, tool_form=ToolForm(...))`, "
        "or 'hermes', 'llama3', 'mistral' or 'generic'."
    )


def as_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return messages for a template that ignores tools: the system message describes them, calls and results are text."""
    out: list[dict[str, Any]] = []
    last = ""
    for message in messages:
        if message.get("tool_calls"):
            calls = [(called["name"], call_arguments(called)) for called in called_functions(message)]
            content = message.get("content") or ""
            gap = "\n" if content else ""
            out.append({"role": "assistant", "content": content + gap + GENERIC.written(calls)})
        elif message["role"] == "tool":
            answer = f"<tool_response>\n{message['content']}\n</tool_response>"
            if last == "tool":
                out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{answer}"}
            else:
                out.append({"role": "user", "content": answer})
        else:
            out.append(dict(message))
        last = message["role"]
    if not tools:
        return out
    described = "\n".join(json.dumps(tool.message["function"], ensure_ascii=False) for tool in tools)
    preamble = (
        f"You may call these functions:\n{described}\n\nTo call one, write its name and its arguments as JSON:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )
    if out and out[0]["role"] == "system":
        return [{"role": "system", "content": f"{out[0]['content']}\n\n{preamble}"}, *out[1:]]
    return [{"role": "system", "content": preamble}, *out]
