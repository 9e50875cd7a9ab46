"""`Warper`: base of logits warpers, frozen values that a user may derive from. `WholeRowWarper` and `RowWarper`: their vectorised forms,
with parameters per row, which a user's class may do without; a `RowWarper` truncates (or only divides, as `Temperature`): it keeps logits
that are not below a floor, found among the largest.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self

import torch

from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.kernels.token_counts import TokenCounts

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
    return torch.tensor(values, dtype=torch.float64)[:, None]
