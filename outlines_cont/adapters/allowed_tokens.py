"""`AllowedTokens`: a constraint as the callback `prefix_allowed_tokens_fn` of `generate` of transformers, which returns the list of allowed
ids. Slower than a logits processor where many are allowed.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import torch

from outlines_cont.adapters.processor import ConstraintAdapter
from outlines_cont.adapters.prompts import Prompts, SeenBeams
from outlines_cont.adapters.row_masks import OVER, RowMasks


class AllowedTokens(ConstraintAdapter):
    """A function that lists the tokens that may follow a row. Make one with `adapters.prefix_allowed_tokens_fn`.

    It is used as `ConstraintProcessor` is, `of` included.
    """

    def __init__(self, masks: RowMasks, prompts: Prompts | None = None) -> None:
        super().__init__(masks, prompts)
        self._local = threading.local()

    def __call__(self, batch_id: int, input_ids: torch.Tensor) -> list[int]:
        """Return the ids that may follow a row, ascending, never empty.

        Args:
            batch_id: which prompt of the batch the row belongs to.
            input_ids: (T,) int64, prompt and text.

        Raises:
            AmbiguousPrompt: the beginning of the text cannot be determined, or it does not begin after the prompts that `of` was given.
        """
        row = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        start = self._prompts_of(int(batch_id)).start(row[None])
        state = self._masks.state_after(row[start:])
        if state == OVER:
            return list(self._masks.eos_token_ids)
        allowed: list[int] = self._masks.token_fsm.allowed_token_ids(state).tolist()
        return allowed

    def _prompts_of(self, batch_id: int) -> Prompts:
        """Return what finds where the texts after one prompt begin, one object per prompt and thread."""
        if self._prompts is not None:
            return self._prompts
        if not hasattr(self._local, "seen"):
            self._local.seen = defaultdict(lambda: SeenBeams(self._masks.is_refused))
        seen: defaultdict[int, Prompts] = self._local.seen
        return seen[batch_id]
