"""`SequenceState` and what it is made of: rows of tokens, their text, spans and slices, prompts as rows, files, HTML.

All of it is immutable. Imports `kv`, `sampling`, the tokenizer and protocols; it knows the engine as a protocol only.
"""

from outlines_cont.moved import moved_names

_HOME = "outlines_cont.state.sequence_state"
__getattr__ = moved_names(__name__, {name: f"{_HOME}.{name}" for name in ("SequenceState", "kv_bytes")})
