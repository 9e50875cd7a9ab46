"""`FreeText`: unconstrained generation: the mask of all tokens that have bytes and those that end a text; other special tokens and ids
without a token are excluded. Its state: what is left to respell of the healed end of a prompt, which must come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from outlines_cont.errors import DeadEnd
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.healing import token_starts
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView

_MEMO_SIZE = 256


@dataclass(frozen=True, slots=True, eq=False)
class FreeText(Policy[bytes]):
    """Samples any token of `token_ids`. Its state is what is left to respell of the bytes that token healing removed, mostly nothing."""

    token_ids: TokenSet
    spelling: Callable[[bytes], TokenSet]  # returns the tokens that may follow where some bytes are left to spell
    model: LanguageModel

    @classmethod
    def of_model(cls, model: LanguageModel) -> FreeText:
        """Return the policy over the tokens that `model` can write, made once per model. Cost: a pass over the vocabulary."""
        known: FreeText | None = model.memo.get("free_text")
        return known or model.memo.setdefault("free_text", cls._of_vocabulary(model))

    @classmethod
    def _of_vocabulary(cls, model: LanguageModel) -> FreeText:
        spelled = (token_id for token_id, data in enumerate(model.tokenizer.token_bytes) if data)
        ids = TokenSet.of(token_id for token_id in spelled if token_id < model.vocab_size)
        ids = ids | TokenSet.of(model.eos_token_ids)
        return cls(_widened(ids, model), lru_cache(_MEMO_SIZE)(partial(_spelling, model)), model)

    def initial(self, row: RowView) -> bytes:
        """Return the bytes to respell before the text begins."""
        return row.healed

    def branches(self, state: bytes, row: RowView) -> list[Branch]:
        """Return one branch that samples any token with text, or one that spells what is left to spell."""
        return [Branch(sample_mask=self.spelling(state) if state else self.token_ids)]

    def advance(self, state: bytes, token_id: int) -> bytes:
        """Return what is left to spell; `DeadEnd` where another policy has appended a token that spells something else."""
        if not state:
            return state
        data = self.model.tokenizer.token_bytes[token_id] or b""
        if not data.startswith(state) and not state.startswith(data):
            raise DeadEnd(
                f"expected a token that continues with {state!r}, the end of the given text that is healed, got {token_id} ({data!r}) "
                "from another policy. Omit `heal`, or let the policy wait until `row.healed` is spelled."
            )
        return state[len(data) :]


def _spelling(model: LanguageModel, text: bytes) -> TokenSet:
    return _widened(TokenSet.of(token_starts(model).spelling(text).tolist()), model)


def _widened(token_ids: TokenSet, model: LanguageModel) -> TokenSet:
    """Return the set with as many words as the logits need, so that it is not extended at every step."""
    return TokenSet.of_bitmask(token_ids.bitmask(model.vocab_size))
