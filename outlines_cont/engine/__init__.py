"""The engine: one loop that appends, rewinds and samples, told by policies what to do."""

from outlines_cont.policies.branch import Branch, TokenSet

__all__ = ["Branch", "TokenSet"]
