"""`Tokens`: a text with the choice whether special tokens written in it are control tokens or ordinary characters. Where text is given,
`str` (ordinary characters, with a warning if a special token or markup is written in it) and token ids are accepted, too. Also here: the
ids of a prompt, to whose text the tokenizer's start tokens (BOS) are added, and one text for all rows, one per batch entry, or one per row.

`prompt_row`: returns the `StateRow` of the token ids of a prompt, with an empty KV cache; start tokens (BOS) are left out of its text,
and its `prompt_length` counts characters. `failed_prompt` returns the empty row of a prompt that failed. Also the checks that a prompt
is shorter than the context, and that not every prompt of a batch has failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fsm.errors import stacklevel_of_user
from outlines_cont.checks import checked_bool, listed
from outlines_cont.errors import (
    BatchMismatch,
    ContextLengthError,
    OptionError,
    SpecialTokenWarning,
    TokenizerError,
    located,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import control_names_of
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow, shown_text


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text, and whether special tokens that are written in it are control tokens or ordinary characters.

    It is accepted wherever a text is: as a prompt, by `+` and by `state.append`. A plain `str` is read as `Tokens.of(text)`, and
    causes a warning where a special token is written in it.

    Attributes:
        text: the text.
        special: read what is written like a special token, such as `<|im_end|>`, as that token.
    """

    text: str
    special: bool = False

    @classmethod
    def of(cls, text: str, *, special: bool = False) -> Self:
        """Return a text whose special tokens are control tokens if `special`, else ordinary characters.

            prompt = Tokens.of(tokenizer.apply_chat_template(messages, tokenize=False), special=True)

        Raises:
            OptionError: `text` is not a `str`. Token ids are given as a list, without `Tokens`.
        """
        if not isinstance(text, str):
            raise OptionError(f"expected a text, got {type(text).__name__}. Token ids are given as a list.", "text")
        return cls(text, checked_bool(special, "special"))

    def __add__(self, other: object) -> Tokens:
        """Return both texts as one; an empty one fits all.

        Raises:
            OptionError: special tokens are control tokens in one of them only.
        """
        return _joined(self, other) if isinstance(other, str | Tokens) else NotImplemented

    def __radd__(self, other: object) -> Tokens:
        """Return both texts as one, with `other` in front; see `__add__`."""
        return _joined(other, self) if isinstance(other, str) else NotImplemented


def _joined(left: str | Tokens, right: str | Tokens) -> Tokens:
    first, second = (Tokens(part) if isinstance(part, str) else part for part in (left, right))
    if first.special != second.special and first.text and second.text:
        raise OptionError(
            f"expected texts of one kind to join, got {first!r} and {second!r}. Where special tokens are control tokens in both, write "
            "`Tokens.of(first + second, special=True)`; else add them to a state separately: `state + first + second`.",
            "special",
        )
    return Tokens(first.text + second.text, first.special if first.text else second.special)


Given = str | Tokens | tuple[int, ...]


def as_given(item: object) -> Given | None:
    """Return an item that is one text: `str`, `Tokens`, or ids (of a tensor, too) as a tuple; None for others, and an empty list."""
    if isinstance(item, str | Tokens):
        return item
    if isinstance(item, bytes | bytearray):
        return None
    found: Any = item.tolist() if hasattr(item, "tolist") and hasattr(item, "shape") else item
    if isinstance(found, list | tuple) and found and all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        return tuple(found)
    return None


def checked_given(item: Given, model: LanguageModel) -> Given:
    """Return `item`; warn where it is a `str` in which a special token is written. Raises `TokenizerError` for an id out of range."""
    if isinstance(item, tuple):
        _check_ids(item, model)
    name = control_names_of(model.tokenizer).first_in(item) if isinstance(item, str) else None
    if name is not None:
        warnings.warn(
            f"expected text without special tokens, got one in which {name!r} is written, and its letters were encoded. For the control "
            "token, as in the text of a chat template, write `Tokens.of(text, special=True)`, or give token ids; for the letters, as in "
            "the text of a user, `Tokens.of(text)`, which does not warn.",
            SpecialTokenWarning,
            stacklevel=stacklevel_of_user(),
        )
    return item


def _check_ids(token_ids: Sequence[int], model: LanguageModel, advice: str = "") -> None:
    odd = next((i for i in token_ids if not 0 <= i < model.vocab_size), None)
    if odd is not None:
        raise TokenizerError(
            f"expected token ids from 0 to {model.vocab_size - 1}, those of the model, got {odd}{advice}"
        )


