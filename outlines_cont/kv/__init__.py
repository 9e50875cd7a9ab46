"""KV cache: contiguous growing buffers that rows share copy-on-write, the ragged decode batch, attention over shared prefixes, the
prefix cache (a radix tree), and snapshots for recurrent models.
"""

from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.dynamic_cache import from_dynamic_cache, to_dynamic_cache
from outlines_cont.kv.fed import Fed
from outlines_cont.kv.prefix_cache import PrefixCache
from outlines_cont.kv.recurrent import RecurrentBatch
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.kv.serial import SerialBatch, open_batch
from outlines_cont.kv.store import KVStore
from outlines_cont.moved import moved_names

__all__ = [
    "Fed",
    "KVBatch",
    "KVPart",
    "KVStore",
    "PrefixCache",
    "RecurrentBatch",
    "RowKV",
    "SerialBatch",
    "from_dynamic_cache",
    "open_batch",
    "to_dynamic_cache",
]

__getattr__ = moved_names(__name__, {"Part": "outlines_cont.kv.row.KVPart"})
