"""Token healing: how many tokens are removed from the end of a row before generation (`healing_of`): those of the longest suffix of its
text that begins some longer token of the vocabulary, found by binary search in the sorted vocabulary (`TokenStarts`); not special tokens,
nor the first. The generated tokens must spell the removed bytes first; the policies' masks enforce this.

A text that ends in `http:` is followed by `//` more often than a model predicts that has read the token `:`, as it was trained on the
token `://`. The mask allows the tokens that begin the bytes that are left to spell, or that begin with all of them; each is sampled as
always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.token_starts import TokenStarts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Healing:
    """The tokens that are removed from the end of a row."""

    count: int = 0  # how many
    # (V,) before some of them, by their index, where they are known
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)


NO_HEALING = Healing()


def healing_of(model: LanguageModel, token_ids: Sequence[int]) -> Healing:
    """Return what is removed from the end of a row before generation begins."""
    count = token_starts(model).num_open(token_ids)
    return Healing(count) if count else NO_HEALING


def token_starts(model: LanguageModel) -> TokenStarts:
    """Return the tokens of a model, sorted for search by their first bytes; computed once per model."""
    if "token_starts" not in model.memo:
        model.memo["token_starts"] = TokenStarts(model.tokenizer.token_bytes[: model.vocab_size])
    found: TokenStarts = model.memo["token_starts"]
    return found
