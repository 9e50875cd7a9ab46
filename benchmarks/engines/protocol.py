"""What a benchmark asks of an engine. Adapters call the cheapest entry point that each library documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Case
from benchmarks.tekken import Tokenizer


@dataclass(frozen=True, slots=True)
class Cursor:
    """One walk through a language.

    Attributes:
        fill: makes the mask of the present state; this call is what is timed.
        advance: reads a token; what it raises or a False result means that the token was refused.
        words: the mask that `fill` made last, int32, `(ceil(V / 32),)`.
    """

    fill: Callable[[], object]
    advance: Callable[[int], object]
    words: Callable[[], NDArray[np.int32]]


class Engine(Protocol):
    """A library with one vocabulary."""

    packages: Sequence[str]

    def prepare(self, tokenizer: Tokenizer) -> None:
        """Read the vocabulary."""

    def compile(self, case: Case) -> Any:
        """Make a constraint; lazy engines may leave most of the work to the first mask."""

    def cursor(self, constraint: Any) -> Cursor:
        """A walk from the beginning."""

    def drop_masks(self) -> bool:
        """Forget finished masks but nothing else; False where the library has no such cache of its own."""

    def reported_mb(self, constraint: Any) -> float | None:
        """Memory of the constraint, or with None of the vocabulary, as the library reports it; None where it does not."""
