"""Conversations: sequences that are prompted, sampled, forked and rewound step by step, many at once on one model."""

from outlines_cont.conversation.conversation import Conversation, Mark
from outlines_cont.conversation.executor import BatchedExecutor

__all__ = ["BatchedExecutor", "Conversation", "Mark"]
