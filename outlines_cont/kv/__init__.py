"""KV cache: contiguous growing buffers that rows share copy-on-write, the ragged decode batch, attention over shared prefixes, the
prefix cache (a radix tree), and snapshots for recurrent models.
"""

from outlines_cont.moved import moved_names

_HOMES = {
    "batch": ("Fed", "KVBatch"),
    "prefix_cache": ("PrefixCache",),
    "row": ("KVPart", "RowKV"),
    "serial": ("RecurrentBatch", "SerialBatch", "open_batch"),
    "store": ("KVStore",),
}
_STATE = "outlines_cont.state.transformers_cache"
_MOVED = {name: f"{__name__}.{home}.{name}" for home, names in _HOMES.items() for name in names}
_MOVED |= {name: f"{_STATE}.{name}" for name in ("from_dynamic_cache", "to_dynamic_cache")}
__getattr__ = moved_names(__name__, _MOVED | {"Part": f"{__name__}.row.KVPart"})
