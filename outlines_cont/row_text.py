"""The text of a row and its tokens, side by side: cutting and joining rows by characters or by tokens.

A special token has no text. At the beginning of a row it belongs to position 0, elsewhere to the character that follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from outlines_cont.interfaces import Tokenizer
from outlines_cont.state_row import APPENDED, StateRow

_CONTINUATIONS = {bytes([byte]) for byte in range(0x80, 0xC0)}


class RowText:
    """The characters of a row and the tokens that spell them.

    Attributes:
        text: as `list(state)` shows it.
    """

    def __init__(self, row: StateRow, tokenizer: Tokenizer) -> None:
        """Cost: one pass over the bytes of the row."""
        self._row = row
        self._tokenizer = tokenizer
        lengths = [len(tokenizer.text_bytes([token_id])) for token_id in row.token_ids]
        data = tokenizer.text_bytes(row.token_ids)
        self.text = tokenizer.decode(row.token_ids)
        whole, ends = _characters(data)
        # A prefix space is in the first token and not in the text.
        hidden = len(whole) - len(self.text)
        self._char_ends = ends[hidden:]
        self._token_ends = [0, *accumulate(lengths)]
        self._leading = next((i for i, length in enumerate(lengths) if length), len(lengths))

    def cut(self, part: slice) -> StateRow:
        """Return the row of the characters that `part` takes, a slice as `indexing.cut` makes it.

        From the start on, tokens that lie inside are kept with their keys and values; otherwise they start without.
        The characters of a token that is cut are encoded anew.
        """
        if part.step != 1:
            return self._anew("".join([self.text[i] for i in _chosen(part)]))
        start, stop = part.start, max(part.start, part.stop)
        if start == 0:
            return self._row if stop == len(self.text) else self._head(stop)
        return self._middle(start, stop) if start < stop else self._anew("")

    def num_tokens_inside(self, stop: int) -> int:
        """Return how many tokens lie whole inside the first `stop` characters, special tokens at the beginning included."""
        return len(self._row.token_ids) if stop >= len(self.text) else max(self._tokens_before(stop), self._leading)

    def _head(self, stop: int) -> StateRow:
        """Return the row of the first `stop` characters; there are more."""
        kept = self.num_tokens_inside(stop)
        rest = self.text[self._char_at(kept) : stop]
        return extended(kept_tokens(self._row, kept), rest, self._tokenizer)

    def _middle(self, start: int, stop: int) -> StateRow:
        """Return the row of the characters from `start` on, 0 < start < stop."""
        first = next(
            (
                i
                for i in range(self._leading, len(self._token_ends))
                if self._is_border(i) and self._char_at(i) >= start
            ),
            len(self._row.token_ids),
        )
        last = self._tokens_before(stop) if stop < len(self.text) else len(self._row.token_ids)
        if _loses_space(self._row.token_ids[first:last], self._tokenizer):
            # It would be read as a prefix space, so the token is encoded anew with what is before it.
            textual = next(i for i in range(first, last) if self._token_ends[i] < self._token_ends[i + 1])
            first = next((i for i in range(textual + 1, last + 1) if self._is_border(i)), last)
        if first >= last:
            return self._anew(self.text[start:stop])
        head = encoded_start(self.text[start : self._char_at(first)], self._tokenizer)
        row = self._row
        middle = replace(
            row,
            token_ids=(*head, *row.token_ids[first:last]),
            kinds=APPENDED * len(head) + row.kinds[first:last],
            logprobs=(0.0,) * len(head) + row.logprobs[first:last],
            sampling_logprobs=(0.0,) * len(head) + row.sampling_logprobs[first:last],
            weight_start=max(min(row.weight_start, last) - first + len(head), 0),
            ends=row.ends if last == len(row.token_ids) else 0.0,
            kv=None,
            logits=None,
            piece=None,
            finish_reason="error" if row.error is not None else "",
            value=None,
            search=None,
        )
        return extended(middle, self.text[self._char_at(last) : stop], self._tokenizer)

    def _anew(self, text: str) -> StateRow:
        token_ids = encoded_start(text, self._tokenizer)
        return kept_tokens(self._row, 0).append(token_ids, reset=False)

    def _tokens_before(self, stop: int) -> int:
        """Return how many tokens spell the first `stop` characters or less, up to a border of characters."""
        end = self._char_ends[stop]
        kept = bisect_right(self._token_ends, end) - 1
        # Special tokens at the border belong to the character after it.
        while kept and self._token_ends[kept - 1] == self._token_ends[kept]:
            kept -= 1
        while kept and not self._is_border(kept):
            kept -= 1
        return kept

    def _is_border(self, token: int) -> bool:
        """Return whether a character begins where token number `token` begins."""
        end = self._token_ends[token]
        at = bisect_right(self._char_ends, end) - 1
        return at >= 0 and self._char_ends[at] == end

    def _char_at(self, token: int) -> int:
        """Return the number of characters before token number `token`, which begins at a border or before the text."""
        return max(bisect_right(self._char_ends, self._token_ends[token]) - 1, 0)


def kept_tokens(row: StateRow, count: int) -> StateRow:
    """Return the row of the first `count` tokens, with their keys and values."""
    if count == len(row.token_ids):
        return row
    return replace(
        row,
        token_ids=row.token_ids[:count],
        kinds=row.kinds[:count],
        logprobs=row.logprobs[:count],
        sampling_logprobs=row.sampling_logprobs[:count],
        weight_start=min(row.weight_start, count),
        ends=0.0,
        kv=row.kv[:count] if row.kv is not None and count else None,
        logits=None,
        piece=None,
        finish_reason="error" if row.error is not None else "",
        value=None,
        search=row.search.cut(count) if row.search is not None else None,
    )


def tokens_cut(row: StateRow, part: slice) -> StateRow:
    """Return the row of the tokens that `part` takes, a slice as `indexing.cut` makes it; from the start on with its cache."""
    if part.step == 1 and part.start == 0:
        return kept_tokens(row, max(part.stop, 0))
    chosen = _chosen(part)
    token_ids = [row.token_ids[i] for i in chosen]
    if part.step != 1:
        return kept_tokens(row, 0).append(token_ids, reset=False)
    first, last = chosen.start, max(chosen.start, chosen.stop)
    return replace(
        kept_tokens(row, 0),
        token_ids=tuple(token_ids),
        kinds=row.kinds[first:last],
        logprobs=row.logprobs[first:last],
        sampling_logprobs=row.sampling_logprobs[first:last],
        weight_start=max(min(row.weight_start, last) - first, 0),
        ends=row.ends if last == len(row.token_ids) else 0.0,
        search=None,
    )


def extended(row: StateRow, text: str, tokenizer: Tokenizer) -> StateRow:
    """Return the row with `text` after it, encoded so that the text of the row is just longer by it."""
    if not text:
        return row
    if tokenizer.text_bytes(row.token_ids):
        return row.append(tokenizer.encode_inside(text, row.token_ids), reset=False)
    return row.append(encoded_start(text, tokenizer), reset=False)


def healed(row: StateRow, text: str, tokenizer: Tokenizer) -> StateRow:
    """Return the row with `text` after it, encoded together with the row's last token where that has text.

    What the row and the new tokens have in common is kept with its keys and values.
    """
    last = tokenizer.text_bytes(row.token_ids[-1:])
    before = row.token_ids[:-1]
    try:
        joined = last.decode() + text
    except UnicodeDecodeError:  # it ends inside a character
        joined = ""
    if not text or not last or not joined:
        return extended(row, text, tokenizer)
    if tokenizer.text_bytes(before):
        token_ids = tokenizer.encode_inside(joined, before)
    else:
        token_ids = encoded_start(tokenizer.decode(row.token_ids[-1:]) + text, tokenizer)
    if token_ids[:1] == list(row.token_ids[-1:]):
        return row.append(token_ids[1:], reset=False)
    anew = kept_tokens(row, len(before)).append(token_ids, reset=False)
    if row.search is None or anew.search is None:
        return anew
    # Hypotheses that end in different tokens are healed differently; what they had stays comparable.
    lost = row.search.total(row.logprobs) - anew.search.total(anew.logprobs)
    return replace(anew, search=anew.search.counting(len(before), lost))


def joined(left: StateRow, right: StateRow, tokenizer: Tokenizer) -> StateRow:
    """Return the row of `left` and, after it, the text of `right`; the keys and values of `left` are kept, weights add."""
    if not tokenizer.text_bytes(left.token_ids) and left.token_ids == right.token_ids[: len(left.token_ids)]:
        return replace(right, ends=right.ends + left.weight, stream=left.stream, piece=None)
    skipped = _leading(right.token_ids, tokenizer)
    head: list[int] = []
    if tokenizer.text_bytes(right.token_ids)[:1] in _CONTINUATIONS:
        # Bytes that are no text by themselves would complete a character of `left`.
        head, skipped = tokenizer.encode_inside(tokenizer.decode(right.token_ids), left.token_ids), len(right.token_ids)
    elif _loses_space(right.token_ids, tokenizer):
        skipped += 1
        head = tokenizer.encode_inside(tokenizer.decode(right.token_ids[:skipped]), left.token_ids)
    longer = left.append(head, reset=False)
    return replace(
        longer,
        token_ids=longer.token_ids + right.token_ids[skipped:],
        kinds=longer.kinds + right.kinds[skipped:],
        logprobs=longer.logprobs + right.logprobs[skipped:],
        sampling_logprobs=longer.sampling_logprobs + right.sampling_logprobs[skipped:],
        weight_start=max(right.weight_start - skipped, 0) + len(longer.token_ids),
        ends=left.weight + right.ends,
        logits=longer.logits if skipped == len(right.token_ids) and not head else None,
        piece=None,
        finish_reason="error" if left.error or right.error else "",
        value=None,
        error=left.error or right.error,
        search=left.joined_score(right, len(longer.token_ids), skipped),
    )


def preceded(row: StateRow, text: str, tokenizer: Tokenizer) -> StateRow:
    """Return the row with `text` in front, special tokens at the beginning staying there; without keys and values."""
    if not text:
        return row
    leading = _leading(row.token_ids, tokenizer)
    front = kept_tokens(row, 0).append((*row.token_ids[:leading], *encoded_start(text, tokenizer)), reset=False)
    if _loses_space(row.token_ids, tokenizer):
        leading += 1
        front = front.append(
            tokenizer.encode_inside(tokenizer.decode(row.token_ids[:leading]), front.token_ids), reset=False
        )
    return front.append(row.token_ids[leading:], reset=True)


def _leading(token_ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """Return how many special tokens stand at the beginning."""
    return next((i for i, t in enumerate(token_ids) if tokenizer.text_bytes([t])), len(token_ids))


def encoded_start(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return ids that spell `text` at the beginning of a row, a leading space included and nothing read as a special token."""
    if not text:
        return []
    for token_ids in (tokenizer.encode(text), tokenizer.encode_inside(text, ())):
        if tokenizer.decode(token_ids) == text:
            return token_ids
    return tokenizer.encode_inside(" " + text, ())


def _loses_space(token_ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Return whether a text that began with these tokens would not show its leading space."""
    first = _leading(token_ids, tokenizer)
    token = token_ids[first : first + 1]
    return len(tokenizer.decode(token)) < len(tokenizer.text_bytes(token).decode(errors="replace"))


def _characters(data: bytes) -> tuple[str, list[int]]:
    """Return the text of `data`, decoded with `errors="replace"`, and where its characters begin, and its end, in bytes."""
    view = memoryview(data)
    parts: list[str] = []
    starts: list[int] = []
    at = 0
    while at < len(data):
        try:
            good, bad = str(view[at:], "utf-8"), 0
        except UnicodeDecodeError as error:
            good, bad = str(view[at : at + error.start], "utf-8"), error.end - error.start
        for character in good:
            starts.append(at)
            at += len(character.encode())
        parts.append(good)
        if bad:
            parts.append("�")
            starts.append(at)
            at += bad
    return "".join(parts), [*starts, len(data)]


def _chosen(part: slice) -> range:
    """Return the indices that a slice with start, stop and step as for `range` takes."""
    return range(part.start, part.stop, part.step)
