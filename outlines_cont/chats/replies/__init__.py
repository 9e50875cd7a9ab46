"""Replies of a chat model: free text or tool calls, generated in two pieces and streamed as events.

Imports `generation`, `generate`, `continuation` and the layers below them.
"""
