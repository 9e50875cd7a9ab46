"""What a stream tells of a run: events, and values that are still being written.

Imports `engine` (for the rows it looks at) and what lies below.
"""
