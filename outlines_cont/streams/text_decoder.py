"""`TextDecoder`: an incremental UTF-8 decoder as an immutable value. It returns whole characters, buffers up to 3 bytes of an incomplete
one, and replaces invalid bytes by U+FFFD.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decodes UTF-8 in chunks; `held` are the bytes, at most 3, of an incomplete character.

    Invariant: the texts of all pushes and of `flush`, joined, are `data.decode("utf-8", errors="replace")` of all bytes, joined.
    """

    held: bytes = b""

    def push(self, data: bytes) -> tuple[TextDecoder, str]:
        """Return the decoder after `data`, and the text that is complete, with U+FFFD for invalid bytes. Cost: the length of `data`."""
        data = self.held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        return TextDecoder(data[used:]), text

    def flush(self) -> str:
        """Return the text of the incomplete bytes at the end of input: empty, or U+FFFD."""
        return self.held.decode("utf-8", errors="replace")
