"""`product`, `completed`, `disjoint`: the byte classes of derivatives, as arcs: 256-bit masks (bit b is byte b) with a target each. For
`&` classes are intersected (`product`), for `~` all other bytes added (`completed`), for `|` overlapping ones split (`disjoint`). Also
`covered`: the bytes of all classes.

Source: Owens, Reppy and Turon 2009, doi:10.1017/S0956796808007090.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Target = TypeVar("Target")

ALL_BYTES = (1 << 256) - 1


def product(lists: Iterable[Iterable[tuple[int, Target]]]) -> list[tuple[int, tuple[Target, ...]]]:
    """Disjoint masks, each with a target of every list; the masks of each list are disjoint. Cost: the product of their lengths."""
    out: list[tuple[int, tuple[Target, ...]]] = [(ALL_BYTES, ())]
    for arcs in lists:
        out = [(both, (*targets, target)) for mask, targets in out for own, target in arcs if (both := mask & own)]
    return out


def covered(arcs: Iterable[tuple[int, Target]]) -> int:
    """The bytes that are in one of the masks."""
    found = 0
    for mask, _ in arcs:
        found |= mask
    return found


def completed(arcs: Iterable[tuple[int, Target]], other: Target) -> list[tuple[int, Target]]:
    """The arcs, and one to `other` for all bytes that are in none of their masks."""
    out = list(arcs)
    rest = ALL_BYTES & ~covered(out)
    return [*out, (rest, other)] if rest else out


def disjoint(by_mask: Mapping[int, list[Target]]) -> Iterable[tuple[int, list[Target]]]:
    """Split overlapping masks into disjoint ones, each with the targets of all masks that contain it."""
    seen = 0
    for mask in by_mask:
        if seen & mask:
            break
        seen |= mask
    else:
        return by_mask.items()
    out: list[tuple[int, list[Target]]] = []
    for rest, targets in by_mask.items():
        split = list[tuple[int, list[Target]]]()
        for place, (mask, found) in enumerate(out):
            if not rest:
                split += out[place:]
                break
            both = mask & rest
            if not both:
                split.append((mask, found))
                continue
            split.append((both, found + targets))
            if mask != both:
                split.append((mask & ~both, found))
            rest &= ~both
        if rest:
            split.append((rest, targets))
        out = split
    return out
