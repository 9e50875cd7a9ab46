"""Samplers against the same steps done by hand on a sorted list."""

from __future__ import annotations

import pytest
import torch

from outlines_cont.errors import BatchMismatch, OptionError
from outlines_cont.samplers import greedy
from outlines_cont.sampling.random_stream import open_seeds


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, 0.0]])
    token_ids, logprobs = greedy().sample(logits, None)
    assert token_ids.tolist() == [1, 2]
    assert logits.log_softmax(-1).max(-1).values.tolist() == pytest.approx(logprobs.tolist())


def test_seeds_come_from_an_int_a_generator_a_list_or_the_system() -> None:
    assert open_seeds(5, 2) == ([5, 5], False)
    assert open_seeds([5, 6], 2) == ([5, 6], True)
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    (first, _), own = open_seeds(generator, 2)
    assert not own
    assert not before.equal(generator.get_state())
    assert ([first] * 2, False) == open_seeds(torch.Generator().manual_seed(1), 2)
    assert open_seeds(None, 1) != open_seeds(None, 1)
    with pytest.raises(BatchMismatch, match="expected 3 seeds"):
        open_seeds([1, 2], 3)
    for bad in (-1, 2**64, True, "seed", 1.5, [1.5]):
        with pytest.raises(OptionError):
            open_seeds(bad, 1)  # type: ignore[arg-type]
