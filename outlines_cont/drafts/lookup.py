"""`CopyTrail`: follows a row while it copies from its prompt; `CopyHabits`: counts, for all rows of a model, which tokens end copies in
place of which ones (an LRU table of 4096 keys with decaying counts), so that lookup drafts can continue beyond the end of a copy.

A JSON record copies values out of a message. Where a copy ends, the message continues with a comma, say, and the record with the
quotation mark that closes the value; and the next value often begins right behind the comma.

`NgramIndex`: a hash index of the n-grams (n = 1 to 3) of the tokens of a row: for each n-gram its last occurrence, and for each
occurrence the one before it, so that tokens can be appended and rolled back in O(1) each.

`Lookup`: prompt lookup decoding (Saxena 2023): drafts what followed the last earlier occurrence of the last 3, 2 or 1 tokens, in prompt
or output, by a hash index of n-grams; the kind with the highest acceptance rate first, if a draft of it pays. Beyond the probable end of a
copy it continues with the tokens that usually end copies, and the next value (`copying`). Forced tokens that differ end a copy.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count

from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest, set_lengths

_MOST_KEYS, _MOST_CLOSING = 4096, 4
# A replacement is predicted if it was seen so often, and in such a share of the cases.
_TIMES, _SHARE_OF_PAIR, _SHARE_OF_TOKEN = 2, 0.5, 0.7
# Counts are halved when they reach this sum, so that recent ones count more.
_FORGET = 64


class CopyHabits:
    """Counts of the tokens that end copies, by the tokens that would have continued them; for all rows of a model."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[int, ...], Counter[int]] = OrderedDict()  # generated tokens by those to be copied
        self._closing: Counter[int] = Counter()

    def note(self, before: int, token_id: int, generated: int) -> None:
        """Record that `generated` followed `before` in a copy of `before`, `token_id`; the copy continues if both are equal."""
        for key in ((before, token_id), (token_id,)):
            counts = self._ends.setdefault(key, Counter())
            self._ends.move_to_end(key)
            counts[generated] += 1
            _halve(counts)
        if generated != token_id:
            self._closing[generated] += 1
            _halve(self._closing)
        while len(self._ends) > _MOST_KEYS:
            self._ends.popitem(last=False)

    def instead(self, before: int, token_id: int) -> int | None:
        """Return the token that probably replaces `token_id` in a copy after `before`; None if the copy probably continues."""
        for key, least in (((before, token_id), _SHARE_OF_PAIR), ((token_id,), _SHARE_OF_TOKEN)):
            counts = self._ends.get(key)
            if counts and counts.total() >= _TIMES:
                generated, times = counts.most_common(1)[0]
                if times > least * counts.total():
                    return generated if generated != token_id else None
        return None

    def closing(self) -> list[int]:
        """Return the tokens that end copies, the most frequent first."""
        return [token_id for token_id, _ in self._closing.most_common(_MOST_CLOSING)]


def _halve(counts: Counter[int]) -> None:
    if counts.total() > _FORGET:
        for key in [*counts]:
            counts[key] //= 2
            if not counts[key]:
                del counts[key]


@dataclass(slots=True)
class CopyTrail:
    """The copy from its prompt that a row is in, and the end of its last one.

    Attributes:
        at: the length of the row up to which the copy was followed; None outside of a copy.
        source: the index of the token that continues it.
        stopped: the index of the token at which the last copy ended; None before the first.
    """

    at: int | None = None
    source: int = 0
    stopped: int | None = None

    def begin(self, at: int, source: int) -> None:
        """Record that a row of `at` tokens may continue with a copy from index `source`."""
        self.at, self.source = at, source

    def cut(self, length: int) -> None:
        """Record that the row was rewound to its first `length` tokens."""
        if self.at is not None and self.at > length:
            self.at = None

    def follow(self, token_ids: Sequence[int], habits: CopyHabits) -> None:
        """Follow the new tokens of the row, and record each in `habits`."""
        while self.at is not None and self.at < len(token_ids):
            expected, generated = token_ids[self.source], token_ids[self.at]
            habits.note(token_ids[self.source - 1], expected, generated)
            if expected != generated:
                self.at, self.stopped = None, self.source
            else:
                self.begin(self.at + 1, self.source + 1)


