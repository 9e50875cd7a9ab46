"""`open_draft`: returns the drafter of an option `draft=`: prompt lookup (`"lookup"`), a draft model (both cached per model), or a user's
`Proposer`. Recurrent models, whose KV cache cannot be cut, are refused, and draft models with other tokens.
"""

from __future__ import annotations

from typing import Any

from outlines_cont.checks import check_draft, is_model
from outlines_cont.drafts.lookup import Lookup
from outlines_cont.drafts.model_draft import model_draft
from outlines_cont.drafts.proposer import Proposed
from outlines_cont.engine.drafting.row_draft import Drafter
from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import LanguageModel

Draft = Any


def open_draft(draft: Draft, model: LanguageModel) -> Drafter | None:
    """Return the drafter for rows of a model; None without speculative decoding.

    Raises:
        OptionError: see `check_draft`.
        VocabularyMismatch: the draft model has other tokens.
        UnsupportedModel: the KV cache of one of the models cannot be cut, so that a draft could not be rolled back.
    """
    check_draft(draft)
    if draft is None:
        return None
    if model.is_recurrent:
        raise UnsupportedModel(
            f"expected a model whose cache can be cut, to use `draft`, got {model!r}: rejected tokens could not be removed. "
            "Leave `draft` out."
        )
    if isinstance(draft, str):
        lookup: Lookup = model.memo.setdefault("lookup", Lookup())
        return lookup
    return model_draft(draft, model) if is_model(draft) else Proposed(draft)
