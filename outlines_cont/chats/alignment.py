"""`aligned`: a row with the tokens of a chat template, which keeps its own tokens and KV cache as far as both spell the same bytes (longest
common prefix, two pointers over tokens that may split the text differently); from the first difference on it has the template's tokens.
Special tokens and markup match only themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from outlines_cont.interfaces import Tokenizer
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.state.row import StateRow
from outlines_cont.state.text import kept_tokens


def aligned(row: StateRow, token_ids: Sequence[int], tokenizer: Tokenizer) -> StateRow:
    """Return the row that spells what `token_ids` spell, with as many of its own tokens at the beginning as spell the same.

    A sampled text may be spelled by other tokens than a tokenizer would choose; those are kept. From the first difference on the row has
    the tokens of `token_ids`. Where all of the row is kept and it ends inside one of them, the rest of that token is encoded as a
    continuation of the row, with the text after it. A markup token of the row is kept only for the same token, not for its letters. Bytes
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
    """Return how many of `own` are kept, the index of the next one in `wanted`, and bytes of the one before it that are not spelled yet.

    Cost: one pass over the tokens.
    """
    table, markup = tokenizer.token_bytes, tokenizer.markup_tokens
    parts = _decodable([table[token_id] for token_id in own])
    i = j = 0
    kept = at = 0  # where both have spelled the same bytes
    left = right = b""  # what one of them has spelled beyond the other
    while True:
        if not left and not right:
            while i < len(own) and parts[i] == b"":  # the rest of what is one U+FFFD
                i += 1
            kept, at = i, j
            if i == len(own) or j == len(wanted):
                return kept, at, b""
            if own[i] == wanted[j]:
                i, j = i + 1, j + 1
                continue
        if not left:
            part = parts[i] if i < len(own) and own[i] not in markup else None
            if part is None:
                is_whole = i == len(own) and _is_text(right)
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
    """Return the bytes of tokens with U+FFFD where they are not UTF-8, in the token in which what is broken begins."""
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
    """Return the byte ranges that are not UTF-8, one for each U+FFFD that they become."""
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


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return bool(data)
