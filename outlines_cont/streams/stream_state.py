"""`StreamState`: the state of a token stream after one token: stop-text matcher (Aho-Corasick), UTF-8 decoder, and the text that has
become final. States are immutable and linked to the one before (a persistent list): a rewind by n tokens follows n links, and forks
share their common states. `Stop`: the stop text or stop token that ended the text. `TextDecoder`: an incremental UTF-8 decoder as an
immutable value.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outlines_cont.streams.decode_options import DecodeOptions
from outlines_cont.text_search.stop_text import StopMatch, StopText


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decodes UTF-8 in chunks; `held` are the bytes, at most 3, of an incomplete character.

    Invariant: the texts of all pushes and of `flush`, joined, are `data.decode("utf-8", errors="replace")` of all bytes, joined.
    """

    held: bytes = b""

    def push(self, data: bytes) -> tuple[TextDecoder, str]:
        """Return the decoder after `data`, and the text that is complete, with U+FFFD for invalid bytes. Cost: the length of `data`."""
        data = self.held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        return TextDecoder(data[used:]), text

    def flush(self) -> str:
        """Return the text of the incomplete bytes at the end of input: empty, or U+FFFD."""
        return self.held.decode("utf-8", errors="replace")


_START = TextDecoder()


@dataclass(frozen=True, slots=True)
class Stop:
    """The stop text or stop token that ended a text.

    Attributes:
        text: The stop text, None for a stop token.
        token_id: The stop token, None for a stop text.
        position: Characters of the text before it; negative for a stop text that begins in the prompt, counted from its end.
    """

    text: str | None
    token_id: int | None
    position: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StreamState:
    """The state of a stream after one token; it refers to the one before.

    Attributes:
        matcher: The stop-text matcher, after the bytes of all tokens.
        is_start: Whether the next token begins the text, so that its prefix space is not part of the text.
        before: The state before the last token or flush; None at the beginning.
        token_id: The last token; None at the beginning, after a flush, and after a push beyond the end.
        num_chars: How many characters are final.
        new_text: Those that the last push or flush made final.
        stop: The stop that ended the text; None before the end, and after a flush.
        finish_reason, logprob: See `TokenStream`.
        num_drawn: How many random numbers were drawn from a seed.
    """

    matcher: StopText
    decoder: TextDecoder = _START
    is_start: bool = False
    before: StreamState | None = None
    token_id: int | None = None
    num_tokens: int = 0
    num_chars: int = 0
    new_text: str = ""
    stop: Stop | None = None
    finish_reason: str = ""
    logprob: float | None = None
    num_drawn: int = 0

    def push(self, token_id: int, options: DecodeOptions, logprob: float | None, num_drawn: int) -> StreamState:
        """Return the state after one more token. The text has not ended."""
        data, is_start = options.bytes_of(token_id), self.is_start
        if token_id in options.stop_token_ids:
            text = self._rest()
            stop = Stop(None, token_id, self.num_chars + len(text))
            matcher, decoder = self.matcher, _START
        else:
            if is_start and options.tokenizer.token_bytes[token_id]:
                data, is_start = data[options.begins_with_prefix_space(token_id) :], False
            matcher, certain = self.matcher.push(data)
            decoder, text = self.decoder.push(certain)
            if matcher.match or matcher.held:
                # A stop text begins with a whole character, so the bytes before it are complete, or invalid.
                text, decoder = text + decoder.flush(), _START
            stop = None
            if matcher.match:
                stop, kept = _found(matcher.match, self.num_chars + len(text))
                text += kept if options.keep_stop else ""
        num_chars, end = self.num_chars + len(text), "stop" if stop else ""
        return StreamState(
            matcher,
            decoder,
            is_start,
            self,
            token_id,
            self.num_tokens + 1,
            num_chars,
            text,
            stop,
            end,
            logprob,
            num_drawn,
        )

    def flush(self, finish_reason: str) -> StreamState:
        """Return the state at the end of the text, in which all of it is final. The text has not ended."""
        text = self._rest()
        return replace(
            self,
            decoder=_START,
            before=self,
            token_id=None,
            num_chars=self.num_chars + len(text),
            new_text=text,
            finish_reason=finish_reason,
        )

    def back(self) -> Iterator[StreamState]:
        """Yield this state and all before it, from the last to the first."""
        state: StreamState | None = self
        while state is not None:
            yield state
            state = state.before

    @property
    def held(self) -> bytes:
        """The bytes that are not final yet."""
        return b"" if self.finish_reason else self.decoder.held + self.matcher.held

    def _rest(self) -> str:
        """Return the text of the bytes that are not final, if nothing follows them."""
        decoder, text = self.decoder.push(self.matcher.held)
        return text + decoder.flush()


def _found(match: StopMatch, num_chars: int) -> tuple[Stop, str]:
    """Return the stop of a match after `num_chars` characters of text, and the part of it that is not in the prompt."""
    data, border = match.text.encode(), max(-match.start, 0)
    in_prompt, after = data[:border].decode(errors="replace"), data[border:].decode(errors="replace")
    return Stop(match.text, None, num_chars - len(in_prompt)), after
