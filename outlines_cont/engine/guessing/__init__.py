"""Speculative decoding: how many tokens are guessed for a row, the policies walked ahead on them, and how often guesses were right.

Imports `policies`, `engine.drawing` and what lies below; the proposers themselves are in `drafts`.
"""
