"""`aligned`: a row with the text of a chat template: it keeps its own tokens and KV cache where their bytes are a common prefix of both
token sequences (two pointers, since these may split the text differently), and has the template's tokens from there on; if it ends inside
one of these, text is encoded anew up to a special or markup token. Special tokens and markup match only themselves.

`ChatFormat`: how the messages, tools and tool calls of a conversation are written: its chat template and tool form, which is inferred
from the template as soon as there are tools, if none is given. It renders messages as token ids, and parses the tool calls in a reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from pydantic import ValidationError

from outlines_cont.chats.call_ids import CallIds
from outlines_cont.chats.message import call_arguments
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.chats.tool import Tool, ToolCall
from outlines_cont.chats.tool_form import FORMS, ToolForm, as_text, form_of
from outlines_cont.checks import check, check_one_of
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.state.row import StateRow
from outlines_cont.state.text import kept_tokens


def aligned(row: StateRow, token_ids: Sequence[int], tokenizer: Tokenizer) -> StateRow:
    """Return a row with the text of `token_ids`, which keeps the own tokens of `row` for the longest common prefix.

    A sampled text may have other tokens than a tokenizer would choose; those are kept. From the first difference on the row has
    the tokens of `token_ids`. If all of the row is kept and ends inside one of them, the rest of that token is encoded as a
    continuation of the row, with the text after it. A markup token matches only the same token, not its letters. Bytes
    of the row that are not UTF-8 match U+FFFD, by which messages represent them.
    """
    table, markup = tokenizer.token_bytes, tokenizer.markup_tokens
    kept, at, rest = _common(row.token_ids, token_ids, tokenizer)
    if rest:
        end = next(
            (i for i in range(at, len(token_ids)) if table[token_ids[i]] is None or token_ids[i] in markup),
            len(token_ids),
        )
        text = rest + tokenizer.text_bytes(token_ids[at:end])
        return row.append([*encode_letters(text.decode(), tokenizer, row.token_ids), *token_ids[end:]], reset=True)
    return kept_tokens(row, kept).append(token_ids[at:], reset=True)


def _common(own: Sequence[int], wanted: Sequence[int], tokenizer: Tokenizer) -> tuple[int, int, bytes]:
    """Return the number of kept tokens of `own`, the next index in `wanted`, and the bytes of the token before it that are missing.

    Cost: one pass over the tokens.
    """
    table, markup = tokenizer.token_bytes, tokenizer.markup_tokens
    parts = _decodable([table[token_id] for token_id in own])
    i = j = 0
    kept = at = 0  # up to these both have the same bytes
    left = right = b""  # the bytes of one of them beyond the other
    while True:
        if not left and not right:
            while i < len(own) and parts[i] == b"":  # the rest of one U+FFFD
                i += 1
            kept, at = i, j
            if i == len(own) or j == len(wanted):
                return kept, at, b""
            if own[i] == wanted[j] and parts[i] == table[wanted[j]]:  # not if it is no text by itself
                i, j = i + 1, j + 1
                continue
        if not left:
            part = parts[i] if i < len(own) and own[i] not in markup else None
            if part is None:
                is_whole = i == len(own) and right and not _broken(right)
                return (i, j, right) if is_whole else (kept, at, b"")
            i, left = i + 1, part
        if not right:
            part = table[wanted[j]] if j < len(wanted) else None
            if part is None:
                return kept, at, b""
            j, right = j + 1, part
        size = min(len(left), len(right))
        if left[:size] != right[:size]:
            return kept, at, b""
        left, right = left[size:], right[size:]


def _decodable(parts: list[bytes | None]) -> list[bytes | None]:
    """Return the bytes of tokens, with U+FFFD in place of bytes that are not UTF-8, in the token with the first of these."""
    start = 0
    while start < len(parts):
        stop = next((i for i in range(start, len(parts)) if parts[i] is None), len(parts))
        tokens = [part or b"" for part in parts[start:stop]]
        data = b"".join(tokens)
        if broken := _broken(data):
            pieces = [data[at : at + 1] for at in range(len(data))]
            for first, end in broken:
                pieces[first:end] = ["\ufffd".encode(), *[b""] * (end - first - 1)]
            ends = list(accumulate(map(len, tokens), initial=0))
            parts[start:stop] = [b"".join(pieces[first:end]) for first, end in pairwise(ends)]
        start = stop + 1
    return parts


def _broken(data: bytes) -> list[tuple[int, int]]:
    """Return the byte ranges that are not UTF-8, one for each U+FFFD that replaces them."""
    found: list[tuple[int, int]] = []
    at = 0
    while True:
        try:
            data[at:].decode()
        except UnicodeDecodeError as error:
            found.append((at + error.start, at + error.end))
            at += error.end
        else:
            return found


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
            form = FORMS[check_one_of("tool_form", form, [*FORMS], "Or write a `ToolForm`.")]
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
            has_system = not self.tools or self.template.has_system
            return self.template.token_ids(as_text(messages, self.tools, has_system=has_system), is_open=is_open)
        return self.template.token_ids(messages, self.tool_messages, is_open=is_open)

    def with_calls(self, message: Mapping[str, Any], text: str, ids: CallIds) -> Mapping[str, Any]:
        """Return the message of a reply with the calls in its text, which have these ids."""
        assert self.form is not None
        at = min((at for one in self.form.spellings if (at := text.find(one.before)) >= 0), default=-1)
        calls = self.form.calls(text[at:], self.tools) if at >= 0 else []
        if not calls:
            return message
        described = [
            {"type": "function", "id": ids.of(i), "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        return {**message, "content": text[:at].rstrip(), "tool_calls": described}

    def call(self, call: Mapping[str, Any]) -> ToolCall:
        """Return a call in a message, with the values and the function of its tool."""
        name, arguments, id_ = call["function"]["name"], call_arguments(call["function"]), call.get("id") or ""
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if isinstance(arguments, str):
            return ToolCall(name, {}, id_, unread=arguments)
        if tool is None:
            return ToolCall(name, arguments, id_)
        try:
            return ToolCall(name, tool.values(arguments), id_, tool.function)
        except ValidationError:  # not written under the constraint, but given
            return ToolCall(name, arguments, id_, unread=json.dumps(arguments, ensure_ascii=False, default=str))
