"""`DRY` ("don't repeat yourself", p-e-w 2024): lowers the logits of tokens that would extend a repetition of the last n tokens by
`multiplier * base ** (n - allowed_length)`, from n = `allowed_length` on, and by 10,000 at most; repetitions end at `breakers`. They are
found by comparing backwards from every earlier occurrence of the last token, all at once in numpy, at every draw.

`Mirostat`: keeps the most probable token and those up to a bound on their surprisal: `2 * tau`, less `eta * (s - tau)` for each drawn
token of surprisal s, so that the mean approaches tau: version 2 of Basu et al. 2021 (arXiv:2007.14966), without an estimate of the tail.
The bound is computed from prefix sums over the log-probabilities of the row, so that it is correct after a rewind, in forks, and in a saved
state.

`XTC` ("exclude top choices", p-e-w 2024): with a given probability, excludes all tokens of at least `threshold`, except the least likely
of them and those in `keep`. The random coin is not thrown: the token is drawn from the mixture of both cases, so that one random number
suffices and log-probabilities are those of the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.checks import check, is_int, is_number, make_plain
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import Tokenizer
from outlines_cont.sampling.kernels import TokenCounts, TopBlocks, counts_of_row
from outlines_cont.sampling.warper import RowWarper, Truncate, Warper, WholeRowWarper, column, warped_by_rows

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
        make_plain(self)
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


@dataclass(frozen=True, slots=True)
class Mirostat(Warper):
    """Keeps tokens whose surprisal, in bits, is at most mu, and the most probable one in any case.

    mu is `2 * tau` at first. After every drawn token with surprisal s, `eta * (s - tau)` is subtracted from it, where s is that of
    the distribution that the token was drawn from, -log2 of `exp(sampling_logprobs)`.

    Attributes:
        tau: the target of the mean surprisal per token, in bits, above 0 and at most 100.
        eta: the learning rate of mu, from 0 to 10.
    """

    follows_surprise: ClassVar[bool] = True
    needs_counts: ClassVar[bool] = True

    tau: float = 5.0
    eta: float = 0.1

    def __post_init__(self) -> None:
        make_plain(self)
        check("mirostat", self.tau, is_number(self.tau) and 0 < self.tau <= 100, "a `tau` above 0 and at most 100")
        check("mirostat", self.eta, is_number(self.eta) and 0 <= self.eta <= 10, "an `eta` from 0 to 10")

    def mu(self, counts: TokenCounts) -> float:
        """Return the bound for the next token of a row."""
        bits, count = counts.surprise
        return 2 * self.tau - self.eta * (bits - self.tau * count)

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits for rows in which no token was drawn yet."""
        return logits.where(logits >= _floor(logits, logits.new_full((len(logits), 1), 2.0 * self.tau)), -torch.inf)

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the vectorised form."""
        return _RowMirostat(tuple(warpers), None)


@dataclass(frozen=True, slots=True)
class _RowMirostat(RowWarper):
    warpers: tuple[Mirostat, ...]
    mu: torch.Tensor | None  # (r, 1) float64, the bounds of the present draw; None before `at`

    def at(self, counts: Sequence[TokenCounts | None] | None) -> _RowMirostat:
        bounds = [warper.mu(counts_of_row(counts, row, warper)) for row, warper in enumerate(self.warpers)]
        return _RowMirostat(self.warpers, column(bounds))

    def __getitem__(self, rows: torch.Tensor) -> _RowMirostat:
        return _RowMirostat(tuple(self.warpers[row] for row in rows.tolist()), self._bounds[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, _floor(logits, self._bounds))

    def narrow(self, top: TopBlocks) -> None:
        top.doubt_if_excluded()  # the surprisal is that among all tokens that earlier warpers have kept
        depth = self._bounds.to(top.listed) * math.log(2) + top.largest_prob().log()
        top.raise_floor(top.listed[:, :1] - depth.clamp_min(0))

    @property
    def _bounds(self) -> torch.Tensor:
        assert self.mu is not None
        return self.mu


def _floor(logits: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
    """Return (r, 1): the smallest logit that is kept."""
    floor = logits.logsumexp(dim=-1, keepdim=True) - mu.to(logits) * math.log(2)
    return torch.minimum(floor, logits.amax(dim=-1, keepdim=True))


_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class XTC(Warper):
    """Excludes, with the given probability, all tokens of at least `threshold` except the least probable of these.

    Tokens as probable as the least probable are kept, too. End-of-text tokens are treated like others, unless they are in `keep`.

    Attributes:
        threshold: the probability from which a token is likely, from 0.000001 to 1; above 0.5 the step never changes anything.
        probability: how often tokens are excluded, from 0 to 1.
        keep: a tuple of token ids that are never excluded, such as those of `model.eos_token_ids`; unknown ids are ignored.
    """

    threshold: float = 0.1
    probability: float = 0.5
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        make_plain(self)
        holds = is_number(self.threshold) and _SMALLEST <= self.threshold <= 1
        check("xtc", self.threshold, holds, f"a `threshold` from {_SMALLEST:f} to 1")
        holds = is_number(self.probability) and 0 <= self.probability <= 1
        check("xtc", self.probability, holds, "a `probability` from 0 to 1")
        holds = isinstance(self.keep, tuple) and all(is_int(i, 0) for i in self.keep)
        check("xtc", self.keep, holds, "a tuple of token ids, ints of 0 or more, as `keep`")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture: lower for tokens that are sometimes excluded, higher for all others."""
        return warped_by_rows(self, logits)

    def __str__(self) -> str:
        return f"xtc {self.threshold} {self.probability}"

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is ever excluded."""
        return self.probability == 0 or self.threshold > 0.5

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the vectorised form."""
        kept = [(row, i) for row, warper in enumerate(warpers) for i in warper.keep]
        return RowXTC(
            column([math.log(warper.threshold) for warper in warpers]),
            column([warper.probability for warper in warpers]),
            torch.tensor(kept, dtype=torch.int64, device="cpu").view(-1, 2),
        )


@dataclass(frozen=True, slots=True)
class RowXTC(WholeRowWarper):
    """The vectorised form, which also returns both outcomes, for chains with warpers after it."""

    log_threshold: torch.Tensor  # (r, 1) float64
    probability: torch.Tensor  # (r, 1) float64
    keep: torch.Tensor  # (n, 2) int64, (row, token id) pairs

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits of the mixture; for an `XTC` that is the last warper."""
        is_top, p = self._is_top(logits), self.probability.to(logits)
        rest = logits.softmax(dim=-1).masked_fill_(is_top, 0).sum(dim=-1, keepdim=True)
        return logits + torch.where(is_top, torch.log1p(-p), torch.log1p(p * (1 / rest - 1)))

    def excluded(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the outcome that likely tokens are excluded."""
        return logits.masked_fill(self._is_top(logits), -torch.inf)

    def mixed(self, excluded: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture of both outcomes, each after the warpers that follow."""
        p = self.probability.to(plain)
        return torch.logaddexp(excluded.log_softmax(dim=-1) + p.log(), plain.log_softmax(dim=-1) + torch.log1p(-p))

    def _is_top(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (r, V) bool: whether a token is among those that are sometimes excluded."""
        floor = logits.logsumexp(dim=-1, keepdim=True) + self.log_threshold.to(logits)
        lowest = logits.masked_fill(logits < floor, torch.inf).amin(dim=-1, keepdim=True)
        is_top = logits > lowest
        rows, ids = self.keep[self.keep[:, 1] < logits.shape[-1]].to(logits.device).T
        is_top[rows, ids] = False
        return is_top
