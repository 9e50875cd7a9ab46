"""One call of a generator: its options, its prompts as rows, `Run`, which goes on step by step, and the streams of it.

Imports `engine`, `drafts`, `events`, `chats` and what lies below.
"""
