"""One call of a generator: its options, its prompts as rows, `Run`, which takes the steps of the engine, and the streams of it.

Imports `engine`, `drafts`, `events`, `chats` and what lies below.
"""
