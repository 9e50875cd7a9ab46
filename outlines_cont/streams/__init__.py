"""Streams: text out of tokens that come one by one, without a model.

All of them are values: a push returns a new one, and the old one stays valid. They import `errors` and `interfaces`, and what
a draw from logits needs only where logits are pushed.
"""

from outlines_cont.streams.stop_text import StopMatch, StopText
from outlines_cont.streams.stream_place import Stop
from outlines_cont.streams.text_decoder import TextDecoder
from outlines_cont.streams.token_stream import TokenStream

__all__ = ["Stop", "StopMatch", "StopText", "TextDecoder", "TokenStream"]
