"""Replies of a chat model: free text or tool calls, generated in two spans (text, then calls under a constraint) and streamed as events.

Imports `generation`, `generate`, `continuation` and the layers below them.
"""