def start_ids(model: LanguageModel) -> list[int]:
    """Return the special tokens that the tokenizer puts in front of every text, such as BOS."""
    return model.tokenizer.encode("", add_special_tokens=True)


def prompt_ids(item: Given, model: LanguageModel) -> tuple[list[int], int]:
    """Return the ids of a prompt, and how many of the first ones are start tokens of the tokenizer, which are not part of the text.

    Ids are not changed. Start tokens that are written in a `Tokens` are not added again. Raises `TokenizerError` if the text cannot
    be encoded.
    """
    start = start_ids(model)
    if isinstance(item, tuple):
        return list(item), num_start_tokens(item, start)
    if not isinstance(item, Tokens) or not item.special:
        text = item if isinstance(item, str) else item.text
        token_ids, num_start = model.tokenizer.encode(text, add_special_tokens=True), len(start)
    else:
        token_ids = model.tokenizer.encode_special(item.text)
        is_written = bool(start) and token_ids[: len(start)] == start
        token_ids, num_start = (token_ids, 0) if is_written else ([*start, *token_ids], len(start))
    _check_ids(
        token_ids, model, ", of a token that the tokenizer has and the model has not. Resize the embedding of the model"
    )
    return token_ids, num_start


def num_start_tokens(token_ids: Sequence[int], start: Sequence[int]) -> int:
    """Return the number of start tokens of the tokenizer, `start`, if the ids begin with them, else 0."""
    return len(start) if list(token_ids[: len(start)]) == list(start) else 0


def is_given(item: object) -> bool:
    """Return whether something may be a text, ids, or a list, an array or a column of them."""
    return isinstance(listed(item), str | Tokens | list | tuple) or as_given(item) is not None


def given_texts(text: Any, model: LanguageModel, batch_size: int, num_samples: int) -> list[Given]:
    """Return a text for each of B * S rows, given as one for all, as one for each batch entry, or as one for each row.

    Another number of texts is a `BatchMismatch`, anything else than text a `TypeError`.
    """
    if not is_given(text):
        raise TypeError(f"expected text or a list of texts, got {type(text).__name__}")
    num_rows = batch_size * num_samples
    if (one := as_given(text)) is not None:
        return [checked_given(one, model)] * num_rows
    texts: list[Given] = []
    for item in listed(text):
        if (given := as_given(item)) is None:
            raise TypeError(f"expected text or a list of texts, got {type(item).__name__} in the list")
        texts.append(checked_given(given, model))
    if len(texts) == num_rows:
        return texts
    if len(texts) == batch_size:
        return [item for item in texts for _ in range(num_samples)]
    raise BatchMismatch(
        f"expected one text, {batch_size} texts (one per batch entry) or {num_rows} texts (one per row), got a list of {len(texts)}"
    )


def prompt_row(
    token_ids: Sequence[int], model: LanguageModel, stream: RandomStream, num_start: int | None = None
) -> StateRow:
    """Return a row whose tokens are all of the prompt, and none in the KV cache.

    The first `num_start` ids (BOS) are not part of the text; None: the tokenizer's start tokens, if `token_ids` begins with them.
    """
    if num_start is None:
        num_start = num_start_tokens(token_ids, start_ids(model))
    row = StateRow.of_prompt(token_ids, stream, num_start)
    return replace(row, prompt_length=len(shown_text(token_ids, model.tokenizer, num_start)))


def failed_prompt(error: Exception, stream: RandomStream) -> StateRow:
    """Return a row without tokens that carries `error`, for a prompt of a batch that cannot be fed."""
    return replace(StateRow.of_prompt([], stream), error=error, finish_reason="error")


def check_length(model: LanguageModel, token_ids: Sequence[int], name: str = "prompt") -> None:
    """Raise `ContextLengthError` unless the prompt has fewer tokens than the context of the model, so that one more fits."""
    limit = model.context_length
    if limit is not None and len(token_ids) >= limit:
        raise ContextLengthError(
            f"expected a {name} of fewer than {limit} tokens, the context of the model, got {len(token_ids)}. "
            f"Shorten the {name}, or use a model with a longer context.",
            len(token_ids),
            limit,
        )


def check_some_run(errors: Sequence[Exception | None]) -> None:
    """Raise the first error if every entry of a batch has failed."""
    if errors and all(errors) and errors[0] is not None:
        raise located(errors[0], 0) if len(errors) > 1 else errors[0]
