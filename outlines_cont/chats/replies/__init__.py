"""Replies of a chat model: text or calls of tools, written by generators and streamed.

Imports `generation`, `generate`, `continuation` and what lies below.
"""
