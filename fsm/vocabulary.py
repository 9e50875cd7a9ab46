"""Vocabulary: the bytes of every token id, the trie over them, and what masks of all constraints share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.cache import ByteCache
from fsm.characters import JSON_CHARACTER
from fsm.errors import VocabularyError
from fsm.loop import CharacterLoop, is_character_class
from fsm.node import ALL_BYTES, Node
from fsm.trie import Trie


class Vocabulary:
    """The tokens of one tokenizer, as bytes.

    Args:
        tokens: the bytes of each token id; None or empty for a special token, which is never allowed.
        eos_token_ids: ids that end a text; their bytes, if they have any, do not count.
        max_mask_bytes: most memory for finished masks, shared by every constraint over this vocabulary.
        max_loop_bytes: most memory for what is remembered of loops over characters, likewise.

    Raises:
        VocabularyError: no token has bytes, a token is not bytes, or an EOS id is out of range.

    Cost: 0.2 s and about 40 MB for 131,072 tokens, the loop over JSON strings included. Immutable but for its caches,
    which are safe to share between threads.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        eos_token_ids: Sequence[int],
        *,
        max_mask_bytes: int = 64 << 20,
        max_loop_bytes: int = 64 << 20,
    ) -> None:
        _check(tokens, eos_token_ids)
        special = frozenset(eos_token_ids)
        self.tokens: tuple[bytes | None, ...] = tuple(
            None if i in special or not t else t for i, t in enumerate(tokens)
        )
        self.eos_token_ids = tuple(sorted(special))
        self.num_words = bitmask.num_words(len(self.tokens))
        ids = [i for i, t in enumerate(self.tokens) if t]
        if not ids:
            raise VocabularyError(
                "expected at least one token with bytes, received none. Check how the tokens were read."
            )
        self.trie = Trie([self.tokens[i] or b"" for i in ids], ids, len(self.tokens))
        self.max_token_bytes = max(len(t) for t in self.tokens if t)
        self.eos_mask = bitmask.from_ids(self.eos_token_ids, self.num_words)
        self.masks: ByteCache[Node, NDArray[np.int32]] = ByteCache(max_mask_bytes)
        self._loops: ByteCache[tuple[Node, int], CharacterLoop] = ByteCache(max_loop_bytes)
        self._is_class: dict[Node, bool] = {}
        self._prepare_strings()

    def _prepare_strings(self) -> None:
        """Make the loops of JSON strings now: every extraction meets them, and a first mask should not wait for them."""
        entries = np.flatnonzero((self.trie.byte == ord('"')) & (self.trie.num_texts - self.trie.num_ends > 24))
        for node in (Trie.root, *entries.tolist()):
            loop = self.loop(JSON_CHARACTER, node)
            if loop is not None:
                loop.exits(ord('"'))

    def __len__(self) -> int:
        """The number of token ids, special ones included."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, eos_token_ids={self.eos_token_ids!r})"

    @cached_property
    def single_bytes(self) -> int:
        """The bytes that are tokens by themselves, as a 256-bit mask."""
        mask = 0
        for byte, (_, ends, _) in self.trie.branches(Trie.root).items():
            mask |= (1 << byte) if ends else 0
        return mask

    @property
    def spells_everything(self) -> bool:
        """True when every byte is a token, so that every text can be spelled."""
        return self.single_bytes == ALL_BYTES

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Bytes per token id, int32, `(V,)`; 0 for special tokens."""
        return np.fromiter((len(t) if t else 0 for t in self.tokens), np.int32, len(self.tokens))

    @property
    def nbytes(self) -> int:
        """Bytes held by the trie, the loops and the masks (not by the token texts themselves)."""
        return self.trie.nbytes + self.masks.nbytes + self._loops.nbytes

    def loop(self, body: Node, node: int = Trie.root) -> CharacterLoop | None:
        """How the tokens below a trie node run through `body*`; None where `body` is no wide class of characters.

        Cost: once per body and node; see `CharacterLoop`.
        """
        is_class = self._is_class.get(body)
        if is_class is None:
            if len(self._is_class) > 10_000:
                self._is_class.clear()
            is_class = self._is_class[body] = is_character_class(body)
        if not is_class:
            return None
        loop = self._loops.get((body, node))
        if loop is None:
            loop = CharacterLoop(body, self.tokens, self.trie, self.num_words, node=node)
            self._loops.put((body, node), loop, loop.nbytes)
        return loop


def _check(tokens: Sequence[bytes | None], eos_token_ids: Sequence[int]) -> None:
    for i, token in enumerate(tokens):
        if token is not None and not isinstance(token, bytes):
            raise VocabularyError(
                f"expected bytes or None for each token, received {token!r} at id {i}. Encode text tokens as UTF-8 bytes."
            )
    for eos in eos_token_ids:
        if isinstance(eos, bool) or not isinstance(eos, int | np.integer) or not 0 <= eos < len(tokens):
            raise VocabularyError(
                f"expected EOS ids from 0 to {len(tokens) - 1}, received {eos!r}. Give the ids of this vocabulary's end tokens."
            )
