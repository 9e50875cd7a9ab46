"""Conversations: sequences that are prompted, sampled, forked, rewound and edited by hand, step by step, many at once on one model;
with classifier-free guidance, and trees of completions.
"""

from outlines_cont.conversation.conversation import Conversation, Mark
from outlines_cont.conversation.executor import BatchedExecutor

__all__ = ["BatchedExecutor", "Conversation", "Mark"]
