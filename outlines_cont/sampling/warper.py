"""`Warper`: base of logits warpers, frozen values that a user may derive from. `WholeRowWarper` and `RowWarper`: their vectorised forms,
with parameters per row, which a user's class may do without; a `RowWarper` truncates (or only divides, as `Temperature`): it keeps logits
that are not below a floor, found among the largest.

`floor_of_listed`, `floor_of_rows`: the smallest logit of a nucleus (top-p) without sorting the vocabulary: by prefix sums over the
largest logits, which may not suffice, or by a histogram of the probability over the distance from the largest logit, of which only one
bucket is sorted. `TypicalP` uses the histogram, too (`border_bucket`, `padded_rows`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from outlines_cont.sampling.kernels import TokenCounts, TopBlocks, exact

Truncate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes (r, V) logits and their (r, 1) floors, and returns (r, V) logits without those below: `where_not_below` or `not_below`."""


class Warper(ABC):
    """A logits warper: makes tokens more or less probable, or excludes them.

    Write one as a frozen dataclass with the method `warp`, and pass it to `samplers.multinomial(warpers=...)`. It is a value: it
    is hashable, equal warpers return equal logits, and the result for a row depends on the logits of that row alone.
    """

    __slots__ = ()

    is_standard: ClassVar[bool] = False
    """Whether the class is one of this package; a class that a user derives from one is not."""

    follows_surprise: ClassVar[bool] = False
    """Whether the step depends on the surprisal of the tokens drawn so far, so that the row records where that began."""

    needs_counts: ClassVar[bool] = False
    """Whether the step depends on the tokens of the row as well; for warpers with a `for_rows` that takes their counts."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Drop an inherited `for_rows` if the class overrides `warp` alone."""
        super().__init_subclass__(**options)
        cls.is_standard = cls.__module__.startswith(f"{__package__}.")
        if "warp" in cls.__dict__ and "for_rows" not in cls.__dict__:
            cls.for_rows = Warper.for_rows  # type: ignore[method-assign]
        if cls.needs_counts and not cls.has_fast_form():
            raise TypeError(
                f"expected a method `for_rows` of {cls.__name__}, whose `needs_counts` is true: `warp` gets no counts of tokens. "
                "Write it as `outlines_cont/sampling/stateful.py` does, or a sampler (`samplers.Sampler`); for a temperature alone, a "
                "policy whose `Branch` has a `temperature`."
            )

    @abstractmethod
    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the new distribution.

        Args:
            logits: (R, V) float32 or float64, minus infinity for tokens that the mask or an earlier step has excluded; such a token
                stays excluded, whatever is returned. At least one is finite in every row.

        Returns:
            (R, V), of the same type, minus infinity for excluded tokens.
        """

    @property
    def is_neutral(self) -> bool:
        """Whether the step changes nothing, so that it can be skipped."""
        return False

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper | None:
        """Return the vectorised form for rows with one of these warpers each; None if the class has only `warp`."""
        return None

    @classmethod
    def has_fast_form(cls) -> bool:
        """Return whether the class has a vectorised form, `for_rows`."""
        return cls.for_rows.__func__ is not Warper.for_rows.__func__  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        """The name of the class in the form of an option: `top_k` for `TopK`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__).lower()

    def __str__(self) -> str:
        """The step as `str(sampler)` shows it, such as `top_k 50`."""
        values: list[str] = [str(getattr(self, field.name)) for field in fields(self)] if is_dataclass(self) else []
        return " ".join([self.name, *values])


class WholeRowWarper(ABC):
    """The vectorised form of a warper: the same result as `Warper.warp`, for r rows with their own parameters."""

    __slots__ = ()

    def at(self, counts: Sequence[TokenCounts | None] | None) -> Self:
        """Return the step for the present token counts of the r rows; the step itself if it does not depend on them."""
        return self

    @abstractmethod
    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the (r, V) logits of the new distribution, computed on whole rows."""


class RowWarper(WholeRowWarper):
    """A vectorised warper that excludes tokens below a floor, which it finds among the largest logits of a row."""

    __slots__ = ()

    @property
    def reach(self) -> int:
        """How many of the largest logits of a row nearly always suffice to find the floor; 0 if nothing is excluded."""
        return 1

    @property
    def is_limit(self) -> bool:
        """Whether at most `reach` tokens are kept, not counting ties."""
        return False

    @abstractmethod
    def __getitem__(self, rows: torch.Tensor) -> Self:
        """Return the warper of some of the rows, by their indices."""

    @abstractmethod
    def narrow(self, top: TopBlocks) -> None:
        """Raise the floor of the top blocks of each row, and mark the rows for which these do not suffice as in doubt."""


def warped_by_rows(warper: Warper, logits: torch.Tensor) -> torch.Tensor:
    """Return (r, V) logits warped by the vectorised form of a warper; `logits` themselves if it is neutral."""
    if warper.is_neutral:
        return logits
    rows = type(warper).for_rows([warper] * len(logits))
    assert rows is not None
    return rows.whole(logits, where_not_below)


def where_not_below(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return the logits that are not below the (r, 1) floors, not shifted: a later step may depend on more than their differences."""
    return logits.where(logits >= floor, -torch.inf)


