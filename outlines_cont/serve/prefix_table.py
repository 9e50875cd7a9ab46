"""`PrefixTable`: which of several owners has seen the longest prefix of a text, in whole blocks of characters, within a bounded memory.

`prefix_text`: what a request tells the model, as a text whose prefixes are those of the prompt.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator
from hashlib import blake2b

_TELLS = ("tools", "instructions", "system", "messages", "input", "prompt", "ids")
"""The fields of requests that become the prompt, in the order in which chat templates write them."""


class PrefixTable:
    """Remembers who has had which texts.

    A block is identified by a digest of the text up to its end, so that equal blocks after different texts differ. Of a block that several
    owners have had the last is known. Cost: one digest per block; `max_blocks` are remembered, the ones used last.
    """

    def __init__(self, block: int = 64, max_blocks: int = 65_536) -> None:
        self._block, self._max = block, max_blocks
        self._owners: OrderedDict[bytes, str] = OrderedDict()

    def owner(self, text: str, among: Collection[str]) -> str | None:
        """Return which of some owners has had the longest prefix; None if none of them had the first block."""
        found = None
        for digest in self._digests(text):
            owner = self._owners.get(digest)
            if owner is None:
                break
            if owner in among:
                found = owner
        return found

    def add(self, text: str, owner: str) -> None:
        """Remember that an owner has had a text."""
        for digest in reversed([*self._digests(text)]):  # the first blocks are forgotten last
            self._owners[digest] = owner
            self._owners.move_to_end(digest)
        while len(self._owners) > self._max:
            self._owners.popitem(last=False)

    def _digests(self, text: str) -> Iterator[bytes]:
        digest = blake2b(digest_size=16)
        for start in range(0, len(text) - self._block + 1, self._block):
            digest.update(text[start : start + self._block].encode(errors="surrogatepass"))
            yield digest.digest()


def prefix_text(body: bytes) -> str:
    """Return the text of a request; an empty one if its body is not a JSON object."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    told = [given[name] for name in _TELLS if given.get(name)] if isinstance(given, dict) else []
    return json.dumps(told, ensure_ascii=False)
