"""`ToolForm`: how a model writes tool calls, as texts around a name and its arguments: the language of calls for a constraint, and their
reader. Special tokens may stand in any of the texts. Arguments are JSON, or members one by one (`ArgumentForm`), as in Qwen3-Coder's XML.
`FORMS` has those of known models, one a line.

`form_of` finds the form of a chat template by the calls that it writes. If a template writes none, it is `GENERIC`: `as_text` writes tools
and calls as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from operator import add, and_, eq, or_
from typing import Any

import fsm
from outlines_cont.chats.message import call_arguments, called_functions, joined, with_instruction
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.chats.tool import Tool
from outlines_cont.errors import ChatError, shortened
from outlines_cont.models.tokenizer.special_names import SpecialNames, special_names_of
from outlines_cont.state.row import shown_text

Call = tuple[str, Mapping[str, Any] | str]

_TAG = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])")
# What a schema of arguments may say where they are written one by one: the members, and what restricts no text.
_SIMPLE = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_NOTES = {"title", "description", "$schema", "$comment", "default", "examples", "deprecated"}
_IN_NUMBERS = ("", *"0123456789.eE+-")
_CONSTANTS = {"True": True, "False": False, "None": None}


def marked(text: str, names: SpecialNames | None) -> fsm.Expression:
    """Return the language of a text, in which the names of special tokens are these tokens."""
    found = []
    while names is not None and (name := names.first_in(text)) is not None:
        before, _, text = text.partition(name)
        found += [fsm.choice([before]), fsm.special(name)] if before else [fsm.special(name)]
    return reduce(add, [*found, fsm.choice([text])] if text or not found else found)


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """The text of arguments that are written one by one: `before`, a key, `between`, a value, `after`; `separator`, the next.

    Only the members that the schema names are written, in their order. Values other than texts, true, false and null are JSON.

    Attributes:
        quote: the text before and after a text; None for a text as JSON writes it. If it is empty, a text ends where `after` begins.
        constants: whether true, false and null are `True`, `False` and `None`, as in Python.
    """

    before: str
    between: str
    after: str = ""
    separator: str = ""
    quote: str | None = None
    constants: bool = False

    def language(self, tool: Tool, names: SpecialNames | None) -> fsm.Expression:
        """Return the language of the arguments of a tool; raise `ChatError` for a schema that says more than this form can keep."""
        schema = tool.parameters
        odd = sorted({key for key, value in schema.items() if value is not None} - _SIMPLE - _NOTES)
        if odd:
            raise ChatError(
                f"expected arguments of {tool.name!r} whose schema names its members (`properties`, `required`), for a form that writes "
                f"them one by one, got {odd[0]!r}. Leave it out, or pass a form of JSON: `Chat(model, tool_form='hermes')`."
            )
        required, defs = (
            set(schema.get("required") or ()),
            {k: schema[k] for k in ("$defs", "definitions") if k in schema},
        )
        # The rest after each member, for a text that has members already, and for one that has none.
        later = first = fsm.choice([""])
        for key, member in reversed([*_members(schema).items()]):
            begin = marked(self.before + key + self.between, names)
            written = begin + (
                self._value(member, defs, names) if tool.text is None else self._text(tool.text, tool.name, names)
            )
            with_it, as_next = written + later, marked(self.separator, names) + written + later
            later, first = (as_next, with_it) if key in required else (as_next | later, with_it | first)
        return first

    def _value(self, schema: Any, defs: Mapping[str, Any], names: SpecialNames | None) -> fsm.Expression:
        """Return the language of a value, and `after`."""
        after = marked(self.after, names)
        if self.quote is not None and _is_text(schema):
            return self._text(_text_language(schema), "", names)
        if self.constants and isinstance(schema, Mapping) and schema.get("type") in ("boolean", "null"):
            allowed = ["None"] if schema["type"] == "null" else [*map(str, schema.get("enum", (True, False)))]
            return fsm.choice(allowed) + after
        whole = {**schema, **defs} if isinstance(schema, Mapping) else schema
        return fsm.json_schema(whole, whitespace="spaced") + after

    def _text(self, text: fsm.Expression, tool: str, names: SpecialNames | None) -> fsm.Expression:
        """Return the language of a text, as it is or in JSON, and `after`."""
        after = marked(self.after, names)
        if self.quote is None:
            return fsm.json_string(text) + after
        if not text.node.is_regular:
            raise ChatError(
                f"expected a regular expression for the input of {tool!r}, in a form that writes texts as they are and ends them with a "
                "mark, got a grammar. Pass a form of JSON: `Chat(model, tool_form='hermes')`."
            )
        if not self.quote:
            return (text + after) & fsm.until(self.after)
        quote, everything = marked(self.quote, names), fsm.regex(_EVERYTHING)
        return quote + (text & ~(everything + self.quote + everything)) + quote + after

    def read(self, text: str, at: int, tool: Tool) -> tuple[dict[str, Any], int] | None:
        """Return the arguments that begin at a character, and the index after them; None if they are cut."""
        found: dict[str, Any] = {}
        for key, value, end in self._read(text, at, tool):
            if end is None:
                return None
            found[key], at = json.loads(value), end
        return found, at

    def begun(self, text: str, at: int, tool: Tool) -> str:
        """Return the beginning of the JSON of the arguments that begin at a character, as far as the text has it, without the last brace.

        More text only adds to it.
        """
        found = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value, _ in self._read(text, at, tool))
        return "{" + ", ".join(found)

    def _read(self, text: str, at: int, tool: Tool) -> Iterator[tuple[str, str, int | None]]:
        """Yield the key of each member, its value as JSON, and the index after it: None for the last one, if it is cut."""
        left, separator, end = _members(tool.parameters), "", at
        while text.startswith(separator, end):
            at = end + len(separator)
            key = next((key for key in left if text.startswith(self.before + key + self.between, at)), None)
            if key is None:
                return
            value, stop = self._read_value(text, at + len(self.before + key + self.between), left.pop(key))
            if stop is None or not text.startswith(self.after, stop):
                yield key, value, None
                return
            end, separator = stop + len(self.after), self.separator
            yield key, value, end

    def _read_value(self, text: str, at: int, schema: Any) -> tuple[str, int | None]:
        """Return a value as JSON, and the index after it; None if it may go on, and then the beginning of the JSON."""
        if self.quote is not None and _is_text(schema):
            start, mark = at + len(self.quote), self.quote or self.after
            end = text.find(mark, start)
            if end >= 0:
                return json.dumps(text[start:end], ensure_ascii=False), end + len(self.quote)
            inside = text[start:]
            held = next((n for n in range(len(mark) - 1, 0, -1) if inside.endswith(mark[:n])), 0)
            is_open = text.startswith(self.quote, at)
            return json.dumps(inside[: len(inside) - held], ensure_ascii=False)[:-1] if is_open else "", None
        if self.constants and text[at : at + 1] in ("T", "F", "N"):
            name = next((name for name in _CONSTANTS if text.startswith(name, at)), None)
            return ("", None) if name is None else (json.dumps(_CONSTANTS[name]), at + len(name))
        try:
            _, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            return text[at:], None
        is_followed = bool(self.after) and text.startswith(self.after, end)
        may_go_on = text[at] in "-0123456789" and text[end : end + 1] in _IN_NUMBERS and not is_followed
        return text[at:end], None if may_go_on else end

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the text of arguments."""
        return self.separator.join(
            f"{self.before}{key}{self.between}{self._shown(value)}{self.after}" for key, value in arguments.items()
        )

    def _shown(self, value: Any) -> str:
        if self.quote is not None and isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        is_constant = self.constants and (value is None or isinstance(value, bool))
        return str(value) if is_constant else json.dumps(value, ensure_ascii=False)


