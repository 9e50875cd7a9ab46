"""`written`, `shown_text`: the bytes that each token of a row contributes to its text (a special token its name, such as `<|im_end|>`; none
for start tokens, such as BOS, that the tokenizer has put in front, nor for an id without a name), and the text, decoded with U+FFFD for
invalid UTF-8 and without the prefix space that a tokenizer adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlines_cont.interfaces import Tokenizer


def written(token_ids: Sequence[int], tokenizer: Tokenizer, num_start_tokens: int = 0) -> list[bytes]:
    """Return what each token contributes, nothing for the first `num_start_tokens`; a prefix space stays."""
    table = tokenizer.token_bytes
    parts = [table[token_id] for token_id in token_ids]
    names = tokenizer.special_tokens if None in parts else {}
    return [
        b"" if index < num_start_tokens else names.get(token_ids[index], "").encode() if part is None else part
        for index, part in enumerate(parts)
    ]


def shown_text(token_ids: Sequence[int], tokenizer: Tokenizer, num_start_tokens: int = 0) -> str:
    """Return the text of tokens that begin a row, decoded with `errors="replace"`, without a prefix space."""
    parts = written(token_ids, tokenizer, num_start_tokens)
    text = b"".join(parts).decode("utf-8", errors="replace")
    return text[1:] if begins_with_prefix_space(token_ids, parts, tokenizer) else text


def first_written(parts: Sequence[bytes]) -> int:
    """Return the index of the first token that contributes something; the number of tokens where none does."""
    return next((index for index, part in enumerate(parts) if part), len(parts))


def begins_with_prefix_space(token_ids: Sequence[int], parts: Sequence[bytes], tokenizer: Tokenizer) -> bool:
    """Return whether a text that began with these tokens would not show its leading space; `parts` is what they contribute."""
    first = first_written(parts)
    token = token_ids[first : first + 1]
    if not token or tokenizer.token_bytes[token[0]] is None:
        return False
    return len(tokenizer.decode(token)) < len(parts[first].decode(errors="replace"))
