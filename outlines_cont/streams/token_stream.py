"""`TokenStream`: incremental detokenization as an immutable value: token ids from any source become text, up to the first stop text
(Aho-Corasick) or stop token. Text is returned when it is final: without an incomplete character or a possible beginning of a stop text
at its end. `push_logits` draws the next token; forks and rewinds copy nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from outlines_cont.checks import check, is_int, is_number
from outlines_cont.errors import OptionError
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import Tokenizer
from outlines_cont.streams.decode_options import DecodeOptions, int_token_id
from outlines_cont.streams.stream_state import Stop, StreamState

if TYPE_CHECKING:
    import torch

    from outlines_cont.policies.branch import TokenSet
    from outlines_cont.sampling.params import Sampler
    from outlines_cont.sampling.random_stream import Rng
    from outlines_cont.streams.draw import TokenTally


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class TokenStream(Immutable):
    """The incremental text of token ids. Immutable: every push returns a new stream, and the old one stays valid.

    Invariants. The texts that became final with each push and with `flush`, joined, are the bytes of all tokens before the stop,
    decoded with `errors="replace"`. No text ends inside a character, and none is ever retracted. Text that cannot begin a stop
    text, and is not an incomplete character, is final with its push. The stop text that is found is the one that is complete
    first, of those that end together the longest, independent of the tokens and of the order of the stop texts.

    Cost: a push costs the bytes of its token, amortised: 5 to 6 us for 2 bytes and three stop texts (2.5 GHz Xeon), after
        50,000 tokens as after the first.
    """

    _options: DecodeOptions
    _state: StreamState
    _tally: TokenTally | None

    def __init__(
        self,
        tokenizer: Tokenizer | Any,
        *,
        stop_at: str | Iterable[str] | None = None,
        stop_token_ids: int | Iterable[int] | None = None,
        skip_special_tokens: bool = True,
        keep_stop: bool = False,
        stop_in_prompt: bool = False,
        prompt: str | Sequence[int] | None = None,
    ) -> None:
        """Create an empty stream.

        Args:
            tokenizer: `model.tokenizer`, or a tokenizer of Hugging Face, which takes a while to read (0.35 s for 131,072
                tokens): make one empty stream, and begin every text with it.
            stop_at: The text ends before the first of these.
            stop_token_ids: Tokens that end the text, and add nothing to it. None is the tokenizer's end of text; models may
                have more (`model.eos_token_ids`).
            skip_special_tokens: Special tokens have no text; otherwise their names are part of the text, such as `</s>`, and
                stop texts may match in that.
            keep_stop: The text includes the stop text, but nothing after it.
            stop_in_prompt: A stop text may begin in the prompt, but not end there.
            prompt: The text or ids before the first token: for `stop_in_prompt`, and for penalties, which count it.
                If it has no text, the first token begins one, and the space that some tokenizers put there is omitted.
                None: unknown, and the first token continues a text.

        Raises:
            OptionError: An option has another type or value, or an id is not a token of the tokenizer.
            TokenizerError: The tokenizer cannot be read, or cannot encode the prompt.
        """
        options = DecodeOptions.of(
            tokenizer,
            stop_at,
            stop_token_ids,
            prompt=prompt,
            skip_special_tokens=skip_special_tokens,
            keep_stop=keep_stop,
            stop_in_prompt=stop_in_prompt,
        )
        begins_text = options.prompt is not None and not options.tokenizer.text_bytes(options.prompt)
        self._set(options, StreamState(options.matcher, is_start=begins_text), None)

    def push(self, token_id: int) -> TokenStream:
        """Return the stream after one more token; `TokenizerError` if the tokenizer has no such id. After the end it adds nothing."""
        if self.finished:
            return self._past_end()
        return self._pushed(int_token_id(token_id), None, self._state.num_drawn)

    def push_logits(
        self,
        logits: torch.Tensor,
        sampler: Sampler,
        mask: TokenSet | None = None,
        *,
        uniform: float | None = None,
        rng: Rng = None,
    ) -> TokenStream:
        """Return the stream after a token that is drawn from logits, as a generator with this sampler draws it.

        The token is the last of `token_ids`. After the end nothing is drawn.

        Args:
            logits: (V,) or (1, V) floats, one for each token of the tokenizer or more, as those of padded models; not changed.
            sampler: How the token is chosen, such as `samplers.multinomial(temperature=0.7)`. Its penalties count the prompt,
                if that is known, and the tokens of the stream as generated. `Mirostat` counts all tokens of the stream that were drawn.
            mask: The tokens that may be drawn; None for all. It is applied before the sampler.
            uniform: The random number to draw with, in [0, 1).
            rng: The source of the number instead: a seed, whose stream is that of `generator(prompt, rng=seed)`; a
                generator of PyTorch, NumPy or Python, which is advanced; None for a number that cannot be repeated.

        Raises:
            InvalidLogits, DeadEnd: No token can be drawn.
            OptionError: An option is out of its range, or the sampler is a search.
            TypeError, ValueError: The logits or the mask have another type or shape.
            TokenizerError: The token that was drawn is not a token of the tokenizer.

        Cost: that of the sampler. With penalties, a stream that is continued in two ways alternately counts its tokens again
            each time; give each its own `fork`.
        """
        if self.finished:
            return self._past_end()
        from outlines_cont.streams.draw import drawn_token, uniform_of

        advice = "Use `samplers.greedy()` or `samplers.multinomial()`."
        check(
            "sampler",
            sampler,
            hasattr(sampler, "sample") and hasattr(sampler, "needs_counts"),
            "a sampler that draws token by token",
            advice,
        )
        num_drawn, num_tokens = self._state.num_drawn, len(self._options.tokenizer.token_bytes)
        if uniform is not None:
            _check_uniform(uniform, rng)
        elif sampler.needs_random:
            uniform = uniform_of(rng, num_drawn)
            num_drawn += 1
        if not sampler.needs_counts:
            token_id, logprob = drawn_token(logits, num_tokens, sampler, mask, uniform, None)
            return self._pushed(token_id, logprob, num_drawn)
        tally = self._own_tally()
        counts = tally.take(self._state)
        token_id, logprob = drawn_token(logits, num_tokens, sampler, mask, uniform, counts)
        tally.give(self._state, counts)
        return self._pushed(token_id, logprob, num_drawn)

    def flush(self, finish_reason: str = "length") -> TokenStream:
        """Return the stream at its end, with all text final. After the end it changes nothing.

        `finish_reason` says why nothing follows; `OptionError` if it is empty, or not a string.
        """
        is_reason = isinstance(finish_reason, str) and finish_reason != ""
        check("finish_reason", finish_reason, is_reason, "a reason", "Write one such as 'length'.")
        return self._past_end() if self.finished else self._at(self._state.flush(finish_reason), self._tally)

    def fork(self) -> TokenStream:
        """Return an equal stream that can be continued in another way. Cost: none."""
        return self._at(self._state, None)

    def rewind(self, n: int) -> TokenStream:
        """Return the stream exactly as it was `n` tokens earlier, also from after its end. Cost: n steps.

        Raises:
            OptionError: `n` is not an int from 0 to `num_tokens`.
        """
        check("n", n, is_int(n, 0, self.num_tokens), f"an int from 0 to {self.num_tokens}, the tokens of the stream,")
        if n == 0:
            return self
        wanted = self.num_tokens - n
        return self._at(next(at for at in self._state.back() if at.num_tokens == wanted), self._tally)

    @property
    def text(self) -> str:
        """All text that is final. Cost: its length, so collect `new_text` in a long loop."""
        parts = [state.new_text for state in self._state.back()]
        return "".join(reversed(parts))

    @property
    def new_text(self) -> str:
        """The text that became final with the last push or flush; it may be empty, and is after the end."""
        return self._state.new_text

    @property
    def held(self) -> bytes:
        """The bytes that are not final: they may begin a stop text, or are an incomplete character."""
        return self._state.held

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids that were pushed, a stop token among them. Cost: their number."""
        token_ids = [state.token_id for state in self._state.back() if state.token_id is not None]
        return tuple(reversed(token_ids))

    @property
    def num_tokens(self) -> int:
        """How many ids were pushed."""
        return self._state.num_tokens

    @property
    def logprob(self) -> float | None:
        """The log-probability of the last token as `push_logits` drew it; None if it was pushed by its id."""
        return self._state.logprob

    @property
    def stop(self) -> Stop | None:
        """The stop text or stop token that ended the text, and its position; None if neither did."""
        return self._state.stop

    @property
    def finished(self) -> bool:
        """Whether a stop was found, or nothing follows."""
        return bool(self._state.finish_reason)

    @property
    def finish_reason(self) -> str:
        """`stop`, or what `flush` was given; empty before the end."""
        return self._state.finish_reason

    def __eq__(self, other: object) -> bool:
        """Whether options, ids and finish reason are equal, on which all else depends."""
        if not isinstance(other, TokenStream):
            return NotImplemented
        if self._state is other._state:
            return True
        is_same = self._summary == other._summary and self._options == other._options
        return is_same and self.token_ids == other.token_ids

    def __hash__(self) -> int:
        return hash(self._summary)

    @property
    def _summary(self) -> tuple[int, int, str]:
        return self._state.num_tokens, self._state.num_chars, self._state.finish_reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options and the tokens; the linked states would be pickled by a deep recursion."""
        settings = {field.name: getattr(self._options, field.name) for field in fields(DecodeOptions) if field.init}
        states = reversed([state for state in self._state.back() if state.token_id is not None])
        tokens = [(state.token_id, state.logprob, state.num_drawn) for state in states]
        flushed = "" if self.stop else self.finish_reason
        return _unpickle, (settings, tokens, flushed, self.finished and not self.new_text)

    def __repr__(self) -> str:
        shown = self.text if self._state.num_chars <= 60 else f"...{self.text[-50:]}"
        end = f", finish_reason={self.finish_reason!r}" if self.finished else ""
        return f"<TokenStream of {self.num_tokens} tokens, text={shown!r}, held={self.held!r}{end}>"

    def _set(self, options: DecodeOptions, state: StreamState, tally: TokenTally | None) -> None:
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_tally", tally)

    def _at(self, state: StreamState, tally: TokenTally | None) -> TokenStream:
        stream = TokenStream.__new__(TokenStream)
        stream._set(self._options, state, tally)
        return stream

    def _pushed(self, token_id: int, logprob: float | None, num_drawn: int) -> TokenStream:
        return self._at(self._state.push(token_id, self._options, logprob, num_drawn), self._tally)

    def _past_end(self) -> TokenStream:
        """Return this finished stream without new text, for loops that join the new texts."""
        if not self.new_text:
            return self
        return self._at(replace(self._state, before=self._state, token_id=None, new_text=""), self._tally)

    def _own_tally(self) -> TokenTally:
        """Return the token counts that this stream shares with those made from it, except by `fork`; created at the first use."""
        if self._tally is None:
            from outlines_cont.streams.draw import TokenTally

            object.__setattr__(self, "_tally", TokenTally(self._options.prompt or ()))
        assert self._tally is not None
        return self._tally


def _unpickle(
    settings: dict[str, Any], tokens: Sequence[tuple[int, float | None, int]], flushed: str, is_past: bool
) -> TokenStream:
    stream = TokenStream(**settings)
    for token in tokens:
        stream = stream._pushed(*token)
    stream = stream.flush(flushed) if flushed else stream
    return stream._past_end() if is_past else stream


def _check_uniform(uniform: object, rng: object) -> None:
    if rng is not None:
        raise OptionError("expected `uniform` or `rng`, got both: the first is the number, the second draws it", "rng")
    check("uniform", uniform, is_number(uniform) and 0 <= uniform < 1, "a number from 0 up to 1, without 1,")
