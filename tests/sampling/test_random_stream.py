"""Streams of random numbers as they are documented: what was drawn from a seed yesterday is drawn tomorrow."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.errors import OptionError
from outlines_cont.sampling.random_stream import RandomStream, open_seeds

_SMALL = st.integers(0, 2**32 - 1)


def _numbers(seed: int, batch: int, sample: int, path: int, count: int) -> list[float]:
    """Philox 4x64 of numpy: the seed and the place of a row are its key, the path of a fork the upper half of its counter."""
    counter = [0, 0, path % 2**64, path // 2**64]
    bits = np.random.Philox(
        key=np.array([seed, batch * 2**32 + sample], dtype=np.uint64), counter=np.array(counter, dtype=np.uint64)
    )
    return [float(number) for number in np.random.Generator(bits).random(count)]


@given(st.integers(0, 2**64 - 1), _SMALL, _SMALL, st.integers(0, 2**128 - 1), st.integers(0, 13))
def test_a_stream_has_the_numbers_of_its_key_and_path(
    seed: int, batch: int, sample: int, path: int, drawn: int
) -> None:
    wanted = _numbers(seed, batch, sample, path, drawn + 6)
    source = RandomStream(seed, batch, sample, drawn, path).open()
    for number in wanted[drawn:]:
        assert number == source.peek() == source.peek()
        assert number == source.draw()
    assert drawn + 6 == source.close().drawn
    source.take()  # nothing was looked at
    assert drawn + 6 == source.drawn
    assert wanted[2] == source.at(2).draw()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1), st.integers(0, 10**6), st.integers(0, 99))
def test_the_path_of_a_fork_is_a_digest_of_where_it_left(seed: int, path: int, drawn: int, index: int) -> None:
    place = b"".join(number.to_bytes(16, "little") for number in (path, drawn, index))
    fork = RandomStream(seed, 3, 4, drawn, path).fork(index)
    assert (
        RandomStream(seed, 3, 4, 0, int.from_bytes(hashlib.blake2b(place, digest_size=16).digest(), "little")) == fork
    )


def test_the_ends_of_the_range_of_seeds() -> None:
    assert open_seeds(0, 1) == ([0], False)
    assert open_seeds([0, 2**64 - 1], 2) == ([0, 2**64 - 1], True)
    assert open_seeds(2**64 - 1, 3) == ([2**64 - 1] * 3, False)
    for seed in (-1, 2**64):
        with pytest.raises(OptionError, match=f"got {seed}"):
            open_seeds(seed, 1)
    for seeds in (open_seeds(None, 4), open_seeds(torch.Generator().manual_seed(2), 4)):
        assert len(seeds[0]) == 4
        assert len(set(seeds[0])) == 1
        assert not seeds[1]
