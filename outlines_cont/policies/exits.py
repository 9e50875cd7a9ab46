"""`LanguageExits`: where a piece ends because the model leaves the language (`end="free"`). In a state of a token FSM a token stays in the
language, or leaves it after the longest of its beginnings that completes a text, which may be empty. Tokens that leave after the same bytes
are one way to end, with the sum of their probabilities; before a token, those that end a text belong to it. A token that is not allowed
and has no such beginning stays masked.
"""

from __future__ import annotations

import numpy as np

from fsm import TokenFSM
from outlines_cont.policies.branch import Exit, TokenSet


class LanguageExits:
    """The `Exits` of one state of a token FSM.

    Attributes:
        may_end: whether the text is complete in the state, and may end there.
    """

    def __init__(self, token_fsm: TokenFSM, state: int, *, may_end: bool = True) -> None:
        """Take a state; with `may_end=False` the text ends inside of a token only."""
        self._fsm, self._state = token_fsm, state
        self.may_end = may_end and token_fsm.is_accepting(state)
        self._ends = np.array(token_fsm.vocabulary.eos_token_ids, dtype=np.int32)
        self._inside: TokenSet | None = None

    @property
    def inside(self) -> TokenSet:
        """The tokens that stay in the language, and those that end a text, if it may end."""
        if self._inside is None:  # no `cached_property`, which has one lock for all objects before Python 3.12
            inside = TokenSet.of_bitmask(self._fsm.bitmask(self._state))
            self._inside = inside if self.may_end else inside & ~TokenSet.of(self._ends.tolist())
        return self._inside

    @property
    def mask(self) -> TokenSet:
        """The tokens that stay, and those that leave."""
        if self.may_end or not self._fsm.is_accepting(self._state):
            return TokenSet.of_bitmask(self._fsm.open_bitmask(self._state))
        leaving = self._fsm.leaving(self._state)
        return self.inside | TokenSet.of(leaving.token_ids[leaving.sizes > 0].tolist())

    def not_here(self) -> LanguageExits:
        """Return the exits of a text that must not end before a token."""
        return LanguageExits(self._fsm, self._state, may_end=False)

    def of(self, token_id: int) -> Exit | None:
        """Return how the text ends if a token is drawn; None if it goes on."""
        if token_id in self._ends:
            return self._here() if self.may_end else None
        found = None if token_id in self.inside else self._fsm.leaving(self._state).with_same_text(token_id)
        if found is None:
            return None
        size, token_ids = found
        return Exit((self._fsm.vocabulary.tokens[token_id] or b"")[:size], token_ids) if size else self._here()

    def all(self) -> list[Exit]:
        """Return all ways in which the text may end now."""
        leaving = self._fsm.leaving(self._state)
        _, first, which, counts = np.unique(leaving.nodes, return_index=True, return_inverse=True, return_counts=True)
        groups = np.split(leaving.token_ids[np.argsort(which, kind="stable")], np.cumsum(counts))[
            :-1
        ]  # the last is empty
        tokens, sizes = self._fsm.vocabulary.tokens, leaving.sizes[first].tolist()
        found = [Exit((tokens[ids[0]] or b"")[:size], ids) for ids, size in zip(groups, sizes, strict=True) if size]
        return [self._here(), *found] if self.may_end else found

    def _here(self) -> Exit:
        leaving = self._fsm.leaving(self._state)
        return Exit(b"", np.concatenate((leaving.token_ids[leaving.sizes == 0], self._ends)))
