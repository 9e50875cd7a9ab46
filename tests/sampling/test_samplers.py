"""Samplers against the same steps done by hand on a sorted list."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.errors import BatchMismatch, OptionError
from outlines_cont.samplers import Multinomial, greedy, multinomial
from outlines_cont.sampling.random_stream import RandomStream, open_seeds

_LOGITS = st.lists(st.one_of(st.integers(-6, 6).map(float), st.just(-math.inf)), min_size=1, max_size=12).filter(
    lambda row: max(row) > -math.inf
)
_SAMPLERS = st.builds(
    lambda k, p, m, t: multinomial(top_k=k, top_p=p, min_p=m, temperature=t),
    st.none() | st.integers(1, 14),
    st.none() | st.sampled_from([0.05, 0.3, 0.62, 0.9, 1.0]),
    st.none() | st.sampled_from([0.0, 0.04, 0.3, 1.0]),
    st.sampled_from([0.5, 1.0, 1.7]),
)


def _by_hand(logits: list[float], sampler: Multinomial) -> dict[int, float]:
    """The distribution that is left: temperature, then top_k, then top_p, then min_p; ties at a border all stay."""
    options: dict[str, Any] = dict(sampler.options)
    weights = {i: math.exp(x / options.get("temperature", 1.0)) for i, x in enumerate(logits) if x > -math.inf}
    ranked = sorted(weights.values(), reverse=True)
    if "top_k" in options:
        border = ranked[min(options["top_k"], len(ranked)) - 1]
        weights = {i: w for i, w in weights.items() if w >= border}
    if "top_p" in options:
        total, before, border = sum(weights.values()), 0.0, math.inf
        for weight in sorted(weights.values(), reverse=True):
            if before / total < options["top_p"]:
                border = weight
            before += weight
        weights = {i: w for i, w in weights.items() if w >= border}
    if "min_p" in options:
        border = max(weights.values()) * options["min_p"] * (1 - 1e-12)
        weights = {i: w for i, w in weights.items() if w >= border}
    return {i: w / sum(weights.values()) for i, w in weights.items()}


@settings(max_examples=150)
@given(st.lists(_LOGITS, min_size=1, max_size=3), _SAMPLERS)
def test_what_is_kept_is_what_the_steps_keep_by_hand(rows: list[list[float]], sampler: Multinomial) -> None:
    width = max(map(len, rows))
    logits = torch.tensor([row + [-math.inf] * (width - len(row)) for row in rows], dtype=torch.float64)
    probs = sampler.filtered(logits).softmax(-1)
    for row, kept in zip(rows, probs.tolist(), strict=True):
        assert _by_hand(row, sampler) == pytest.approx({i: p for i, p in enumerate(kept) if p > 0})


@settings(max_examples=100)
@given(_LOGITS, _SAMPLERS, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(
    logits: list[float], sampler: Multinomial, u: float
) -> None:
    token_ids, logprobs = sampler.sample(
        torch.tensor([logits], dtype=torch.float64), torch.tensor([u], dtype=torch.float64)
    )
    law = _by_hand(logits, sampler)
    token_id = int(token_ids[0])
    below = sum(p for i, p in law.items() if i < token_id)
    assert token_id in law
    assert below - 1e-9 <= u <= below + law[token_id] + 1e-9
    assert math.log(law[token_id]) == pytest.approx(float(logprobs[0]), abs=1e-9)


def test_top_p_looks_further_when_the_likeliest_are_not_enough() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5000, generator=generator, dtype=torch.float64) * 0.1
    kept = (multinomial(top_p=0.9).filtered(logits) > -torch.inf).sum(-1).tolist()
    for row, count in zip(logits, kept, strict=True):
        probs = row.softmax(-1).sort(descending=True).values
        assert int(((probs.cumsum(-1) - probs) < 0.9).sum()) == count
        assert count > 1024


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).repeat(4000, 1)
    uniforms = torch.rand(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    counts = Counter(multinomial().sample(logits, uniforms)[0].tolist())
    for token_id, prob in enumerate(logits[0].softmax(-1).tolist()):
        assert 4000 * prob == pytest.approx(counts[token_id], abs=4 * math.sqrt(4000 * prob + 1e-9))


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_a_token_that_is_allowed(u: float) -> None:
    logits = torch.full((1, 64), -torch.inf)
    logits[0, 20:23] = torch.tensor([0.1, 0.3, 0.2])
    token_ids, _ = multinomial(temperature=0.7).sample(logits, torch.tensor([u], dtype=torch.float64))
    assert (20 if u == 0 else 22) == int(token_ids[0])


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, 0.0]])
    token_ids, logprobs = greedy().sample(logits, None)
    assert token_ids.tolist() == [1, 2]
    assert logits.log_softmax(-1).max(-1).values.tolist() == pytest.approx(logprobs.tolist())


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sampler = multinomial(top_k=1, temperature=9.0)
    assert greedy().sample(logits, None)[0].tolist() == sampler.sample(logits, uniforms)[0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "`n`, got 0"),
        ({"n": True}, "`n`, got True"),
        ({"top_k": 0}, "1 or more, or None as `top_k`, got 0"),
        ({"top_k": 2.0}, "`top_k`, got 2.0"),
        ({"top_p": 0.0}, "above 0 and at most 1, or None as `top_p`, got 0.0"),
        ({"top_p": 1.1}, "`top_p`, got 1.1"),
        ({"min_p": -0.1}, "`min_p`, got -0.1"),
        ({"temperature": 0}, r"for 0 use `greedy\(\)`"),
        ({"temperature": float("nan")}, "`temperature`, got nan"),
        ({"temperature": "hot"}, "`temperature`, got 'hot'"),
    ],
)
def test_an_option_out_of_range_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        multinomial(**options)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        multinomial(temprature=1.0)  # type: ignore[call-arg]


@given(st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 9), max_size=5))
def test_a_stream_is_the_same_whole_or_in_parts(seed: int, batch: int, sample: int, parts: list[int]) -> None:
    whole = RandomStream(seed, batch, sample).open()
    wanted = [whole.draw() for _ in range(sum(parts))]
    stream, got = RandomStream(seed, batch, sample), []
    for part in parts:
        source = stream.open()
        got += [source.draw() for _ in range(part)]
        stream = source.close()
    assert wanted == got
    assert sum(parts) == stream.drawn


def test_streams_of_different_rows_differ() -> None:
    first = {RandomStream(seed, b, s).open().draw() for seed in range(5) for b in range(5) for s in range(5)}
    assert len(first) == 125


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
