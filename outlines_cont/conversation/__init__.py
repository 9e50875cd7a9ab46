"""Conversations: sequences that are prompted, sampled, forked, rewound and edited by hand, step by step, many in one batch, as with the
`BatchedExecutor` of LLamaSharp; also classifier-free guidance over two of them. Imports `policies`, `state`, `samplers` and parts of the
engine; the model computes logits by its engine.
"""

from outlines_cont.conversation.executor import BatchedExecutor, Conversation, GuidedConversation, Mark, guide

__all__ = ["BatchedExecutor", "Conversation", "GuidedConversation", "Mark", "guide"]
