"""`Lookup`: prompt lookup decoding (Saxena 2023): drafts what followed the last earlier occurrence of the last 3, 2 or 1 tokens, in prompt
or output, by a hash index of n-grams; the kind with the highest acceptance rate first, if a draft of it pays. Beyond the probable end of a
copy it continues with the tokens that usually end copies, and the next value (`copying`). Forced tokens that differ end a copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count

from outlines_cont.drafts.copying import CopyHabits, CopyTrail
from outlines_cont.drafts.ngram_index import SIZES, NgramIndex
from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest

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
        """Note that the row was rewound to its first `length` tokens."""
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
        for request in requests:
            memory = request.draft.memory
            memory.follow(request.row.token_ids, self._habits)
            _LookupDraft(request, memory, self._habits).push_copies()


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
        self._longest = 0  # the length of the draft; 0 until it is determined

    def push_copies(self) -> None:
        """Push copies until no source is left, or the draft is long enough."""
        while (sources := self._sources()) and self._pays(sources[0]) and any(map(self._copy, sources)):
            pass

    def _pays(self, source: _CopySource) -> bool:
        """Return whether a copy of the best source pays; determined once, before any policy is called."""
        self._longest = self._longest or self._request.draft.length(self._request.costs, source.share)
        return self._longest > 0

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
        while start < begun and lookahead.mask is not None and lookahead.num_drafted < self._longest:
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

    def _end(self, at: int) -> bool:
        """Push the token that ends a copy in place of the token at `at`, if that is probable, and allowed; return whether it was."""
        lookahead, (before, token_id) = self._request.lookahead, self._request.context[at - 1 : at + 1]
        instead = self._habits.instead(before, token_id)
        if instead is not None:
            return lookahead.push(instead, _END)
        return not lookahead.allows(token_id) and any(lookahead.push(end, _END) for end in self._habits.closing())
