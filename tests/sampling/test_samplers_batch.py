"""Every step of every sampler against a plain oracle that sorts, on small rows and on large ones, alone and together."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import samplers
from outlines_cont.samplers import DRY, XTC, Greedy, Mirostat, Multinomial, best_of, greedy, multinomial
from outlines_cont.sampling import STEPS, SamplerBatch, TokenCounts
from tests.sampling_oracle import made_row, plain_law

_PENALTIES = {
    "logit_bias": st.none()
    | st.dictionaries(st.integers(0, 5), st.sampled_from([-100.0, -1.5, 0.25, 3.0]), max_size=3),
    "repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.3]),
    "frequency_penalty": st.sampled_from([0.0, 0.0, -0.3, 0.9]),
    "presence_penalty": st.sampled_from([0.0, 0.0, 0.55]),
}
_GREEDY = st.builds(greedy, **_PENALTIES)  # type: ignore[arg-type]
_MULTINOMIAL = st.builds(
    multinomial,
    top_k=st.none() | st.integers(1, 14) | st.just(600),
    top_p=st.none() | st.sampled_from([0.05, 0.31, 0.62, 0.9, 0.997, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.001, 0.04, 0.3, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    typical_p=st.sampled_from([None, None, None, 0.31, 0.62, 0.95]),
    top_a=st.sampled_from([None, None, 0.01, 0.3]),
    xtc=st.sampled_from([None, None, XTC(0.07, 0.5), XTC(0.011, 1.0, (3,)), XTC(0.21, 0.3)]),
    mirostat=st.sampled_from([None, None, Mirostat(), Mirostat(2.2, 0.5), Mirostat(0.7, 3.0)]),
    dry=st.sampled_from([None, None, DRY(), DRY(2.0, 1.1, 1, 5), DRY(1.5, 3.0, 1, None, (2,)), DRY(0.5, 1.0, 1)]),
    **_PENALTIES,  # type: ignore[arg-type]
)
_UNIFORMS = st.floats(0, 1, exclude_max=True)
_TOKENS = st.lists(st.integers(0, 5), max_size=9)
_SHAPES = st.sampled_from(["peaked", "flat", "tied", "equal", "masked", "one"])
# Wide enough for blocks to be chosen, with a block that is cut off at the end.
_WIDE = 9001


def _counts(token_ids: Sequence[int], num_generated: int) -> TokenCounts:
    given = len(token_ids) - num_generated
    drawn = [None if i < given else _logprob(i) for i in range(len(token_ids))]
    return TokenCounts(token_ids, [i >= given for i in range(len(token_ids))], drawn, 0)


def _logprob(index: int) -> float:
    return -0.7 * (index % 4)


def _agrees(law: np.ndarray, token_id: int, logprob: float, u: float | None) -> None:
    assert law[token_id] > 0
    assert (0.0 if u is None else math.log(law[token_id])) == pytest.approx(logprob if u is not None else 0.0, abs=1e-9)
    if u is not None:
        below = law[:token_id].sum()
        assert below - 1e-9 <= u <= below + law[token_id] + 1e-9


@settings(max_examples=80, deadline=None)
@given(
    _GREEDY | _MULTINOMIAL,
    _SHAPES,
    st.integers(0, 99),
    st.sampled_from([6, 40, _WIDE]),
    _TOKENS,
    st.integers(0, 9),
    _UNIFORMS,
)
def test_a_draw_is_that_of_the_steps_in_their_order(
    sampler: Greedy | Multinomial,
    shape: str,
    seed: int,
    vocab_size: int,
    tokens: list[int],
    num_generated: int,
    u: float,
) -> None:
    logits = made_row(shape, seed, vocab_size)
    num_generated = min(num_generated, len(tokens))
    drawn = [_logprob(i) for i in range(len(tokens) - num_generated, len(tokens))]
    law = plain_law(logits.tolist(), sampler.params, tokens, tokens[len(tokens) - num_generated :], drawn)
    token_ids, logprobs = sampler.sample(
        logits[None], torch.tensor([u], dtype=torch.float64), [_counts(tokens, num_generated)]
    )
    _agrees(law, int(token_ids[0]), float(logprobs[0]), u if sampler.needs_random else None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_GREEDY | _MULTINOMIAL, _SHAPES, _TOKENS, _UNIFORMS), min_size=1, max_size=6),
    st.integers(0, 99),
    st.sampled_from([40, _WIDE]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_together_get_what_each_gets_alone(
    rows: list[tuple[Greedy | Multinomial, str, list[int], float]], seed: int, vocab_size: int, dtype: torch.dtype
) -> None:
    logits = torch.stack([made_row(shape, seed + i, vocab_size) for i, (_, shape, _, _) in enumerate(rows)]).to(dtype)
    before = logits.clone()
    uniforms = torch.tensor([u for *_, u in rows], dtype=torch.float64)
    counts = [_counts(tokens, len(tokens) // 2) for _, _, tokens, _ in rows]
    batch = SamplerBatch([sampler.params for sampler, *_ in rows])
    token_ids, logprobs = batch.sample(logits, uniforms, counts)
    assert before.equal(logits)
    assert dtype == logprobs.dtype
    for i, (sampler, *_) in enumerate(rows):
        alone, logprob = sampler.sample(logits[i : i + 1], uniforms[i : i + 1], counts[i : i + 1])
        assert int(alone[0]) == int(token_ids[i])
        assert float(logprob[0]) == pytest.approx(float(logprobs[i]), abs=1e-6)
    assert batch.needs_random == any(sampler.needs_random for sampler, *_ in rows)
    assert batch.needs_counts == any(sampler.needs_counts for sampler, *_ in rows)


@settings(max_examples=40, deadline=None)
@given(_MULTINOMIAL, _SHAPES, st.integers(0, 99))
def test_whole_rows_are_filtered_by_the_same_floors(sampler: Multinomial, shape: str, seed: int) -> None:
    logits = made_row(shape, seed, _WIDE)
    plain = dataclasses.replace(sampler, penalties=greedy().penalties)
    kept = plain.filtered(logits[None].expand(2, -1), [_counts([], 0)] * 2).softmax(-1)
    law = plain_law(logits.tolist(), plain.params)
    assert kept[0].equal(kept[1])
    assert np.abs(law - kept[0].numpy()).max() < 1e-12
    assert (law > 0).sum() == int((kept[0] > 0).sum())


@pytest.mark.parametrize("shape", ["peaked", "flat", "tied", "masked"])
@pytest.mark.parametrize(
    "sampler", [multinomial(), multinomial(temperature=0.7, top_k=20, top_p=0.9), multinomial(top_p=0.8, min_p=0.01)]
)
def test_a_grid_of_numbers_gives_every_token_its_share(sampler: Multinomial, shape: str) -> None:
    num = 2000
    logits = made_row(shape, 3, 300)
    uniforms = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    token_ids, _ = sampler.sample(logits.expand(num, -1), uniforms)
    law = plain_law(logits.tolist(), sampler.params)
    assert np.abs(np.bincount(token_ids.numpy(), minlength=300) - num * law).max() <= 1


def test_float32_keeps_and_draws_what_float64_does() -> None:
    logits = torch.stack([made_row("peaked", seed, _WIDE) for seed in range(40)])
    uniforms = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for sampler in (multinomial(), multinomial(temperature=0.7, top_p=0.9), multinomial(top_k=20, min_p=0.02)):
        low, low_logprobs = sampler.sample(logits.float(), uniforms)
        high, high_logprobs = sampler.sample(logits.float().double(), uniforms)
        assert high.tolist() == low.tolist()
        assert high_logprobs.tolist() == pytest.approx(low_logprobs.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "sampler", [greedy(), multinomial(), multinomial(top_p=0.9, min_p=0.1), multinomial(top_k=700, top_p=0.9)]
)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_row_without_a_distribution_shows_it_and_leaves_the_others(sampler: Multinomial, value: float) -> None:
    logits = torch.stack([made_row("peaked", 1, _WIDE), made_row("flat", 2, _WIDE), made_row("equal", 2, _WIDE)])
    uniforms = torch.tensor([0.3, 0.4, 0.5], dtype=torch.float64)
    whole, _ = sampler.sample(logits, uniforms)
    logits[1] = value
    token_ids, logprobs = sampler.sample(logits, uniforms)
    assert [whole[0], whole[2]] == [token_ids[0], token_ids[2]]
    assert torch.isfinite(logprobs).tolist() == [True, False, True]
    assert 0 <= int(token_ids[1]) < _WIDE


def test_a_batch_says_what_it_misses() -> None:
    with pytest.raises(TypeError, match="random numbers"):
        SamplerBatch([greedy().params, multinomial().params]).sample(torch.zeros(2, 5), None)
    with pytest.raises(TypeError, match="token counts of row 1"):
        SamplerBatch([greedy().params, greedy(presence_penalty=1.0).params]).sample(torch.zeros(2, 5), None)


@given(_GREEDY | _MULTINOMIAL | st.builds(best_of, st.integers(1, 3), top_k=st.none() | st.integers(1, 5)))
def test_a_sampler_is_shown_as_the_call_that_makes_it_with_its_options_in_order(sampler: Greedy | Multinomial) -> None:
    again = eval(repr(sampler), vars(samplers))  # noqa: S307 (what the test is about)
    assert sampler == again
    assert hash(sampler) == hash(again)
    names = list(sampler.options)
    assert sorted(names, key=STEPS.index) == names
    assert ["mask", *names] == [step.split()[0] for step in str(sampler).split(" > ")[:-1]]


def test_the_steps_are_shown_for_people() -> None:
    sampler = multinomial(2, min_p=0.1, top_k=5, temperature=0.5, logit_bias={7: 1, 3: -2}, repetition_penalty=1.1)
    assert (
        str(sampler) == "mask > logit_bias of 2 > repetition_penalty 1.1 > temperature 0.5 > top_k 5 > min_p 0.1 > draw"
    )
    assert (
        repr(sampler)
        == "multinomial(2, logit_bias={3: -2, 7: 1}, repetition_penalty=1.1, temperature=0.5, top_k=5, min_p=0.1)"
    )
    assert str(greedy()) == "mask > take the largest"
    assert repr(greedy()) == "greedy()"


def test_the_page_on_sampling_names_the_steps_in_their_order() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
    assert list(STEPS) == re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)


def test_settings_do_not_change() -> None:
    bias = {1: 2.0}
    sampler = multinomial(logit_bias=bias)
    bias[1] = 3.0
    assert sampler.penalties.logit_bias == ((1, 2.0),)
    for value in (sampler, greedy(), sampler.penalties, sampler.params):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
