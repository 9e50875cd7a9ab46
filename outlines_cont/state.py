"""`SequenceState`: batch x sample sequences as one immutable value, and `StateRow`, one sequence of it.

Left out so far: slicing, adding two states, forking and saving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from outlines_cont.errors import BatchMismatch, ContextLengthError
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.kv import RowKV, to_dynamic_cache
from outlines_cont.random_stream import RandomStream

PROMPT, APPENDED, GENERATED, FORCED = b"p", b"a", b"g", b"f"


@dataclass(frozen=True, slots=True)
class Piece:
    """What was generated last on a row.

    Attributes:
        start: index of its first token.
        owed: forced tokens that a limit cut off; they come first when the piece is resumed.
    """

    start: int
    owed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StateRow:
    """One sequence: its tokens and what is known of each.

    Attributes:
        token_ids: T ids.
        kinds: T bytes: `p` prompt, `a` appended or encoded anew, `g` generated, `f` forced.
        logprobs: T natural logarithms, the model's own; 0 for prompt and appended tokens.
        sampling_logprobs: T, the same as they were sampled; 0 for forced tokens, too.
        weight_start: index of the first token that counts in `weight`.
        ends: log-probabilities of the end-of-sequence tokens that were sampled since then.
        kv: keys and values of the first tokens; None where nothing is held.
        logits: (V,) logits after the last token, where it was fed and they are known.
        stream: where the row's random numbers go on.
        piece: the last piece; None where none was generated, or text was appended since.
        finish_reason: why the last piece ended; empty where none was generated.
        value: what the last generator made of its piece, None where it was cut or failed.
        error: what the last generator failed with on this row.
    """

    token_ids: tuple[int, ...]
    kinds: bytes
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    stream: RandomStream
    weight_start: int = 0
    ends: float = 0.0
    kv: RowKV | None = None
    logits: torch.Tensor | None = None
    piece: Piece | None = None
    finish_reason: str = ""
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], stream: RandomStream) -> StateRow:
        """Return a row of which nothing was fed yet."""
        zeros = (0.0,) * len(token_ids)
        return cls(tuple(token_ids), PROMPT * len(token_ids), zeros, zeros, stream, weight_start=len(token_ids))

    @property
    def cached(self) -> int:
        """The number of tokens whose keys and values are held."""
        return len(self.kv) if self.kv is not None else 0

    @property
    def weight(self) -> float:
        """The sum of the log-probabilities since the last reset."""
        return sum(self.logprobs[self.weight_start :]) + self.ends

    def append(self, token_ids: Sequence[int], *, reset: bool) -> StateRow:
        """Return the row with more given tokens at its end; `reset` starts the weight anew."""
        if not token_ids:
            return replace(self, weight_start=len(self.token_ids), ends=0.0) if reset else self
        zeros = (0.0,) * len(token_ids)
        longer = self.token_ids + tuple(token_ids)
        return replace(
            self,
            token_ids=longer,
            kinds=self.kinds + APPENDED * len(token_ids),
            logprobs=self.logprobs + zeros,
            sampling_logprobs=self.sampling_logprobs + zeros,
            weight_start=len(longer) if reset else self.weight_start,
            ends=0.0 if reset else self.ends,
            logits=None,
            piece=None,
        )


@dataclass(frozen=True, eq=False)
class SequenceState:
    """Batch x sample sequences that a generator has made and any generator can continue. Immutable.

    Shapes: B batch entries, S samples, T ids of the longest row. Tensors are made on demand, left-padded with id 0; padding
    is never part of a text.

    Attributes:
        model: the model that the sequences belong to.
        rows: B tuples of S rows.
        seed: the seed of the random streams: an int, or one per batch entry where a list was given.
    """

    model: LanguageModel
    rows: tuple[tuple[StateRow, ...], ...]
    seed: int | tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.rows)

    @property
    def num_samples(self) -> int:
        """S."""
        return len(self.rows[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, T)."""
        return self.batch_size, self.num_samples, max(len(row.token_ids) for row in self._flat)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def token_ids(self) -> torch.Tensor:
        """(B, S, T) int64 on the CPU, left-padded."""
        return torch.from_numpy(self._padded([row.token_ids for row in self._flat], np.int64))

    @property
    def attention_mask(self) -> torch.Tensor:
        """(B, S, T) bool: True for tokens, False for padding."""
        ones = [(True,) * len(row.token_ids) for row in self._flat]
        return torch.from_numpy(self._padded(ones, np.bool_))

    @property
    def logprobs(self) -> torch.Tensor:
        """(B, S, T) float32: log-softmax of the model's own logits, of every generated token, forced ones too; else 0."""
        return torch.from_numpy(self._padded([row.logprobs for row in self._flat], np.float32))

    @property
    def sampling_logprobs(self) -> torch.Tensor:
        """(B, S, T) float32: the same as sampled, that is masked and tempered; 0 for forced tokens, too."""
        return torch.from_numpy(self._padded([row.sampling_logprobs for row in self._flat], np.float32))

    @property
    def weights(self) -> torch.Tensor:
        """(B, S) float32: sum of `logprobs` since the last reset, and that of the end where one was sampled."""
        return torch.tensor(self._grid(lambda row: row.weight), dtype=torch.float32)

    @property
    def cached(self) -> torch.Tensor:
        """(B, S) int64: how many tokens of each row have their keys and values held."""
        return torch.tensor(self._grid(lambda row: row.cached), dtype=torch.int64)

    @property
    def finished(self) -> torch.Tensor:
        """(B, S) bool: the last piece came to its end; False where it was cut or failed."""
        return torch.tensor(self._grid(lambda row: row.finish_reason in ("stop", "constraint")), dtype=torch.bool)

    @property
    def finish_reasons(self) -> list[list[str]]:
        """B lists of S: `stop`, `constraint` (nothing may follow), `length` (cut) or `error`; empty before any piece."""
        return self._grid(lambda row: row.finish_reason)

    @property
    def values(self) -> list[list[Any]]:
        """B lists of S results of the last generator; None for a row that was cut or failed."""
        return self._grid(lambda row: row.value)

    @property
    def value(self) -> Any:
        """The result of the last generator: one for a state of one row, else as `values`."""
        return self.values[0][0] if len(self._flat) == 1 else self.values

    @property
    def errors(self) -> list[list[Exception | None]]:
        """B lists of S: what a row failed with, None where it did not."""
        return self._grid(lambda row: row.error)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys, values and logits that this state keeps alive; storage that rows share counts once."""
        buffers = {id(b): b for row in self._flat if row.kv is not None for b in row.kv.buffers}
        logits = [row.logits for row in self._flat if row.logits is not None]
        return sum(buffer.nbytes for buffer in buffers.values()) + sum(t.nbytes for t in logits)

    @property
    def kv_cache(self) -> DynamicCache | None:
        """Keys and values as a `DynamicCache` of B * S rows; column j belongs to column j of `token_ids`.

        Its length is T - max(1, largest number of tokens of a row that are not cached); None where that is not positive.
        Columns of padding hold anything and must be masked. Given to `model.generate` with `token_ids` flattened to
        (B * S, T) and `attention_mask`, it saves feeding those columns. Later work never changes it.

        Cost: one copy.
        """
        rows, width = self._flat, self.shape[2]
        length = width - max(1, *(len(row.token_ids) - row.cached for row in rows))
        if length <= 0:
            return None
        shares = [row.kv[: max(length - (width - len(row.token_ids)), 0)] if row.kv is not None else None for row in rows]
        return to_dynamic_cache(shares, length)

    def append(self, text: str | Sequence[str]) -> SequenceState:
        """Return the state with text at the end of its rows; tokens, keys and values, and weights are kept.

        The text is encoded without special tokens, as it goes on after the row. Nothing is fed before the next generator
        runs, and then only the new tokens.

        Args:
            text: one text for all rows, or a list of B texts, or of B * S texts.

        Raises:
            BatchMismatch: the list has neither B nor B * S texts.
            ContextLengthError: a row would be longer than the context of the model.
            TypeError: something else than text.
        """
        return self._append(text, reset=False)

    def __add__(self, text: object) -> SequenceState:
        """The same as `append`, but the weights start again at 0."""
        if not isinstance(text, str | list | tuple):
            return NotImplemented
        return self._append(text, reset=True)

    def _append(self, text: str | Sequence[str], *, reset: bool) -> SequenceState:
        texts = iter(self._texts(text))
        rows = tuple(tuple(self._append_row(row, next(texts), reset) for row in group) for group in self.rows)
        return replace(self, rows=rows)

    def _append_row(self, row: StateRow, text: str, reset: bool) -> StateRow:
        token_ids = self.tokenizer.encode_inside(text, row.token_ids)
        length, limit = len(row.token_ids) + len(token_ids), self.model.context_length
        if limit is not None and length > limit:
            raise ContextLengthError(
                f"expected at most {limit} tokens, the context of the model; with the appended text a row has {length}. "
                "Append less text, or use a model with a longer context.",
                length,
                limit,
            )
        return row.append(token_ids, reset=reset)

    def _texts(self, text: str | Sequence[str]) -> list[str]:
        texts = [text] * len(self._flat) if isinstance(text, str) else list(text)
        odd = next((item for item in texts if not isinstance(item, str)), None)
        if odd is not None:
            raise TypeError(f"expected text or a list of texts, got {type(odd).__name__} in the list")
        if len(texts) == len(self._flat):
            return texts
        if len(texts) == self.batch_size:
            return [item for item in texts for _ in range(self.num_samples)]
        raise BatchMismatch(
            f"expected one text, {self.batch_size} texts (one per batch entry) or {len(self._flat)} texts (one per row), "
            f"got a list of {len(texts)}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter([self.tokenizer.decode(row.token_ids) for row in self._flat])

    def __len__(self) -> int:
        return len(self._flat)

    def __str__(self) -> str:
        texts = list(self)
        if len(texts) == 1:
            return texts[0]
        samples = self.num_samples
        return "\n".join(f"[{i // samples}, {i % samples}] {text!r}" for i, text in enumerate(texts))

    def __repr__(self) -> str:
        batch, samples, width = self.shape
        reasons = sorted({row.finish_reason for row in self._flat} - {""})
        return (
            f"<SequenceState of {batch} x {samples} rows, at most {width} tokens, "
            f"{int(self.cached.sum())} cached in all, {'/'.join(reasons) or 'nothing generated'}>"
        )

    def __eq__(self, other: object) -> bool:
        """The same model, ids and weights."""
        if not isinstance(other, SequenceState):
            return NotImplemented
        return self.model is other.model and _identity(self) == _identity(other)

    __hash__ = None  # type: ignore[assignment]  # equality compares sums of floats; a state is no key

    @cached_property
    def _flat(self) -> tuple[StateRow, ...]:
        return tuple(row for group in self.rows for row in group)

    def _grid(self, of: Callable[[StateRow], Any]) -> list[list[Any]]:
        return [[of(row) for row in group] for group in self.rows]

    def _padded(self, lines: Sequence[Sequence[Any]], dtype: type) -> np.ndarray[Any, Any]:
        batch, samples, width = self.shape
        out: np.ndarray[Any, Any] = np.zeros((batch * samples, width), dtype=dtype)
        for index, line in enumerate(lines):
            out[index, width - len(line) :] = line
        return out.reshape(batch, samples, width)


def _identity(state: SequenceState) -> list[list[tuple[tuple[int, ...], float]]]:
    return [[(row.token_ids, row.weight) for row in group] for group in state.rows]
