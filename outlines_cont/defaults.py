"""Defaults that the command line and Python share: `DEFAULT_MAX_TOKENS`, and `num_cores` for the number of threads."""

import os

DEFAULT_MAX_TOKENS = 1024
"""The most tokens of a piece where `max_tokens` is not given: no text runs to a context of 40,000 tokens without a word."""


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
