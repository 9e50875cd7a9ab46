"""Drafts: what guesses the tokens that a row writes next, so that several are read in one forward.

Each module has one way to guess, and `opening` tells which one an option means. How guesses are read and kept is in `engine`; this room
imports it, `kv` and `models`, and nothing that imports a generator.
"""

from outlines_cont.drafts.proposer import Proposer

__all__ = ["Proposer"]
