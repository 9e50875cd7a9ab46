"""Drafters for speculative decoding: each proposes tokens that may follow a row, which one forward of the model then verifies.

Each module is one kind of drafter; `opening` returns the one for an option. Imports `engine.drafting`, `engine.drawing`, `kv` and the
rooms below these.
"""

from outlines_cont.drafts.opening import Proposer

__all__ = ["Proposer"]
