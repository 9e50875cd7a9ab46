"""One call of a generator: its checked options, its prompts as rows, `Call`, which is a task of the engine, and the streams of its events.

Imports `engine`, `drafts`, `events`, `chats` and the layers below them; `generate` and `continuation` are built on it.
"""
