"""`StopAt`: stop strings, found by an Aho-Corasick automaton over bytes. The text ends exactly before the first one to be complete (after
it with `keep`), also inside a token: the row rewinds to that token, and its bytes before the cut are encoded again. The prompt is never
cut; what begins in it counts only with `stop_in_prompt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlines_cont.checks import checked_bool
from outlines_cont.interfaces import Tokenizer
from outlines_cont.models.tokenizer.spelling import encode_bytes_inside
from outlines_cont.policies.branch import FREE, Branch
from outlines_cont.policies.piece_text import tail_tokens
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.text_search.stop_text import StopMatch, StopText, checked_texts


@dataclass(frozen=True, slots=True)
class StopState:
    """The state of the search after some tokens."""

    matcher: StopText  # the state of the automaton
    num_bytes: int = 0  # the length of the text
    cut_at: StopMatch | None = None  # the stop text at which the piece was cut; None before that
    num_healed: int = 0  # how many of the next bytes respell the prompt, and are not searched

    @property
    def match(self) -> StopMatch | None:
        """The stop text that was found, also after the cut; offsets count bytes of the text."""
        return self.cut_at or self.matcher.match


class StopAt(Policy[StopState]):
    """Stops at the first of some texts to be complete, see `StopText`; it is `match` of the state."""

    horizon: int = 0

    def __init__(
        self,
        stop_texts: str | Sequence[str],
        tokenizer: Tokenizer,
        *,
        keep: bool = False,
        stop_in_prompt: bool = False,
    ) -> None:
        """Search for `stop_texts`, and cut the text before the first, or after it with `keep`.

        With `stop_in_prompt` one counts also if it begins before the piece; then the piece is empty, or with `keep` the rest of the stop
        text. The text before the piece is never cut.

        Raises:
            OptionError: a stop text is empty, not a string, or has a lone surrogate.
        """
        self.stop_texts = checked_texts(stop_texts)
        self._matcher = StopText.of(self.stop_texts)
        self.horizon = self._matcher.longest  # a token has a byte or more
        self._tokenizer = tokenizer
        self._keep = checked_bool(keep, "keep")
        self._stop_in_prompt = checked_bool(stop_in_prompt, "stop_in_prompt")

    def initial(self, row: RowView) -> StopState:
        """Return the state before any text of the piece."""
        matcher = self._matcher
        if self._stop_in_prompt:
            tail = tail_tokens(self._tokenizer, row.token_ids[: row.piece_start], matcher.longest - 1)
            matcher = matcher.after(self._tokenizer.text_bytes(tail) + row.healed)
        return StopState(matcher, num_healed=len(row.healed))

    def branches(self, state: StopState, row: RowView) -> list[Branch]:
        """Return free sampling, the cut after a stop text was found, and no branch after the cut."""
        if state.cut_at:
            return []
        match = state.matcher.match
        if match is None:
            return FREE
        token_ids = row.token_ids[row.piece_start :]
        start = match.end if self._keep else max(match.start, 0)
        kept, rest = self._split(token_ids, len(row.healed) + start)
        if kept == len(token_ids):
            return []
        spelled = encode_bytes_inside(self._tokenizer, rest, row.token_ids[: row.piece_start + kept])
        return [Branch(backtrack=len(token_ids) - kept, ff_tokens=[spelled] if spelled else [])]

    def advance(self, state: StopState, token_id: int) -> StopState:
        """Return the state after the bytes of `token_id`."""
        token = self._tokenizer.text_bytes([token_id])
        data = token[state.num_healed :]
        matcher, _ = state.matcher.push(data)
        return StopState(matcher, state.num_bytes + len(data), state.cut_at, max(state.num_healed - len(token), 0))

    def rewound(self, before: StopState, after: StopState, row: RowView) -> StopState:
        """Return the state that stops."""
        return replace(after, cut_at=before.match)

    def stop(self, state: StopState) -> str | None:
        """Return the stop text that was found."""
        return state.match.text if state.match is not None else None

    def held_bytes(self, state: StopState) -> int:
        """Return the number of trailing bytes that may belong to a stop text, or that follow one."""
        return 0 if state.cut_at else state.num_bytes - state.matcher.safe

    def _split(self, token_ids: Sequence[int], start: int) -> tuple[int, bytes]:
        """Return how many tokens end at or before the byte offset `start`, and the bytes between them and it."""
        offset, kept = 0, 0
        for token_id in token_ids:
            size = len(self._tokenizer.text_bytes([token_id]))
            if offset + size > start:
                break
            offset, kept = offset + size, kept + 1
        return kept, self._tokenizer.text_bytes(token_ids[kept : kept + 1])[: start - offset]
