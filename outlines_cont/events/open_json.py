"""`OpenJSON`: an incremental JSON scanner: one pass over text that grows, with a stack of the objects and arrays that are open
(`OpenContainer`), for each the extents of its complete members, and the open string. It does not check that the text is well-formed; a
number or literal is complete only when something follows it, as `12` may become `128`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from pydantic_core import from_json

_STRING_END = re.compile(r'["\\]')
_SCALAR = re.compile(r'[^\s{}\[\]",:]+')


@dataclass(slots=True, eq=False)
class OpenContainer:
    """An object or an array (`opening` is `{` or `[`) that is incomplete.

    Attributes:
        members: the complete members: the key (None in an array), and the start and stop of the text of the value.
        key: in an object, the key of the incomplete member; None before the key is complete.
        start: where the text of the container begins.
    """

    opening: str
    members: list[tuple[str | None, int, int]] = field(default_factory=list)
    key: str | None = None
    start: int = 0

    @property
    def is_at_key(self) -> bool:
        """Whether a string that begins here is a key."""
        return self.opening == "{" and self.key is None

    def close_member(self, start: int, stop: int) -> None:
        """Record a member whose value is complete."""
        self.members.append((self.key, start, stop))
        self.key = None


class OpenJSON:
    """A scanner of JSON text that grows at its end.

    Attributes:
        text: all text so far.
        open: the open containers, the outermost first. The first is a virtual array around the whole text.
    """

    def __init__(self, text: str = "") -> None:
        self.text = ""
        self.open = [OpenContainer("[")]
        self._at = 0  # up to which the text was scanned
        self._start: int | None = None  # that of the open string or other scalar
        self._is_string = False
        self.push(text)

    def push(self, text: str) -> None:
        """Scan more text. Cost: its length."""
        self.text += text
        while self._at < len(self.text):
            if self._start is not None and self._is_string:
                self._read_string()
            else:
                self._read_mark()

    @property
    def open_string(self) -> str | None:
        """The text so far of the open string; None if no string is open, or it is a key. Cost: its length."""
        if self._start is None or not self._is_string or self.open[-1].is_at_key:
            return None
        try:
            return str(from_json(self.text[self._start :], allow_partial="trailing-strings"))
        except ValueError:  # half of a surrogate pair
            return None

    def _read_string(self) -> None:
        found = _STRING_END.search(self.text, self._at)
        if found is None:
            self._at = len(self.text)
        elif found[0] == '"':
            self._at = found.end()
            self._close_scalar(self._at)
        else:
            self._at = found.end() + 1  # after the escaped character, which may not be there yet

    def _read_mark(self) -> None:
        scalar = _SCALAR.match(self.text, self._at)
        if scalar is not None:
            self._start = self._at if self._start is None else self._start
            self._is_string, self._at = False, scalar.end()
            return
        if self._start is not None:
            self._close_scalar(self._at)
        mark = self.text[self._at]
        if mark in "{[":
            self.open.append(OpenContainer(mark, start=self._at))
        elif mark in "}]" and len(self.open) > 1:
            closed = self.open.pop()
            self.open[-1].close_member(closed.start, self._at + 1)
        elif mark == '"':
            self._start, self._is_string = self._at, True
        self._at += 1

    def _close_scalar(self, stop: int) -> None:
        start, container = self._start, self.open[-1]
        assert start is not None
        self._start = None
        if container.is_at_key:
            container.key = json.loads(self.text[start:stop])
        else:
            container.close_member(start, stop)
