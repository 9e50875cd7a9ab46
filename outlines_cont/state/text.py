"""Slices and concatenation of rows, by characters (`RowText`) or tokens: byte offsets (prefix sums, binary search) map characters to
tokens, and a token that is cut is encoded anew, as is a slice of characters with a step. Slices from the start and appended text keep the
keys and values of all tokens before the first that changes; other slices and text in front lose them. `healed` appends text encoded
together with the last token (token healing).

A special token is in the text as its name, and those that have no text (`row_bytes`) belong to position 0 at the beginning of a row,
elsewhere to the character that follows. A special token that is cut becomes ordinary characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from outlines_cont.errors import SlicingError
from outlines_cont.interfaces import Tokenizer
from outlines_cont.models.tokenizer.special_names import control_names_of, encode_letters
from outlines_cont.state.image_span import between, ceiling, floor, shown, until
from outlines_cont.state.row import (
    APPENDED,
    GENERATED,
    NOTHING_SKIPPED,
    SCORED,
    LogprobSum,
    StateRow,
    begins_with_prefix_space,
    first_written,
    written,
)
from outlines_cont.state.tokens import Given, Tokens

# Generated tokens become appended ones where the tokens before them are removed.
_GIVEN = bytes.maketrans(SCORED, APPENDED * len(SCORED))


class RowText:
    """The text of a row (`text`, as `list(state)` returns it), aligned with the tokens that spell its characters."""

    def __init__(self, row: StateRow, tokenizer: Tokenizer) -> None:
        """Cost: one pass over the bytes of the row."""
        self._row = row
        self._tokenizer = tokenizer
        parts = row.written(tokenizer)
        self._data = b"".join(parts)
        self.text = row.text(tokenizer)
        borders = _character_borders(self._data)
        # A prefix space is in the first token and not in the text.
        self._char_ends = borders[-1 - len(self.text) :]
        self._token_ends = [0, *accumulate(map(len, parts))]
        self._leading = first_written(parts)

    def cut(self, part: slice) -> StateRow:
        """Return the row of the characters in `part`, a slice that `indexing.cut` returned.

        A slice from the start keeps the keys and values of the tokens inside it; other slices have none. The characters of a token that is
        cut are encoded anew.
        """
        start, stop = part.start, max(part.start, part.stop)
        if part.step == 1 and start == 0 and stop == len(self.text):
            return self._row
        chosen = _chosen(part)
        if part.step != 1 or 0 < start == stop:
            self._check_pinned(chosen)
            row = self._anew("".join([self.text[i] for i in chosen]).encode())
        else:
            row = self._middle(start, stop) if start else self._head(stop)
        return replace(row, prompt_length=_num_below(chosen, self._row.prompt_length))

    def cropped(self, part: slice, at: tuple[int, int]) -> StateRow:
        """Return `cut(part)`, or raise `SlicingError` if keys and values of tokens inside `part` are lost; `at` is the row's index."""
        cached = self._row.cached
        held = f"the row at [{at[0]}, {at[1]}], of which {cached} tokens are cached"
        if cached and part.step != 1:
            raise SlicingError(f"expected a step of 1 for {held}, got {part.step}: the cache is one of adjacent tokens")
        if cached and part.start != 0:
            raise SlicingError(
                f"expected a slice from the beginning for {held}, got one from character {part.start}: keys and values depend on all "
                "tokens before them. Use `state[...]`, whose result has an empty cache."
            )
        kept, inside = self.cut(part), self.num_tokens_inside(part.stop)
        if kept.cached < min(cached, inside):
            raise SlicingError(
                f"expected a model whose cache can be cut, for {held}: {inside} of its tokens are inside the slice, but only "
                f"{kept.cached} could be kept"
            )
        return kept

    def num_tokens_inside(self, stop: int) -> int:
        """Return how many tokens are whole within the first `stop` characters, those without text at the beginning included."""
        if stop >= len(self.text):
            return len(self._row.token_ids)
        # A space that is hidden, but is not a prefix space, belongs to the first character.
        before = 0 if not stop and self._row.starts_inside else self._tokens_before(stop)
        return max(before, self._leading)

    def _head(self, stop: int) -> StateRow:
        """Return the row of the first `stop` characters; there are more."""
        kept = self.num_tokens_inside(stop)
        row = kept_tokens(self._row, kept)
        if kept < len(self._row.token_ids) and self._char_ends[self._char_at(kept)] < self._char_ends[stop]:
            self._row.check_pinned(kept, "the slice ends inside of a token of theirs")
        first = self._token_ends[kept] if row.starts_inside and stop else self._char_ends[self._char_at(kept)]
        rest = self._data[first : self._char_ends[stop]]
        inside = row.starts_inside or row.has_text(self._tokenizer)
        return row.append(_spelled(rest, row.token_ids, self._tokenizer, inside=inside), reset=False)

    def _middle(self, start: int, stop: int) -> StateRow:
        """Return the row of the characters from `start` on, 0 < start < stop."""
        size = len(self._row.token_ids)
        borders = (i for i in range(self._leading, size + 1) if self._is_border(i))
        first = next((i for i in borders if self._char_at(i) >= start), size)
        last = self._tokens_before(stop) if stop < len(self.text) else size
        left = self._row.token_ids[first:last]
        parts = shown(between(self._row.images, first, last), written(left, self._tokenizer))
        if begins_with_prefix_space(left, parts, self._tokenizer):
            # Its space would be taken for a prefix space, so the token is encoded anew with the text before it.
            textual = next(i for i in range(first, last) if self._token_ends[i] < self._token_ends[i + 1])
            first = next((i for i in range(textual + 1, last + 1) if self._is_border(i)), last)
        begin, end = self._char_ends[start], self._char_ends[stop]
        self._check_pinned(range(start, stop))
        if first >= last:
            return self._anew(self._data[begin:end])
        head = _spelled(self._data[begin : self._token_ends[first]], (), self._tokenizer)
        row = _replaced(tail_tokens(self._row, first, last), 0, 0, head)
        rest = self._data[self._token_ends[last] : end]
        inside = row.has_text(self._tokenizer)
        return row.append(_spelled(rest, row.token_ids, self._tokenizer, inside=inside), reset=False)

    def _check_pinned(self, chosen: range) -> None:
        """Raise `NotRecomputable` if a slice with its own beginning has characters of tokens that are pinned."""
        if chosen and self._row.pinned:
            at = bisect_right(self._token_ends, self._char_ends[min(chosen)]) - 1
            self._row.check_pinned(at, "the slice begins anew with some of them")

    def _anew(self, data: bytes) -> StateRow:
        token_ids = _spelled(data, (), self._tokenizer)
        return replace(_emptied(self._row), starts_inside=False).append(token_ids, reset=False)

    def _tokens_before(self, stop: int) -> int:
        """Return how many tokens spell the first `stop` characters or less, up to a border of characters."""
        end = self._char_ends[stop]
        kept = bisect_right(self._token_ends, end) - 1
        # Tokens without text at the border belong to the character after it.
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
    """Return the row of the first `count` tokens, with their keys and values; without the image that the cut goes through."""
    count = floor(row.images, count)
    if count == len(row.token_ids):
        return row
    return replace(
        row,
        images=until(row.images, count),
        token_ids=row.token_ids[:count],
        kinds=row.kinds[:count],
        logprobs=row.logprobs[:count],
        sampling_logprobs=row.sampling_logprobs[:count],
        counted=row.counted.cut(count),
        kv=row.kv[:count] if row.kv is not None and count else None,
        pinned=min(row.pinned, count),
        logits=None,
        piece=None,
        finish_reason="error" if row.error is not None else "",
        value=None,
        search=row.search.cut(count) if row.search is not None else None,
        surprise_start=row.surprise_start if row.surprise_start is not None and row.surprise_start < count else None,
        num_start_tokens=min(row.num_start_tokens, count),
        unscored=tuple(index for index in row.unscored if index < count),
    )


