"""`aligned`: a row with the text of a chat template: it keeps its own tokens and KV cache where their bytes are a common prefix of both
token sequences (two pointers, since these may split the text differently), and has the template's tokens from there on; if it ends inside
one of these, text is encoded anew up to a special or markup token. Special tokens and markup match only themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from outlines_cont.interfaces import Tokenizer
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
            if own[i] == wanted[j]:
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
