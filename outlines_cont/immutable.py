"""`Immutable`: base class of immutable values, for which `copy.copy` and `copy.deepcopy` return the object itself; it does not prevent
changes.
"""

from __future__ import annotations

from typing import Self


class Immutable:
    """Makes `copy.copy` and `copy.deepcopy` return the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        """Return the object itself: it is immutable."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return the object itself: it is immutable."""
        return self
