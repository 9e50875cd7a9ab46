"""Text out of bytes that come in pieces: whole characters only, and stop texts found as soon as they end.

Both are values: `push` returns a new one, the old one stays valid, so a sequence can fork or go back at
any time. What this leaves out: tokens (the caller joins their bytes) and the prefix space of a text.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outlines_cont.errors import OptionError


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decodes UTF-8 that comes in pieces.

    Law: the texts of all pushes and of `flush`, joined, are `data.decode("utf-8", errors="replace")` of
        all bytes, joined,
    however they were cut.

    Attributes:
        held: Bytes (at most 3) that begin a character, whose text waits for the rest of it.
    """

    held: bytes = b""

    def push(self, data: bytes) -> tuple[TextDecoder, str]:
        """Return the decoder after `data`, and the characters that are complete now.

        Bytes that can no longer become a character are U+FFFD at once. Cost: the length of `data`.
        """
        data = self.held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        return TextDecoder(data[used:]), text

    def flush(self) -> str:
        """Return the text of the held bytes if nothing follows them: empty, or one U+FFFD."""
        return self.held.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop text that was found; offsets count bytes from the first that was pushed.

    Attributes:
        start: Offset of its first byte; the text before it is what remains after the cut.
        end: Offset after its last byte.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopText:
    """Looks for stop texts in bytes that come in pieces. Make one with `StopText.of`.

    Of several stop texts the one that ends first is found; of those that end together the longest. Once
    one is found, further pushes change nothing.

    Attributes:
        position: Bytes pushed so far, those after a match left out.
        match: The stop text that was found, None while there is none.
    """

    _trie: _StopTrie = field(repr=False)
    _node: int = field(default=0, repr=False)
    position: int = 0
    match: StopMatch | None = None

    @classmethod
    def of(cls, stop_texts: Sequence[str]) -> StopText:
        """Return a matcher for `stop_texts`; without any it never finds one.

        Raises:
            OptionError: A stop text is empty, or not a string.

        Cost: the joined length of the stop texts.
        """
        if isinstance(stop_texts, str):
            stop_texts = [stop_texts]
        for text in stop_texts:
            if not isinstance(text, str) or not text:
                raise OptionError(
                    f"expected stop texts that are strings of one character or more, received {text!r}. "
                    "Leave it out, or write the text at which to stop.",
                    "stop_at",
                )
        return cls(_StopTrie([text.encode("utf-8", "surrogatepass") for text in stop_texts]))

    @property
    def safe(self) -> int:
        """The number of bytes, from the first, that no stop text can cut off any more, whatever follows."""
        return self.match.start if self.match else self.position - self._trie.depth[self._node]

    def push(self, data: bytes) -> StopText:
        """Return the matcher after `data`; look at `match` and `safe`.

        Cost: the length of `data`, plus at most that of the longest stop text.
        Source: Aho and Corasick 1975, "Efficient String Matching".
        """
        if self.match:
            return self
        trie, node = self._trie, self._node
        children, failure, longest = trie.children, trie.failure, trie.longest
        for offset, byte in enumerate(data):
            while node and byte not in children[node]:
                node = failure[node]
            node = children[node].get(byte, 0)
            if longest[node]:
                end = self.position + offset + 1
                return replace(self, _node=node, position=end, match=StopMatch(end - longest[node], end))
        return replace(self, _node=node, position=self.position + len(data))


class _StopTrie:
    """The trie of some texts with the failure links of Aho and Corasick; node 0 is the root.

    Attributes:
        children: Of each node, byte -> child.
        failure: The node of the longest proper suffix that is in the trie.
        depth: The length of the text that leads to the node.
        longest: The length of the longest of the texts that end at the node, 0 for none.
    """

    __slots__ = ("children", "depth", "failure", "longest")

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.failure = [0]
        self.depth = [0]
        self.longest = [0]
        for text in texts:
            node = 0
            for byte in text:
                node = self.children[node].get(byte) or self._add_child(node, byte)
            self.longest[node] = len(text)
        self._link()

    def _add_child(self, node: int, byte: int) -> int:
        child = self.children[node][byte] = len(self.children)
        self.children.append({})
        self.failure.append(0)
        self.depth.append(self.depth[node] + 1)
        self.longest.append(0)
        return child

    def _link(self) -> None:
        pending = deque(self.children[0].values())
        while pending:
            node = pending.popleft()
            self.longest[node] = self.longest[node] or self.longest[self.failure[node]]
            for byte, child in self.children[node].items():
                suffix = self.failure[node]
                while suffix and byte not in self.children[suffix]:
                    suffix = self.failure[suffix]
                self.failure[child] = self.children[suffix].get(byte, 0)
                pending.append(child)