def _emptied(row: StateRow) -> StateRow:
    """Return the row without tokens, of which nothing counts."""
    return replace(kept_tokens(row, 0), counted=NOTHING_SKIPPED, search=None)


def tokens_cut(row: StateRow, part: slice, tokenizer: Tokenizer) -> StateRow:
    """Return the row of the tokens in `part`, a slice that `indexing.cut` returned; a slice from the start keeps its cache."""
    chosen = _chosen(part)
    if part.step == 1 and part.start == 0:
        return _with_prompt(kept_tokens(row, max(part.stop, 0)), row.prompt_length, tokenizer)
    if part.step == 1:
        chosen = _without_cut_images(row, chosen)
    before = kept_tokens(row, min(chosen.start, len(row.token_ids)))
    inside = row.starts_inside or before.has_text(tokenizer)
    if chosen:
        row.check_pinned(min(chosen), "the slice begins anew with some of them")
    if part.step == 1:
        tail = replace(tail_tokens(row, chosen.start, max(chosen.start, chosen.stop)), starts_inside=inside)
        return _with_prompt(tail, row.prompt_length - len(before.text(tokenizer)), tokenizer)
    chosen_ids = [i for i in chosen if not any(span.start <= i < span.stop for span in row.images)]
    picked = _emptied(row).append([row.token_ids[i] for i in chosen_ids], reset=False)
    return replace(
        picked, starts_inside=inside, num_start_tokens=_num_below(chosen, row.num_start_tokens), prompt_length=0
    )


