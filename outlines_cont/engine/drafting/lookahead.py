"""`Lookahead`: the draft tokens of one row, which the row's policies check one by one on copies of their states, so that only tokens that
they allow are drafted, and no end of the text. It adds forced tokens, sole allowed tokens and hints of policies itself, and ends where a
policy would rewind, fork, wait, stop or raise, or after 64 tokens.

A mask that is not computed yet is not waited for. The row does not change. It can take over the states (`lent_to`), so that no policy
advances over an accepted token again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.compose import row_ahead
from outlines_cont.policies.policy import RowView
from outlines_cont.policies.policy_states import PolicyStates

ONLY, HINT = "the only token", "a hint of a policy"
"""Kinds of draft tokens that need no drafter."""
_LIKELY = 0.5
MAX_TOKENS = 64
"""The most draft tokens of a row, forced ones included."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftPosition:
    """A position behind some draft tokens at which a token will be drawn."""

    offset: int  # the number of draft tokens before it
    num_drawn: int  # how many of those are drawn, not forced
    mask: TokenSet  # the tokens that may be drawn
    temperature: float | None  # see `Branch`


class Lookahead:
    """The draft tokens of one row, as its policies allow them.

    Attributes:
        token_ids: the draft tokens so far.
        kinds: how each of them was drafted; None for a forced one. See `RowDraft.share`.
        num_drafted: how many of them a drafter has pushed.
        positions: the positions behind draft tokens at which the policies leave a choice.
        mask, temperature: those of the next token; the mask is None if the draft ends.
        context: all ids, those of the row and the draft tokens; not to be changed.
    """

    def __init__(
        self,
        row: RowView,
        policies: PolicyStates,
        mask: TokenSet,
        sequences: Sequence[list[int]],
        *,
        eos: TokenSet,
        room: int,
        vocab_size: int,
        temperature: float | None,
        takes_hints: bool,
    ) -> None:
        """Begin behind the last token of a row that is about to sample, with at most `room` tokens; the row is not changed.

        `mask`, `sequences` and `temperature` are those of the row's next token. `eos` are the tokens that end the text, never drafted.
        """
        self.token_ids: list[int] = []
        self.kinds: list[Hashable] = []
        self.positions: list[DraftPosition] = []
        self.num_drafted = 0
        self.mask: TokenSet | None = mask if room > 0 else None
        self.temperature = temperature
        self.context = [*row.token_ids]
        self._ahead = row_ahead(self.context, row)
        self._policies = policies.expecting(())
        self._sequences, self._eos, self._vocab_size = sequences, eos, vocab_size
        self._room, self._takes_hints = min(room, MAX_TOKENS), takes_hints
        self._take_hints()

    @property
    def num_drawn(self) -> int:
        """How many of the draft tokens the row will draw, as they are not forced."""
        return len(self.kinds) - self.kinds.count(None)

    def lazy_masks(self, chance: Callable[[Sequence[Hashable]], float]) -> list[TokenSet]:
        """Return the lazy masks that the row will probably need; `chance` is `RowDraft.chance`."""
        lazy = [position for position in self.positions if not position.mask.is_made]
        return [position.mask for position in lazy if chance(self.kinds[: position.offset]) >= _LIKELY]

    def lent_to(self, policies: PolicyStates) -> PolicyStates:
        """Return the policies of the row with the states behind draft tokens, which they take over for those that are accepted."""
        return policies.expecting(self.token_ids, self._policies) if policies.policies else policies

    def push(self, token_id: int, kind: Hashable) -> bool:
        """Append a draft token and what the policies force after it; return False if they refuse the token."""
        if not self._draw(token_id, kind):
            return False
        self.num_drafted += 1
        self._take_hints()
        return True

    def push_next(self, rest: Iterator[int], kind: Hashable) -> bool:
        """Push the next token of a copied text, and skip what the policies force after it; return whether `rest` agrees with both."""
        token_id, length = next(rest, None), len(self.context)
        if token_id is None or not self.push(token_id, kind):
            return False
        return all(added == next(rest, None) for added in self.context[length + 1 :])

    def allows(self, token_id: int) -> bool:
        """Return whether a token may be next; a lazy mask that is not computed yet is taken to allow every token."""
        if self.mask is None or not 0 <= token_id < self._vocab_size or token_id in self._eos:
            return False
        # `advance` of the policy refuses the token if the mask would not have it.
        return not self.mask.is_made or token_id in self.mask

    def _draw(self, token_id: int, kind: Hashable) -> bool:
        if not self.allows(token_id) or not self._append(token_id, kind):
            return False
        follow = next((ids for ids in self._sequences if ids[0] == token_id), [token_id])
        if all(self._append(forced, None) for forced in follow[1:]):
            while self._succeeds(self._follow_policies):
                pass
        return True

    def _take_hints(self) -> None:
        def draw_hint() -> bool:
            return any(self._draw(token_id, HINT) for token_id in self._policies.hints(self._ahead))

        while self._takes_hints and self.mask is not None and self._succeeds(draw_hint):
            pass

    def _append(self, token_id: int, kind: Hashable) -> bool:
        """Append a token; return False if there is no room for it, or a policy raises."""

        def advance() -> bool:
            self._policies = self._policies.advanced(token_id)
            return True

        if len(self.token_ids) >= self._room or not self._succeeds(advance):
            self.mask = None
            return False
        self.context.append(token_id)
        self.token_ids.append(token_id)
        self.kinds.append(kind)
        return True

    def _follow_policies(self) -> bool:
        """Follow the branch of the policies; return whether they are to be called again."""
        self.mask = None
        if len(self.token_ids) >= self._room:
            return False
        branches, _ = self._policies.branches(self._ahead)
        if len(branches) != 1 or branches[0].is_rewind:
            return False
        branch = branches[0]
        if branch.sample_mask is None:
            return bool(branch.ff_tokens) and all(self._append(token_id, None) for token_id in branch.ff_tokens[0])
        self.mask, self._sequences, self.temperature = branch.sample_mask, branch.ff_tokens, branch.temperature
        self.positions.append(DraftPosition(len(self.token_ids), self.num_drawn, self.mask, self.temperature))
        only = _only_token(self.mask, self._vocab_size)
        return only is not None and not self._sequences and only not in self._eos and self._append(only, ONLY)

    def _succeeds(self, act: Callable[[], bool]) -> bool:
        """Return what `act` returns; False if a policy raises, which it will do again when the row has these tokens."""
        try:
            return act()
        except (Exception, SystemExit):
            self.mask = None
            return False


def _only_token(mask: TokenSet, vocab_size: int) -> int | None:
    """Return the token of a mask that allows exactly one; else, or if the mask is not computed yet, None."""
    if mask.rest or not mask.is_made or np.count_nonzero(mask.words) != 1:
        return None
    found = mask.few_ids(vocab_size, 1)
    return int(found[0]) if found is not None and len(found) == 1 else None
