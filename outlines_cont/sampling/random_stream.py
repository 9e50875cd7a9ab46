"""`RandomStream`: a counter-based stream of random numbers per row (Philox 4x64 of numpy), keyed by the seed of the prompt and the number
of the sample. It is an immutable value, key and position; a fork has a stream of its own, whose counter begins at a hash (BLAKE2b) of where
it branches off and its number. `OpenStream` reads its numbers; `open_seeds` reads the option `rng=`.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". The numbers of a row do not depend on other rows. Numbers for decisions
(`OpenStream.decision`) are hashes, and do not advance the stream.
"""

from __future__ import annotations

import hashlib
import operator
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from outlines_cont.errors import BatchMismatch, OptionError

if TYPE_CHECKING:
    import torch

Rng: TypeAlias = "int | torch.Generator | np.random.Generator | random.Random | Sequence[int] | None"

# Philox generates four numbers at a time; `advance` counts in fours.
_BLOCK = 4
_WORD = 2**64 - 1
# How many numbers are generated together.
_AHEAD = 16


@dataclass(frozen=True, slots=True)
class RandomStream:
    """A position in the stream of one row.

    Attributes:
        seed: 0 <= seed < 2 ** 64.
        batch: 0, but in states of earlier versions.
        sample: the number of the sample when the stream began, or of the conversation of a `BatchedExecutor`.
        drawn: the number of random numbers that were drawn so far.
        path: 0, and for a fork a digest of where it branched off: a Philox counter has room for 2 ** 128 such streams.
    """

    seed: int
    batch: int = 0
    sample: int = 0
    drawn: int = 0
    path: int = 0

    def fork(self, index: int) -> RandomStream:
        """Return the independent stream of fork number `index` at this position."""
        key = b"".join(number.to_bytes(16, "little") for number in (self.path, self.drawn, index))
        path = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
        return replace(self, drawn=0, path=path)

    def open(self) -> OpenStream:
        """Return a source of the numbers from this position on."""
        return OpenStream(self)

    def after(self, count: int = 1) -> RandomStream:
        """Return the position behind the next `count` numbers."""
        return replace(self, drawn=self.drawn + count)


class _Numbers:
    """The numbers of one stream by their index, generated in blocks, of which the last two are kept."""

    __slots__ = ("_blocks", "_generator", "_next", "_stream")

    def __init__(self, stream: RandomStream) -> None:
        self._stream = stream
        self._blocks: dict[int, list[float]] = {}
        self._generator: np.random.Generator | None = None
        self._next = 0  # the block that the generator makes next

    def at(self, index: int) -> float:
        block, offset = divmod(index, _AHEAD)
        return (self._blocks.get(block) or self._made(block))[offset]

    def _made(self, block: int) -> list[float]:
        # An interrupt may come anywhere: without its generator the next call makes it anew.
        generator, self._generator = self._generator, None
        if generator is None or block != self._next:
            stream = self._stream
            bits = np.random.Philox(
                key=np.array([stream.seed, stream.batch << 32 | stream.sample], dtype=np.uint64),
                counter=np.array([0, 0, stream.path & _WORD, stream.path >> 64], dtype=np.uint64),
            )
            bits.advance(block * (_AHEAD // _BLOCK))
            generator = np.random.Generator(bits)
        numbers: list[float] = generator.random(_AHEAD).tolist()
        self._blocks = {**dict([*self._blocks.items()][-1:]), block: numbers}
        self._next, self._generator = block + 1, generator
        return numbers


class OpenStream:
    """A stream whose numbers can be read. Immutable: `after` returns the stream behind the numbers that a draw has consumed.

    The attribute `drawn` is the number of random numbers that were consumed.
    """

    __slots__ = ("_numbers", "_stream", "drawn")

    def __init__(self, stream: RandomStream) -> None:
        self._stream, self._numbers, self.drawn = stream, _Numbers(stream), stream.drawn

    def peek(self, offset: int = 0) -> float:
        """Return the number `offset` numbers after the next one, float64, uniform in [0, 1). Nothing is consumed."""
        return self._numbers.at(self.drawn + offset)

    def after(self, count: int = 1) -> OpenStream:
        """Return the stream behind the next `count` numbers."""
        other = OpenStream.__new__(OpenStream)
        other._stream, other._numbers, other.drawn = self._stream, self._numbers, self.drawn + count
        return other

    def decision(self, *key: int) -> float:
        """Return a float64, uniform in [0, 1), for a decision: a hash of the stream's key and `key`, independent of the position."""
        stream = self._stream
        whole_key = (stream.seed, stream.batch, stream.sample, stream.path, *key)
        digest = hashlib.blake2b(repr(whole_key).encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53

    def close(self) -> RandomStream:
        """Return the position after the consumed numbers."""
        return replace(self._stream, drawn=self.drawn)


def open_seeds(rng: Rng, batch_size: int) -> list[int]:
    """Return the seed of each batch entry, which has the stream that it would have alone with it.

    Args:
        rng: the seed of each entry; a generator to draw one for each from (a number for each is consumed); a list with one for each;
            None draws one for each from the operating system.
        batch_size: B.

    Raises:
        OptionError: a seed is out of range, or `rng` is something else.
        BatchMismatch: not one seed per entry.
    """
    if rng is None:
        return [secrets.randbits(63) for _ in range(batch_size)]
    if hasattr(rng, "__index__") and getattr(rng, "ndim", 0) == 0:  # a bool, too, which the check rejects
        return [_checked(rng)] * batch_size
    if isinstance(rng, Iterable) and not isinstance(rng, str | bytes | Set | Mapping):
        seeds = [*rng]
        if len(seeds) != batch_size:
            raise BatchMismatch(f"expected {batch_size} seeds in `rng`, one per prompt, got {len(seeds)}")
        return [_checked(seed) for seed in seeds]
    if isinstance(rng, np.random.Generator):
        return [int(seed) for seed in rng.integers(2**63 - 1, size=batch_size)]
    if isinstance(rng, random.Random):
        return [rng.getrandbits(63) for _ in range(batch_size)]
    import torch

    if not isinstance(rng, torch.Generator):
        raise OptionError(
            f"expected an int, a list of ints, or a generator (`torch.Generator`, `numpy.random.Generator`, `random.Random`) as `rng`, "
            f"got {type(rng).__name__}",
            "rng",
        )
    drawn: list[int] = torch.randint(2**63 - 1, (batch_size,), generator=rng, device=rng.device).tolist()
    return drawn


def common_seed(seeds: Sequence[int]) -> int | tuple[int, ...]:
    """Return one seed where all are equal, else one per batch entry, as `SequenceState.seed` has them."""
    return seeds[0] if len(set(seeds)) == 1 else tuple(seeds)


def _checked(seed: object) -> int:
    try:
        found = -1 if isinstance(seed, bool) else operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        found = -1
    if not 0 <= found <= _WORD:
        raise OptionError(f"expected a seed as `rng`, an int from 0 up to 2 ** 64 - 1, got {seed!r}", "rng")
    return found
