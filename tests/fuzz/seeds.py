"""`first_seed`: where a random test begins: with the same examples in every run of CI, with new ones at everyone's desk."""

from __future__ import annotations

from random import SystemRandom

from hypothesis import settings


def first_seed() -> int:
    """Return 0 if hypothesis draws the same examples in every run (`--hypothesis-profile=ci`), else a random seed, 32 bits."""
    return 0 if settings.default.derandomize else SystemRandom().getrandbits(32)
