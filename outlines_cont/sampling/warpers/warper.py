"""`Warper`: one step between the penalties and the draw, as a value; `WholeRowWarper` and `RowWarper`, the same for many rows at once."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self

import torch

from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.kernels.token_history import TokenHistory
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
    """Whether the step depends on how surprising the tokens were that were drawn so far, so that the row keeps where that began."""

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

    def at(self, counts: Sequence[TokenCounts | None] | None) -> WholeRowWarper:
        """Return the same step for what the r rows hold now; the step itself, where it does not depend on that."""
        return self

    @abstractmethod
    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left of (r, V) ones, by looking at whole rows."""


class RowWarper(WholeRowWarper):
    """One that leaves out what is below a floor, if anything, and finds that among the largest logits of a row."""

    __slots__ = ()

    def at(self, counts: Sequence[TokenCounts | None] | None) -> RowWarper:
        """Return the same step for what the r rows hold now."""
        return self

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


def column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Return (r, 1) numbers on the CPU, one for each row."""
    return torch.tensor(values, dtype=dtype)[:, None]


def history_of(counts: Sequence[TokenCounts | None] | None, row: int, warper: object) -> TokenHistory:
    """Return what row number `row` holds, which a warper needs.

    Raises:
        TypeError: it is missing.
    """
    found = None if counts is None else counts[row]
    if found is None:
        raise TypeError(f"expected the token counts of row {row} as `counts`, which {warper!r} needs, got None")
    return found.history
