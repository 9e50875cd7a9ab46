"""`read`, `write`: a cache on disk of the tries of vocabularies, as plain arrays with a SHA-256 checksum, bounded in size by LRU eviction.
A file is named after the hash of the tokens (`fingerprint`) and replaced atomically. One that is damaged or of another version is ignored
with a warning, and built anew; so is one that cannot be read or written. Nothing that is read is executed. The checksum finds damage; it
does not protect against a writer of the folder, who can make masks wrong.

A file is a line with the format's version, the SHA-256 of its name and of all that follows, and the arrays in the format of `safetensors`.

`Vocabulary`: the bytes of every token id, the byte trie of the tokens, and the caches that all constraints over it share. End-of-sequence
ids have no bytes; a special id with a name is spelled as its symbol (`special_token.py`), also in the trie. The caches, each bounded in
bytes, have finished masks by term and products of the trie with character loops (those of JSON strings are made in the constructor), with
prefixes, and with patterns whose counts have no bounds. The trie can be stored in a folder (`read`, `write`).
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fsm import bitmask
from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, VocabularyError, shorten, stacklevel_of_user
from fsm.terms import work
from fsm.terms.characters import JSON_CHARACTER
from fsm.terms.derivative import Derivatives, share
from fsm.terms.node import Kind, Node, memory
from fsm.terms.rule import TEXT_BYTES
from fsm.terms.special_token import MARK, symbol
from fsm.tokens.cache import ByteCache
from fsm.tokens.character_loop import CharacterLoop, is_character_class
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.tokens.open_walk import OpenWalk
from fsm.tokens.sparse_product import SparseProducts
from fsm.tokens.walk import Exits
from fsm.trie import Trie

Arrays = dict[str, NDArray[Any]]

FORMAT = b"fsm vocabulary 3\n"
"""Changes whenever other bytes would be written for the same tokens; a test remembers them."""
SUFFIX = ".fsm-vocabulary"
MAX_OPEN_ARCS = 6_000  # derivatives that open walks share, some kilobytes each
_TYPES = ("<u1", "<u2", "<u4", "<i2", "<i4")
_START = len(FORMAT) + 32


def fingerprint(texts: Iterable[bytes], lengths: NDArray[np.int32], eos_token_ids: Iterable[int]) -> str:
    """A name for these tokens: the SHA-256 of all that a vocabulary is made from and of the format. Cost: 10 ms per MB."""
    digest = sha256(FORMAT)
    digest.update(json.dumps(sorted(eos_token_ids)).encode())
    digest.update(_narrowed(lengths).tobytes())
    digest.update(b"".join(texts))
    return digest.hexdigest()


def read(folder: Path, name: str, restore: Callable[[Arrays], None]) -> bool:
    """Call `restore` with the arrays that were written as `name`; False if there is no file, and, with a warning, where it is not valid.

    The file counts as used now. Cost: 5 to 8 ms per MB, nearly all of it for the checksum.
    """
    path = folder / (name + SUFFIX)
    try:
        data = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        _warn(f"could not read {str(path)!r} ({error})")
        return False
    try:
        restore(_parse(data, name))
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        _warn(f"{str(path)!r} is damaged or no file of this version ({type(error).__name__}: {error})")
        return False
    return True


def _parse(data: bytes, name: str) -> Arrays:
    if data[: len(FORMAT)] != FORMAT:
        raise ValueError("it begins with something else")
    body = data[_START:]
    if _digest(name, body) != data[len(FORMAT) : _START]:
        raise ValueError("its checksum is another one, or it was made from other tokens")
    return load(body)


def _digest(name: str, body: bytes) -> bytes:
    return sha256(name.encode() + body).digest()


def write(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], max_bytes: int) -> None:
    """Write a file atomically, then remove the least recently used ones until the folder fits `max_bytes`.

    Where the file cannot be written, there is a warning and no error, as it is only a cache.
    """
    body = save({label: _narrowed(array) for label, array in arrays.items()})
    if len(body) + _START > max_bytes:
        _warn(f"the vocabulary takes {len(body) + _START:,} bytes, and `max_disk_bytes` is {max_bytes:,}")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / (name + SUFFIX), (FORMAT, _digest(name, body), body))
        _shrink(folder, max_bytes)
    except OSError as error:
        _warn(f"could not write to {str(folder)!r} ({error})")


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    handle, unfinished = tempfile.mkstemp(SUFFIX, ".unfinished-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _shrink(folder: Path, max_bytes: int) -> None:
    found = []
    for path in folder.glob("*" + SUFFIX):
        try:
            status = path.stat()
        except FileNotFoundError:  # another process removed it
            continue
        found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found)[:-1]:  # the newest is the one that was just written
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in the smallest type of a file that holds them."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    kind = next(k for k in _TYPES if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
    return array.astype(kind)


def _warn(what: str) -> None:
    warnings.warn(
        f"vocabulary cache: {what}. The vocabulary is made anew.", RuntimeWarning, stacklevel=stacklevel_of_user()
    )


class Vocabulary:
    """The tokens of one tokenizer, as bytes, with their trie and caches.

    Args:
        tokens: the bytes of each token id; None or empty for a special token, which is never allowed.
        eos_token_ids: ids that end a text; their bytes, if they have any, are ignored.
        special_tokens: how special tokens are written, by id, for languages in which they are symbols (`fsm.special`).
        max_cache_bytes: most memory for what all constraints over this vocabulary share: half of it for finished masks and
            the terms that only they keep alive, the rest for loops over characters and for the trie as dicts.
        cache_dir: a folder where the prepared vocabulary is stored, so that the next program reads it; None: nowhere. A file
            in it that is damaged or of another version is replaced, with a warning.
        max_disk_bytes: most bytes of such files in the folder; the least recently used are removed. One takes 1.1 MB for 131,072 tokens.

    Raises:
        VocabularyError: no token has bytes, a token is not bytes, an EOS id is out of range, or a special token has bytes.

    Attributes:
        tokens: the bytes of each id; None for special and end-of-sequence ids.
        special_tokens: the names of special ids.
        special_ids: the smallest id of each name, without those that end a text.
        spelled: what automata read for each id: its bytes, a symbol, or nothing if it is never allowed.
        eos_token_ids: ascending.
        eos_mask, text_mask, ending_mask: those ids, those with text, and both, packed.

    Cost: 0.2 s and about 40 MB for 131,072 tokens, the loops over JSON strings included; 0.05 s from a file. Immutable but
    for its caches, which are safe to share between threads.
    """

    walks_before_a_loop = 2
    sweeps_before_exits = 8
    max_exits = 8_000

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        eos_token_ids: Sequence[int],
        special_tokens: Mapping[int, str] | None = None,
        *,
        max_cache_bytes: int = 128 << 20,
        cache_dir: str | os.PathLike[str] | None = None,
        max_disk_bytes: int = 256 << 20,
    ) -> None:
        _check(tokens, eos_token_ids)
        _check_options(special_tokens, max_cache_bytes, cache_dir, max_disk_bytes)
        ends = frozenset(map(int, eos_token_ids))
        self.special_tokens = {} if special_tokens is None else dict(special_tokens)
        _check_special(self.special_tokens, tokens)
        spelled = [token or b"" for token in tokens]
        for eos in ends:
            spelled[eos] = b""
        self.tokens = tuple([token or None for token in spelled])
        if not any(spelled):
            raise VocabularyError(
                "expected at least one token with bytes, received none. Check how the tokens were read."
            )
        for token_id, name in self.special_tokens.items():
            spelled[token_id] = symbol(name) if token_id not in ends else b""
        if self.special_tokens:  # no text has the byte of a mark, and no token may spell a symbol with it
            spelled = [b"" if token and MARK in token else own for token, own in zip(self.tokens, spelled, strict=True)]
        self.special_ids: dict[str, int] = {}
        for token_id in sorted(self.special_tokens.keys() - ends):
            self.special_ids.setdefault(self.special_tokens[token_id], token_id)
        lengths = np.fromiter(map(len, spelled), np.int32, len(spelled))
        self.spelled = tuple(spelled)
        self.eos_token_ids = tuple(sorted(ends))
        self.num_words = bitmask.num_words(len(self.tokens))
        self.max_token_bytes = int(lengths.max(initial=0))
        self.eos_mask = bitmask.from_ids(self.eos_token_ids, self.num_words)
        self.text_mask = bitmask.pack(np.array([token is not None for token in self.tokens], bool))
        self.ending_mask = self.eos_mask | self.text_mask
        self.ending_mask.setflags(write=False)
        self.masks: ByteCache[Node, NDArray[np.int32]] = ByteCache(max_cache_bytes // 2)
        self._loops: ByteCache[tuple[Node, int], CharacterLoop] = ByteCache(max_cache_bytes // 4)
        self._exits: ByteCache[int, Exits] = ByteCache(max_cache_bytes // 8)
        self._open_walks: ByteCache[tuple[Node, int], OpenWalk | None] = ByteCache(max_cache_bytes // 8)
        self._lexemes: ByteCache[tuple[Node, int], LexemeProduct] = ByteCache(max_cache_bytes // 8)
        self._derivatives = Derivatives(max_memo=MAX_OPEN_ARCS)  # of open walks
        # By serial number, so that they keep no term alive:
        self._is_class: dict[int, bool] = {}
        self._reaches: dict[int, int] = {}
        self._uses: Counter[tuple[int, int]] = (
            Counter()
        )  # of bodies at nodes, and of bytes (-1) with which loops were left
        share(JSON_CHARACTER)
        self._make_trie(spelled, lengths, None if cache_dir is None else Path(cache_dir), max_disk_bytes)
        self.trie.max_branch_bytes = max_cache_bytes // 16
        self.sparse = SparseProducts(self.trie, max_cache_bytes // 16, Automaton)
        self._make_loops_of_strings()

    def _make_trie(
        self, spelled: list[bytes], lengths: NDArray[np.int32], folder: Path | None, max_disk_bytes: int
    ) -> None:
        """Read the trie from the folder, or build it and write it there."""

        def restore(arrays: Arrays) -> None:
            self.trie = Trie.from_arrays(arrays, len(spelled))

        name = "" if folder is None else fingerprint(spelled, lengths, self.eos_token_ids)
        if folder is None or not read(folder, name, restore):
            self.trie = Trie([token for token in spelled if token], np.flatnonzero(lengths), len(spelled))
            if folder is not None:
                write(folder, name, self.trie.arrays(), max_disk_bytes)

    def _make_loops_of_strings(self) -> None:
        """Make the loops of JSON strings, so that the first mask of an extraction is fast."""
        entries = np.flatnonzero((self.trie.byte == ord('"')) & (self.trie.num_texts - self.trie.num_ends > 24))
        for node in (Trie.root, *entries.tolist()):
            self._make_loop(JSON_CHARACTER, node)
        self.exits(ord('"'), True)

    def _make_loop(self, body: Node, node: int) -> CharacterLoop:
        with work.uncounted():  # it is made for all constraints, and bounded by the tokens
            loop = CharacterLoop(body, self.trie, self.exits, node)
        if node == Trie.root:
            self.sparse.add_class(body, loop.automaton)
        return self._loops.put((body, node), loop, loop.nbytes)

    def __len__(self) -> int:
        """The number of token ids, special ones included."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, eos_token_ids={self.eos_token_ids!r})"

    @property
    def single_bytes(self) -> int:
        """The bytes that are tokens by themselves, as a 256-bit mask."""
        return self.trie.single_bytes

    @cached_property
    def spells_everything(self) -> bool:
        """True when every byte of UTF-8 is a token, so that every text can be spelled."""
        return TEXT_BYTES & ~self.single_bytes == 0

    @property
    def nbytes(self) -> int:
        """Bytes held by the trie, the loops and the masks (not by the token texts themselves)."""
        return self.trie.nbytes + self.cache_nbytes

    @property
    def cache_nbytes(self) -> int:
        """Bytes held by all that constraints share and that may be dropped; see `max_cache_bytes`."""
        return sum(cache.nbytes for cache in self._caches) + self.trie.branch_nbytes

    @property
    def _caches(self) -> tuple[ByteCache[Any, Any], ...]:
        return self.masks, self._loops, self._exits, self._open_walks, self._lexemes, self.sparse.known

    def bound(self, max_cache_bytes: int) -> None:
        """Set the bounds of all that constraints share, as the constructor does; what is over them goes when the next is stored."""
        for cache, part in zip(self._caches, (2, 4, 8, 8, 8, 16), strict=True):
            cache.max_bytes = max_cache_bytes // part
        self.trie.max_branch_bytes = max_cache_bytes // 16

    def adopt(self, root: Node) -> None:
        """Charge the terms of a collected constraint to its masks, which alone keep them in memory from now on."""
        if self.masks.has_uncharged(root):
            self.masks.charge(root, memory(root))

    def loop(self, body: Node, node: int = Trie.root, *, at_once: bool = True) -> CharacterLoop | None:
        """The product of `body*` and the trie below a node; None if `body` is not a class of characters.

        Unless `at_once`, the result is also None the first few times, because a plain walk is cheaper than a loop that is used once.
        Cost: once per body and node; see `CharacterLoop`.
        """
        if self._is_class.get(body.serial) is False:
            return None
        loop = self._loops.get((body, node))
        if loop is not None or not self._is_worth_a_loop(body, node, at_once):
            return loop
        return self._make_loop(body, node)

    def exits(self, byte: int, at_once: bool) -> Exits | None:
        """The tokens that contain `byte`, by what they have from there on; None if there are too many.

        Unless `at_once`, the result is also None the first few times, because a sweep is cheaper than what is used once.
        """
        exits = self._exits.get(byte)
        if exits is None:
            use = byte, -1
            self._uses[use] += 1
            count = int(self.trie.num_texts[self.trie.nodes_with((byte,))].sum())
            if count <= self.max_exits and (at_once or self._uses[use] > self.sweeps_before_exits):
                exits = Exits(self.trie, self.spelled, byte)
                self._exits.put(byte, exits, exits.nbytes)
        return exits

    def open_walk(self, term: Node, body: Node, node: int = Trie.root) -> OpenWalk | None:
        """The product of an open term and the trie below a node, with iterations of `body`; None if it needs too many states.

        Cost: once per term and node; see `OpenWalk`.
        """
        key, loop = (term, node), self.loop(body, node)
        if loop is not None and key not in self._open_walks:
            try:
                walk = OpenWalk(term, loop.rounds, loop.between, self.trie, self.exits, node, self._derivatives)
            except BudgetExceeded:
                self._open_walks.put(key, None, 2_000)
                work.check()  # of what the thread may do itself
            else:
                self._open_walks.put(key, walk, walk.nbytes)
        return self._open_walks.get(key)

    def lexeme_product(self, term: Node, node: int) -> LexemeProduct:
        """The product of a regular term and the trie below a node. Cost: once per term and node; see `LexemeProduct`."""
        product = self._lexemes.get((term, node))
        if product is None:
            with work.uncounted():  # it is made for all constraints, and bounded by the tokens
                product = LexemeProduct(term, self.trie, node)
            self._lexemes.put((term, node), product, product.nbytes)
        return product

    def is_class(self, body: Node) -> bool:
        """True if `body` is one class of characters; see `is_character_class`."""
        known = self._is_class.get(body.serial)
        if known is None:
            with work.uncounted():
                known = self._is_class[body.serial] = is_character_class(body)
        return known

    def known_loop(self, body: Node) -> CharacterLoop | None:
        """The loop of `body` at the root if it is in the cache. Cost: a look-up."""
        return self._loops.get((body, Trie.root))

    def reach(self, body: Node) -> int:
        """An upper bound of the iterations of `body` in a token. Cost: once per body."""
        if body.kind is not Kind.BYTES or body.args[0].bit_count() > FEW_BYTES:
            return self.max_token_bytes
        known = self._reaches.get(body.serial)
        if known is None:
            if len(self._reaches) > 1_000:
                self._reaches.clear()
            known = self._reaches[body.serial] = self._longest_run(body.args[0])
        return known

    def _longest_run(self, mask: int) -> int:
        nodes, length = [Trie.root], -1
        while nodes:
            branches = [self.trie.branches(node) for node in nodes]
            nodes = [step[0] for found in branches for byte, step in found.items() if mask >> byte & 1]
            length += 1
        return length

    def _is_worth_a_loop(self, body: Node, node: int, at_once: bool) -> bool:
        use = body.serial, node
        if len(self._is_class) > 1_000 or len(self._uses) > 10_000:
            self._is_class.clear()
            self._uses.clear()
        is_class = self.is_class(body)
        self._uses[use] += 1
        return is_class and (at_once or self._uses[use] > self.walks_before_a_loop)


