"""Conversations by hand: prompt, infer, sample, fork, rewind, drop."""

from outlines_cont.executor.conversation import Conversation
from outlines_cont.executor.executor import BatchedExecutor
from outlines_cont.executor.mark import Mark

__all__ = ["BatchedExecutor", "Conversation", "Mark"]
