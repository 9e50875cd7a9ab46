"""`DeviceTables`: masks and next states of a small token FSM by lookups in tables on a device, for compiled loops and CUDA graphs. They are
the arrays of `TokenFSM.to_tensors`, read without host synchronisation: a state and the class of a token index a dense transition table, and
each state has an index into the distinct bit masks. Checks beyond the automaton are not included. The engine does not use it.
"""

from __future__ import annotations

import numpy as np
import torch

from fsm.tokens.token_tables import TokenTables

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
