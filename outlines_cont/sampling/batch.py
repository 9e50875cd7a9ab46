"""`SamplerBatch`: rows with different samplers, drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outlines_cont.sampling.cut import Cut
from outlines_cont.sampling.draw import Drawn, most_probable
from outlines_cont.sampling.law import Law
from outlines_cont.sampling.penalties import penalised
from outlines_cont.sampling.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that take the same steps.

    Attributes:
        rows: (r,) int64, their indices; None where these are all.
        cut: their numbers; None where the most probable token is taken.
    """

    rows: torch.Tensor | None
    cut: Cut | None

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None) -> Drawn:
        """Choose a token for each row of the group; the arguments are those of its rows alone."""
        if self.cut is None:
            return most_probable(logits)
        if uniforms is None:
            raise TypeError("expected (R,) random numbers as `uniforms`, got None")
        return self.cut.sample(logits, uniforms)


class SamplerBatch:
    """The samplers of R rows, to be used as long as the rows are the same.

    Rows whose samplers take the same steps are drawn in one go, each with its own numbers. A row gets what it would get alone.
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        """Take `sampler.law` of each row."""
        self._laws = laws
        self._penalties = [law.penalties for law in laws]
        kinds: dict[object, list[int]] = {}
        for row, law in enumerate(laws):
            kinds.setdefault("greedy" if law.is_greedy else law.cuts, []).append(row)
        self._groups = [self._group(rows) for rows in kinds.values()]

    def _group(self, rows: list[int]) -> _Group:
        laws = [self._laws[row] for row in rows]
        indices = None if len(rows) == len(self._laws) else torch.tensor(rows)
        return _Group(indices, None if laws[0].is_greedy else Cut.of(laws))

    @property
    def needs_random(self) -> bool:
        """Whether some row takes a random number."""
        return not all(law.is_greedy for law in self._laws)

    @property
    def needs_counts(self) -> bool:
        """Whether some row's law depends on the tokens that it holds."""
        return any(penalties.needs_counts for penalties in self._penalties)

    def sample(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor | None,
        counts: Sequence[TokenCounts | None] | None = None,
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
            TypeError: what a row needs is missing.
        """
        logits = penalised(logits, self._penalties, counts)
        if len(self._groups) == 1:
            return self._groups[0].sample(logits, uniforms)
        token_ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        for group in self._groups:
            rows = group.rows
            token_ids[rows], logprobs[rows] = group.sample(logits[rows], None if uniforms is None else uniforms[rows])
        return token_ids, logprobs