SIZES = (3, 2, 1)
"""The lengths n of the n-grams, the longest first."""


class NgramIndex:
    """The positions behind all n-grams of a row that grows, and may be rewound."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[tuple[int | None, ...]] = []  # by position, for each size the one before
        self._num_same = 0

    def fork(self) -> NgramIndex:
        """Return an independent copy. Cost: O(tokens)."""
        other = NgramIndex()
        other._token_ids, other._num_same = [*self._token_ids], self._num_same
        other._last, other._before = {**self._last}, [*self._before]
        return other

    def cut(self, length: int) -> None:
        """Record that the row was rewound to its first `length` tokens."""
        self._num_same = min(self._num_same, length)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Update the index to that of `token_ids`. Cost: 2 us for each token that is new or was rewound."""
        while len(self._token_ids) > self._num_same:
            self._pop()
        for token_id in token_ids[self._num_same :]:
            self._push(token_id)
        self._num_same = len(self._token_ids)

    def find(self, context: Sequence[int], size: int) -> int | None:
        """Return the position behind the last occurrence of the last `size` tokens of `context`; None if there is none."""
        return self._last.get(tuple(context[-size:])) if len(context) >= size else None

    def is_only(self, position: int, size: int) -> bool:
        """Return whether the n-gram of `size` tokens before a position is its first occurrence."""
        return self._before[position][SIZES.index(size)] is None

    def _push(self, token_id: int) -> None:
        before = []
        for run in self._runs():
            before.append(self._last.get(run))
            if run:
                self._last[run] = len(self._token_ids)
        self._before.append(tuple(before))
        self._token_ids.append(token_id)

    def _pop(self) -> None:
        self._token_ids.pop()
        for run, position in zip(self._runs(), self._before.pop(), strict=True):
            if position is not None:
                self._last[run] = position
            elif run:
                del self._last[run]

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """Yield the last n-gram of each size; the empty tuple if there are fewer tokens."""
        at = len(self._token_ids)
        return (tuple(self._token_ids[at - size : at]) if at >= size else () for size in SIZES)


_EXPECTED = {(3, True): 0.8, (3, False): 0.7, (2, True): 0.7, (2, False): 0.5, (1, True): 0.5, (1, False): 0.2}
"""Initial acceptance rates, by the length of the n-gram, and whether it has only one earlier occurrence."""
_END, _NEXT = "the end of a copy", "the next copy"
_EXPECTED_NEXT = 0.3
_GAP = 3
"""The most tokens between the end of a copy and the next one in the source."""


class LookupMemory:
    """The memory of one row: the index of its n-grams, and its copies; see `Drafter`."""

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.trail = CopyTrail()
        self.prompt_length = 0

    def cut(self, length: int) -> None:
        """Record that the row was rewound to its first `length` tokens."""
        self.index.cut(length)
        self.trail.cut(length)

    def fork(self) -> LookupMemory:
        """Return the same for a fork of the row. Cost: a copy."""
        other = LookupMemory()
        other.index, other.trail, other.prompt_length = self.index.fork(), copy(self.trail), self.prompt_length
        return other

    def follow(self, token_ids: Sequence[int], habits: CopyHabits) -> None:
        """Update the memory to a row with `token_ids`."""
        self.prompt_length = self.prompt_length or len(token_ids)
        self.trail.follow(token_ids, habits)
        self.index.follow(token_ids)


