"""`Meter`: counts of forwards, tokens and seconds of mask computation: those of a call, a row or a step, and those of a model while
`model.meter()` is open. `MeterBoard`: the open meters of a model; every one gets all of its counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(slots=True)
class Meter:
    """Counts of work: of a call, a row or a step, or of a model while the meter was open; open meters may be nested, each counts all.

    Attributes:
        forwards: calls of the model.
        fed_tokens: tokens given to the model, padding not counted.
        sampled_tokens: tokens drawn by a sampler, an end-of-sequence token included.
        forced_tokens: tokens appended without sampling because the constraint left no choice.
        rewound_tokens: tokens removed from the end of a row by a policy.
        reused_tokens: tokens that a call did not feed, because it found their keys and values in the given states, in running
            rows, or in the prefix cache; at each call, summed over its rows.
        recomputed_tokens: those of `fed_tokens` that had been fed before for the same row.
        proposed_tokens: draft tokens, without forced ones.
        accepted_tokens: draft tokens that the sampler drew as well.
        saved_forwards: draws without a forward of their own, because the tokens before them were guessed; summed over rows.
        images: images that were given to the model, again where their keys and values had been dropped.
        mask_seconds: seconds in which policies computed their branches (masks, forced text), summed over rows.
    """

    forwards: int = 0
    fed_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    rewound_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    saved_forwards: int = 0
    images: int = 0
    mask_seconds: float = 0.0

    def add(self, other: Meter) -> None:
        """Add the counts of `other` to these."""
        for name, count in zip(_COUNTS, _counts_of(other), strict=True):
            if count:
                setattr(self, name, getattr(self, name) + count)

    def __sub__(self, other: Meter) -> Meter:
        """Return what was counted since `other`, an earlier copy."""
        if not isinstance(other, Meter):
            return NotImplemented
        return Meter(**{name: getattr(self, name) - getattr(other, name) for name in _COUNTS})

    def move(self, other: Meter) -> None:
        """Add these counts to those of `other`, and set them to zero."""
        for name, count in zip(_COUNTS, _counts_of(self), strict=True):
            if count:
                setattr(other, name, getattr(other, name) + count)
                setattr(self, name, 0)


_COUNTS = tuple(field.name for field in fields(Meter))  # calling `fields` each time would take longer than the addition
_counts_of = attrgetter(*_COUNTS)


class MeterBoard:
    """The open meters of one model; several may be open, and each counts all work of the model."""

    def __init__(self) -> None:
        self._open: list[Meter] = []

    @contextmanager
    def open(self) -> Iterator[Meter]:
        """Yield a new meter that counts until the block ends."""
        meter = Meter()
        self._open.append(meter)
        try:
            yield meter
        finally:
            # By identity: two meters with the same counts are equal.
            self._open = [other for other in self._open if other is not meter]

    def add(self, counts: Meter) -> None:
        """Add `counts` to every open meter."""
        for meter in self._open:
            meter.add(counts)