def column(values: Sequence[float]) -> torch.Tensor:
    """Return (r, 1) float64 numbers on the CPU, one for each row."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")[:, None]


_BUCKETS = 2048


def floor_of_listed(
    listed: torch.Tensor, largest_prob: torch.Tensor, top_p: torch.Tensor, before: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the floor of each row, and the number of listed logits that are not below it.

    Args:
        listed: (r, n) logits in descending order.
        largest_prob: (r, 1) probability of the first of them.
        top_p: (r, 1) float64, the share that is kept.
        before: (r, 1) float64, the probability of all tokens with larger logits than the listed ones; None for none.

    Returns:
        (r, 1) logits, the last one for which the tokens before it have less than `top_p`; and (r, 1) int64, n where more than the
        listed tokens may be needed.
    """
    whole = exact(listed)
    probs = torch.sub(whole, whole[:, :1]).exp_().mul_(exact(largest_prob))
    upto = probs.cumsum(dim=-1)
    before = (upto if before is None else upto.add_(before)).sub_(probs)
    needed = (before < top_p.to(probs.device)).sum(dim=-1, keepdim=True).clamp_min_(1).to(listed.device)
    return listed.gather(-1, needed - 1), needed


def floor_of_rows(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the floor of each row for any distribution.

    The logits are put into buckets by their distance from the largest, and the probability in each bucket is summed; then
    only the bucket in which the share is reached is sorted. Replaces the plain form: sort the row descending, and keep
    a token while the probabilities before it sum to less than `top_p`.

    Args:
        logits: (r, V), minus infinity for tokens that are excluded already.
        top_p: (r, 1) float64, below 1.

    Returns:
        (r, 1) logits.

    Cost: about ten passes, and a sort of one bucket.
    """
    probs, largest = logits.softmax(dim=-1), logits.amax(dim=-1, keepdim=True)
    # V tokens deeper than this have less than 1 - top_p together.
    deepest = torch.log(logits.shape[-1] / (1 - top_p)).clamp_min(1e-3)
    inside, before = border_bucket(largest - logits, deepest, probs, top_p)
    listed = padded_rows(logits, inside, -torch.inf).sort(dim=-1, descending=True).values
    first_prob = exact(listed[:, :1] - largest).exp() * exact(probs.amax(dim=-1, keepdim=True))
    return floor_of_listed(listed, first_prob, top_p.to(before.device), before)[0]


def border_bucket(
    depths: torch.Tensor, deepest: torch.Tensor, probs: torch.Tensor, share: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens are in the bucket in which the share is reached, and the probability of the buckets before it.

    Args:
        depths: (r, V), 0 or more; tokens are kept in ascending order of it. It is overwritten.
        deepest: (r, 1) float64: an upper bound of the depth of the last kept token; deeper tokens are in the last bucket.
        probs: (r, V), their probabilities.
        share: (r, 1) float64, below 1.

    Returns:
        (r, V) bool, and (r, 1) float64.
    """
    scaled = depths.mul_((_BUCKETS / deepest).to(depths)).clamp_(max=_BUCKETS - 1)
    # NaN, of a row without a distribution, becomes any number.
    buckets = scaled.int().clamp_(0, _BUCKETS - 1)
    mass = exact(_sums(buckets, probs))
    upto = mass.cumsum(dim=-1)
    # The sum of all may be below the share, by rounding: then it is reached in the last bucket that has a token.
    share = torch.minimum(share.to(upto.device), upto[:, -1:])
    border = (upto < share).sum(dim=-1, keepdim=True).clamp_max(_BUCKETS - 1)
    return buckets == border.to(buckets.device), (upto - mass).gather(-1, border)


def _sums(buckets: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Return (r, _BUCKETS): the probability in each bucket."""
    rows = torch.arange(len(buckets), dtype=torch.int32, device=buckets.device)[:, None]
    places = buckets + rows * _BUCKETS if len(buckets) > 1 else buckets
    return torch.bincount(places.view(-1), probs.view(-1), len(buckets) * _BUCKETS).view(-1, _BUCKETS)


def padded_rows(values: torch.Tensor, inside: torch.Tensor, padding: float) -> torch.Tensor:
    """Return (r, n): the values of each row for which `inside`, (r, V) bool, is true, padded to the same length."""
    parts = torch.split(values[inside], inside.sum(dim=-1).tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=padding)
