"""`Branch`: the instruction of a policy for the next step of one sequence, as in AICI: rewind by some tokens (`backtrack`), then sample
under a mask, or append given tokens (`ff_tokens`, fast-forward), or wait. It may exclude or avoid tokens at the position rewound to, and
set a temperature. `TokenSet`: an immutable set of token ids as a packed bitmask, finite or the complement of a finite set; `LazyTokenSet`:
one whose bitmask is computed when first read. `Exits`: which tokens of a mask end the piece, though they do not end a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from reprlib import repr as short_repr
from typing import ClassVar, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

_WORD_BITS = 32
_KEPT_IDS = 2_048
"""Sets of up to this many ids cache them as an array: 16 KB each."""
_LIMIT = 2**24
"""Ids are smaller than that: float32 represents them exactly, and a set of them takes 2 MB at most."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenSet:
    """A set of token ids as a packed bitmask: finite, or everything but a finite set.

    Attributes:
        words: int32, 1-D, read-only; bit t % 32 of word t // 32 is set if token t is in the set.
        rest: whether the ids beyond `words` are in the set.
    """

    words: NDArray[np.int32]
    rest: bool = False
    _few: tuple[int, int, NDArray[np.int64]] | None = field(default=None, init=False, repr=False)

    all: ClassVar[TokenSet]
    none: ClassVar[TokenSet]

    @classmethod
    def of(cls, token_ids: Iterable[int]) -> TokenSet:
        """Return the set of `token_ids`, each of them from 0 up to 2 ** 24 - 1.

        Raises:
            ValueError: an id is out of that range.
            TypeError: an item is not an int.
        """
        items = [*token_ids] if isinstance(token_ids, Iterable) and not isinstance(token_ids, str | bytes) else None
        if not _are_ids(items):
            raise TypeError(f"expected token ids, such as `TokenSet.of([17, 4])`, got {short_repr(token_ids)}")
        if not items:
            return cls.none
        odd = next((int(i) for i in items if not 0 <= i < _LIMIT), None)
        if odd is not None:
            raise ValueError(f"a token id is {'0 or larger' if odd < 0 else f'below {_LIMIT}'}, got {odd}")
        ids = np.array(items, dtype=np.int64)
        bits = np.zeros((int(ids.max()) // _WORD_BITS + 1) * _WORD_BITS, dtype=np.uint8)
        bits[ids] = 1
        return cls.of_bitmask(np.packbits(bits, bitorder="little").view(np.int32))

    @classmethod
    def of_bitmask(cls, words: NDArray[np.int32]) -> TokenSet:
        """Return the set whose bits are `words`, int32 and 1-D, without a copy; ids beyond them are not in the set.

        Raises:
            TypeError: `words` is not such an array.
        """
        if not isinstance(words, np.ndarray) or words.dtype != np.int32 or words.ndim != 1:
            raise TypeError(
                "expected packed bits, a numpy array of int32 and one dimension such as `token_fsm.bitmask(state)`, got "
                f"{_kind(words)}. `TokenSet.of(ids)` makes a set of ids."
            )
        view = words.view()
        view.flags.writeable = False
        return cls(view)

    @property
    def is_made(self) -> bool:
        """Whether its words are computed; False only for a `LazyTokenSet` that was not read yet."""
        return True

    def bitmask(self, vocab_size: int) -> NDArray[np.int32]:
        """Return ceil(vocab_size / 32) words, int32, 1-D; bits from `vocab_size` on mean nothing."""
        return self._resized(-(-vocab_size // _WORD_BITS))

    def first_beyond(self, vocab_size: int) -> int | None:
        """Return the smallest id of a finite set that is `vocab_size` or larger, None if there is none.

        The padding bits of the last word of a vocabulary do not count if all of them are set, two or more.
        """
        if self.rest or len(self.words) * _WORD_BITS <= vocab_size:
            return None
        last, bit = divmod(vocab_size, _WORD_BITS)
        padding = int(self.words[last]) % 2**_WORD_BITS >> bit
        is_filled = 0 < bit < _WORD_BITS - 1 and padding == 2 ** (_WORD_BITS - bit) - 1
        if len(self.words) == last + 1 and (is_filled or not padding):
            return None
        start = _WORD_BITS if is_filled else bit
        bits = np.unpackbits(self.words[last:].view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits[start:])
        return last * _WORD_BITS + start + int(found[0]) if len(found) else None

    def count(self, vocab_size: int) -> int:
        """Return how many ids below `vocab_size` are in the set."""
        bits = np.unpackbits(self.bitmask(vocab_size).view(np.uint8), bitorder="little")
        return int(np.count_nonzero(bits[:vocab_size]))

    def few_ids(self, vocab_size: int, most: int) -> NDArray[np.int64] | None:
        """Return the ids below `vocab_size`, int64, ascending; None if more than `most` words have any.

        Cost: 15 us the first time. Many tokens of a text have the same mask, so up to 2,048 ids are cached.
        """
        if self._few is not None and self._few[:2] == (vocab_size, most):
            return self._few[2]
        words = self.bitmask(vocab_size)
        if np.count_nonzero(words) > most:
            return None
        used = words.nonzero()[0]
        bits = np.unpackbits(words[used].view(np.uint8), bitorder="little").reshape(-1, _WORD_BITS)
        which, bit = np.nonzero(bits)
        ids: NDArray[np.int64] = used[which] * _WORD_BITS + bit
        ids = ids[ids < vocab_size]
        if len(ids) <= _KEPT_IDS:
            object.__setattr__(self, "_few", (vocab_size, most, ids))
        return ids

    def __bool__(self) -> bool:
        """Whether any token is in the set."""
        return self.rest or bool(self.words.any())

    def __contains__(self, token_id: int) -> bool:
        word, bit = divmod(token_id, _WORD_BITS)
        if word >= len(self.words):
            return self.rest and token_id >= 0
        return token_id >= 0 and bool(int(self.words[word]) >> bit & 1)

    def __and__(self, other: object) -> TokenSet:
        if not isinstance(other, TokenSet):
            return NotImplemented
        if other is TokenSet.all:
            return self
        if self is TokenSet.all:
            return other
        ours, theirs = self._aligned(other)
        return TokenSet(_locked(ours & theirs), self.rest and other.rest)

    def __or__(self, other: object) -> TokenSet:
        if not isinstance(other, TokenSet):
            return NotImplemented
        ours, theirs = self._aligned(other)
        return TokenSet(_locked(ours | theirs), self.rest or other.rest)

    def __invert__(self) -> TokenSet:
        return TokenSet(_locked(~self.words), not self.rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSet):
            return NotImplemented
        return self.rest == other.rest and np.array_equal(*self._aligned(other))

    __hash__ = None  # type: ignore[assignment]  # equal sets may differ in the length of their words

    def __repr__(self) -> str:
        if self.rest:
            return "TokenSet.all" if not len(self.words) else f"~{~self!r}"
        ids = np.flatnonzero(np.unpackbits(self.words.view(np.uint8), bitorder="little"))
        listing = ", ".join(map(str, ids[:16])) + (f", ... ({len(ids)} ids)" if len(ids) > 16 else "")
        return f"TokenSet.of([{listing}])"

    def _aligned(self, other: TokenSet) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the words of both sets, extended to the same number."""
        size = max(len(self.words), len(other.words))
        return self._resized(size), other._resized(size)

    def _resized(self, size: int) -> NDArray[np.int32]:
        missing = size - len(self.words)
        if missing <= 0:
            return self.words[:size] if missing else self.words
        return np.concatenate((self.words, np.full(missing, -1 if self.rest else 0, dtype=np.int32)))


class LazyTokenSet(TokenSet):
    """A finite set whose words are computed when they are first read, if possible during a forward.

    A policy may return only one that contains a token that does not end the text, because the row is fed before the mask is computed.
    """

    __slots__ = ("_make", "_words")
    _make: Callable[[], NDArray[np.int32]]
    _words: NDArray[np.int32] | None

    def __init__(self, make: Callable[[], NDArray[np.int32]]) -> None:
        """Take the function that computes the words (as those of `TokenSet.of_bitmask`); it is called when they are first read."""
        for name, value in (("_make", make), ("_words", None), ("rest", False), ("_few", None)):
            object.__setattr__(self, name, value)

    @property
    def words(self) -> NDArray[np.int32]:
        """The words, computed at the first access."""
        words = self._words
        if words is None:
            words = self._make()
            object.__setattr__(self, "_words", words)
        return words

    @property
    def is_made(self) -> bool:
        """Whether the words are computed."""
        return self._words is not None


def _locked(words: NDArray[np.int32]) -> NDArray[np.int32]:
    words.flags.writeable = False
    return words


TokenSet.all = TokenSet(_locked(np.zeros(0, dtype=np.int32)), rest=True)
TokenSet.none = TokenSet(_locked(np.zeros(0, dtype=np.int32)))


def _are_ids(token_ids: object) -> TypeGuard[Sequence[int]]:
    if not isinstance(token_ids, Iterable) or isinstance(token_ids, str | bytes):
        return False
    return all(hasattr(token_id, "__index__") for token_id in token_ids)


def _kind(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)} and type {dtype}"


def check_mask(mask: object, vocab_size: int, name: str) -> None:
    """Raise `TypeError` for a mask that is not a `TokenSet`, and `ValueError` for one with an id that the vocabulary does not have."""
    if not isinstance(mask, TokenSet):
        raise TypeError(
            f"expected a `TokenSet` as `{name}`, got {_kind(mask)}. Write `TokenSet.of([17, 4])` for ids, "
            "`TokenSet.of_bitmask(words)` for packed bits such as `token_fsm.bitmask(state)`, `TokenSet.all` for free sampling."
        )
    beyond = mask.first_beyond(vocab_size) if mask.is_made else None
    if beyond is not None:
        raise ValueError(
            f"expected token ids from 0 to {vocab_size - 1} in `{name}`, those of the model, got {beyond}. "
            "Make the set of ids that its tokenizer has."
        )


class Exit(NamedTuple):
    """The end of a piece inside, or before, a token that was drawn."""

    text: bytes  # the bytes of the token that belong to the piece, at its beginning; mostly none
    token_ids: NDArray[
        np.int32
    ]  # all tokens with which the piece would have ended after the same bytes; their probabilities are summed


class Exits(Protocol):
    """The tokens of a mask with which the piece ends, though they are none that end a text: they leave its language."""

    @property
    def may_end(self) -> bool:
        """Whether the piece may end here, before a token; else only inside of one."""

    @property
    def inside(self) -> TokenSet:
        """The tokens of the mask that stay in the language, and those that end a text, if it may end."""

    @property
    def mask(self) -> TokenSet:
        """The tokens that stay in the language, and those with which the piece ends."""

    def not_here(self) -> Exits:
        """Return the exits of a piece that must not end before a token."""

    def of(self, token_id: int) -> Exit | None:
        """Return how the piece ends if a token is drawn; None if it goes on."""

    def all(self) -> list[Exit]:
        """Return all ways in which the piece may end now, the end of the text among them."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An instruction for one sequence: rewind, then sample under a mask, or append given tokens.

    First the last `backtrack` tokens are removed. With a mask, one token is sampled under it; if a sequence in `ff_tokens` begins with
    that token, the whole sequence is appended. Without a mask, the one sequence of `ff_tokens` is appended without sampling. An empty
    branch waits one step; an empty list of branches stops.

    Text that is re-encoded (`backtrack` with `ff_tokens`, without a mask) has log-probabilities of 0, as a prompt has.

    Attributes:
        backtrack: tokens to remove from the end, 0 or more.
        sample_mask: the tokens that may be sampled; `TokenSet.all` is free sampling, None samples nothing.
        ff_tokens: sequences of token ids to append without sampling, none of them empty; at most one without a mask.
        temperature: what the logits of this sample are divided by instead of the sampler's temperature; 0 takes the most probable
            token, None is the sampler's.
        exclude: tokens that are not drawn at the position rewound to as long as the text before it stays the same. The engine
            stores them, and counts a retry. Where no other token is left, it rewinds further; if it cannot, it calls
            `Policy.give_up`.
        avoid: the same, but if no other token is left they are drawn nevertheless.
        exits: the tokens of the mask with which the piece ends; None for those alone that end a text.
    """

    backtrack: int = 0
    sample_mask: TokenSet | None = None
    ff_tokens: list[list[int]] = field(default_factory=list)
    temperature: float | None = None
    exclude: TokenSet | None = None
    avoid: TokenSet | None = None
    exits: Exits | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if self.backtrack < 0:
            raise ValueError(f"`backtrack` is a number of tokens, 0 or more, got {self.backtrack!r}")
        if self.sample_mask is None and len(self.ff_tokens) > 1:
            raise ValueError(
                f"expected at most one sequence in `ff_tokens` without a `sample_mask`, got {len(self.ff_tokens)}. Give the mask of their "
                "first tokens, so that the one is appended whose first is drawn, or fork: a `Controller` may return a `Branch` for each."
            )
        if not all(self.ff_tokens):
            raise ValueError("a sequence in `ff_tokens` is empty; omit it")
        if self.temperature is not None and not 0 <= self.temperature < 1e30:
            raise ValueError(f"`temperature` is a number, 0 or more, got {self.temperature!r}")

    @property
    def is_retry(self) -> bool:
        """Whether tokens that were written are refused, so that others are drawn there."""
        return self.exclude is not None or self.avoid is not None

    @property
    def is_rewind(self) -> bool:
        """Whether tokens are removed, or refused at the present end."""
        return self.backtrack > 0 or self.exclude is not None or self.avoid is not None

    def _check_types(self) -> None:
        try:
            index(self.backtrack)
        except TypeError:
            raise TypeError(f"expected a number of tokens as `backtrack`, got {self.backtrack!r}") from None
        for name in ("sample_mask", "exclude", "avoid"):
            tokens = getattr(self, name)
            if tokens is not None and not isinstance(tokens, TokenSet):
                raise TypeError(
                    f"expected a `TokenSet` or None as `{name}`, got {short_repr(tokens)}. Write `TokenSet.of([1, 2])` for a "
                    "set of ids, `TokenSet.all` for every token."
                )
        if self.temperature is not None and not isinstance(self.temperature, Real):
            raise TypeError(
                f"expected a number, 0 or more, or None as `temperature`, got {short_repr(self.temperature)}"
            )
        if not isinstance(self.ff_tokens, list | tuple) or not all(map(_are_ids, self.ff_tokens)):
            raise TypeError(
                f"expected a list of sequences of token ids as `ff_tokens`, such as `[[17, 4]]`, got {short_repr(self.ff_tokens)}. "
                "Encode text with the tokenizer of the model: `ff_tokens=[model.tokenizer.encode_inside(text, ())]`."
            )


FREE = [Branch(sample_mask=TokenSet.all)]
"""Free sampling, as the branches that a policy returns; not to be changed."""