def _without_cut_images(row: StateRow, chosen: range) -> range:
    """Return adjacent indices without those of images that are not whole among them."""
    start = ceiling(row.images, chosen.start)
    return range(start, max(floor(row.images, chosen.stop), start))


def _with_prompt(row: StateRow, length: int, tokenizer: Tokenizer) -> StateRow:
    """Return a row of whose text at most `length` characters are the prompt."""
    return replace(row, prompt_length=min(max(length, 0), len(row.text(tokenizer))))


def tail_tokens(row: StateRow, first: int, last: int) -> StateRow:
    """Return the row of the tokens from `first` up to `last`, 0 < first, as appended tokens: without keys and log-probabilities."""
    zeros = (0.0,) * (last - first)
    if first < last:
        row.check_pinned(first, "the slice begins anew with some of them")
    return replace(
        _emptied(row),
        token_ids=row.token_ids[first:last],
        images=between(row.images, first, last),
        kinds=row.kinds[first:last].translate(_GIVEN),
        logprobs=zeros,
        sampling_logprobs=zeros,
        starts_inside=False,
        num_start_tokens=min(max(row.num_start_tokens - first, 0), last - first),
    )


def _replaced(row: StateRow, first: int, last: int, token_ids: Sequence[int]) -> StateRow:
    """Return the row with others, encoded anew, in place of the tokens from `first` up to `last`; without its cache."""
    images = row.images and (
        *until(row.images, first),
        *(span.moved(len(token_ids) - (last - first)) for span in row.images if span.start >= last),
    )
    zeros = (0.0,) * len(token_ids)

    def moved(index: int) -> int:
        return index if index <= first else max(index, last) + len(token_ids) - (last - first)

    return replace(
        row,
        token_ids=row.token_ids[:first] + tuple(token_ids) + row.token_ids[last:],
        images=images,
        kinds=row.kinds[:first] + APPENDED * len(token_ids) + row.kinds[last:],
        logprobs=row.logprobs[:first] + zeros + row.logprobs[last:],
        sampling_logprobs=row.sampling_logprobs[:first] + zeros + row.sampling_logprobs[last:],
        counted=row.counted.mapped(moved),
        surprise_start=None if row.surprise_start is None else moved(row.surprise_start),
        kv=None,
        logits=None,
        search=None if row.search is None else row.search.mapped(moved),
    )


def extended(row: StateRow, given: Given, tokenizer: Tokenizer) -> StateRow:
    """Return the row with text or ids after it; text is encoded so that the row's text is followed by exactly this text."""
    if isinstance(given, tuple):
        return row.append(given, reset=False)
    text, special = split_special(given, tokenizer)
    token_ids = tokenizer.encode_special(special) if special else []
    start = list(row.token_ids)
    if row.num_start_tokens == len(start) > 0 and not text and token_ids[: len(start)] == start:
        # The text writes them once more, as chat templates do.
        row, token_ids = replace(row, num_start_tokens=0), token_ids[len(start) :]
    letters = encode_letters(text, tokenizer, start) if row.has_text(tokenizer) else encoded_start(text, tokenizer)
    return row.append([*letters, *token_ids], reset=False)


