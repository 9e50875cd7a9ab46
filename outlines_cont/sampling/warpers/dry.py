"""`DRY` ("don't repeat yourself", p-e-w 2024): lowers the logits of tokens that would extend a repetition of the last n tokens by
`multiplier * base ** (n - allowed_length)`, from n = `allowed_length` on, and by 10,000 at most; repetitions end at `breakers`. They are
found by comparing backwards from every earlier occurrence of the last token, all at once in numpy, at every draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.checks import check, is_int, is_number
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import Tokenizer
from outlines_cont.sampling.kernels.token_counts import TokenCounts, counts_of_row
from outlines_cont.sampling.warpers.warper import Truncate, Warper, WholeRowWarper

# Far beyond what changes a text; repetitions are only followed back until the penalty reaches it.
_MOST = 10_000.0


@dataclass(frozen=True, slots=True)
class DRY(Warper):
    """Subtracts `multiplier * base ** (n - allowed_length)` from the logit of a token that would extend a repetition of n tokens.

    Here n is the largest number for which the last n tokens of the row, prompt included, occurred in it before, followed by this token.
    Nothing is subtracted if n is below `allowed_length`, and never more than 10,000.

    Attributes:
        multiplier: from 0 to 1,000; 0 changes nothing.
        base: from 1 to 100.
        allowed_length: the shortest repetition that is penalised; an int, 1 or more.
        range: the number of last tokens that are searched, an int, 1 or more; None for all.
        breakers: ids of tokens that end a repetition, and that are never penalised; see `breaking_at`.
    """

    needs_counts: ClassVar[bool] = True

    multiplier: float = 0.8
    base: float = 1.75
    allowed_length: int = 2
    range: int | None = None
    breakers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        holds = is_number(self.multiplier) and 0 <= self.multiplier <= 1000
        check("dry", self.multiplier, holds, "a `multiplier` from 0 to 1000")
        check("dry", self.base, is_number(self.base) and 1 <= self.base <= 100, "a `base` from 1 to 100")
        check("dry", self.allowed_length, is_int(self.allowed_length, 1), "an int, 1 or more, as `allowed_length`")
        check("dry", self.range, self.range is None or is_int(self.range, 1), "an int, 1 or more, or None as `range`")
        if not isinstance(self.breakers, tuple) or not all(is_int(i, 0) for i in self.breakers):
            raise OptionError(
                f"expected a tuple of token ids, ints of 0 or more, as `breakers` of `DRY`, got {self.breakers!r}. For texts write "
                "`DRY().breaking_at(model.tokenizer, [...])`.",
                "dry",
            )

    def breaking_at(self, tokenizer: Tokenizer, texts: Iterable[str]) -> DRY:
        r"""Return a copy whose `breakers` are all tokens that contain one of the texts, such as `["\n", ":", '"']`.

        Args:
            tokenizer: the tokenizer of the model, `model.tokenizer`.
            texts: one or several, not empty.

        Raises:
            OptionError: a text is empty or not a `str`, or the tokenizer is not that of a model.

        Cost: one pass over the vocabulary.
        """
        if not hasattr(tokenizer, "token_bytes"):
            raise OptionError(
                f"expected the tokenizer of a model, `model.tokenizer`, as `tokenizer`, got {type(tokenizer).__name__}",
                "tokenizer",
            )
        found = [texts] if isinstance(texts, str) else list(texts)
        if not all(isinstance(text, str) and text for text in found):
            raise OptionError(f"expected texts that are not empty as `texts` of `breaking_at`, got {found!r}", "dry")
        wanted = [text.encode() for text in found]
        ids = (i for i, data in enumerate(tokenizer.token_bytes) if data and any(text in data for text in wanted))
        return replace(self, breakers=tuple(ids))

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits unchanged, as for rows without tokens: a single call has no token counts."""
        return logits

    def __str__(self) -> str:
        within = "" if self.range is None else f" within {self.range}"
        return f"dry {self.multiplier} {self.base} {self.allowed_length}{within}"

    @property
    def is_neutral(self) -> bool:
        """Whether `multiplier` is 0."""
        return self.multiplier == 0

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the vectorised form."""
        return _RowDRY(tuple(warpers), None)

    def penalties(self, token_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return distinct ids, and the penalty of each, for the token after a row.

        Args:
            token_ids: (T,) the row.

        Cost: a comparison of the last token with all in range, and for every token of the longest repetition one with the candidates
        that remain: 40 us for 1,000 to 2,000 tokens of text, 0.8 ms if all 2,000 are the same (one core).
        """
        if self.range is not None:
            token_ids = token_ids[-self.range :]
        next_ids, lengths = _repetitions(token_ids, self.breakers, self._longest())
        counts = (lengths >= self.allowed_length) & ~np.isin(next_ids, self.breakers)
        next_ids, lengths = next_ids[counts], lengths[counts]
        order = np.lexsort((-lengths, next_ids))  # the longest of each id first
        ids, first = np.unique(next_ids[order], return_index=True)
        powers = (lengths[order][first] - self.allowed_length) * math.log(self.base)
        return ids, np.minimum(self.multiplier * np.exp(powers), _MOST)

    def _longest(self) -> int:
        """Return the length of a repetition from which on the penalty no longer grows."""
        if self.base == 1 or self.multiplier >= _MOST:
            return self.allowed_length
        return self.allowed_length + math.ceil(max(math.log(_MOST / self.multiplier) / math.log(self.base), 0))


def _repetitions(
    token_ids: NDArray[np.int64], breakers: Sequence[int], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids that follow earlier occurrences of the last token, and the length of each repetition, `longest` at most."""
    last = len(token_ids) - 1
    if last < 1 or token_ids[last] in breakers:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ends = np.flatnonzero(token_ids[:last] == token_ids[last])
    lengths = np.ones_like(ends)
    open_ones, length = np.arange(len(ends)), 1
    while len(open_ones) and length < longest and token_ids[last - length] not in breakers:
        open_ones = open_ones[ends[open_ones] >= length]
        open_ones = open_ones[token_ids[ends[open_ones] - length] == token_ids[last - length]]
        length += 1
        lengths[open_ones] = length
    return token_ids[ends + 1], lengths


@dataclass(frozen=True, slots=True)
class _RowDRY(WholeRowWarper):
    warpers: tuple[DRY, ...]
    # For each row the ids and their penalties, in the present draw; None before `at`.
    penalties: tuple[tuple[NDArray[np.int64], NDArray[np.float64]], ...] | None

    def at(self, counts: Sequence[TokenCounts | None] | None) -> _RowDRY:
        rows = [counts_of_row(counts, row, warper).row for row, warper in enumerate(self.warpers)]
        return _RowDRY(self.warpers, tuple(DRY.penalties(*pair) for pair in zip(self.warpers, rows, strict=True)))

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        assert self.penalties is not None
        ids = np.concatenate([ids for ids, _ in self.penalties])
        rows = np.repeat(np.arange(len(logits)), [len(ids) for ids, _ in self.penalties])
        known = ids < logits.shape[-1]  # the embedding may have more tokens than the logits
        if not known.any():
            return logits
        amounts = torch.from_numpy(np.concatenate([amounts for _, amounts in self.penalties])[known]).to(logits)
        places = torch.from_numpy(rows[known]).to(logits.device), torch.from_numpy(ids[known]).to(logits.device)
        logits = logits.clone()
        logits[places] -= amounts
        return logits
