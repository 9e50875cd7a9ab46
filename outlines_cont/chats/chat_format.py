"""`ChatFormat`: how the messages, tools and tool calls of a conversation are written: its chat template and tool form, which is inferred
from the template as soon as there are tools, if none is given. It renders messages as token ids, and parses the tool calls in a reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont.chats.message import call_arguments
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.chats.tool import Tool, ToolCall, call_id
from outlines_cont.chats.tool_form import FORMS, ToolForm, as_text, form_of
from outlines_cont.checks import check
from outlines_cont.interfaces import LanguageModel


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a conversation is written.

    Attributes:
        source: the Jinja template of the user; None for that of the tokenizer.
        template: the template in use; a tokenizer may have another one for conversations with tools.
        tools: the tools that may be called.
        form: how calls are written; None if it was not given and there were no tools yet.
    """

    source: str | None
    template: ChatTemplate
    form: ToolForm | None
    tools: tuple[Tool, ...] = ()

    @classmethod
    def of(
        cls, model: LanguageModel, source: str | None, form: ToolForm | str | None, options: Mapping[str, Any]
    ) -> ChatFormat:
        """Return the format without tools; the errors are those of `Chat`."""
        if form is not None and not isinstance(form, ToolForm):
            check("tool_form", form, form in FORMS, f"a `ToolForm` or one of {', '.join(map(repr, FORMS))}")
            form = FORMS[form]
        return cls(source, ChatTemplate.of(model, source, options), form)

    def with_tools(self, tools: Sequence[Any]) -> ChatFormat:
        """Return the format with these tools instead; raise `OptionError` for anything but a list of tools with different names."""
        is_list = isinstance(tools, Sequence) and not isinstance(tools, str)
        check("tools", tools, is_list, "a list of tools, such as `[function]`,")
        found = tuple(Tool.of(tool) for tool in tools)
        names = [tool.name for tool in found]
        check("tools", names, len({*names}) == len(names), "tools with different names")
        if not found:
            return replace(self, tools=())
        template = ChatTemplate.of(self.template.model, self.source, self.template.options, tools=True)
        return replace(self, template=template, form=self.form or form_of(template), tools=found)

    @property
    def tool_messages(self) -> list[dict[str, Any]]:
        """The tools as templates read them."""
        return [tool.message for tool in self.tools]

    def token_ids(self, messages: Sequence[Mapping[str, Any]], is_open: bool) -> list[int]:
        """Return the ids of messages; see `ChatTemplate.token_ids`."""
        if self.form is not None and self.form.is_generic:
            return self.template.token_ids(as_text(messages, self.tools), is_open=is_open)
        return self.template.token_ids(messages, self.tool_messages, is_open=is_open)

    def with_calls(self, message: Mapping[str, Any], text: str, first: int) -> Mapping[str, Any]:
        """Return the message of a reply with the calls in its text; the first one is call number `first` of the conversation."""
        assert self.form is not None
        at = text.find(self.form.before)
        calls = self.form.calls(text[at:]) if at >= 0 else []
        if not calls:
            return message
        described = [
            {"type": "function", "id": call_id(first + i), "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        return {**message, "content": text[:at].rstrip(), "tool_calls": described}

    def call(self, call: Mapping[str, Any]) -> ToolCall:
        """Return a call in a message, with the values and the function of its tool."""
        name, arguments, id_ = call["function"]["name"], call_arguments(call["function"]), call.get("id", "")
        tool = next((tool for tool in self.tools if tool.name == name), None)
        return ToolCall(name, tool.values(arguments), id_, tool.function) if tool else ToolCall(name, arguments, id_)
