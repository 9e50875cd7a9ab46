"""Defaults that the command line and Python share: `DEFAULT_MAX_TOKENS`, and `num_cores`, the cores that this process may use."""

import os

DEFAULT_MAX_TOKENS = 1024
"""The most tokens of a generated span if `max_tokens` is not given, so that no text fills a context of 40,000 tokens unnoticed."""


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
