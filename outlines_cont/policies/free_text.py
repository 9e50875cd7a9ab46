"""Free text: every token that has text, and every id that ends one."""

from __future__ import annotations

from dataclasses import dataclass

from outlines_cont.engine.branch import Branch, TokenSet
from outlines_cont.engine.policy import Policy, RowView
from outlines_cont.interfaces import LanguageModel


@dataclass(frozen=True, slots=True, eq=False)
class FreeText(Policy[None]):
    """Sample any token of `token_ids`: not the special ones, and no id beyond the tokenizer."""

    token_ids: TokenSet

    @classmethod
    def of_model(cls, model: LanguageModel) -> FreeText:
        """Return the policy over the tokens that `model` can write. Cost: a pass over the vocabulary."""
        spelled = (token_id for token_id, data in enumerate(model.tokenizer.token_bytes) if data)
        ids = TokenSet.of(token_id for token_id in spelled if token_id < model.vocab_size)
        ids = ids | TokenSet.of(model.eos_token_ids)
        # As wide as the logits, so that nothing is stretched at every step.
        return cls(TokenSet.of_bitmask(ids.bitmask(model.vocab_size)))

    def initial(self, row: RowView) -> None:
        """Return None: free text remembers nothing."""

    def branches(self, state: None, row: RowView) -> list[Branch]:
        """Return one branch that samples any token with text."""
        return [Branch(sample_mask=self.token_ids)]

    def advance(self, state: None, token_id: int) -> None:
        """Return None: free text remembers nothing."""
