"""`SamplerBatch`: vectorised sampling of a batch whose rows have different samplers: penalties are applied to all rows at once, then rows
with the same sequence of warper types form a group, drawn by one `WarperChain` with parameters per row; greedy rows are one group. Rows
share a group over a user's own warper only where these are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outlines_cont.sampling.chain import Counts, WarperChain
from outlines_cont.sampling.kernels.draw import Drawn, most_probable
from outlines_cont.sampling.params import SamplingParams
from outlines_cont.sampling.penalties import penalised
from outlines_cont.sampling.warpers.temperature import Temperature
from outlines_cont.sampling.warpers.warper import RowWarper, Warper


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that take the same steps."""

    rows: torch.Tensor | None  # (r,) int64, their indices; None where these are all
    chain: WarperChain | None  # None where the most probable token is taken

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None) -> Drawn:
        """Choose a token for each row of the group; the arguments are those of its rows alone."""
        if self.chain is None:
            return most_probable(logits)
        if uniforms is None:
            raise TypeError("expected (R,) random numbers as `uniforms`, got None")
        return self.chain.sample(logits, uniforms, counts)


class SamplerBatch:
    """The samplers of R rows, grouped; reused as long as the rows are the same.

    Rows whose samplers take the same steps are drawn in one go, each with its own numbers. A row gets what it would get alone.
    """

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._params = params
        self._penalties = [row.penalties for row in params]
        distinct = {id(row): row for row in params}
        aligned = {key: _aligned(row.warpers) for key, row in distinct.items()}
        kinds = {key: "greedy" if row.is_greedy else _kind(aligned[key]) for key, row in distinct.items()}
        groups: dict[object, list[int]] = {}
        for index, row in enumerate(params):
            groups.setdefault(kinds[id(row)], []).append(index)
        self._groups = [
            _Group(
                None if len(rows) == len(params) else torch.tensor(rows),
                None if kind == "greedy" else _chain([aligned[id(params[row])] for row in rows]),
            )
            for kind, rows in groups.items()
        ]

    @property
    def needs_random(self) -> bool:
        """Whether some row takes a random number."""
        return not all(row.is_greedy for row in self._params)

    @property
    def needs_counts(self) -> bool:
        """Whether what some row draws depends on the tokens that it holds."""
        return any(row.needs_counts for row in self._params)

    def sample(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor | None,
        counts: Counts | None = None,
    ) -> Drawn:
        """Choose one token per row.

        Args:
            logits: (R, V) float32 or float64, minus infinity where a token is not allowed; not changed.
            uniforms: (R,) float64 in [0, 1) on the CPU; greedy rows do not look at theirs. None where no row needs one.
            counts: what each row holds; None for rows that need none, or for all of them.

        Returns:
            (R,) int64 token ids, and (R,) log-probabilities of these as they were drawn. What they are for a row without any
            finite logit is not defined, but its log-probability is not finite.

        Raises:
            OptionError: a bias is for a token that the logits do not have.
            SamplerError: a warper of a user has returned what are no logits for its rows.
            TypeError: what a row needs is missing.
        """
        logits = penalised(logits, self._penalties, counts)
        if len(self._groups) == 1:
            return self._groups[0].sample(logits, uniforms, counts)
        token_ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        for group in self._groups:
            rows = group.rows
            assert rows is not None
            token_ids[rows], logprobs[rows] = group.sample(
                logits[rows],
                None if uniforms is None else uniforms[rows],
                None if counts is None else [counts[row] for row in rows.tolist()],
            )
        return token_ids, logprobs


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
    """Return what is equal for rows that can be drawn together: a type where there is a fast form, else the warper itself."""
    return tuple(type(warper) if warper.has_fast_form() else warper for warper in aligned)


def _aligned(warpers: tuple[Warper, ...]) -> tuple[Warper, ...]:
    """Return the warpers without those that change nothing, but with a temperature first, so that more rows are of one kind."""
    changing = tuple(warper for warper in warpers if not warper.is_neutral)
    return changing if changing and type(changing[0]) is Temperature else (_NO_TEMPERATURE, *changing)


_NO_TEMPERATURE = Temperature(1)
