"""`RowMasks`: the tokens that a token FSM allows after the ids of a row. The FSM is simulated from a known prefix of the ids on, with a
cache (16 MiB) from ids to states, so that a step usually costs a few look-ups and one transition. Prefixes shorter by 0, 1, 2, 4, 8 ...
tokens are looked up, then the text is read from its start. After an end or a disallowed id only an end may follow (`OVER`).

`DeviceTables`: masks and next states of a small token FSM by lookups in tables on a device, for compiled loops and CUDA graphs. They are
the arrays of `TokenFSM.to_tensors`, read without host synchronisation: a state and the class of a token index a dense transition table, and
each state has an index into the distinct bit masks. Checks beyond the automaton are not included. The engine does not use it.

`ConstraintProcessor`, `AllowedTokens`: a constraint as a `LogitsProcessor` of transformers, which sets the logits of disallowed tokens
to minus infinity, and as the slower callback `prefix_allowed_tokens_fn`, which lists the allowed ids. `of(inputs)` says where the prompts
of a call end (`Prompts`); the mask depends on the ids after that alone, and after an end or a disallowed id only an end may follow. No
forced text in chunks, no token healing, no rewinding.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from fsm import TokenFSM, TokenNotAllowed
from fsm.tokens.cache import ByteCache
from fsm.tokens.token_tables import TokenTables
from outlines_cont.checks import is_int
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import AmbiguousPrompt, DeadEnd, NotPicklable, OptionError, VocabularyMismatch
from outlines_cont.policies.branch import TokenSet

OVER = -1
"""The state of a text that has ended, or that is not in the language: only an end of text may follow."""

_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 150


class RowMasks:
    """The states and masks of rows under one constraint; they depend on the ids of a row alone. Several threads may use one object.

    Args:
        token_fsm: the constraint.
        num_needed: the least width of logits with a column for each token.
        max_bytes: most memory for the states after known ids.
    """

    def __init__(self, token_fsm: TokenFSM, num_needed: int, max_bytes: int = _MAX_BYTES) -> None:
        self.token_fsm = token_fsm
        self.num_needed = num_needed
        self.eos_token_ids = token_fsm.vocabulary.eos_token_ids
        self._ends = TokenSet.of(self.eos_token_ids)
        self._known: ByteCache[bytes, int] = ByteCache(max_bytes)

    def __repr__(self) -> str:
        return f"{self.token_fsm.expression!r} over {len(self.token_fsm.vocabulary):,} tokens"

    def state_after(self, token_ids: NDArray[np.int64]) -> int:
        """Return the state after (T,) int64 ids, the first of which begins the text; `OVER` after an end, or a token that is not allowed.

        Cost: a look-up and a step if the text without its last token is known, else a step for each token after the longest known
        prefix that was looked up: all but 0, 1, 2, 4, 8 ... tokens.
        """
        token_ids = np.ascontiguousarray(token_ids, np.int64)
        data = token_ids.tobytes()
        start, state = self._longest_known(data)
        for token_id in token_ids[start:].tolist():
            state = self._step(state, token_id)
        if data not in self._known:
            self._known.put(data, state, len(data) + _ENTRY_BYTES)
        return state

    def allowed(self, state: int) -> TokenSet:
        """Return the tokens that may follow a text in a state; a text that has ended ends again."""
        return self._ends if state == OVER else TokenSet.of_bitmask(self.token_fsm.bitmask(state))

    def _longest_known(self, data: bytes) -> tuple[int, int]:
        """Return how many tokens of a text are known, and the state after them."""
        num_tokens, num_left_out = len(data) // 8, 0
        while num_tokens > num_left_out:
            state = self._known.get(data[: (num_tokens - num_left_out) * 8])
            if state is not None:
                return num_tokens - num_left_out, state
            num_left_out = 2 * num_left_out or 1
        return 0, self.token_fsm.initial_state

    def _step(self, state: int, token_id: int) -> int:
        if state == OVER or token_id in self.eos_token_ids:
            return OVER
        try:
            return self.token_fsm.next_state(state, token_id)
        except TokenNotAllowed:
            return OVER


_WORD_BITS = 32


class DeviceTables:
    """A small token FSM as tensors on a device, for your own loops: `model.generate`, a compiled loop, a captured graph.

    The engine of this package does not use it: its policies read every token on the host anyway.

    Args:
        tables: what `fsm.TokenFSM.to_tensors` has returned.
        vocab_size: V, the width of the logits; ids beyond the vocabulary of the tables are never allowed.
        device: where logits are.

    Cost: 4 bytes for every state and class of tokens, and a bit for every distinct mask and token, on the device.
    """

    def __init__(self, tables: TokenTables, vocab_size: int, device: str | torch.device = "cpu") -> None:
        known = len(tables.token_class)
        if vocab_size < known:
            raise ValueError(f"expected logits of at least {known:,} tokens, those of the tables, got {vocab_size:,}")
        words = np.zeros((len(tables.masks), -(-vocab_size // _WORD_BITS)), np.int32)
        words[:, : tables.masks.shape[1]] = tables.masks
        # Ids beyond the tables may have any class, as no mask allows them.
        token_class = np.zeros(vocab_size, np.int64)
        token_class[:known] = tables.token_class
        self.vocab_size = vocab_size
        self._start = tables.initial_state
        self._words = torch.from_numpy(words).to(device)
        self._mask_index = torch.from_numpy(tables.mask_index.astype(np.int64)).to(device)
        self._token_class = torch.from_numpy(token_class).to(device)
        self._transitions = torch.from_numpy(tables.transitions.copy()).to(device)
        self._is_accepting = torch.from_numpy(tables.is_accepting.copy()).to(device)
        self._bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tensors = self._words, self._mask_index, self._token_class, self._transitions, self._is_accepting, self._bits
        return sum(tensor.nbytes for tensor in tensors)

    def initial(self, num_rows: int) -> torch.Tensor:
        """Return (R,) int64, the state before any token, for each row."""
        return torch.full((num_rows,), self._start, dtype=torch.int64, device=self._words.device)

    def allowed(self, states: torch.Tensor) -> torch.Tensor:
        """Return (R, V) bool: the tokens that each state allows, those that end the text where it accepts; none in state 0."""
        words = self._words[self._mask_index[states]]
        return (words[:, :, None] >> self._bits & 1).bool().flatten(1)[:, : self.vocab_size]

    def masked(self, logits: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return (R, V) logits with minus infinity for the tokens that the state of a row does not allow."""
        return logits.masked_fill(~self.allowed(states), -torch.inf)

    def advance(self, states: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return (R,) int64, the states after one token each; 0 after the end of a text, and after what was not allowed."""
        return self._transitions[states, self._token_class[token_ids]].long()

    def is_accepting(self, states: torch.Tensor) -> torch.Tensor:
        """Return (R,) bool: whether the text so far belongs to the language, by the automaton alone."""
        return self._is_accepting[states]

    def __repr__(self) -> str:
        states, classes = self._transitions.shape
        return f"<DeviceTables of {states:,} states, {classes:,} classes of tokens, {self.nbytes:,} bytes on {self._words.device}>"


class Prompts:
    """The prompts of one call, with their padding, or only their length.

    Args:
        inputs: what `tokenizer(prompts, return_tensors="pt")` returns, the `input_ids` in it, or their number of columns.
    """

    def __init__(self, inputs: Any) -> None:
        self._rows = _rows_of(inputs)
        self._length = int(inputs) if self._rows is None else self._rows.shape[1]
        self._known: set[bytes] = set() if self._rows is None else {row.tobytes() for row in self._rows}

    def start(self, rows: NDArray[np.int64]) -> int:
        """Return the number of columns of (B, T) int64 rows before the texts: the length of the prompts, padding included.

        Raises:
            AmbiguousPrompt: the rows do not begin with these prompts.
        """
        if rows.shape[1] < self._length:
            raise AmbiguousPrompt(
                f"expected rows that begin with a prompt of {self._length} tokens, padding included, got rows of {rows.shape[1]}. "
                "Make one for these prompts: `processor.of(inputs)`."
            )
        if self._rows is not None:
            self._check(rows[:, : self._length], self._rows)
        return self._length

    def _check(self, begun: NDArray[np.int64], prompts: NDArray[np.int64]) -> None:
        """Raise for rows that do not begin with one of the prompts. Cost: a look at every id; `generate` repeats prompts in their order."""
        copies = len(begun) // len(prompts)
        if copies * len(prompts) == len(begun) and np.array_equal(begun, np.repeat(prompts, copies, axis=0)):
            return
        odd = next((i for i, row in enumerate(begun) if row.tobytes() not in self._known), None)
        if odd is not None:
            raise AmbiguousPrompt(
                f"expected rows that begin with the prompts that `of` was given, got another one in row {odd}. "
                "Make one for each call: `model.generate(**inputs, logits_processor=[processor.of(inputs)])`."
            )


class ConstraintAdapter:
    """Base of both adapters: masks, prompts, copies.

    Args:
        masks: those of the constraint.
        prompts: those that `of` was given; None if it was not called yet.
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
        return type(self)(self._masks, Prompts(inputs))

    def _start(self, rows: NDArray[np.int64]) -> int:
        """Return the column at which the texts of (B, T) rows begin; `AmbiguousPrompt` if `of` was not called, or for other prompts."""
        if self._prompts is None:
            raise AmbiguousPrompt(
                "expected the prompts of the call, as whole rows do not say where their text begins. Give its inputs: "
                "`model.generate(**inputs, logits_processor=[processor.of(inputs)])`, or `prefix_allowed_tokens_fn=allowed.of(inputs)`."
            )
        return self._prompts.start(rows)

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

    It is used as `ConstraintProcessor` is: `prefix_allowed_tokens_fn=allowed.of(inputs)`.
    """

    def __call__(self, batch_id: int, input_ids: torch.Tensor) -> list[int]:
        """Return the ids that may follow a row, ascending, never empty.

        Args:
            batch_id: which prompt of the batch the row belongs to; not read.
            input_ids: (T,) int64, prompt and text.

        Raises:
            AmbiguousPrompt: `of(inputs)` was not called, or the row does not begin with one of these prompts.
        """
        row = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        state = self._masks.state_after(row[self._start(row[None]) :])
        if state == OVER:
            return list(self._masks.eos_token_ids)
        allowed: list[int] = self._masks.token_fsm.allowed_token_ids(state).tolist()
        return allowed


class _ThreadLocal(threading.local):
    """State of one thread for the calls that it runs.

    Attributes:
        maskers: apply masks on a device; each caches the last one that all rows had in common.
        sets: the tokens allowed in the states of the last step, so that equal ones are one object.
    """

    def __init__(self) -> None:
        self.maskers: defaultdict[torch.device, Masker] = defaultdict(Masker)
        self.sets: dict[int, TokenSet] = {}


class ConstraintProcessor(ConstraintAdapter, LogitsProcessor):
    """A `LogitsProcessor` that excludes the tokens that a constraint does not allow. Make one with `adapters.logits_processor`.

    A call of `generate` gets `processor.of(inputs)`, which knows where the texts of its rows begin. The mask of a row depends on its ids
    alone, so rows may have any order, as in beam search, be left-padded, be shortened, as by assisted generation, and be given to
    `generate` again, with the inputs that they began with. One object serves any number of calls, in any number of threads.
    """

    def __init__(self, masks: RowMasks, prompts: Prompts | None = None) -> None:
        super().__init__(masks, prompts)
        self._local = _ThreadLocal()

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return the scores with minus infinity for tokens that the constraint does not allow.

        Args:
            input_ids: (B, T) int64, prompt and text of each row.
            scores: (B, V) of any float type, logits or log-probabilities; not changed.

        Returns:
            (B, V). A row that has ended, and one with a token that is not allowed (a beam or a guess that is given up), may only end.

        Raises:
            AmbiguousPrompt: `of(inputs)` was not called, or a row does not begin with one of these prompts.
            VocabularyMismatch: the logits are narrower than the vocabulary.
            DeadEnd: another processor has excluded all of the allowed tokens of a row.
        """
        self._check_width(scores.shape[-1])
        rows = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        local = self._local
        start = self._start(rows)
        states = [self._masks.state_after(row[start:]) for row in rows]
        local.sets = {state: local.sets.get(state) or self._masks.allowed(state) for state in set(states)}
        masked = _masked(local.maskers[scores.device], scores, [local.sets[state] for state in states])
        empty = masked.amax(-1).isneginf()
        if bool(empty.any()):
            self._allow_ends(masked, states, empty.nonzero()[:, 0].tolist(), rows.shape[1] - start)
        return masked  # type: ignore[return-value]

    def _check_width(self, width: int) -> None:
        """Raise `VocabularyMismatch` if logits have no column for some token."""
        if width < self._masks.num_needed:
            raise VocabularyMismatch(
                f"expected logits of at least {self._masks.num_needed:,} tokens, those of the tokenizer that the constraint was made with, "
                f"got {width:,}. Give the tokenizer of this model; if it has tokens that the model has no logits for, pass "
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


def _rows_of(inputs: Any) -> NDArray[np.int64] | None:
    """Return (B, T) int64 ids, None for a mere length."""
    if isinstance(inputs, Mapping) or hasattr(inputs, "input_ids"):
        inputs = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs.input_ids
    if is_int(inputs, 0):
        return None
    if isinstance(inputs, torch.Tensor):
        inputs = inputs.detach().cpu().numpy()
    if isinstance(inputs, Sequence | np.ndarray):
        try:
            rows = np.asarray(inputs)
        except ValueError:  # lists of different lengths
            rows = np.zeros(0)
        if rows.ndim == 1 and rows.dtype.kind == "i":
            rows = rows[None]
        if rows.ndim == 2 and rows.dtype.kind == "i":
            return np.ascontiguousarray(rows, np.int64)
    raise OptionError(
        "expected the inputs of a call, as `tokenizer(prompts, return_tensors='pt', padding=True)` returns them, their `input_ids`, or "
        f"their number of columns, got {type(inputs).__name__}. Rows have one length: pad them on the left.",
        "inputs",
    )