class Lookup(Drafter):
    """A drafter that looks up the last tokens of a row in the row itself; for all rows of one model."""

    def __init__(self) -> None:
        self._habits = CopyHabits()

    def __repr__(self) -> str:
        return "Lookup()"

    def memory(self) -> LookupMemory:
        """Return an empty memory."""
        return LookupMemory()

    def draft(self, requests: Sequence[DraftRequest]) -> None:
        """Push copies of what followed the last tokens of each row earlier."""
        drafts = {}
        for request in requests:
            memory = request.draft.memory
            memory.follow(request.row.token_ids, self._habits)
            drafts[request] = _LookupDraft(request, memory, self._habits)
        for request in set_lengths(requests, [draft.share() for draft in drafts.values()]):
            drafts[request].push_copies()


@dataclass(frozen=True, slots=True)
class _CopySource:
    """A possible source of a copy: its acceptance rate, the index of its first token, and its kind."""

    share: float
    start: int
    kind: Hashable


class _LookupDraft:
    """The draft of one row, as copies, one after the other."""

    def __init__(self, request: DraftRequest, memory: LookupMemory, habits: CopyHabits) -> None:
        self._request, self._memory, self._habits = request, memory, habits
        self._stopped = memory.trail.stopped if memory.trail.at is None else None
        self._first = self._sources()
        self._chance, self._num_counted = 1.0, 0  # that the first tokens of the draft are all accepted

    def share(self) -> float:
        """Return the acceptance rate of the best source; 0 if there is none."""
        return self._first[0].share if self._first else 0.0

    def push_copies(self) -> None:
        """Push copies until no source is left, or the draft is long enough."""
        sources = self._first
        while any(map(self._copy, sources)):
            sources = self._sources()

    def _sources(self) -> list[_CopySource]:
        """Return the possible sources of the next copy, the best first."""
        index, context, share = self._memory.index, self._request.context, self._request.draft.share
        found: list[_CopySource] = []
        for size in SIZES:
            at = index.find(context, size)
            if at is not None:
                is_only, is_in_prompt = index.is_only(at, size), at < self._memory.prompt_length
                kind = (size, is_only, is_in_prompt)
                found.append(_CopySource(share(kind, _EXPECTED[size, is_only]), at, kind))
        if self._stopped is not None:
            found.append(_CopySource(share(_NEXT, _EXPECTED_NEXT), self._stopped + 1, _NEXT))
        return sorted(found, key=lambda source: -source.share)

    def _copy(self, source: _CopySource) -> bool:
        """Push tokens of a source, up to the probable end of the copy; return whether any was pushed."""
        lookahead, start = self._request.lookahead, source.start
        context, begun = lookahead.context, len(lookahead.context)
        if source.kind == _NEXT:
            last = min(start + _GAP, self._memory.prompt_length)
            start = next((at for at in range(start, last) if lookahead.allows(context[at])), begun)
        copied = (context[at] for at in count(start))  # `context` grows with every token that is pushed
        while start < begun and lookahead.mask is not None and self._pays(source.share):
            at = start + len(context) - begun
            if self._end(at):
                self._stopped = at
                break
            if not lookahead.push_next(copied, source.kind):
                break
        has_pushed = len(context) > begun
        if has_pushed and begun == len(self._request.row.token_ids) and start < self._memory.prompt_length:
            self._memory.trail.begin(begun, start)
        return has_pushed

    def _pays(self, share: float) -> bool:
        """Return whether one more token pays, which is accepted at a rate of `share` where all before it are."""
        request, kinds = self._request, self._request.lookahead.kinds
        self._chance *= request.draft.chance(kinds[self._num_counted :])
        self._num_counted = len(kinds)
        return request.lookahead.num_drafted < request.length and self._chance * share >= request.least

    def _end(self, at: int) -> bool:
        """Push the token that ends a copy in place of the token at `at`, if that is probable, and allowed; return whether it was."""
        lookahead, (before, token_id) = self._request.lookahead, self._request.context[at - 1 : at + 1]
        instead = self._habits.instead(before, token_id)
        if instead is not None:
            return lookahead.push(instead, _END)
        return not lookahead.allows(token_id) and any(lookahead.push(end, _END) for end in self._habits.closing())
