"""Records as columns with Arrow types, and output that is written row by row and can be resumed.

Imports `pipelines.rows`.
"""
