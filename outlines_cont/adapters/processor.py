"""`logits_processor`: a constraint as a `LogitsProcessor` of transformers: it finds the state of the token FSM after the ids of each row,
and sets the logits of disallowed tokens to minus infinity. Where the prompts end is given by `of(inputs)`, or inferred from successive
steps.

`generate` takes one token at a time: there is no forced text in chunks, no token healing, and no rewinding.
"""

from __future__ import annotations

import threading
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from fsm import TokenFSM
from outlines_cont.adapters.language import expression_of
from outlines_cont.adapters.prompts import GivenPrompts, IsRefused, Prompts, Rows, SeenPrompts
from outlines_cont.adapters.row_states import OVER, RowStates
from outlines_cont.adapters.token_fsm import AdapterTokens, EOSTokenIds, token_table
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DeadEnd, NotPicklable
from outlines_cont.policies.branch import TokenSet
from outlines_cont.unknown_option import knows_its_options


class RowMasks:
    """The masks of the rows of a batch, for a token FSM.

    Args:
        table: the tokens.
        token_fsm: the constraint.
    """

    def __init__(self, table: AdapterTokens, token_fsm: TokenFSM) -> None:
        self.table = table
        self.token_fsm = token_fsm
        self.states = RowStates(token_fsm)
        self._ends = TokenSet.of(table.vocabulary.eos_token_ids)

    def __deepcopy__(self, memo: object) -> Self:
        """Return the object itself: its caches do not change its results."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse: what is compiled stays in its process.

        Raises:
            NotPicklable: always.
        """
        raise NotPicklable(
            f"expected a constraint that another process can compile, got {self!r}, which is compiled. Call "
            "`adapters.logits_processor`, or `adapters.prefix_allowed_tokens_fn`, in each process."
        )

    def __repr__(self) -> str:
        return f"{self.token_fsm.expression!r} over {len(self.table.vocabulary):,} tokens"

    def of_state(self, state: int) -> TokenSet:
        """Return the tokens that may follow a text in a state; a text that is over ends, and ends again."""
        return self._ends if state == OVER else TokenSet.of_bitmask(self.token_fsm.bitmask(state))

    def is_refused(self, token_ids: NDArray[np.int64]) -> bool:
        """Return whether the last token of a text is refused: it neither continues the text nor ends it."""
        return self.states.after(token_ids) == OVER and int(token_ids[-1]) not in self.table.vocabulary.eos_token_ids


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
                To go on with texts that were cut, give the inputs that they began with.

        Raises:
            OptionError: it is something else.
        """
        return type(self)(self._masks, GivenPrompts(inputs))

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy that shares the compiled constraint, without the state of a call."""
        return type(self)(self._masks, self._prompts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse; see `RowMasks`."""
        return self._masks.__reduce__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._masks!r}{'' if self._prompts is None else ', of given prompts'}>"


class _ThreadLocal(threading.local):
    """State of one thread for the calls that it runs.

    Attributes:
        prompts: finds where the texts begin, if `of` was not called.
        masker: applies masks; it remembers the last one that all rows had in common.
        sets: the tokens allowed in the states of the last step, so that equal ones are one object.
    """

    def __init__(self, is_refused: IsRefused) -> None:
        self.prompts = SeenPrompts(is_refused)
        self.masker = Masker()
        self.sets: dict[int, TokenSet] = {}
        self._device: torch.device | None = None

    def begin(self, device: torch.device) -> None:
        """Forget the last mask if it lies on another device."""
        if device != self._device:
            self.masker, self._device = Masker(), device


class ConstraintProcessor(ConstraintAdapter, LogitsProcessor):
    """A `LogitsProcessor` that excludes the tokens that a constraint does not allow. Make one with `adapters.logits_processor`.

    The mask of a row depends on its ids alone, so rows may come in any order, as in beam search, be left-padded, and be given
    to `generate` again. One object serves any number of calls.

    Where the text of a row begins, `of(inputs)` says. Without it a call whose rows are those of the step before with one token more goes
    on with their texts, and any other begins new ones after its rows. So what `generate` returned can be given to it again, and its text
    goes on. A prompt that is a row of the last step with one more token, which the constraint would allow, is taken for such a step; and
    assisted generation, which goes back in its row, is refused with `AmbiguousPrompt`. With `of(inputs)` all of that is exact.
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
            DeadEnd: another processor has left none of the allowed tokens of a row.
        """
        self._masks.table.check_width(scores.shape[-1])
        rows = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        local = self._local
        start = (self._prompts or local.prompts).start(rows)
        states = [self._masks.states.after(row[start:]) for row in rows]
        local.sets = {state: local.sets.get(state) or self._masks.of_state(state) for state in set(states)}
        local.begin(scores.device)
        masked = _masked(local.masker, scores, [local.sets[state] for state in states])
        empty = masked.amax(-1).isneginf()
        if bool(empty.any()):
            self._allow_ends(masked, states, empty.nonzero()[:, 0].tolist(), rows, start)
        return masked  # type: ignore[return-value]

    def _allow_ends(self, masked: torch.Tensor, states: list[int], empty: list[int], rows: Rows, start: int) -> None:
        """Allow the end-of-text tokens in finished rows whatever other processors do, so that sampling works there; the draw is ignored."""
        ends = list(self._masks.table.vocabulary.eos_token_ids)
        for row in empty:
            if states[row] != OVER:
                allowed = self._masks.token_fsm.allowed_token_ids(states[row])
                raise DeadEnd(
                    f"expected that some of the {len(allowed):,} tokens that the constraint allows can be written in row {row}, "
                    f"{rows.shape[1] - start} tokens after its prompt, but the scores of all of them are minus infinity: the model, or "
                    f"another logits processor of the call (`min_new_tokens`, `bad_words_ids`, `no_repeat_ngram_size`, `suppress_tokens`), "
                    f"has excluded them. The first of them are {allowed[:8].tolist()}. Leave that processor out."
                )
            masked[row, ends] = 0.0


def _masked(masker: Masker, scores: torch.Tensor, masks: list[TokenSet]) -> torch.Tensor:
    """Return (B, V) scores of any float type under the masks."""
    if scores.dtype in (torch.float32, torch.float64):
        return masker.masked(scores, masks)
    blank = torch.zeros(scores.shape, dtype=torch.float32, device=scores.device)
    return scores + masker.masked(blank, masks).to(scores.dtype)


@knows_its_options()
def logits_processor(
    constraint: Any,
    tokenizer: Any,
    *,
    eos_token_ids: EOSTokenIds = None,
    vocab_size: int | None = None,
    checks: str = "refuse",
) -> ConstraintProcessor:
    """Return a logits processor for `model.generate(..., logits_processor=[processor])` of transformers.

    It allows the same tokens as the generators of this package do with `force=False`: in each row those after which some text of the
    constraint can still be written, and an end of text exactly where the text belongs to it. It can be used for any number of calls.

    Args:
        constraint: an expression of `fsm`, a JSON schema as a dict, a pydantic model or another type that `fsm.json_schema` knows, or a
            pattern as `fsm.regex` reads it.
        tokenizer: the tokenizer of the model, of transformers or of `models`; or a model of `models`, which knows the rest, too.
        eos_token_ids: the ids that end a text; None for the tokenizer's. A model may have more: `model.generation_config.eos_token_id`.
        vocab_size: how many tokens the model has logits for, where the tokenizer has more.
        checks: what is done about keywords beyond the automaton (`expression.checks`): "refuse", or "ignore", so that a text may fail them.
            That a key may come twice in an object that takes any key is accepted: the last one counts when JSON is read.

    Raises:
        OptionError: an argument is none of these, or the constraint has checks.
        fsm.FSMError: the constraint is malformed, or nothing satisfies it that the tokens spell.
        MissingEOS: neither an argument nor the tokenizer names an id that ends a text.
        TokenizerError: the tokens of the tokenizer do not join to the text.

    Cost: the first one of a tokenizer reads its vocabulary (0.5 s for 131,072 tokens); equal constraints are compiled once.
    """
    return ConstraintProcessor(row_masks(constraint, tokenizer, eos_token_ids, vocab_size, checks))


def row_masks(
    constraint: Any, tokenizer: Any, eos_token_ids: EOSTokenIds, vocab_size: int | None, checks: str
) -> RowMasks:
    """Return the masks of a constraint; see `logits_processor`."""
    expression = expression_of(constraint, checks)
    table = token_table(tokenizer, eos_token_ids, vocab_size)
    return RowMasks(table, table.token_fsm(expression))
