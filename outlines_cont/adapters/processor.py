"""`ConstraintProcessor`, `AllowedTokens`: a constraint as a `LogitsProcessor` of transformers, which sets the logits of disallowed tokens
to minus infinity, and as the slower callback `prefix_allowed_tokens_fn`, which lists the allowed ids. Where the prompts end is given by
`of(inputs)`, or inferred from successive steps; the mask depends on the ids after that alone, and after an end or a disallowed id only an
end may follow. No forced text in chunks, no token healing, no rewinding.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Self

import numpy as np
import torch
from transformers import LogitsProcessor

from outlines_cont.adapters.prompts import GivenPrompts, IsRefused, Prompts, SeenBeams, SeenPrompts
from outlines_cont.adapters.row_masks import OVER, RowMasks
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DeadEnd, NotPicklable, VocabularyMismatch
from outlines_cont.policies.branch import TokenSet


class ConstraintAdapter:
    """Base of both adapters: masks, prompts, copies.

    Args:
        masks: those of the constraint.
        prompts: those that `of` was given; None where they are found in the rows.
    """

    def __init__(self, masks: RowMasks, prompts: Prompts | None = None) -> None:
        self._masks = masks
        self._prompts = prompts

    def of(self, inputs: Any) -> Self:
        """Return the same constraint for one call of `generate`, whose texts begin after `inputs`.

        Args:
            inputs: what `tokenizer(prompts, return_tensors="pt", padding=True)` returns, the `input_ids` in it, or their number of columns.
                To continue texts that were cut, give the inputs that they began with.

        Raises:
            OptionError: it is something else.
        """
        return type(self)(self._masks, GivenPrompts(inputs))

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy that shares the compiled constraint, without the state of a call."""
        return type(self)(self._masks, self._prompts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise `NotPicklable`: what is compiled stays in its process."""
        raise NotPicklable(
            f"expected a constraint that another process can compile, got {self._masks!r}, which is compiled. Call "
            "`adapters.logits_processor`, or `adapters.prefix_allowed_tokens_fn`, in each process."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._masks!r}{'' if self._prompts is None else ', of given prompts'}>"


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


class _ThreadLocal(threading.local):
    """State of one thread for the calls that it runs.

    Attributes:
        prompts: finds where the texts begin, if `of` was not called.
        maskers: apply masks on a device; each caches the last one that all rows had in common.
        sets: the tokens allowed in the states of the last step, so that equal ones are one object.
    """

    def __init__(self, is_refused: IsRefused) -> None:
        self.prompts = SeenPrompts(is_refused)
        self.maskers: defaultdict[torch.device, Masker] = defaultdict(Masker)
        self.sets: dict[int, TokenSet] = {}


class ConstraintProcessor(ConstraintAdapter, LogitsProcessor):
    """A `LogitsProcessor` that excludes the tokens that a constraint does not allow. Make one with `adapters.logits_processor`.

    The mask of a row depends on its ids alone, so rows may have any order, as in beam search, be left-padded, and be given
    to `generate` again. One object serves any number of calls.

    `of(inputs)` gives where the text of a row begins. Without it, rows that are those of the step before with one token more continue their
    texts, and any others are prompts. So what `generate` returned can be given to it again, and its text is continued. A prompt that is a
    row of the last step with one more token, which the constraint would allow, is taken for such a step; and assisted generation, which
    shortens its row, is refused with `AmbiguousPrompt`. With `of(inputs)` all of that is exact.
    """

    def __init__(self, masks: RowMasks, prompts: Prompts | None = None) -> None:
        super().__init__(masks, prompts)
        self._local = _ThreadLocal(masks.is_refused)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return the scores with minus infinity for tokens that the constraint does not allow.

        Args:
            input_ids: (B, T) int64, prompt and text of each row.
            scores: (B, V) of any float type, logits or log-probabilities; not changed.

        Returns:
            (B, V). A row that has ended, and one with a token that is not allowed (a beam or a guess that is given up), may only end.

        Raises:
            AmbiguousPrompt: the beginning of the texts cannot be determined, or they do not begin after the prompts that `of` was given.
            VocabularyMismatch: the logits are narrower than the vocabulary.
            DeadEnd: another processor has excluded all of the allowed tokens of a row.
        """
        self._check_width(scores.shape[-1])
        rows = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        local = self._local
        start = (self._prompts or local.prompts).start(rows)
        states = [self._masks.state_after(row[start:]) for row in rows]
        local.sets = {state: local.sets.get(state) or self._masks.allowed(state) for state in set(states)}
        masked = _masked(local.maskers[scores.device], scores, [local.sets[state] for state in states])
        empty = masked.amax(-1).isneginf()
        if bool(empty.any()):
            self._allow_ends(masked, states, empty.nonzero()[:, 0].tolist(), rows.shape[1] - start)
        return masked  # type: ignore[return-value]

    def _check_width(self, width: int) -> None:
        """Raise `VocabularyMismatch` where logits have no column for some token."""
        if width < self._masks.num_needed:
            raise VocabularyMismatch(
                f"expected logits of at least {self._masks.num_needed:,} tokens, those of the tokenizer that the constraint was made with, "
                f"got {width:,}. Give the tokenizer of this model; where it has tokens that the model has no logits for, pass "
                f"`vocab_size={width}` as well."
            )

    def _allow_ends(self, masked: torch.Tensor, states: list[int], empty: list[int], num_tokens: int) -> None:
        """Allow the end-of-text tokens in finished rows despite other processors, so that sampling works there; the draw is ignored."""
        for row in empty:
            if states[row] != OVER:
                allowed = self._masks.token_fsm.allowed_token_ids(states[row])
                raise DeadEnd(
                    f"expected that some of the {len(allowed):,} tokens that the constraint allows can be written in row {row}, "
                    f"{num_tokens} tokens after its prompt, but the scores of all of them are minus infinity: the model, or "
                    f"another logits processor of the call (`min_new_tokens`, `bad_words_ids`, `no_repeat_ngram_size`, `suppress_tokens`), "
                    f"has excluded them. The first of them are {allowed[:8].tolist()}. Leave that processor out."
                )
            masked[row, list(self._masks.eos_token_ids)] = 0.0


def _masked(masker: Masker, scores: torch.Tensor, masks: list[TokenSet]) -> torch.Tensor:
    """Return (B, V) scores of any float type under the masks."""
    if scores.dtype in (torch.float32, torch.float64):
        return masker.masked(scores, masks)
    blank = torch.zeros(scores.shape, dtype=torch.float32, device=scores.device)
    return scores + masker.masked(blank, masks).to(scores.dtype)
