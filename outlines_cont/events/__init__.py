"""Events of a stream, and values of JSON that is still being written.

Imports `engine` (for the rows it looks at) and what lies below.
"""
