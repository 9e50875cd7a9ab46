"""One call of a generator: its checked options, its prompts as rows, `Run`, which takes the steps of the engine, and its streams.

Imports `engine`, `drafts`, `events`, `chats` and the layers below them; `generate` and `continuation` are built on it.
"""
