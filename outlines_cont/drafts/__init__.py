"""Drafts for speculative decoding: each proposes tokens that a row may write next, which one forward of the model then verifies.

Each module has one way to guess, and `opening` finds the one that an option means. How guesses are read and kept is in `engine`; this room
imports it, `kv` and `models`, and nothing that imports a generator.
"""

from outlines_cont.drafts.proposer import Proposer

__all__ = ["Proposer"]
