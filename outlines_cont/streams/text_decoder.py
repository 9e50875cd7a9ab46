"""`TextDecoder`: an incremental UTF-8 decoder as an immutable value: it returns whole characters only, keeps at most 3 bytes of an
incomplete one, and replaces invalid bytes by U+FFFD.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decodes UTF-8 that comes in chunks; `held` are the bytes, at most 3, of a character that is not complete.

    Invariant: the texts of all pushes and of `flush`, joined, are `data.decode("utf-8", errors="replace")` of all bytes, joined,
    however they were cut.
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
        """Return the text of the incomplete bytes at the end of input: empty, or U+FFFD."""
        return self.held.decode("utf-8", errors="replace")
