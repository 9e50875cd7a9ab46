"""`Exclusions`: the tokens that are not drawn again at places that a row has gone back to (rejection sampling without replacement).

The engine keeps them, not the policies. An exclusion holds as long as the text before its place stays: where a row goes back further,
it is forgotten. So nothing that was refused after one text is ever refused after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What may not be drawn at one place.

    Attributes:
        index: the index of the token that is drawn there.
        excluded: ids that are not drawn there, because whatever follows them is refused.
        avoided: ids that are drawn there only where there are no others, because what followed them was refused.
        policy: the index, among those of the piece, of the policy that asked for it last.
        retries: how often the row has gone back to this place.
    """

    index: int
    excluded: frozenset[int] = frozenset()
    avoided: frozenset[int] = frozenset()
    policy: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Exclusions by their place, ascending. A value: every method returns a new one."""

    places: tuple[Exclusion, ...] = field(default=())

    def __iter__(self) -> Iterator[Exclusion]:
        return iter(self.places)

    def at(self, index: int) -> Exclusion | None:
        """Return what may not be drawn as token `index`; None where nothing is excluded. Cost: the number of places behind it."""
        for place in reversed(self.places):
            if place.index <= index:
                return place if place.index == index else None
        return None

    def adding(self, index: int, excluded: frozenset[int], avoided: frozenset[int], policy: int) -> Exclusions:
        """Return these with more ids excluded, or avoided, as token `index`, the last place, to which the row has gone back once more."""
        before = self.at(index) or Exclusion(index)
        excluded, avoided = before.excluded | excluded, before.avoided | avoided
        together = Exclusion(index, excluded, avoided, policy, before.retries + 1)
        return Exclusions((*self.until(index).places, together))

    def until(self, index: int) -> Exclusions:
        """Return those before token `index`."""
        if not self.places or self.places[-1].index < index:
            return self
        return Exclusions(tuple(place for place in self.places if place.index < index))


NO_EXCLUSIONS = Exclusions()
