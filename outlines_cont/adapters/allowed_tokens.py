"""`prefix_allowed_tokens_fn`: a constraint as the function of that name that `generate` of transformers takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from outlines_cont.adapters.processor import RowMasks, row_masks
from outlines_cont.adapters.prompts import GivenPrompts, Prompts, SeenBeams
from outlines_cont.adapters.row_states import OVER
from outlines_cont.adapters.token_fsm import EOSTokenIds
from outlines_cont.unknown_option import knows_its_options


class AllowedTokens:
    """Lists the tokens that may follow a row. Make one with `adapters.prefix_allowed_tokens_fn`.

    The same holds as for `ConstraintProcessor`, `of` included.
    """

    def __init__(self, masks: RowMasks, make_prompts: Callable[[], Prompts] | None = None) -> None:
        self._masks = masks
        self._make_prompts = make_prompts or (lambda: SeenBeams(masks.is_refused))
        self._local = threading.local()

    def of(self, inputs: Any) -> AllowedTokens:
        """Return the same constraint for one call of `generate`, whose texts begin after `inputs`; see `ConstraintProcessor.of`."""
        GivenPrompts(inputs)  # raises for an invalid argument now, not at the first call
        return AllowedTokens(self._masks, lambda: GivenPrompts(inputs))

    def __deepcopy__(self, memo: object) -> AllowedTokens:
        """Return a copy that shares the compiled constraint, without the state of a call."""
        return AllowedTokens(self._masks, self._make_prompts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse; see `RowMasks`."""
        return self._masks.__reduce__()

    def __repr__(self) -> str:
        return f"<AllowedTokens: {self._masks!r}>"

    def __call__(self, batch_id: int, input_ids: torch.Tensor) -> list[int]:
        """Return the ids that may follow a row, ascending, never empty.

        Args:
            batch_id: which prompt of the batch the row belongs to.
            input_ids: (T,) int64, prompt and text.

        Raises:
            AmbiguousPrompt: the beginning of the text cannot be determined, or it does not begin after the prompts that `of` was given.
        """
        row = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        start = self._prompts(int(batch_id)).start(row[None])
        state = self._masks.states.after(row[start:])
        if state == OVER:
            return list(self._masks.table.vocabulary.eos_token_ids)
        allowed: list[int] = self._masks.token_fsm.allowed_token_ids(state).tolist()
        return allowed

    def _prompts(self, batch_id: int) -> Prompts:
        """Return the `Prompts` of the rows of one prompt; each thread has its own."""
        if not hasattr(self._local, "prompts"):
            self._local.prompts = {}
        by_batch: dict[int, Prompts] = self._local.prompts
        if batch_id not in by_batch:
            by_batch[batch_id] = self._make_prompts()
        return by_batch[batch_id]


@knows_its_options()
def prefix_allowed_tokens_fn(
    constraint: Any,
    tokenizer: Any,
    *,
    eos_token_ids: EOSTokenIds = None,
    vocab_size: int | None = None,
    checks: str = "refuse",
) -> AllowedTokens:
    """Return a function for `model.generate(..., prefix_allowed_tokens_fn=function)` of transformers.

    It allows the same tokens as `logits_processor` does, which is faster where a state allows many: a function makes a list of them for
    every row and step. Arguments and errors are those of `logits_processor`.
    """
    return AllowedTokens(row_masks(constraint, tokenizer, eos_token_ids, vocab_size, checks))