def encoded_after(token_ids: Sequence[int], given: Tokens, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text after tokens of which one has text, as `extended` appends it."""
    text, special = split_special(given, tokenizer)
    return [
        *encode_letters(text, tokenizer, token_ids),
        *(tokenizer.encode_special(special) if special else ()),
    ]


def split_special(given: str | Tokens, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the text up to the first special token, and the rest; the rest is empty if there is none, or text is a `str`."""
    text = given if isinstance(given, str) else given.text
    is_special = isinstance(given, Tokens) and given.special
    name = control_names_of(tokenizer).first_in(text) if is_special else None
    at = text.index(name) if name is not None else len(text)
    return text[:at], text[at:]


def healed(row: StateRow, given: Given, tokenizer: Tokenizer) -> StateRow:
    """Return the row with text after it, encoded together with the row's last token if both have text; ids are appended unchanged.

    What the row and the new tokens have in common keeps its keys and values.
    """
    if isinstance(given, tuple):
        return extended(row, given, tokenizer)
    text, special = split_special(given, tokenizer)
    if special:
        return extended(healed(row, text, tokenizer), Tokens(special, True), tokenizer)
    last = tokenizer.text_bytes(row.token_ids[-1:])
    before = row.token_ids[:-1]
    try:
        joined = last.decode() + text
    except UnicodeDecodeError:  # it ends inside a character
        joined = ""
    if not text or not last or not joined or (row.images and row.images[-1].stop == len(row.token_ids)):
        return extended(row, text, tokenizer)
    if kept_tokens(row, len(before)).has_text(tokenizer):
        token_ids = encode_letters(joined, tokenizer, before)
    else:
        token_ids = encoded_start(tokenizer.decode(row.token_ids[-1:]) + text, tokenizer)
    if token_ids[:1] == list(row.token_ids[-1:]):
        return row.append(token_ids[1:], reset=False)
    row.check_pinned(len(before), "the last of them would be spelled anew")
    anew = kept_tokens(row, len(before)).append(token_ids, reset=False)
    # Rows that end in different tokens are healed differently; their scores stay comparable.
    return replace(
        anew,
        counted=_with_lost(row.counted, row, anew),
        search=None if row.search is None else _with_lost(row.search, row, anew),
    )


def _with_lost(counted: LogprobSum, row: StateRow, shorter: StateRow) -> LogprobSum:
    """Return what counts of a row whose last token is respelled, as cut what that loses."""
    at = len(row.token_ids) - 1
    kept = counted.cut(at)
    lost = counted.total(row.logprobs) - kept.total(shorter.logprobs)
    count = counted.num_written(row.kinds) - kept.num_written(shorter.kinds)
    return kept.adding(cuts=((at, lost, count),)) if lost or count else kept


def joined(left: StateRow, right: StateRow, tokenizer: Tokenizer) -> StateRow:
    """Return the row of `left` followed by that of `right`, byte by byte; the keys and values of `left` are kept, weights add.

    Unless `right` was cut out of the inside of a row, its start tokens and its prefix space are left out.
    """
    is_inside = left.has_text(tokenizer)
    opening = 0 if right.starts_inside else right.num_start_tokens
    is_bare = left.num_start_tokens == len(left.token_ids) and left.token_ids in ((), right.token_ids[:opening])
    if is_bare and not right.starts_inside:
        # All positions are those of the right row.
        first = replace(left, counted=left.counted.reopened(0), search=left.search and left.search.reopened(0))
        counted, search = first.counted.joined(right.counted), first.joined_search(right, int)
        whole = replace(right, counted=counted, search=search, stream=left.stream, piece=None)
        return whole if left.error is None else replace(whole, error=left.error, finish_reason="error", value=None)
    right.check_pinned(opening, "something would stand in front of them")
    is_prompt = left.prompt_length >= len(left.text(tokenizer))
    if is_inside and not right.starts_inside:
        right = _without_prefix_space(right, left.token_ids, tokenizer)

    def moved(position: int) -> int:
        return max(position - opening, 0) + len(left.token_ids)

    return replace(
        left,
        token_ids=left.token_ids + right.token_ids[opening:],
        images=left.images + tuple(span.moved(len(left.token_ids) - opening) for span in right.images),
        kinds=left.kinds + right.kinds[opening:],
        logprobs=left.logprobs + right.logprobs[opening:],
        sampling_logprobs=left.sampling_logprobs + right.sampling_logprobs[opening:],
        counted=left.counted.joined(right.counted.mapped(moved)),
        logits=left.logits if opening == len(right.token_ids) else None,
        piece=None,
        finish_reason="error" if left.error or right.error else "",
        value=None,
        error=left.error or right.error,
        search=left.joined_search(right, moved),
        starts_inside=left.starts_inside if is_inside else left.starts_inside or right.starts_inside,
        prompt_length=left.prompt_length + (right.prompt_length if is_prompt else 0),
        surprise_start=_joined_surprise(left, right, opening),
    )


def _joined_surprise(left: StateRow, right: StateRow, opening: int) -> int | None:
    """Return the `surprise_start` of `left` and, behind it, `right` without its first `opening` tokens."""
    if right.surprise_start is not None:
        return len(left.token_ids) + max(right.surprise_start - opening, 0)
    return None if GENERATED in right.kinds else left.surprise_start


def preceded(row: StateRow, given: Given, tokenizer: Tokenizer) -> StateRow:
    """Return the row with text or ids in front, after the tokenizer's start tokens (BOS); without keys and values."""
    leading = 0 if row.starts_inside else row.num_start_tokens
    start = _emptied(row).append(row.token_ids[:leading], reset=False)
    front = extended(replace(start, num_start_tokens=leading, starts_inside=False), given, tokenizer)
    if len(front.token_ids) == leading:
        return row
    return joined(replace(front, prompt_length=len(front.text(tokenizer))), row, tokenizer)


def _without_prefix_space(row: StateRow, before: Sequence[int], tokenizer: Tokenizer) -> StateRow:
    """Return a row as the continuation of another: its first token is encoded anew without the prefix space."""
    parts = row.written(tokenizer)
    if not begins_with_prefix_space(row.token_ids, parts, tokenizer):
        return row
    first = first_written(parts)
    rest = tokenizer.text_bytes(row.token_ids[first : first + 1])[1:]
    return _replaced(row, first, first + 1, _spelled(rest, before, tokenizer, inside=True))


def _spelled(data: bytes, before: Sequence[int], tokenizer: Tokenizer, *, inside: bool = False) -> list[int]:
    """Return ids that spell `data` after `before`, invalid UTF-8 byte by byte; not `inside` a text it may get a prefix space."""
    token_ids: list[int] = []
    for text, broken in _runs(data):
        known = [*before, *token_ids]
        if text and (inside or token_ids):
            token_ids += encode_letters(text, tokenizer, known)
        elif text:
            token_ids += encoded_start(text, tokenizer)
        token_ids += _byte_ids(broken, tokenizer) if broken else []
    return token_ids


def _byte_ids(data: bytes, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the single bytes of `data`; of U+FFFD where the vocabulary lacks one. Cost: a pass over the vocabulary."""
    wanted = {bytes([byte]) for byte in data}
    ids = {token: i for i, token in enumerate(tokenizer.token_bytes) if token in wanted}
    if len(ids) < len(wanted):
        return tokenizer.encode_inside(data.decode(errors="replace"), ())
    return [ids[bytes([byte])] for byte in data]


def encoded_start(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return ids that spell `text` at the beginning of a row, a leading space included and nothing read as a special token."""
    if not text:
        return []
    for token_ids in (tokenizer.encode(text), encode_letters(text, tokenizer)):
        if tokenizer.decode(token_ids) == text:
            return token_ids
    return encode_letters(" " + text, tokenizer)


def _character_borders(data: bytes) -> list[int]:
    """Return where the characters of `data`, decoded with `errors="replace"`, begin, and its end, in bytes."""
    sizes: list[int] = []
    for good, bad in _runs(data):
        sizes += (len(character.encode()) for character in good)
        sizes += [len(bad)] if bad else []
    return [0, *accumulate(sizes)]


def _runs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield valid UTF-8 as text, and the invalid bytes after it that `errors="replace"` reads as one U+FFFD; either may be empty."""
    view = memoryview(data)
    at = 0
    while at < len(data):
        try:
            good, start, end = str(view[at:], "utf-8"), len(data), len(data)
        except UnicodeDecodeError as error:
            good, start, end = str(view[at : at + error.start], "utf-8"), at + error.start, at + error.end
        yield good, data[start:end]
        at = end


def _num_below(chosen: range, length: int) -> int:
    """Return how many indices at the beginning of `chosen` are below `length`."""
    return next((count for count, index in enumerate(chosen) if index >= length), len(chosen))


def _chosen(part: slice) -> range:
    """Return the indices that a slice with start, stop and step as for `range` takes."""
    return range(part.start, part.stop, part.step)
