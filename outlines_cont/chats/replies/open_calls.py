"""`OpenCalls`: an incremental parser of the tool calls in a reply that is being generated: a name between the fixed texts of a `ToolForm`,
then JSON until its value is complete. It reports the new text and the partial arguments of each call. It relies on the constraint of the
reply, and does not check the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from outlines_cont.chats.tool import Tool, call_id
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.events.event import OpenCall
from outlines_cont.events.partial_type import MISSING
from outlines_cont.events.partial_value import PartialValue

_UP_TO_BRACE = re.compile(r"[^}]*\}|[^}]+")


class OpenCalls:
    """Parses tool calls from text that arrives in chunks.

    `first` is the number of the first call in the conversation, for its id; `text` is that of the calls so far, from `form.before` on.
    """

    def __init__(self, form: ToolForm, tools: Sequence[Tool], first: int, text: str) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._first = first
        self._before = form.before
        self._text = text  # not parsed yet
        self._count = 0
        self._name: str | None = None
        self._has_begun = False
        self._value: PartialValue | None = None

    def push(self, text: str) -> Iterator[OpenCall]:
        """Parse more text, and yield the new part of each call. Cost: proportional to the text and the open arguments."""
        self._text += text
        while (found := self._read()) is not None:
            yield found

    def _read(self) -> OpenCall | None:
        """Return the next change; None if it needs more text."""
        if self._name is None and not self._find_name():
            return None
        assert self._name is not None
        assert self._value is not None
        read, is_begun = "", self._has_begun
        for part in _UP_TO_BRACE.findall(self._text):
            self._value.push(part)
            read += part
            if self._value.is_whole:
                break
        if not read and is_begun:
            return None
        self._has_begun = True
        self._text = self._text[len(read) :]
        value = self._value.value
        arguments = {} if value is MISSING else value
        number = self._first + self._count
        news = OpenCall(self._count, call_id(number), self._name, read, arguments, self._value.is_whole)
        if news.is_whole:
            self._name, self._before = None, self._form.separator or ""
            self._count += 1
        return news

    def _find_name(self) -> bool:
        name, between, rest = self._text[len(self._before) :].partition(self._form.between)
        if not between or not self._text.startswith(self._before) or not self._before:
            return False
        self._name, self._text, self._has_begun = name, rest, False
        self._value = PartialValue(self._tools[name].partial_type)
        return True
