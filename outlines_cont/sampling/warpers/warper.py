"""`Warper`: base of logits warpers, frozen values that a user may derive from. `WholeRowWarper` and `RowWarper`: their vectorised forms,
with parameters per row; a `RowWarper` keeps what is above a floor, found among the largest logits. `NumberWarper`: a warper with one
number.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Self

import torch

from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.kernels.top_blocks import TopBlocks

Truncate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes (r, V) logits and the (r, 1) smallest ones that are kept, and returns (r, V) logits without those below."""


class Warper(ABC):
    """A logits warper: makes tokens more or less probable, or leaves them out.

    Write one as a frozen dataclass with the method `warp`, and give it to `samplers.multinomial(warpers=...)`. It is a value: it
    has a hash, equal ones do the same, and what it does with a row depends on that row's logits alone.
    """

    __slots__ = ()

    is_standard: ClassVar[bool] = False
    """Whether the class is one of this package, so that no code of a user runs in it; one that a user derives from it is not."""

    follows_surprise: ClassVar[bool] = False
    """Whether the step depends on the surprisal of the tokens drawn so far, so that the row records where that began."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Leave `for_rows` of a base behind where `warp` is another one."""
        super().__init_subclass__(**options)
        cls.is_standard = cls.__module__.startswith(f"{__package__}.")
        if "warp" in cls.__dict__ and "for_rows" not in cls.__dict__:
            cls.for_rows = Warper.for_rows  # type: ignore[method-assign]

    @abstractmethod
    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the distribution that is left.

        Args:
            logits: (R, V) float32 or float64, minus infinity for tokens that the mask or an earlier step has left out; such a token
                stays out, whatever is returned. At least one is finite in every row.

        Returns:
            (R, V), of the same type, minus infinity for tokens that are left out.
        """

    @property
    def is_neutral(self) -> bool:
        """Whether the step changes nothing, so that it can be left out."""
        return False

    @property
    def needs_counts(self) -> bool:
        """Whether the step depends on the tokens of the row, besides its logits; for warpers with a `for_rows` that takes them."""
        return False

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper | None:
        """Return the same step for rows each of which has its own of these warpers; None where `warp` is all there is."""
        return None

    @classmethod
    def has_fast_form(cls) -> bool:
        """Return whether there is more than `warp`: a `for_rows` of the class."""
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
    """One kind of warper for r rows, each with its own numbers: `Warper.warp`, which it agrees with, for all of them at once."""

    __slots__ = ()

    def at(self, counts: Sequence[TokenCounts | None] | None) -> Self:
        """Return the same step for what the r rows hold now; the step itself, where it does not depend on that."""
        return self

    @abstractmethod
    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left of (r, V) ones, by looking at whole rows."""


class RowWarper(WholeRowWarper):
    """A vectorised warper that leaves out what is below a floor, which it finds among the largest logits of a row."""

    __slots__ = ()

    @property
    def reach(self) -> int:
        """How many of the largest logits of a row nearly always tell what is kept; 0 where nothing is left out."""
        return 1

    @property
    def is_limit(self) -> bool:
        """Whether no more than `reach` tokens are kept, ties aside."""
        return False

    @abstractmethod
    def __getitem__(self, rows: torch.Tensor) -> Self:
        """Return the same for some of the rows, by their indices."""

    @abstractmethod
    def narrow(self, top: TopBlocks) -> None:
        """Do the same by the largest logits of each row, and say for which rows these do not tell."""


class NumberWarper(Warper):
    """A standard warper with one number, its only field. Those of r rows are one (r, 1) tensor, which its class methods take.

    Attributes:
        neutral: the number that changes nothing; None where each changes something.
        is_limit: see `RowWarper`.
    """

    __slots__ = ()
    neutral: ClassVar[float | None] = None
    is_limit: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the (r, 1) smallest logits that are kept of (r, V) ones."""

    @classmethod
    @abstractmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Do the same by the largest logits of each row; see `RowWarper.narrow`."""

    @classmethod
    def whole(cls, logits: torch.Tensor, numbers: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left; see `WholeRowWarper.whole`."""
        return truncate(logits, cls.floor(logits, numbers))

    @classmethod
    def reach(cls, numbers: torch.Tensor) -> int:
        """Return how many of the largest logits of a row nearly always tell what is kept; see `RowWarper.reach`."""
        return 1

    @property
    def number(self) -> float:
        """The number in the form that rows hold."""
        number: float = getattr(self, type(self).__match_args__[0])  # type: ignore[attr-defined]
        return number

    @property
    def is_neutral(self) -> bool:
        """Whether the number changes nothing."""
        return getattr(self, type(self).__match_args__[0]) == self.neutral  # type: ignore[attr-defined, no-any-return]

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits without what is below the floor."""
        return warped_by_rows(self, logits)

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own numbers, none of them neutral."""
        return _NumberRows(cls, column([warper.number for warper in warpers]))


@dataclass(frozen=True, slots=True)
class _NumberRows(RowWarper):
    """A kind of warper with the (r, 1) float64 numbers of r rows."""

    kind: type[NumberWarper]
    numbers: torch.Tensor

    @property
    def reach(self) -> int:
        return self.kind.reach(self.numbers)

    @property
    def is_limit(self) -> bool:
        return self.kind.is_limit

    def __getitem__(self, rows: torch.Tensor) -> _NumberRows:
        return _NumberRows(self.kind, self.numbers[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return self.kind.whole(logits, self.numbers, truncate)

    def narrow(self, top: TopBlocks) -> None:
        self.kind.narrow(top, self.numbers)


def warped_by_rows(warper: Warper, logits: torch.Tensor) -> torch.Tensor:
    """Return what a warper makes of (r, V) logits by its form for many rows; `logits` themselves where it is neutral."""
    if warper.is_neutral:
        return logits
    rows = type(warper).for_rows([warper] * len(logits))
    assert rows is not None
    return rows.whole(logits, where_not_below)


def where_not_below(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return the logits that are not below the (r, 1) floors, as they are: what comes next may ask for more than their differences."""
    return logits.where(logits >= floor, -torch.inf)


def column(values: Sequence[float]) -> torch.Tensor:
    """Return (r, 1) float64 numbers on the CPU, one for each row."""
    return torch.tensor(values, dtype=torch.float64)[:, None]