def _members(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an object; one that is only a reference to a definition is that."""
    named = ((name, schema.get(name) or {}) for name in ("$defs", "definitions"))
    defs = {f"#/{name}/{key}": one for name, found in named for key, one in found.items()}
    members = (schema.get("properties") or {}).items()
    found = {key: defs.get(str(one.get("$ref")), one) if isinstance(one, Mapping) else one for key, one in members}
    return {key: _present(one) if isinstance(one, Mapping) else one for key, one in found.items()}


def _present(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without the keywords that are null in place of absent."""
    return {key: value for key, value in schema.items() if value is not None or key in ("const", "default")}


def _is_text(schema: Any) -> bool:
    """Return whether all values of a schema are texts."""
    if not isinstance(schema, Mapping):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return schema.get("type") == "string" or (bool(values) and all(isinstance(value, str) for value in values))


_EVERYTHING = r"[\s\S]*"


def _text_language(schema: Mapping[str, Any]) -> fsm.Expression:
    """Return the texts of a schema as they are.

    Raises:
        ChatError: a keyword, such as `format`, is one of JSON strings alone.
    """
    lengths = rf"[\s\S]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
    found = [fsm.regex(lengths)]
    for key, value in schema.items():
        if key in ("const", "enum"):
            found.append(fsm.choice([value] if key == "const" else value))
        elif key not in ("type", "minLength", "maxLength", *_NOTES):
            raise ChatError(
                f"expected texts with `enum`, `const` or bounds of their length, for a form that writes them as they are, got {key!r}. "
                "Leave it out, or pass a form of JSON: `Chat(model, tool_form='hermes')`."
            )
    return reduce(and_, found)


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The text of a reply that calls tools: `before`, a call, `separator`, a call ..., `after`; a call is a name, `between`, arguments.

    Special tokens are written by their names, in any of the texts.

    Attributes:
        before: the text before the first name, such as `<tool_call>\\n{"name": "`.
        between: the text between a name and the arguments, such as `", "arguments": `.
        after: the text after the last arguments.
        separator: the text between the arguments of one call and the name of the next; None if a reply has only one call.
        is_generic: the template ignores tools, so they are described in the system message, and calls are plain text.
        arguments: how arguments are written; None for JSON.
        also: a form that the model may write in place of this one, which is that of its template.
    """

    before: str
    between: str
    after: str
    separator: str | None = None
    is_generic: bool = False
    arguments: ArgumentForm | None = None
    also: ToolForm | None = None

    @property
    def spellings(self) -> tuple[ToolForm, ...]:
        """This form, and that in place of it."""
        return (self,) if self.also is None else (self, *self.also.spellings)

    def spelling(self, text: str) -> ToolForm:
        """Return the form in which a text begins; this one, if it begins in none."""
        return next((one for one in self.spellings if text.startswith(one.before)), self)

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

    @property
    def texts(self) -> tuple[str, ...]:
        """All fixed texts."""
        own = self.arguments
        inside = () if own is None else (own.before, own.between, own.after, own.separator, own.quote or "")
        return (self.before, self.between, self.after, self.separator or "", *inside)

    def expression(
        self, tools: Sequence[Tool], marker: str, names: SpecialNames | None = None, max_calls: int | None = None
    ) -> fsm.Expression:
        """Return the language of at most `max_calls` calls behind `marker`; `names` are those of the special tokens of the model."""
        found = [one._expression(tools, marker, names, max_calls) for one in self.spellings]
        return reduce(or_, found)

    def _expression(
        self, tools: Sequence[Tool], marker: str, names: SpecialNames | None, max_calls: int | None
    ) -> fsm.Expression:
        call = reduce(or_, [marked(tool.name + self.between, names) + self._language(tool, names) for tool in tools])
        whole = call
        if self.separator is not None and max_calls != 1:
            whole = call + (marked(self.separator, names) + call).repeat(
                0, None if max_calls is None else max_calls - 1
            )
        rest = self.before[len(marker) :]
        whole = marked(rest, names) + whole if rest else whole
        return whole + marked(self.after, names) if self.after else whole

    def _language(self, tool: Tool, names: SpecialNames | None) -> fsm.Expression:
        return tool.expression if self.arguments is None else self.arguments.language(tool, names)

    def calls(self, text: str, tools: Iterable[Tool] = ()) -> list[tuple[str, dict[str, Any]]]:
        """Return names and arguments of the calls in a text that begins with `before`; of a cut text those of complete calls.

        Arguments that are not JSON are read by the schemas of `tools`.
        """
        form = self.spelling(text)
        return form._calls(text, {tool.name: tool for tool in tools})

    def _calls(self, text: str, known: Mapping[str, Tool]) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        at = len(self.before)
        while True:
            end = text.find(self.between, at)
            if end < 0:
                return found
            read = self.read(text, end + len(self.between), known.get(text[at:end]))
            if read is None:
                return found
            arguments, stop = read
            found.append((text[at:end], arguments))
            if self.separator is None or not text.startswith(self.separator, stop):
                return found
            at = stop + len(self.separator)

    def read(self, text: str, at: int, tool: Tool | None) -> tuple[dict[str, Any], int] | None:
        """Return the arguments that begin at a character, and the index after them; None if they are cut, or of no tool."""
        if self.arguments is not None:
            read = None if tool is None else self.arguments.read(text, at, tool)
            # Nothing says that the last member has come but what follows the arguments.
            ends = (self.after, self.separator or self.after)
            return read if read is not None and any(end and text.startswith(end, read[1]) for end in ends) else None
        try:
            return json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            return None

    def written(self, calls: Sequence[Call]) -> str:
        """Return the text of calls; arguments that are a text, as of a call that was cut, are written as they are."""
        parts = [name + self.between + self._written(given) for name, given in calls]
        return self.before + (self.separator or "").join(parts) + self.after

    def _written(self, arguments: Mapping[str, Any] | str) -> str:
        if isinstance(arguments, str):
            return arguments
        own = self.arguments
        return json.dumps(arguments, ensure_ascii=False) if own is None else own.written(arguments)


_XML = ArgumentForm("<parameter=", ">\n", "\n</parameter>\n", quote="")
_PYTHON = ArgumentForm("", "=", separator=", ", constants=True)
_ESCAPED = ArgumentForm("", ":", separator=",", quote="<escape>")

HERMES = ToolForm(
    '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", '}\n</tool_call>\n<tool_call>\n{"name": "'
)
LLAMA3 = ToolForm('{"name": "', '", "parameters": ', "}")
MISTRAL = ToolForm('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]", '}, {"name": "')
GENERIC = replace(HERMES, is_generic=True)
_IN_CHANNEL = ToolForm("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "")
FORMS = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral-args": ToolForm("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]"),
    "qwen3-coder": ToolForm(
        "<tool_call>\n<function=",
        ">\n",
        "</function>\n</tool_call>",
        "</function>\n</tool_call>\n<tool_call>\n<function=",
        arguments=_XML,
    ),
    "pythonic": ToolForm("[", "(", ")]", "), ", arguments=_PYTHON),
    "gemma": ToolForm(
        "<start_function_call>call:",
        "{",
        "}<end_function_call>",
        "}<end_function_call><start_function_call>call:",
        arguments=_ESCAPED,
    ),
    "harmony": ToolForm(" to=functions.", "<|channel|>commentary json<|message|>", "", also=_IN_CHANNEL),
    "generic": GENERIC,
}
"""How models write calls, by name: Hermes and Qwen; Llama 3; Mistral up to 2024, and later; Qwen3-Coder; calls of Python, as Llama 3.2,
Llama 4 and others write them; Gemma for functions; gpt-oss; and any model whose template knows no tools.
"""

_NAMES, _KEYS, _IDS = ("firstname", "othername"), ("firstkey", "otherkey"), ("firstcall", "othercall")


def form_of(template: ChatTemplate) -> ToolForm:
    """Return the form in which a template writes calls, `GENERIC` if it ignores them; raise `ChatError` if it is not supported."""
    one, two = _written(template, 1), _written(template, 2)
    if one is None or _NAMES[0] not in one:
        return GENERIC
    calls: list[Call] = [(name, {key: "value"}) for name, key in zip(_NAMES, _KEYS, strict=True)]
    for form in FORMS.values():
        if not form.is_generic and one.startswith(form.written(calls[:1])):
            both = form.separator is not None and two is not None and two.startswith(form.written(calls))
            return form if both else replace(form, separator=None)
    return _of_json(one, two, special_names_of(template.model.tokenizer))


def _of_json(one: str, two: str | None, names: SpecialNames) -> ToolForm:
    """Return the form of one call, and of two, whose arguments are JSON."""
    arguments = [json.dumps({key: "value"}) for key in _KEYS]
    before, _, rest = one.partition(_NAMES[0])
    between, found, after = rest.partition(arguments[0])
    if not found:
        raise _unsupported(one)
    separator = None
    if two is not None and _NAMES[1] in two:
        separator = _without_id(two.partition(arguments[0])[2].partition(_NAMES[1])[0])
    form = ToolForm(before, between, _without_id(after), separator)
    if any(one_id in text for text in form.texts for one_id in _IDS):
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
    return reply[: min(at for at in found if at >= 0)] if max(found, default=-1) >= 0 else reply


def _without_id(text: str) -> str:
    return re.sub(rf',\s*"id":\s*"(?:{"|".join(_IDS)})"', "", text)


def _unsupported(written: str) -> ChatError:
    return ChatError(
        f"expected a chat template that writes calls of tools in a known form, got one that writes {shortened(repr(written), 200)}. Pass "
        f"one: `Chat(model, tool_form=ToolForm(...))`, or one of {', '.join(map(repr, FORMS))}."
    )


def as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, has_system: bool = True
) -> list[Mapping[str, Any]]:
    """Return messages for a template that ignores tools: calls and results are text, and the message of the system describes the tools.

    `has_system`: whether the template writes such a message; else the first message of the user describes them.
    """
    out: list[Mapping[str, Any]] = []
    last = ""
    for message in messages:
        if message.get("tool_calls"):
            calls: list[Call] = [(called["name"], call_arguments(called)) for called in called_functions(message)]
            content = message.get("content") or ""
            gap = "\n" if content else ""
            out.append({"role": "assistant", "content": content + gap + GENERIC.written(calls)})
        elif message["role"] == "tool":
            answer = joined("<tool_response>\n", message["content"] or "", "\n</tool_response>")
            if last == "tool":
                out[-1] = {"role": "user", "content": joined(out[-1]["content"], "\n", answer)}
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
    return with_instruction(out, preamble, has_system=has_system)
