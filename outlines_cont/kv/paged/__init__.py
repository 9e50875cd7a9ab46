"""Keys and values in slots of one pool (paged attention): leases of rows, batches that find tokens by tables, the kernel of the attention.

Imports `kv`, which knows a pool as a protocol alone.
"""
