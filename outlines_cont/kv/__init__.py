"""Keys and values of rows: buffers that grow in place, segments that rows share, batches of ragged rows, and the prefix cache.

Imports nothing of the package but its leaves.
"""
