"""How many terms of `fsm` are in memory."""

from __future__ import annotations

from fsm.terms.node import Kind


def num_terms() -> int:
    """The terms of all kinds; each is in a table as long as something refers to it."""
    return sum(len(getattr(Kind, name).interned) for name in Kind.__annotations__)
