"""`SequenceState`, the immutable result of a generator, and its parts: rows of tokens with log-probabilities and KV cache, slices and
concatenation by characters, spans, prompts as rows, files, HTML, and the cache of transformers.

Imports `kv`, `sampling`, the tokenizer and protocols; the engine is known by its protocol only.
"""
