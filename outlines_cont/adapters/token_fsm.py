"""`token_table`: the vocabulary of a tokenizer, read once and kept as long as the tokenizer is alive (weak references), with an LRU cache
of 64 token FSMs over it (`AdapterTokens`). A changed tokenizer, other end tokens or another vocabulary size are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from fsm import Expression, TokenFSM, Vocabulary
from outlines_cont.checks import is_int
from outlines_cont.errors import MissingEOS, OptionError, VocabularyMismatch
from outlines_cont.models.tokenizer.tokenizer import Tokenizer

EOSTokenIds = int | Sequence[int] | None


class AdapterTokens:
    """The tokens of one tokenizer as far as a model has them, and the token FSMs over them.

    Args:
        token_bytes: the bytes of each token; None for special ones.
        eos_token_ids: the ids that end a text.

    Attributes:
        vocabulary: the tokens, and the ids that end a text.
        num_needed: the least width of logits with a column for each of them.
        token_fsm: returns the token FSM of an expression, and remembers the last 64 of them. Raises `fsm.EmptyLanguage` and
            `fsm.VocabularyGap` where nothing satisfies it, or nothing that the tokens spell.

    Cost: 0.2 s for 131,072 tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes | None], eos_token_ids: Sequence[int]) -> None:
        last = max((token_id for token_id, data in enumerate(token_bytes) if data), default=-1)
        self.vocabulary = Vocabulary(token_bytes, eos_token_ids)
        self.num_needed = 1 + max([last, *eos_token_ids])
        self.token_fsm: Callable[[Expression], TokenFSM] = lru_cache(64)(partial(TokenFSM, vocabulary=self.vocabulary))

    def check_width(self, width: int) -> None:
        """Raise `VocabularyMismatch` where logits have no column for some token."""
        if width < self.num_needed:
            raise VocabularyMismatch(
                f"expected logits of at least {self.num_needed:,} tokens, those of the tokenizer that the constraint was made with, got "
                f"{width:,}. Give the tokenizer of this model; where it has tokens that the model has no logits for, pass "
                f"`vocab_size={width}` as well."
            )


_TABLES: WeakKeyDictionary[Any, dict[tuple[Any, ...], AdapterTokens]] = WeakKeyDictionary()
_LOCK = Lock()


def token_table(tokenizer: Any, eos_token_ids: EOSTokenIds, vocab_size: int | None) -> AdapterTokens:
    """Return the table of a tokenizer of transformers, of one of `models`, or of a model of `models`.

    Args:
        tokenizer: what knows the tokens.
        eos_token_ids: the ids that end a text; None for those that `tokenizer` names.
        vocab_size: how many of the tokens the model has; None for all.

    Raises:
        MissingEOS: no id ends a text.
        OptionError: an id or a size that the tokenizer has not.
        TokenizerError: the tokens of the tokenizer do not join to the text.
    """
    if vocab_size is not None and not is_int(vocab_size, 1):
        raise OptionError(f"expected a number of tokens as `vocab_size`, got {vocab_size!r}", "vocab_size")
    ends = None if eos_token_ids is None else _ids(eos_token_ids)
    # Tokens may have been added since.
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    key = (size, ends, vocab_size)
    with _LOCK:
        try:
            tables = _TABLES.setdefault(tokenizer, {})
        except TypeError:  # an object without weak references is read each time
            tables = {}
        if key not in tables:
            tables[key] = _read(tokenizer, ends, vocab_size)
        return tables[key]


def _read(tokenizer: Any, ends: tuple[int, ...] | None, vocab_size: int | None) -> AdapterTokens:
    if hasattr(tokenizer, "eos_token_ids") and hasattr(tokenizer, "vocab_size") and hasattr(tokenizer, "tokenizer"):
        vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        ends = tuple(sorted(tokenizer.eos_token_ids)) if ends is None else ends
        tokenizer = tokenizer.tokenizer
    tokens = tokenizer if hasattr(tokenizer, "token_bytes") else Tokenizer(tokenizer)
    if ends is None:
        ends = () if tokens.eos_token_id is None else (tokens.eos_token_id,)
    if not ends:
        raise MissingEOS(
            "expected a tokenizer with an end-of-sequence token, by which a model says that a constrained text is complete, got one that "
            "names none. Pass `eos_token_ids=model.generation_config.eos_token_id`."
        )
    token_bytes = tokens.token_bytes[:vocab_size]
    odd = next((token_id for token_id in ends if not 0 <= token_id < len(token_bytes)), None)
    if odd is not None:
        raise OptionError(
            f"expected ids from 0 to {len(token_bytes) - 1} as `eos_token_ids`, got {odd}. Give the tokenizer of the model that has it.",
            "eos_token_ids",
        )
    return AdapterTokens(token_bytes, ends)


def _ids(eos_token_ids: int | Sequence[int]) -> tuple[int, ...]:
    given = list(eos_token_ids) if isinstance(eos_token_ids, Iterable) else [eos_token_ids]
    if not given or not all(hasattr(item, "__index__") for item in given):
        raise OptionError(
            f"expected a token id or some of them as `eos_token_ids`, such as `model.generation_config.eos_token_id`, got {given}",
            "eos_token_ids",
        )
    return tuple(sorted({int(item) for item in given}))
