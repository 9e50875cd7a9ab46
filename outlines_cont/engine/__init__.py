"""The inference engine: continuous batching in one loop, in which policies append, rewind, sample and fork.

Imports `policies`, `kv`, `state`, `samplers` and what lies below.
"""

from outlines_cont.policies.branch import Branch, TokenSet

__all__ = ["Branch", "TokenSet"]
