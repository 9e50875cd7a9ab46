"""`DecodeOptions`: the checked options of a `TokenStream`, with the matcher of its stop texts (Aho-Corasick), which may have read the
prompt, and the bytes that each token adds to the text: none for special tokens, unless these are shown. `int_token_id` checks an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Self

from outlines_cont.checks import checked_bool
from outlines_cont.errors import OptionError, TokenizerError
from outlines_cont.interfaces import Tokenizer
from outlines_cont.text_search.stop_text import StopText, checked_texts


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The options of a token stream, checked; see `TokenStream`.

    Attributes:
        prompt: The ids before the first token; None if they are not known.
        matcher: Finds the stop texts; with `stop_in_prompt` it has read the prompt.
    """

    tokenizer: Tokenizer
    stop_at: tuple[str, ...]
    stop_token_ids: frozenset[int]
    skip_special_tokens: bool
    keep_stop: bool
    stop_in_prompt: bool
    prompt: tuple[int, ...] | None
    matcher: StopText = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.stop_in_prompt and self.prompt is None:
            raise OptionError(
                "expected `prompt` with `stop_in_prompt`, got none: pass the text or the ids before the first token",
                "stop_in_prompt",
            )
        matcher = StopText.of(self.stop_at)
        if self.stop_in_prompt:
            matcher = matcher.after(b"".join(map(self.bytes_of, self.prompt or ())))
        object.__setattr__(self, "matcher", matcher)

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        stop_at: str | Iterable[str] | None,
        stop_token_ids: int | Iterable[int] | None,
        *,
        prompt: str | Sequence[int] | None,
        **flags: bool,
    ) -> Self:
        """Return the options from the arguments of `TokenStream`; `OptionError` if one is invalid."""
        if not hasattr(tokenizer, "token_bytes"):
            # Only here, as the models load torch.
            from outlines_cont.models.tokenizer.tokenizer import Tokenizer as OwnTokenizer

            tokenizer = OwnTokenizer(tokenizer)
        for name, flag in flags.items():
            checked_bool(flag, name)
        stop_texts = checked_texts(stop_at)
        token_ids = _stop_ids(tokenizer, stop_token_ids)
        return cls(tokenizer, stop_texts, token_ids, prompt=_prompt_ids(tokenizer, prompt), **flags)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text; `TokenizerError` if the id is not a token."""
        token_bytes = self.tokenizer.token_bytes
        if not 0 <= token_id < len(token_bytes):
            raise _foreign_id(token_id, len(token_bytes))
        data = token_bytes[token_id]
        if data is None and not self.skip_special_tokens:
            return self.tokenizer.special_tokens.get(token_id, "").encode()
        return data or b""

    def begins_with_prefix_space(self, token_id: int) -> bool:
        """Return whether the bytes of a token begin with a prefix space, which is dropped at the beginning of a text."""
        data = self.tokenizer.token_bytes[token_id] or b""
        return data.startswith(b" ") and not self.tokenizer.decode([token_id]).startswith(" ")


def int_token_id(token_id: object) -> int:
    """Return a token id, which may be of numpy or torch, as an int; `TokenizerError` if it is not an integer."""
    try:
        if isinstance(token_id, bool | str):
            raise TypeError
        return index(token_id)  # type: ignore[arg-type]
    except TypeError:
        raise TokenizerError(
            f"expected a token id, an int, received {token_id!r} ({type(token_id).__name__}). "
            "Encode text with the tokenizer: `tokenizer.encode_inside(text)`."
        ) from None


def _foreign_id(token_id: int, size: int) -> TokenizerError:
    return TokenizerError(
        f"expected a token id from 0 to {size - 1}, received {token_id}. Pass ids of this tokenizer; where a model has "
        "more rows than that, make the tokenizer with its `vocab_size`, or take `model.tokenizer`."
    )


def _stop_ids(tokenizer: Tokenizer, given: int | Iterable[int] | None) -> frozenset[int]:
    if given is None:
        return frozenset() if tokenizer.eos_token_id is None else frozenset([tokenizer.eos_token_id])
    return frozenset(_checked_ids(tokenizer, given if isinstance(given, Iterable) else [given], "stop_token_ids"))


def _prompt_ids(tokenizer: Tokenizer, prompt: str | Sequence[int] | None) -> tuple[int, ...] | None:
    if prompt is None:
        return None
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt, add_special_tokens=True))
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray):
        raise OptionError(f"expected a text or token ids as `prompt`, got {type(prompt).__name__}", "prompt")
    return tuple(_checked_ids(tokenizer, prompt, "prompt"))


def _checked_ids(tokenizer: Tokenizer, items: Iterable[object], option: str) -> list[int]:
    """Return token ids as ints; `OptionError` if one is not a token of the tokenizer."""
    size = len(tokenizer.token_bytes)
    try:
        token_ids = [int_token_id(token_id) for token_id in items]
        foreign = [token_id for token_id in token_ids if not 0 <= token_id < size]
        if foreign:
            raise _foreign_id(foreign[0], size)
    except TokenizerError as error:
        raise OptionError(f"in `{option}`: {error}", option) from None
    return token_ids
