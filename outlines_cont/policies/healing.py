"""`Healing`: token healing: how many tokens are removed from the end of a row before generation: those with the longest suffix of its
text that begins some longer token of the vocabulary, found by binary search in the sorted vocabulary (`TokenStarts`). The generated
tokens must spell the removed bytes first; the masks that enforce this are those of the policies.

A text that ends in `http:` is followed by `//` more often than a model predicts that has read the token `:`, as it was trained on the
token `://`. Each token is drawn as always, by the sampler from the logits under the mask; and the mask allows the tokens that begin the
bytes that are left to spell, or that reach beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.token_starts import TokenStarts
from outlines_cont.state.row import StateRow


@dataclass(frozen=True, slots=True, eq=False)
class Healing:
    """How many tokens are removed from the end of a row, and the logits before them."""

    count: int = 0  # how many tokens
    # (V,) before some of them, by their index, where they are known
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)


NO_HEALING = Healing()


def healing_of(model: LanguageModel, row: StateRow) -> Healing:
    """Return what is removed from the end of `row` before generation begins; nothing where it has failed."""
    if row.error is not None:
        return NO_HEALING
    count = token_starts(model).num_open(row.token_ids)
    return Healing(count) if count else NO_HEALING


def token_starts(model: LanguageModel) -> TokenStarts:
    """Return the tokens of a model by their first bytes; made when first asked for."""
    found: TokenStarts | None = model.memo.get("token_starts")
    if found is None:
        found = model.memo["token_starts"] = TokenStarts(model.tokenizer.token_bytes[: model.vocab_size])
    return found
