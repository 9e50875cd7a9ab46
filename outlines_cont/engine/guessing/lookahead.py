"""`Lookahead`: a draft of one row that grows token by token, each checked by the row's policies on copies of their states, so that only
tokens that these allow are guessed. It adds forced tokens, sole allowed tokens and hints by itself, and ends where a policy would rewind,
fork, wait, stop or raise, or after 64 tokens.

Policies are called for hypothetical tokens as for written ones; nothing of the row changes. Their states can be handed to the row
(`lend_states`), so that right guesses are not advanced over again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.compose import Track, compose, row_ahead
from outlines_cont.policies.row_view import RowView

ONLY, HINT = "the only token", "a hint of a policy"
"""Kinds of guesses that need no drafter."""
_LIKELY = 0.5
MAX_GUESSED = 64
"""How many tokens a guess has at most, those that the policies leave no choice about included."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A position behind some guessed tokens where a token is to be drawn, with its mask."""

    offset: int  # how many guessed tokens stand before it
    num_drawn: int  # how many of those are drawn
    mask: TokenSet  # the tokens that may be drawn
    temperature: float | None  # see `Branch`


class Lookahead:
    """A draft of one row that grows token by token, as its policies allow.

    Attributes:
        token_ids: the tokens guessed so far.
        kinds: how each of them was guessed; None for one that the policies leave no choice about. See `RowDraft.share`.
        num_drafted: how many of them a drafter has guessed.
        asked: the positions behind guessed tokens where the policies leave a choice among tokens.
        mask, temperature: what the next token would be drawn under, and at; the mask is None where the guess ends.
        context: all ids, those of the row and those that are guessed; not to be changed.
    """

    def __init__(
        self,
        row: RowView,
        tracks: Sequence[Track],
        mask: TokenSet,
        sequences: list[list[int]],
        *,
        eos: TokenSet,
        room: int,
        vocab_size: int,
        temperature: float | None = None,
        takes_hints: bool = False,
    ) -> None:
        """Begin behind the last token of a row that is about to sample; row and tracks are not changed.

        Args:
            mask, sequences, temperature: what the row may draw next; see `Branch`.
            eos: the tokens that end the text; none of them is guessed.
            room: how many tokens may be guessed, all in all.
            takes_hints: whether to guess what the policies hint at; see `Policy.hint`.
        """
        self.token_ids: list[int] = []
        self.kinds: list[Hashable] = []
        self.asked: list[Asked] = []
        self.num_drafted = 0
        self.mask: TokenSet | None = mask if room > 0 else None
        self.temperature = temperature
        self.context = [*row.token_ids]
        self._ahead = row_ahead(self.context, row)
        self._tracks = [track.at(track.states[-1:], track.retries) for track in tracks]
        self._sequences, self._eos, self._vocab_size = sequences, eos, vocab_size
        self._room, self._takes_hints = min(room, MAX_GUESSED), takes_hints
        self._take_hints()

    @property
    def num_drawn(self) -> int:
        """How many of the tokens are drawn when the row comes there."""
        return len(self.kinds) - self.kinds.count(None)

    def lazy_masks(self, chance: Callable[[Sequence[Hashable]], float]) -> list[TokenSet]:
        """Return the lazy masks behind guessed tokens that the row will more likely need than not; `chance` is `RowDraft.chance`."""
        late = [asked for asked in self.asked if not asked.mask.is_made]
        return [asked.mask for asked in late if chance(self.kinds[: asked.offset]) >= _LIKELY]

    def lend_states(self, tracks: Sequence[Track]) -> None:
        """Let the tracks of the row take the states of its policies from here where the tokens come as they were guessed."""
        for track, ahead in zip(tracks, self._tracks, strict=True):
            track.expect(self.token_ids, ahead)

    def push(self, token_id: int, kind: Hashable) -> bool:
        """Guess one more token, and what the policies leave no choice about behind it; return whether it may come there."""
        if not self._draw(token_id, kind):
            return False
        self.num_drafted += 1
        self._take_hints()
        return True

    def push_all(self, token_ids: Iterable[int], longest: int, kind: Hashable) -> bool:
        """Push tokens one after the other, up to where one may not come, or the text has to continue otherwise; return whether any was.

        Args:
            token_ids: what is guessed, such as a copy of a text, which may have the text in it that the constraint puts in by itself;
                no more is taken than fits.
            longest: the most tokens that the guess has by a drafter.
            kind: how they are guessed; see `RowDraft.share`.
        """
        before, rest = self.num_drafted, iter(token_ids)
        while self.mask is not None and self.num_drafted < longest and self.push_next(rest, kind):
            pass
        return self.num_drafted > before

    def push_next(self, rest: Iterator[int], kind: Hashable) -> bool:
        """Push the next token of `rest`, and skip in it what the policies add behind that token; return whether `rest` may continue."""
        token_id, length = next(rest, None), len(self.context)
        if token_id is None or not self.push(token_id, kind):
            return False
        return all(added == next(rest, None) for added in self.context[length + 1 :])

    def _draw(self, token_id: int, kind: Hashable) -> bool:
        if not self.may_come(token_id) or not self._append(token_id, kind):
            return False
        follow = next((ids for ids in self._sequences if ids[0] == token_id), [token_id])
        if all(self._append(forced, None) for forced in follow[1:]):
            self._ask()
        return True

    def _take_hints(self) -> None:
        """Guess what the policies hint at."""
        while self._takes_hints and self.mask is not None:
            if not self._is_fine(lambda: any(self._draw(token_id, HINT) for token_id in self._hints())):
                return

    def _hints(self) -> Iterator[int]:
        """Return for each policy the token that it expects, if any."""
        for track in self._tracks:
            token_id = track.policy.hint(track.states[-1], self._ahead)
            if token_id is not None:
                yield token_id

    def may_come(self, token_id: int) -> bool:
        """Return whether a token may be guessed next, as far as that is known without computing a mask."""
        if self.mask is None or not 0 <= token_id < self._vocab_size or token_id in self._eos:
            return False
        # A mask that is not made yet may never be needed: the policy itself says whether the token fits.
        return not self.mask.is_made or token_id in self.mask

    def _append(self, token_id: int, kind: Hashable) -> bool:
        """Go on by one token; return whether there was room for it, and no policy has objected."""
        if len(self.token_ids) >= self._room or not self._is_fine(lambda: self._advance(token_id)):
            self.mask = None
            return False
        self.context.append(token_id)
        self.token_ids.append(token_id)
        self.kinds.append(kind)
        return True

    def _advance(self, token_id: int) -> bool:
        for track in self._tracks:
            track.append(token_id)
        return True

    def _ask(self) -> None:
        """Ask the policies what comes next, until that is a choice among tokens, or nothing that can be guessed."""
        while self._is_fine(self._follow):
            pass

    def _follow(self) -> bool:
        """Take in what the policies want; return whether they are to be asked again."""
        self.mask = None
        if len(self.token_ids) >= self._room:
            return False
        branches, _ = compose(self._tracks, self._ahead)
        if len(branches) != 1 or branches[0].is_rewind:
            return False
        branch = branches[0]
        if branch.sample_mask is None:
            return bool(branch.ff_tokens) and all(self._append(token_id, None) for token_id in branch.ff_tokens[0])
        self.mask, self._sequences, self.temperature = branch.sample_mask, branch.ff_tokens, branch.temperature
        self.asked.append(Asked(len(self.token_ids), self.num_drawn, self.mask, self.temperature))
        only = _only_token(self.mask, self._vocab_size)
        return only is not None and not self._sequences and only not in self._eos and self._append(only, ONLY)

    def _is_fine(self, act: Any) -> bool:
        """Return what `act` returns; False where a policy fails: it will do so again where the row has come there."""
        try:
            return bool(act())
        except (Exception, SystemExit):
            self.mask = None
            return False


def _only_token(mask: TokenSet, vocab_size: int) -> int | None:
    """Return the one token of a mask that has no other; None where it has others, or is not made yet."""
    if mask.rest or not mask.is_made:
        return None
    if np.count_nonzero(mask.words) != 1:
        return None
    found = mask.few_ids(vocab_size, 1)
    return int(found[0]) if found is not None and len(found) == 1 else None
