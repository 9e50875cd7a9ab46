"""Stop tokens: the piece ends before the first of some tokens, which add no text to it."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from outlines_cont.engine.branch import Branch, TokenSet
from outlines_cont.engine.policy import Policy, RowView
from outlines_cont.interfaces import LanguageModel, Tokenizer

_FREE = [Branch(sample_mask=TokenSet.all)]
_TAKEN_BACK = [Branch(backtrack=1)]


@dataclass(frozen=True, slots=True)
class StopTokenState:
    """Which stop token was met, None while there is none, and whether it was given back already.

    Attributes:
        token_id: The stop token.
        num_bytes: The bytes of it that stand at the end of the piece.
        is_cut: Whether it was given back.
    """

    token_id: int | None = None
    num_bytes: int = 0
    is_cut: bool = False


_NONE = StopTokenState()


class StopTokens(Policy[StopTokenState]):
    """Stop at the first of some tokens, sampled or forced, and take it back. Which one it was is `token_id` of the state.

    The policy allows what the others allow: a special token must be let in by them, as `FreeText.of_model(model, also=ids)`
    does. The model's own ends of text (`model.eos_token_ids`) need no policy.
    """

    def __init__(self, token_ids: Iterable[int]) -> None:
        """Look for any of `token_ids`.

        Raises:
            ValueError, TypeError: they are no token ids.
        """
        self.token_ids = TokenSet.of(token_ids)
        self._tokenizer: Tokenizer | None = None

    def for_model(self, model: LanguageModel) -> StopTokens:
        """Return the policy that knows the bytes of the model's tokens, which a stream must not show."""
        bound = copy(self)
        bound._tokenizer = model.tokenizer
        return bound

    @property
    def horizon(self) -> int:
        """One token."""
        return 1

    def initial(self, row: RowView) -> StopTokenState:
        """Return the state before the first token of the piece."""
        return _NONE

    def branches(self, state: StopTokenState, row: RowView) -> list[Branch]:
        """Return free sampling, the cut after a stop token, and nothing after the cut."""
        if state.is_cut:
            return []
        return _FREE if state.token_id is None else _TAKEN_BACK

    def advance(self, state: StopTokenState, token_id: int) -> StopTokenState:
        """Return the state after one more token."""
        if state.token_id is not None or token_id not in self.token_ids:
            return state
        return StopTokenState(token_id, len(self._tokenizer.text_bytes([token_id])) if self._tokenizer else 0)

    def rewound(self, before: StopTokenState, after: StopTokenState) -> StopTokenState:
        """Return the state that stops."""
        return StopTokenState(before.token_id, is_cut=True)

    def held_bytes(self, state: StopTokenState) -> int:
        """Return the bytes of the stop token, which will be taken back."""
        return state.num_bytes
