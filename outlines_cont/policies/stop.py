"""Stop texts: the piece ends exactly before the first of them, also when it begins inside a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlines_cont.engine.branch import Branch, TokenSet
from outlines_cont.engine.policy import Policy, RowView
from outlines_cont.interfaces import Tokenizer
from outlines_cont.models.spelling import Speller
from outlines_cont.stream import StopText

_FREE = [Branch(sample_mask=TokenSet.all)]


@dataclass(frozen=True, slots=True)
class StopState:
    """How much of a stop text has been seen in `num_bytes` of text, and whether the piece has been cut there already.

    `num_healed` bytes are to come that stand before the text.
    """

    matcher: StopText
    num_bytes: int = 0
    is_cut: bool = False
    num_healed: int = 0


class StopAt(Policy[StopState]):
    """Stop at the first of some texts; what the last token held before the cut is encoded anew."""

    def __init__(self, stop_texts: Sequence[str], tokenizer: Tokenizer, *, keep: bool = False) -> None:
        """Look for any of `stop_texts`, and cut before the first, or after it to `keep` it.

        Raises:
            OptionError: a stop text is empty, or not a string.
        """
        self.stop_texts = tuple(stop_texts)
        self._matcher = StopText.of(self.stop_texts)
        self._tokenizer = tokenizer
        self._keep = keep
        self._horizon = max(len(text.encode()) for text in self.stop_texts)

    @property
    def horizon(self) -> int:
        """The bytes of the longest stop text: a token holds one at least."""
        return self._horizon

    def initial(self, row: RowView) -> StopState:
        """Return the state before any text: what stands before the piece never counts."""
        return StopState(self._matcher, num_healed=len(row.healed))

    def branches(self, state: StopState, row: RowView) -> list[Branch]:
        """Return free sampling, the cut once a stop text is there, and nothing after the cut."""
        if state.is_cut:
            return []
        if state.matcher.match is None:
            return _FREE
        token_ids = row.token_ids[row.piece_start :]
        match = state.matcher.match
        kept, rest = self._split(token_ids, len(row.healed) + (match.end if self._keep else match.start))
        if kept == len(token_ids):
            return []
        spelled = self._spell(rest, row.token_ids[: row.piece_start + kept])
        return [Branch(backtrack=len(token_ids) - kept, ff_tokens=[spelled] if spelled else [])]

    def advance(self, state: StopState, token_id: int) -> StopState:
        """Return the state after the bytes of `token_id`."""
        token = self._tokenizer.text_bytes([token_id])
        data = token[state.num_healed :]
        num_healed = max(state.num_healed - len(token), 0)
        matcher = state.matcher.push(data)
        return replace(state, matcher=matcher, num_bytes=state.num_bytes + len(data), num_healed=num_healed)

    def rewound(self, before: StopState, after: StopState) -> StopState:
        """Return the state that stops."""
        return replace(after, is_cut=True)

    def held_bytes(self, state: StopState) -> int:
        """Return the bytes that may turn out to belong to a stop text, or that stand behind one."""
        return state.num_bytes - state.matcher.safe

    def _split(self, token_ids: Sequence[int], start: int) -> tuple[int, bytes]:
        """Return how many tokens stay as they are, and the bytes between them and the byte offset `start`."""
        offset, kept = 0, 0
        for token_id in token_ids:
            size = len(self._tokenizer.text_bytes([token_id]))
            if offset + size > start:
                break
            offset, kept = offset + size, kept + 1
        return kept, self._tokenizer.text_bytes(token_ids[kept : kept + 1])[: start - offset]

    def _spell(self, rest: bytes, before: Sequence[int]) -> list[int]:
        try:
            return self._tokenizer.encode_inside(rest.decode(), before) if rest else []
        except UnicodeDecodeError:
            # The rest begins inside a character, whose first bytes are in the token before.
            return Speller(self._tokenizer.token_bytes).spell(rest)
