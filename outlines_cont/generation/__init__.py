"""One call of a generator: its checked options, its prompts as rows, `Call`, a task that takes steps of the engine, and the streams of its events.

Imports `engine`, `drafts`, `events`, `chats` and the layers below them; `generate` and `continuation` are built on it.
"""
