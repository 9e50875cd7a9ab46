"""`SequenceState` and what it is made of: rows of tokens, their text, spans and slices, prompts as rows, files, HTML.

All of it is immutable. Imports `kv`, `sampling`, the tokenizer and protocols; it knows the engine as a protocol only.
"""
