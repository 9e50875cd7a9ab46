"""The inference engine: continuous batching in one loop, in which policies append, rewind and sample, and programs fork.

Imports `policies`, `kv`, `state`, `samplers` and the rooms below these.
"""

from outlines_cont.policies.branch import Branch, TokenSet

__all__ = ["Branch", "TokenSet"]
