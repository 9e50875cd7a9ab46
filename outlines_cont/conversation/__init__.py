"""Conversations by hand: prompt, infer, sample, fork, rewind, drop."""

from outlines_cont.conversation.conversation import Conversation, Mark
from outlines_cont.conversation.executor import BatchedExecutor

__all__ = ["BatchedExecutor", "Conversation", "Mark"]
