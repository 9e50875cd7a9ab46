"""Healing as its plain, slow form: tokens are given back by hand, and a policy of a few lines spells their bytes first."""

from __future__ import annotations

from collections.abc import Sequence

from outlines_cont import Branch, Policy, RowView, TokenSet

TokenBytes = Sequence[bytes | None]


def num_open(token_bytes: TokenBytes, token_ids: Sequence[int]) -> int:
    """How many tokens hold the longest end of the text that begins a longer token: of those behind the first and the last special one."""
    ends = []
    for token_id in reversed(token_ids[1:]):
        if not token_bytes[token_id]:
            break
        ends.append(token_bytes[token_id] or b"")
    data = b"".join(reversed(ends))
    open_bytes = max(
        (size for size in range(1, len(data) + 1) if any(t and len(t) > size and t.startswith(data[-size:]) for t in token_bytes)),
        default=0,
    )
    return next(count for count in range(len(ends) + 1) if sum(map(len, ends[:count])) >= open_bytes)


def fitting(token_bytes: TokenBytes, text: bytes) -> list[int]:
    """The ids that begin `text` or go on beyond it, in a vocabulary of all bytes."""
    return [i for i, t in enumerate(token_bytes) if t and (text.startswith(t) or t.startswith(text))]


class Spell(Policy[bytes]):
    """Spell some bytes first; the state is what is left of them."""

    def __init__(self, text: bytes, token_bytes: TokenBytes) -> None:
        self.text = text
        self.token_bytes = token_bytes

    def initial(self, row: RowView) -> bytes:
        return self.text

    def branches(self, state: bytes, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.of(fitting(self.token_bytes, state)) if state else TokenSet.all)]

    def advance(self, state: bytes, token_id: int) -> bytes:
        return state[len(self.token_bytes[token_id] or b"") :]
