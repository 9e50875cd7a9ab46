"""The inference engine: continuous batching in one loop that appends, rewinds and samples as policies say."""

from outlines_cont.policies.branch import Branch, TokenSet

__all__ = ["Branch", "TokenSet"]
