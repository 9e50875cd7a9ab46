"""Resampling of samples by weights: how often each is there, whose random numbers it has, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import continuous, generate, samplers
from outlines_cont.errors import OptionError
from outlines_cont.state.resampling import systematic
from tests.fakes import random_model

LOGS = st.one_of(st.just(-math.inf), st.floats(-20, 20))


@given(
    logs=st.lists(LOGS, min_size=1, max_size=8).filter(lambda logs: max(logs) > -math.inf),
    count=st.integers(1, 20),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_each_is_there_as_often_as_its_share_up_to_rounding(logs: list[float], count: int, uniform: float) -> None:
    picks = systematic(logs, count, uniform)
    weights = [math.exp(log - max(logs)) for log in logs]
    found = Counter(picks)
    assert picks == sorted(picks)
    assert len(picks) == count
    for index, weight in enumerate(weights):
        share = count * weight / sum(weights)
        assert math.floor(share - 1e-6) <= found[index] <= math.ceil(share + 1e-6)
        assert weight or not found[index]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_mean_over_all_random_numbers_is_the_share(count: int) -> None:
    logs, num = [0.0, -1.0, -math.inf, -2.5], 4000
    found = Counter(pick for i in range(num) for pick in systematic(logs, count, (i + 0.5) / num))
    total = sum(map(math.exp, logs))
    for index, log in enumerate(logs):
        assert found[index] / num == pytest.approx(count * math.exp(log) / total, abs=2e-3)


def test_a_state_keeps_its_shape_and_copies_have_random_numbers_of_their_own() -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(4)))
    state = write(["ab", "the"], max_tokens=3, rng=1)
    kept = state.resample(torch.tensor([[0.0, -math.inf, -math.inf, 0.0], [-math.inf, 3.0, -math.inf, -math.inf]]))
    assert kept.shape[:2] == (2, 4)
    assert kept == state.resample([[0.0, -math.inf, -math.inf, 0.0], [-math.inf, 3.0, -math.inf, -math.inf]])
    assert [row.token_ids for row in kept.rows[1]] == [state.rows[1][1].token_ids] * 4
    assert {row.token_ids for row in kept.rows[0]} == {state.rows[0][0].token_ids, state.rows[0][3].token_ids}
    streams = [row.stream for group in kept.rows for row in group]
    assert len({(one.batch, one.sample, one.path, one.seed) for one in streams}) == 8
    with model.meter() as counts:
        continuous(generate.text(model))(kept, max_tokens=1)
    assert counts.fed_tokens == 8  # the last token of each
    once = state.resample([[0.0, 0.0, 0.0, 0.0]] * 2)
    assert once == state
    assert [row.stream for row in once.rows[0]] == [row.stream for row in state.rows[0]]
    assert state[0, ...].resample([0.0, -1.0, -2.0, -3.0], 9).shape[:2] == (1, 9)


@pytest.mark.parametrize("weights", [[0.0], [0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf], "ab", 3, [[0.0, 0.0]] * 2])
def test_weights_that_say_nothing_are_refused(weights: Any) -> None:
    state = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))("ab", max_tokens=2, rng=1)
    with pytest.raises(OptionError) as caught:
        state.resample(weights)
    assert caught.value.option == "log_weights"


def test_the_number_of_samples_is_checked() -> None:
    state = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))("ab", max_tokens=2, rng=1)
    with pytest.raises(OptionError, match="`n`"):
        state.resample([0.0, 0.0], 0)
