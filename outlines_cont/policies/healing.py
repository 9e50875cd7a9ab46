"""`Healing`: token healing. The last tokens of a prompt are given back before a piece begins, so that what follows may join them.

A text that ends in `http:` is followed by `//` more often than a model says that has read the token `:`, as it was trained on the
token `://`. So as many tokens are given back as a longer token might have covered, and what follows must spell their bytes first. The
law: each token is drawn as always, from what the sampler makes of the model's logits under the mask; and the mask lets pass what begins
the bytes that are left to spell, or goes on beyond them.
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
    """What is given back at the end of a row."""

    count: int = 0  # how many tokens
    # (V,) before some of them, by their index, where they are known
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)


NO_HEALING = Healing()


def healing_of(model: LanguageModel, row: StateRow) -> Healing:
    """Return what is given back at the end of `row` before a piece begins; nothing where it has failed."""
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
