"""Keys and values: blocks that never change, and the ragged batch that grows during a run."""

from outlines_cont.kv.batch import Fed, KVBatch
from outlines_cont.kv.block import KVBlock, RowKV, stack

__all__ = ["Fed", "KVBatch", "KVBlock", "RowKV", "stack"]
