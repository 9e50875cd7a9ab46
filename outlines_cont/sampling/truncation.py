"""Logits warpers with one number: `Temperature` divides the logits; the others keep tokens down to a floor, with ties: `TopK` the k-th
largest, `TopP` the last of the nucleus, `MinP` p times the largest probability, `TopA` a times its square. `NumberWarper`: the base class;
the numbers of r rows are one tensor.

`TypicalP`: locally typical sampling: keeps the fewest tokens with surprisal nearest to the entropy that together have a given share of
the probability, and ties with the last (Meister et al. 2023, arXiv:2202.00666). Only one bucket is sorted, the one in which a histogram of
the probability over the distances reaches the share; the result is that of a sort of the whole vocabulary.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from outlines_cont.checks import check, is_int, is_number, make_plain
from outlines_cont.sampling.kernels import TopBlocks, exact, largest, on_device
from outlines_cont.sampling.warper import (
    RowWarper,
    Truncate,
    Warper,
    WholeRowWarper,
    border_bucket,
    column,
    floor_of_listed,
    floor_of_rows,
    padded_rows,
    warped_by_rows,
)


class NumberWarper(Warper):
    """A standard warper with one number, its only field. Those of r rows are one (r, 1) tensor, which its class methods take.

    Attributes:
        neutral: the number that changes nothing; None if every number changes something.
        reach: see `RowWarper.reach`; None if it is the number, the most tokens that are kept.
        is_log: whether rows hold the logarithm of the number.
    """

    __slots__ = ()
    neutral: ClassVar[float | None] = None
    reach: ClassVar[int | None] = 1
    is_log: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the (r, 1) smallest logits that are kept of (r, V) ones."""

    @classmethod
    @abstractmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """See `RowWarper.narrow`."""

    @classmethod
    def whole(cls, logits: torch.Tensor, numbers: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """See `WholeRowWarper.whole`."""
        return truncate(logits, cls.floor(logits, numbers))

    @property
    def number(self) -> float:
        """The number in the form that rows hold."""
        number: float = getattr(self, type(self).__match_args__[0])  # type: ignore[attr-defined]
        if self.is_log:
            return math.log(number) if number else -math.inf
        return number

    @property
    def is_neutral(self) -> bool:
        """Whether the number changes nothing."""
        return getattr(self, type(self).__match_args__[0]) == self.neutral  # type: ignore[attr-defined, no-any-return]

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits without those below the floor."""
        return warped_by_rows(self, logits)

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the vectorised form; none of the warpers is neutral."""
        return _NumberRows(cls, column([warper.number for warper in warpers]))


@dataclass(frozen=True, slots=True)
class _NumberRows(RowWarper):
    kind: type[NumberWarper]
    numbers: torch.Tensor  # (r, 1) float64

    @property
    def reach(self) -> int:
        return int(self.numbers.max()) if self.kind.reach is None else self.kind.reach

    @property
    def is_limit(self) -> bool:
        return self.kind.reach is None

    def __getitem__(self, rows: torch.Tensor) -> _NumberRows:
        return _NumberRows(self.kind, self.numbers[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return self.kind.whole(logits, self.numbers, truncate)

    def narrow(self, top: TopBlocks) -> None:
        # In float64, which some devices other than CUDA do not have.
        device = top.logits.device
        self.kind.narrow(top, on_device(self.numbers, device) if device.type == "cuda" else self.numbers)


@dataclass(frozen=True, slots=True)
class Temperature(NumberWarper):
    """Divides the logits by `t`: below 1 makes likely tokens likelier, above 1 less likely.

    Attributes:
        t: above 1e-30 and below 1e30.
    """

    neutral: ClassVar = 1
    reach: ClassVar = 0  # nothing is excluded
    t: float

    def __post_init__(self) -> None:
        make_plain(self)
        holds = is_number(self.t) and 1e-30 < self.t < 1e30
        check("temperature", self.t, holds, "a number above 1e-30 and below 1e30 (for 0 use `greedy()`)")

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return minus infinity: nothing is excluded."""
        return logits.new_full((len(logits), 1), -torch.inf)

    @classmethod
    def whole(cls, logits: torch.Tensor, numbers: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits divided by the numbers."""
        return logits / numbers.to(logits)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Divide the largest logits."""
        top.divide(numbers)


@dataclass(frozen=True, slots=True)
class TopK(NumberWarper):
    """Keeps the `k` most probable tokens, and those as probable as the last of them.

    Attributes:
        k: 1 or more.
    """

    reach: ClassVar = None
    k: int

    def __post_init__(self) -> None:
        make_plain(self)
        check("top_k", self.k, is_int(self.k, 1), "an int, 1 or more, or None")

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the k-th largest logit of each row."""
        listed, _ = largest(logits, min(int(numbers.max()), logits.shape[-1]))
        return _kth_largest(listed, numbers)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the k-th listed logit: if fewer are listed, an earlier `TopK` has excluded the others."""
        top.raise_floor(_kth_largest(top.listed, numbers))


def _kth_largest(listed: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return (r, 1): the k-th of the logits that are listed in descending order; the last if fewer are listed."""
    return listed.gather(-1, (k.to(listed.device).long() - 1).clamp_max(listed.shape[-1] - 1))


@dataclass(frozen=True, slots=True)
class TopP(NumberWarper):
    """Keeps the fewest most probable tokens that together have the share `p` of the probability, and those as probable as the last.

    Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751). Found among the largest logits, else by a histogram; see `nucleus`.

    Attributes:
        p: above 0 and at most 1.
    """

    neutral: ClassVar = 1
    reach: ClassVar = 128  # fewer tokens nearly always have nine tenths of the probability
    p: float

    def __post_init__(self) -> None:
        make_plain(self)
        check("top_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logit of the last token of each nucleus."""
        return floor_of_rows(logits, numbers)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Sum up the probabilities of the listed logits."""
        top.doubt_if_excluded()  # the share is that of all tokens that earlier warpers have kept
        floor, needed = floor_of_listed(top.listed, top.largest_prob(), numbers)
        # Where all listed tokens are needed, more may be, unless the others were excluded before.
        may_keep_more = top.listed[:, -1:] > (-torch.inf if top.floor is None else top.floor)
        top.doubt((needed == top.listed.shape[-1]) & may_keep_more)
        top.raise_floor(floor)


@dataclass(frozen=True, slots=True)
class MinP(NumberWarper):
    """Keeps tokens whose probability is at least `p` times that of the most probable one (Nguyen et al. 2024, arXiv:2407.01082).

    Attributes:
        p: from 0 to 1.
    """

    neutral: ClassVar = 0
    is_log: ClassVar = True  # it is the difference between the floor and the largest logit, so no softmax is needed
    p: float

    def __post_init__(self) -> None:
        make_plain(self)
        check("min_p", self.p, is_number(self.p) and 0 <= self.p <= 1, "a number from 0 to 1, or None")

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the largest logit plus the logarithm of p."""
        return logits.amax(dim=-1, keepdim=True) + numbers.to(logits)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the first listed logit."""
        top.raise_floor(top.listed[:, :1] + numbers.to(top.listed))


@dataclass(frozen=True, slots=True)
class TopA(NumberWarper):
    """Keeps tokens whose probability is at least `a` times the square of that of the most probable one: fewer if the model is confident.

    Attributes:
        a: from 0 to 1.
    """

    neutral: ClassVar = 0
    is_log: ClassVar = True
    a: float

    def __post_init__(self) -> None:
        make_plain(self)
        check("top_a", self.a, is_number(self.a) and 0 <= self.a <= 1, "a number from 0 to 1, or None")

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logit of log-probability log(a) + 2 log(largest probability)."""
        first = logits.amax(dim=-1, keepdim=True)
        return first + numbers.to(logits) + (first - logits.logsumexp(dim=-1, keepdim=True))

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the first listed logit and its probability."""
        top.doubt_if_excluded()  # the probability is that among all tokens that earlier warpers have kept
        top.raise_floor(top.listed[:, :1] + numbers.to(top.listed) + top.largest_prob().log())


# Up to this number of tokens that are not excluded are gathered, and processed without the others.
_FEW = 1024
# Less likely tokens add nothing to an entropy; minus infinity times 0 would be NaN.
_DEEPEST = -1e4


@dataclass(frozen=True, slots=True)
class TypicalP(Warper):
    """Keeps the fewest tokens with surprisal nearest to the entropy that together have the share `p`, and those as near as the last.

    The surprisal of a token is minus the logarithm of its probability, the entropy is the expected surprisal. The most probable
    token may be excluded.

    Attributes:
        p: above 0 and at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        make_plain(self)
        check("typical_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the tokens near the entropy."""
        return warped_by_rows(self, logits)

    @property
    def is_neutral(self) -> bool:
        """Whether `p` is 1."""
        return self.p == 1

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the vectorised form; each p is below 1."""
        return _RowTypicalP(column([warper.p for warper in warpers]))


@dataclass(frozen=True, slots=True)
class _RowTypicalP(WholeRowWarper):
    p: torch.Tensor  # (r, 1) float64, below 1

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits of the kept tokens; only the histogram bucket that contains the last one is sorted.

        Cost: some 25 passes; three if a mask or `TopK` has excluded all but a few tokens of each row.
        """
        num_left = int((logits > -torch.inf).sum(dim=-1).max())
        if not 0 < num_left <= _FEW < logits.shape[-1]:
            return self._near(logits)
        left = logits.topk(num_left, dim=-1)
        return torch.full_like(logits, -torch.inf).scatter_(-1, left.indices, self._near(left.values))

    def _near(self, logits: torch.Tensor) -> torch.Tensor:
        distances, probs, entropy = _distances(logits)
        p, entropy = self.p.to(exact(entropy).device), exact(entropy)
        # The distance of likelier tokens is at most the entropy; V tokens of a larger distance have less than 1 - p together.
        deepest = torch.maximum(entropy, torch.log(probs.shape[-1] / (1 - p)) - entropy).clamp_min(1e-3)
        inside, before = border_bucket(distances.clone(), deepest, probs, p)
        listed, order = padded_rows(distances, inside, torch.inf).sort(dim=-1)
        listed_probs = exact(padded_rows(probs, inside, 0.0).gather(-1, order))
        needed = ((before + listed_probs.cumsum(dim=-1) - listed_probs) < p).sum(dim=-1, keepdim=True)
        needed = torch.minimum(needed.to(inside.device), inside.sum(dim=-1, keepdim=True)).clamp_min(1)
        return logits.where(distances <= listed.gather(-1, needed - 1), -torch.inf)


def _distances(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (r, V) distances of the surprisal from the entropy, (r, V) probabilities and the (r, 1) entropies."""
    logprobs = logits.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp_min(_DEEPEST)).sum(dim=-1, keepdim=True)
    return logprobs.add_(entropy).abs_(), probs, entropy
