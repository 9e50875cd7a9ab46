"""`SamplerBatch`: vectorised sampling of rows with different samplers: penalties are applied to all rows at once, then the rows with the
same sequence of warper types (equal warpers, if a user's) are drawn by one `WarperChain` with parameters per row. Greedy rows are one
group. Truncating warpers work on the top blocks of each row (`TopBlocks`), without a sort. Rows are processed whole where these do not
suffice, without truncation, with `XTC`, and up to the last `DRY`, `TypicalP` or warper of a user. `TokenSampler`: base class of the
samplers that draw by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from outlines_cont.errors import SamplerError
from outlines_cont.sampling.kernels import Drawn, TokenCounts, TopBlocks, inverse_cdf, most_probable, not_below
from outlines_cont.sampling.params import NO_PENALTIES, SamplingParams, penalised
from outlines_cont.sampling.stateful import RowXTC
from outlines_cont.sampling.truncation import Temperature
from outlines_cont.sampling.warper import RowWarper, Warper, WholeRowWarper, where_not_below

Counts = Sequence[TokenCounts | None]

_NO_TEMPERATURE = Temperature(1)
# The number of blocks where no warper limits the number of tokens.
_BLOCKS = 128
# How many logits fit the caches of a CPU, for warpers that take many passes.
_CACHED = 2**18


class WarperChain:
    """The warpers of r rows, each row with its own parameters, and the draw after them."""

    def __init__(self, fast: Sequence[RowWarper], steps: Sequence[WholeRowWarper | Warper] = ()) -> None:
        """Take the warpers in their order: first `steps`, which process whole rows, then those that work on the largest logits."""
        self._fast, self._steps = fast, steps
        self._xtc_index = next((i for i, warper in enumerate(steps) if isinstance(warper, RowXTC)), None)
        self._num_listed, self._blocks = 0, _BLOCKS
        for warper in fast:
            self._num_listed = max(self._num_listed, warper.reach)
            if warper.is_limit:
                self._blocks = self._num_listed
                break
        self._blocks = max(self._blocks, self._num_listed)

    def sample(
        self, logits: torch.Tensor, uniforms: torch.Tensor, counts: Counts | None = None, *, marks_doubts: bool = False
    ) -> Drawn:
        """Draw one token for each of r rows; arguments and result are those of `Sampler.sample`, and see `SamplerBatch.sample`.

        Raises:
            SamplerError: a warper of a user has returned invalid logits.

        Cost: with `top_k` first, or `min_p` alone, one pass over the logits; else a softmax as well. Rows whose smallest kept logit
        is outside of the top blocks take about ten passes.
        """
        if not self._num_listed or self._xtc_index is not None:
            return inverse_cdf(self.kept(logits, counts), uniforms)
        logits = _stepped(self._steps, logits, counts)
        warpers = [warper.at(counts) for warper in self._fast]
        top = TopBlocks(logits, self._blocks, self._num_listed)
        for warper in warpers:
            warper.narrow(top)
        token_ids, logprobs = top.draw(uniforms)
        doubts = top.in_doubt()
        if doubts is None:
            return token_ids, logprobs
        if marks_doubts:
            return token_ids, logprobs.masked_fill(doubts, torch.inf)
        for rows in _cache_sized(doubts.nonzero()[:, 0], logits):
            kept = _truncated([warper[rows.cpu()] for warper in warpers], logits[rows])
            token_ids[rows], logprobs[rows] = inverse_cdf(kept, uniforms[rows.to(uniforms.device)])
        return token_ids, logprobs

    def kept(self, logits: torch.Tensor, counts: Counts | None = None) -> torch.Tensor:
        """Return the (r, V) logits of the final distribution, computed on whole rows.

        They are minus infinity where a token is excluded, and may be shifted, by one number for each row.
        """
        at = self._xtc_index
        if at is None or (at == len(self._steps) - 1 and not self._fast):
            return self._after(self._steps, logits, counts)
        # Both outcomes of `XTC` go through the warpers after it; the distribution of the token is their mixture.
        xtc, rest = self._steps[at], self._steps[at + 1 :]
        assert isinstance(xtc, RowXTC)
        logits = _stepped(self._steps[:at], logits, counts)
        return xtc.mixed(self._after(rest, xtc.excluded(logits), counts), self._after(rest, logits, counts))

    def _after(
        self, steps: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None
    ) -> torch.Tensor:
        """Return the logits after `steps` and all truncating warpers."""
        return _truncated([warper.at(counts) for warper in self._fast], _stepped(steps, logits, counts))


class SamplerBatch:
    """The samplers of R rows, grouped; reused as long as the rows are the same.

    The rows of a group are drawn together, each with its own numbers. Each row gets the token that it would get alone. Rows share a
    group over a user's own warper only if these warpers are equal.
    """

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        penalties = [row.penalties for row in params]
        self._params, self._penalties = params, penalties if any(p != NO_PENALTIES for p in penalties) else []
        distinct = {id(row): row for row in params}
        aligned = {key: _aligned(row.warpers) for key, row in distinct.items()}
        kinds = {key: "greedy" if row.is_greedy else _kind(aligned[key]) for key, row in distinct.items()}
        groups: dict[object, list[int]] = {}
        for index, row in enumerate(params):
            groups.setdefault(kinds[id(row)], []).append(index)
        # The indices of the rows of each group, and their chain, None for greedy rows.
        self._groups = [
            (rows, None if kind == "greedy" else _chain([aligned[id(params[row])] for row in rows]))
            for kind, rows in groups.items()
        ]

    @property
    def needs_random(self) -> bool:
        """Whether some row takes a random number."""
        return not all(row.is_greedy for row in self._params)

    @property
    def needs_counts(self) -> bool:
        """Whether the draw of some row depends on the tokens of the row."""
        return any(row.needs_counts for row in self._params)

    def sample(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor | None,
        counts: Counts | None = None,
        *,
        marks_doubts: bool = False,
    ) -> Drawn:
        """Choose one token per row; arguments and result are those of `Sampler.sample`.

        Log-probabilities are float32 where logits are in half precision, else of the type of these.
        Greedy rows ignore their random number, and rows that need no token counts may have None. With `marks_doubts` the device is not
        asked whether the largest logits suffice: where they do not, the log-probability is plus infinity, and the row is to be drawn again.

        Raises:
            OptionError: a bias is for a token that the logits do not have.
            SamplerError: a warper of a user has returned invalid logits.
            TypeError: random numbers or counts that a row needs are missing.
        """
        if logits.element_size() < 4:  # sums of half-precision numbers lose small ones
            logits = logits.float()
        if self._penalties:
            logits = penalised(logits, self._penalties, counts)
        if len(self._groups) == 1:
            return _sample(self._groups[0][1], logits, uniforms, counts, marks_doubts)
        token_ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        for rows, chain in self._groups:
            token_ids[rows], logprobs[rows] = _sample(
                chain,
                logits[rows],
                None if uniforms is None else uniforms[rows],
                None if counts is None else [counts[row] for row in rows],
                marks_doubts,
            )
        return token_ids, logprobs


class TokenSampler(ABC):
    """Base class of samplers that choose token by token, by their parameters."""

    __slots__ = ()

    @property
    @abstractmethod
    def num_samples(self) -> int | None:
        """S, the samples per prompt; None for the number of samples of the state."""

    @property
    @abstractmethod
    def params(self) -> SamplingParams:
        """The sampling parameters; rows with different parameters are drawn in one batch."""

    @property
    def needs_random(self) -> bool:
        """Whether a draw takes a random number."""
        return not self.params.is_greedy

    @property
    def needs_counts(self) -> bool:
        """Whether a penalty or a warper depends on the tokens of the row."""
        return self.params.needs_counts

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None = None) -> Drawn:
        """Choose one token per row, all rows by this sampler; see `SamplerBatch.sample`."""
        return SamplerBatch([self.params] * len(logits)).sample(logits, uniforms, counts)


def params_of(sampler: object) -> SamplingParams | None:
    """Return the sampling parameters of a sampler; None for one that overrides `sample`."""
    if isinstance(sampler, TokenSampler) and type(sampler).sample is TokenSampler.sample:
        return sampler.params
    return None


def _sample(
    chain: WarperChain | None,
    logits: torch.Tensor,
    uniforms: torch.Tensor | None,
    counts: Counts | None,
    marks_doubts: bool,
) -> Drawn:
    if chain is None:
        return most_probable(logits)
    if uniforms is None:
        raise TypeError("expected (R,) random numbers as `uniforms`, got None")
    return chain.sample(logits, uniforms, counts, marks_doubts=marks_doubts)


def chain_of(warpers: tuple[Warper, ...], num_rows: int) -> WarperChain:
    """Return the chain of rows that all have the same warpers."""
    return _chain([_aligned(warpers)] * num_rows)


def _chain(rows: Sequence[tuple[Warper, ...]]) -> WarperChain:
    """Return the chain of rows of one kind, each with its own warpers, aligned."""
    columns = list(zip(*rows, strict=True))
    if all(temperature.is_neutral for temperature in columns[0]):
        del columns[0]
    steps = [type(column[0]).for_rows(column) or column[0] for column in columns]
    fast: list[RowWarper] = []
    while steps and isinstance(steps[-1], RowWarper):
        fast.insert(0, steps.pop())
    return WarperChain(fast, steps)


def _kind(aligned: tuple[Warper, ...]) -> tuple[object, ...]:
    """Return a key that is equal for rows of one group: the types of warpers with a vectorised form, other warpers themselves."""
    return tuple(type(warper) if warper.has_fast_form() else warper for warper in aligned)


def _aligned(warpers: tuple[Warper, ...]) -> tuple[Warper, ...]:
    """Return the warpers without neutral ones, but with a temperature first, so that more rows are of one kind."""
    changing = tuple(warper for warper in warpers if not warper.is_neutral)
    return changing if changing and type(changing[0]) is Temperature else (_NO_TEMPERATURE, *changing)


def _truncated(warpers: Sequence[RowWarper], logits: torch.Tensor) -> torch.Tensor:
    for warper in warpers:
        logits = warper.whole(logits, not_below)
    return logits


def _stepped(steps: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    """Return the logits after steps that process whole rows; they are not shifted."""
    for step in steps:
        logits = _warped(step, logits, counts)
    return logits


def _cache_sized(rows: torch.Tensor, logits: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the indices of rows in parts whose logits fit the caches of a CPU; on other devices in one part."""
    if not len(rows):
        return ()
    return torch.split(rows, max(_CACHED // logits.shape[-1], 1)) if logits.device.type == "cpu" else (rows,)


def _warped(warper: WholeRowWarper | Warper, logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    """Return the logits after a warper; tokens that were excluded before stay excluded.

    Raises:
        SamplerError: those of a user's warper have another shape or type, or a row of them is no distribution, though it was one.
    """
    if isinstance(warper, WholeRowWarper):
        return warper.at(counts).whole(logits, where_not_below)
    warped = warper.warp(logits.clone())  # it may write into its argument
    if not isinstance(warped, torch.Tensor) or warped.shape != logits.shape or not warped.is_floating_point():
        raise SamplerError(
            f"expected `warp` of {warper!r} to return logits of the shape and type of its argument, {_shown(logits)}, "
            f"got {_shown(warped)}. Return minus infinity for tokens that are excluded."
        )
    warped = torch.where(logits == -torch.inf, -torch.inf, warped.to(logits))
    if (_is_distribution(logits) & ~_is_distribution(warped)).any():
        raise SamplerError(
            f"expected `warp` of {warper!r} to keep a token with a finite logit in every row, got none, or NaN. "
            "Tokens that a mask excludes have the logit minus infinity: leave them out of sums and means."
        )
    return warped


def _is_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Return (r,) bool: whether the largest logit of each row is finite."""
    return logits.amax(dim=-1).isfinite()


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return type(value).__name__
