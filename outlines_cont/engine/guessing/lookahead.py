"""`Lookahead`: the policies of a row walked ahead on tokens that are only guessed, so that a guess is one that the row may write.

Policies are asked about hypothetical tokens as they would be asked about written ones; nothing of the row changes. The walk ends where
a policy would go back, fork, wait, stop or raise: what is written there is decided when the row has come there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlines_cont.policies.ahead import RowAhead
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.compose import Track, compose, goes_back
from outlines_cont.policies.row_view import RowView

ONLY, HINT = "the only token", "a hint of a policy"
"""Kinds of guesses that need no drafter."""
_LIKELY = 0.5
MAX_GUESSED = 64
"""How many tokens a guess has at most, those that the policies leave no choice about included."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the policies want behind some guessed tokens: a token to be drawn.

    Attributes:
        offset: how many guessed tokens stand before it.
        num_drawn: how many of those are drawn.
        mask: the tokens that may be drawn.
        temperature: see `Branch`.
    """

    offset: int
    num_drawn: int
    mask: TokenSet
    temperature: float | None


class Lookahead:
    """A guess that grows token by token.

    Attributes:
        token_ids: the tokens guessed so far.
        kinds: how each of them was guessed; None for one that the policies leave no choice about. See `RowDraft.share`.
        num_drafted: how many of them a drafter has guessed.
        asked: what the policies want behind guessed tokens, where that is a choice among tokens.
        mask: the tokens that may come next; None where the guess ends.
        temperature: what the next token would be drawn with; see `Branch`.
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
        """Begin behind the last token of a row that wants a sample.

        Args:
            row: it is not changed.
            tracks: its policies; they are not changed.
            mask: what the row may draw next.
            sequences: what is appended at once behind some of these; see `Branch.ff_tokens`.
            eos: the tokens that end the text; none of them is guessed.
            room: how many tokens may be guessed, all in all.
            vocab_size: the number of token ids.
            temperature: see `Branch`.
            takes_hints: whether to guess what the policies hint at; see `Policy.hint`.
        """
        self.token_ids: list[int] = []
        self.kinds: list[Hashable] = []
        self.asked: list[Asked] = []
        self.num_drafted = 0
        self.mask: TokenSet | None = mask if room > 0 else None
        self.temperature = temperature
        self._ahead = RowAhead([*row.token_ids], row)
        self._tracks = [track.at(track.states[-1:], track.retries) for track in tracks]
        self._sequences, self._eos, self._vocab_size = sequences, eos, vocab_size
        self._room, self._takes_hints = min(room, MAX_GUESSED), takes_hints
        self._take_hints()

    @property
    def num_drawn(self) -> int:
        """How many of the tokens are drawn when the row comes there."""
        return len(self.kinds) - self.kinds.count(None)

    def lazy_masks(self, chance: Callable[[Sequence[Hashable]], float]) -> list[TokenSet]:
        """Return the lazy masks behind guessed tokens that are not computed yet, as far as the row will more likely come there than not.

        Args:
            chance: from the kinds of some tokens to the probability that all of them are right.
        """
        late = [asked for asked in self.asked if not asked.mask.is_made]
        return [asked.mask for asked in late if chance(self.kinds[: asked.offset]) >= _LIKELY]

    def lend_states(self, tracks: Sequence[Track]) -> None:
        """Let the tracks of the row take the states of its policies from here where the tokens come as they were guessed."""
        for track, ahead in zip(tracks, self._tracks, strict=True):
            track.expect(self.token_ids, ahead)

    @property
    def context(self) -> list[int]:
        """All ids: those of the row, and those that are guessed. Not to be changed."""
        return self._ahead.token_ids

    def push(self, token_id: int, kind: Hashable) -> bool:
        """Guess one more token, and what the policies leave no choice about behind it; return whether it may come there."""
        if not self._draw(token_id, kind):
            return False
        self.num_drafted += 1
        self._take_hints()
        return True

    def _draw(self, token_id: int, kind: Hashable) -> bool:
        if not self._may_come(token_id) or not self._append(token_id, kind):
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

    def _may_come(self, token_id: int) -> bool:
        if self.mask is None or not 0 <= token_id < self._vocab_size or token_id in self._eos:
            return False
        # A mask that is not made yet may never be needed: the policy itself says whether the token fits.
        return not self.mask.is_made or token_id in self.mask

    def _append(self, token_id: int, kind: Hashable) -> bool:
        """Go on by one token; return whether there was room for it, and no policy has objected."""
        if len(self.token_ids) >= self._room or not self._is_fine(lambda: self._advance(token_id)):
            self.mask = None
            return False
        self._ahead.token_ids.append(token_id)
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
        if len(branches) != 1 or goes_back(branches[0]):
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
