"""Conversations by hand: prompt, infer, sample, fork, rewind, drop."""

from outlines_cont.conversation.conversation import Conversation
from outlines_cont.conversation.executor import BatchedExecutor
from outlines_cont.conversation.mark import Mark

__all__ = ["BatchedExecutor", "Conversation", "Mark"]
