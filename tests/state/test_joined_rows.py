"""What a row knows of how it came about stays with it where it is cut, stacked and joined with others."""

from __future__ import annotations

import pytest

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import ModelMismatch
from tests.fakes import random_model


def _start(state: SequenceState) -> int | None:
    return state.rows[0][0].mirostat_start


def _length(state: SequenceState) -> int:
    return len(state.rows[0][0].token_ids)


def test_where_mirostat_began_goes_with_the_row() -> None:
    """Its target is kept from the first token on that it has drawn, over texts that are put between pieces."""
    model = random_model()
    plain = continuous(generate.text(model))("a name", max_tokens=2)
    write = continuous(generate.text(model, sampler=samplers.multinomial(mirostat=samplers.Mirostat(3.0))))
    state = write("the name", max_tokens=4, rng=1)
    begun = _length(state) - 4
    assert begun == _start(state) == _start(state + " of it")
    assert begun == _start(write(state + " of it", max_tokens=2, rng=1))
    assert _start(plain + " of it") is None
    assert begun == _start(state.tokens[: begun + 2])
    assert _start(state.tokens[:begun]) is None
    assert _start(plain + state) in range(
        _length(plain) + begun - 1, _length(plain) + begun + 1
    )  # without a second BOS
    assert _start(state + plain) is None  # what was written last was drawn otherwise


def test_states_of_two_models_are_not_stacked() -> None:
    one = continuous(generate.text(random_model()))("a", max_tokens=1)
    other = continuous(generate.text(random_model("gpt2")))("a", max_tokens=1)
    for join in (lambda: SequenceState.stack([one, other]), lambda: one + other):
        with pytest.raises(ModelMismatch, match="two states of one model"):
            join()
    assert SequenceState.stack([one, one]).batch_size == 2
