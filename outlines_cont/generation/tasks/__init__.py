"""Tasks of callers on one engine: many at once, in order, and a progress bar for them.

Imports `engine` and the rooms below it.
"""
