"""Vocabulary: the bytes of every token id, the trie over them, and what masks of all constraints share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.cache import ByteCache
from fsm.characters import JSON_CHARACTER
from fsm.derivative import share
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

    walks_before_a_loop = 2

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
        spelled = [token or None for token in tokens]
        for eos in special:
            spelled[eos] = None
        self.tokens: tuple[bytes | None, ...] = tuple(spelled)
        self.eos_token_ids = tuple(sorted(special))
        self.num_words = bitmask.num_words(len(self.tokens))
        texts = [token for token in spelled if token]
        if not texts:
            raise VocabularyError(
                "expected at least one token with bytes, received none. Check how the tokens were read."
            )
        self.trie = Trie(texts, [i for i, token in enumerate(spelled) if token], len(spelled))
        self.max_token_bytes = max(map(len, texts))
        self.eos_mask = bitmask.from_ids(self.eos_token_ids, self.num_words)
        self.masks: ByteCache[Node, NDArray[np.int32]] = ByteCache(max_mask_bytes)
        self._loops: ByteCache[tuple[Node, int], CharacterLoop] = ByteCache(max_loop_bytes)
        self._is_class: dict[Node, bool] = {}
        self._uses: Counter[tuple[Node, int]] = Counter()
        self._prepare_strings()

    def _prepare_strings(self) -> None:
        """Make the loops of JSON strings now: every extraction meets them, and a first mask should not wait for them."""
        share(JSON_CHARACTER)
        entries = np.flatnonzero((self.trie.byte == ord('"')) & (self.trie.num_texts - self.trie.num_ends > 24))
        for node in (Trie.root, *entries.tolist()):
            loop = CharacterLoop(JSON_CHARACTER, self.tokens, self.trie, self.num_words, node=node)
            loop.exits(ord('"'))
            self._loops.put((JSON_CHARACTER, node), loop, loop.nbytes)

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

    @property
    def nbytes(self) -> int:
        """Bytes held by the trie, the loops and the masks (not by the token texts themselves)."""
        return self.trie.nbytes + self.masks.nbytes + self._loops.nbytes

    def loop(self, body: Node, node: int = Trie.root, *, at_once: bool = True) -> CharacterLoop | None:
        """How the tokens below a trie node run through `body*`; None where `body` is no wide class of characters.

        Args:
            body: one round of the loop.
            node: where in the trie the loop is entered.
            at_once: whether to make what is not there yet; otherwise None, too, the first few times, because a plain walk
                is cheaper than a loop that is not met again.

        Cost: once per body and node; see `CharacterLoop`.
        """
        if self._is_class.get(body) is False:
            return None
        key = body, node
        loop = self._loops.get(key)
        if loop is not None or not self._is_worth_a_loop(key, at_once):
            return loop
        loop = CharacterLoop(body, self.tokens, self.trie, self.num_words, node=node)
        return self._loops.put(key, loop, loop.nbytes)

    def _is_worth_a_loop(self, key: tuple[Node, int], at_once: bool) -> bool:
        body, _ = key
        if len(self._is_class) > 10_000 or len(self._uses) > 10_000:
            self._is_class.clear()
            self._uses.clear()
        if body not in self._is_class:
            self._is_class[body] = is_character_class(body)
        self._uses[key] += 1
        return self._is_class[body] and (at_once or self._uses[key] > self.walks_before_a_loop)


def _check(tokens: Sequence[bytes | None], eos_token_ids: Sequence[int]) -> None:
    known = {bytes, type(None)} >= set(map(type, tokens))
    for i, token in () if known else enumerate(tokens):
        if token is not None and not isinstance(token, bytes):
            raise VocabularyError(
                f"expected bytes or None for each token, received {token!r} at id {i}. Encode text tokens as UTF-8 bytes."
            )
    for eos in eos_token_ids:
        if isinstance(eos, bool) or not isinstance(eos, int | np.integer) or not 0 <= eos < len(tokens):
            raise VocabularyError(
                f"expected EOS ids from 0 to {len(tokens) - 1}, received {eos!r}. Give the ids of this vocabulary's end tokens."
            )
