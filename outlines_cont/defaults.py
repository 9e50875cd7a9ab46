"""Defaults shared by the command line and Python."""

DEFAULT_MAX_TOKENS = 1024
"""The most tokens of a piece where `max_tokens` is not given: no text runs to a context of 40,000 tokens without a word."""
