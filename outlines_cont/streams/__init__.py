"""Incremental detokenization: text, stop strings and draws for token ids from any source, without a model.

What this room re-exports are values: a push returns a new one, and the old one stays valid. They import `errors` and
`interfaces`, and what a draw needs only where logits are pushed. The other modules import the engine, never a generator.
"""

from outlines_cont.streams.stream_place import Stop
from outlines_cont.streams.text_decoder import TextDecoder
from outlines_cont.streams.token_stream import TokenStream
from outlines_cont.text_search.stop_text import StopMatch, StopText

__all__ = ["Stop", "StopMatch", "StopText", "TextDecoder", "TokenStream"]
