"""`StopText`: incremental search for stop strings in bytes that arrive in chunks, by an Aho-Corasick automaton. The first to be complete is
found, of several at the same byte the longest, and ends the search; until then `safe` is the number of leading bytes that no stop string
can remove. With `after(prompt)` one may begin in a prompt. Immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outlines_cont.errors import OptionError
from outlines_cont.text_search.phrase_trie import PhraseTrie


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop text that was found; offsets count bytes from the first that was pushed.

    Attributes:
        start: Offset of its first byte, where the text is cut. Negative if it begins in the prompt.
        end: Offset after its last byte, 1 or more.
        text: The stop text.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class StopText:
    """The state of a search for stop texts in bytes that arrive in chunks. Make one with `StopText.of`.

    The stop text that is complete first is found; of those that the same byte completes the longest, which is the one that
    begins first. So the result depends neither on the chunks of bytes nor on the order of the stop texts, and nothing has to be
    read beyond a stop text to find it. A stop text inside of which another one ends is never found: the other one is complete
    before. Once one is found, further pushes change nothing.

    The search compares bytes: U+FFFD is found if it was written, not if it replaces invalid bytes.

    Attributes:
        position: Bytes pushed so far, without those after a match.
        match: The stop text that was found, None while there is none.
    """

    _trie: PhraseTrie[int] = field(repr=False)
    _node: int = field(default=0, repr=False)
    position: int = 0
    match: StopMatch | None = None

    @classmethod
    def of(cls, stop_texts: str | Iterable[str] | None) -> StopText:
        """Return a matcher for `stop_texts`, in any order and with duplicates; without any it never finds one.

        Raises:
            OptionError: A stop text is empty, not a string, or has a lone surrogate.

        Cost: the joined length of the stop texts.
        """
        return cls(PhraseTrie([text.encode() for text in checked_texts(stop_texts)]))

    @property
    def longest(self) -> int:
        """The bytes of the longest stop text, 0 without any."""
        return max(self._trie.length, default=0)

    @property
    def safe(self) -> int:
        """The number of leading bytes that no stop text can remove, whatever follows."""
        start = self.match.start if self.match else self.position - self._trie.depth[self._node]
        return max(start, 0)

    @property
    def held(self) -> bytes:
        """The bytes from `safe` on, which may belong to a stop text; empty once one is found."""
        if self.match:
            return b""
        depth = self._trie.depth[self._node]
        return bytes(self._trie.path(self._node, max(depth - self.position, 0), depth))

    def after(self, prompt: bytes) -> StopText:
        """Return a matcher that has pushed nothing yet, for bytes that follow `prompt`.

        A stop text may begin in the prompt; one that ends in it does not count. Cost: the longest stop text.
        """
        node = 0
        for byte in prompt[max(len(prompt) - self.longest + 1, 0) :]:
            node = self._trie.step(node, byte)
        return StopText(self._trie, node)

    def push(self, data: bytes) -> tuple[StopText, bytes]:
        """Return the matcher after `data`, and the bytes that have become safe by it.

        Law: the bytes of all pushes, joined, are the first `safe` of all bytes that were pushed.

        Cost: the length of `data`; amortised over the pushes of one sequence, a single one may take the longest stop text.
        """
        if self.match:
            return self, b""
        trie, node = self._trie, self._node
        end, match = self.position, None
        for end, byte in enumerate(data, self.position + 1):
            node = trie.step(node, byte)
            if ends := trie.ends(node):
                text = bytes(trie.phrases[ends[0]])
                match = StopMatch(end - len(text), end, text.decode())
                break
        after = StopText(trie, node, end, match)
        depth = trie.depth[self._node]
        begin = self.position - depth  # of the bytes that lead to the node of here
        start, stop = self.safe - begin, after.safe - begin
        return after, bytes(trie.path(self._node, start, min(stop, depth))) + data[: max(stop - depth, 0)]


def checked_texts(stop_texts: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return stop texts that were given as one text, several, or None, without duplicates.

    Raises:
        OptionError: A stop text is empty, not a string, or has a lone surrogate.
    """
    if stop_texts is None or isinstance(stop_texts, str):
        stop_texts = () if stop_texts is None else (stop_texts,)
    elif not isinstance(stop_texts, Iterable) or isinstance(stop_texts, bytes | bytearray):
        raise OptionError(
            f"expected a text or a list of texts as `stop_at`, got {type(stop_texts).__name__}", "stop_at"
        )
    return tuple(dict.fromkeys(map(_checked, stop_texts)))


def _checked(text: object) -> str:
    if not isinstance(text, str) or not text:
        raise OptionError(
            f"expected stop texts that are strings of one character or more, received {text!r}. "
            "Leave it out, or write the text at which to stop.",
            "stop_at",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"expected stop texts of Unicode characters, received {text!r} with a lone surrogate at position {error.start}. "
            "No text has one; leave it out.",
            "stop_at",
        ) from None
    return text