def _check_options(special_tokens: object, max_cache_bytes: object, cache_dir: object, max_disk_bytes: object) -> None:
    if not isinstance(special_tokens, Mapping | None):
        raise VocabularyError(
            f"expected a dict of names by their ids as `special_tokens`, received {shorten(special_tokens)}"
        )
    for name, value in (("max_cache_bytes", max_cache_bytes), ("max_disk_bytes", max_disk_bytes)):
        if not isinstance(value, int) or value < 0:
            raise VocabularyError(
                f"expected a number of bytes, an int of 0 or more, as `{name}`, received {shorten(value)}"
            )
    if not isinstance(cache_dir, str | os.PathLike | None):
        raise VocabularyError(f"expected a folder or None as `cache_dir`, received {shorten(cache_dir)}")


def _check_special(names: Mapping[int, str], tokens: Sequence[bytes | None]) -> None:
    for token_id, name in names.items():
        if not isinstance(name, str) or not 0 <= token_id < len(tokens) or tokens[token_id]:
            raise VocabularyError(
                f"expected names of ids from 0 to {len(tokens) - 1} that have no bytes as `special_tokens`, received {name!r} for "
                f"{token_id!r}. A token with bytes is text."
            )


def _check(tokens: Sequence[bytes | None], eos_token_ids: Sequence[int]) -> None:
    if not isinstance(tokens, Sequence | np.ndarray) or isinstance(tokens, str | bytes):
        raise VocabularyError(f"expected a list with the bytes of each token, or None for it, received {tokens!r}.")
    known = {bytes, type(None)} >= set(map(type, tokens))
    for i, token in () if known else enumerate(tokens):
        if token is not None and not isinstance(token, bytes):
            raise VocabularyError(
                f"expected bytes or None for each token, received {token!r} at id {i}. Encode text tokens as UTF-8 bytes."
            )
    if not isinstance(eos_token_ids, Iterable):
        raise VocabularyError(
            f"expected a list of EOS ids, received {eos_token_ids!r}. Write [{eos_token_ids!r}] for one."
        )
    for eos in eos_token_ids:
        if isinstance(eos, bool) or not isinstance(eos, int | np.integer) or not 0 <= eos < len(tokens):
            raise VocabularyError(
                f"expected EOS ids from 0 to {len(tokens) - 1}, received {eos!r}. Give the ids of this vocabulary's end tokens."
            )
