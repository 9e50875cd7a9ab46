"""Incremental detokenization: text, stop strings and draws for token ids from any source, without a model.

Everything that is exported is an immutable value: a push returns a new one. Imports `text_search` and the tokenizer, and torch only
where logits are pushed.
"""

from outlines_cont.streams.stream_state import Stop, TextDecoder
from outlines_cont.streams.token_stream import TokenStream
from outlines_cont.text_search.stop_text import StopMatch, StopText

__all__ = ["Stop", "StopMatch", "StopText", "TextDecoder", "TokenStream"]
