"""`Exclusions`: for rejection sampling without replacement, the token ids that are not drawn again at positions to which a row was rewound.
Ids are excluded strictly, or avoided: drawn only where no other id is allowed. An entry is valid for the tokens before its position only: a
rewind to an earlier position removes it, so that an id that was refused after one prefix is not refused after another. The engine stores
them, not the policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The token ids that may not be drawn at one position of a row.

    Attributes:
        index: the position, as the index of the token that is drawn there.
        excluded: ids that are never drawn there, because every continuation of them is refused.
        avoided: ids that are drawn there only where no others are allowed, because one continuation of them was refused.
        policy: the index, among the policies of the generated span, of the one that refused last.
        retries: how often the row was rewound to this position.
    """

    index: int
    excluded: frozenset[int] = frozenset()
    avoided: frozenset[int] = frozenset()
    policy: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Exclusions by position, ascending. Immutable: methods return a changed copy."""

    entries: tuple[Exclusion, ...] = field(default=())

    def __iter__(self) -> Iterator[Exclusion]:
        return iter(self.entries)

    def at(self, index: int) -> Exclusion | None:
        """Return what may not be drawn as token `index`; None where nothing is excluded. Cost: the number of entries after it."""
        for entry in reversed(self.entries):
            if entry.index <= index:
                return entry if entry.index == index else None
        return None

    def adding(self, index: int, excluded: frozenset[int], avoided: frozenset[int], policy: int) -> Exclusions:
        """Return these with more ids excluded, or avoided, as token `index`; entries after it are dropped, a retry is counted."""
        before = self.at(index) or Exclusion(index)
        excluded, avoided = before.excluded | excluded, before.avoided | avoided
        together = Exclusion(index, excluded, avoided, policy, before.retries + 1)
        return Exclusions((*self.until(index).entries, together))

    def until(self, index: int) -> Exclusions:
        """Return those before token `index`."""
        if not self.entries or self.entries[-1].index < index:
            return self
        return Exclusions(tuple(entry for entry in self.entries if entry.index < index))


NO_EXCLUSIONS = Exclusions()
