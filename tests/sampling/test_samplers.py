"""Every step of every sampler against a plain oracle that sorts, the ends of a draw, and streams of random numbers as documented."""

from __future__ import annotations

import dataclasses
import hashlib
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
from outlines_cont.errors import BatchMismatch, OptionError
from outlines_cont.samplers import DRY, XTC, Greedy, Mirostat, Multinomial, best_of, greedy, multinomial
from outlines_cont.sampling import STEPS, SamplerBatch, TokenCounts
from outlines_cont.sampling.kernels import inverse_cdf
from outlines_cont.sampling.random_stream import RandomStream, open_seeds
from tests.examples import examples
from tests.sampling_oracle import made_row, plain_law

_PENALTIES = {
    "logit_bias": st.none() | st.dictionaries(st.integers(0, 5), st.sampled_from([-100.0, -1.5, 0.25, 3.0]), max_size=3),
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


@settings(max_examples=examples(30), deadline=None)
@given(_GREEDY | _MULTINOMIAL, _SHAPES, st.integers(0, 99), st.sampled_from([6, 40, _WIDE]), _TOKENS, st.integers(0, 9), _UNIFORMS)
def test_a_draw_is_that_of_the_steps_in_their_order(
    sampler: Greedy | Multinomial, shape: str, seed: int, vocab_size: int, tokens: list[int], num_generated: int, u: float
) -> None:
    logits = made_row(shape, seed, vocab_size)
    num_generated = min(num_generated, len(tokens))
    drawn = [_logprob(i) for i in range(len(tokens) - num_generated, len(tokens))]
    law = plain_law(logits.tolist(), sampler.params, tokens, tokens[len(tokens) - num_generated :], drawn)
    token_ids, logprobs = sampler.sample(logits[None], torch.tensor([u], dtype=torch.float64), [_counts(tokens, num_generated)])
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


def test_float32_keeps_and_draws_what_float64_does() -> None:
    logits = torch.stack([made_row("peaked", seed, _WIDE) for seed in range(40)])
    uniforms = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for sampler in (multinomial(), multinomial(temperature=0.7, top_p=0.9), multinomial(top_k=20, min_p=0.02)):
        low, low_logprobs = sampler.sample(logits.float(), uniforms)
        high, high_logprobs = sampler.sample(logits.float().double(), uniforms)
        assert high.tolist() == low.tolist()
        assert high_logprobs.tolist() == pytest.approx(low_logprobs.tolist(), abs=1e-5)


@pytest.mark.parametrize("sampler", [greedy(), multinomial(), multinomial(top_p=0.9, min_p=0.1), multinomial(top_k=700, top_p=0.9)])
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
    assert str(sampler) == "mask > logit_bias of 2 > repetition_penalty 1.1 > temperature 0.5 > top_k 5 > min_p 0.1 > draw"
    assert repr(sampler) == "multinomial(2, logit_bias={3: -2, 7: 1}, repetition_penalty=1.1, temperature=0.5, top_k=5, min_p=0.1)"
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


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, 0.0]])
    token_ids, logprobs = greedy().sample(logits, None)
    assert token_ids.tolist() == [1, 2]
    assert logits.log_softmax(-1).max(-1).values.tolist() == pytest.approx(logprobs.tolist())


def test_seeds_come_from_an_int_a_generator_a_list_or_the_system() -> None:
    for seed in (0, 5, 2**64 - 1):
        assert open_seeds(seed, 2) == [seed, seed]
    assert open_seeds([0, 2**64 - 1], 2) == [0, 2**64 - 1]
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    drawn = open_seeds(generator, 2)
    assert len({*drawn, *open_seeds(generator, 2)}) == 4
    assert not before.equal(generator.get_state())
    assert drawn == open_seeds(torch.Generator().manual_seed(1), 2)
    assert len({*open_seeds(None, 4), *open_seeds(None, 1)}) == 5
    with pytest.raises(BatchMismatch, match="expected 3 seeds"):
        open_seeds([1, 2], 3)
    for bad in (-1, 2**64, True, "seed", 1.5, [1.5]):
        with pytest.raises(OptionError, match=f"got {bad}" if bad in (-1, 2**64) else None):
            open_seeds(bad, 1)  # type: ignore[arg-type]


LAST = math.nextafter(1.0, 0.0)
UNIFORMS = [0.0, 5e-324, 2.0**-53, 0.5, 1 - 2.0**-32, LAST]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 40), st.sampled_from(UNIFORMS), st.sampled_from([torch.float32, torch.float64]))
def test_no_number_draws_a_token_that_is_masked(data: st.DataObject, size: int, uniform: float, dtype: torch.dtype) -> None:
    logits = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=size, max_size=size))
    allowed = data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    row = [value if ok else -math.inf for value, ok in zip(logits, allowed, strict=True)]
    (token_id,), (logprob,) = inverse_cdf(torch.tensor([row], dtype=dtype), torch.tensor([uniform], dtype=torch.float64))
    assert allowed[int(token_id)]
    assert math.isfinite(float(logprob))


@pytest.mark.parametrize("size", [5, 4096, 4097, 70_000])
def test_the_last_number_draws_the_last_token_that_can_be_drawn(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for _ in range(20):
        logits = torch.randn(1, size, generator=generator)
        stop = int(torch.randint(1, size, (), generator=generator))
        logits[:, stop:] = -torch.inf
        (token_id,), _ = inverse_cdf(logits, torch.tensor([LAST], dtype=torch.float64))
        assert int(token_id) < stop
        (token_id,), _ = inverse_cdf(logits, torch.tensor([0.0], dtype=torch.float64))
        assert int(token_id) == 0


@pytest.mark.parametrize("size", [4097, 4200, 70_001])
def test_behind_the_end_there_is_nothing_to_draw(size: int) -> None:
    """The last block of a row is not full: what is added up in it may be a little less than what the number stands for."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(400 if size < 10_000 else 40, size, generator=generator)
    logits[:, size - size % 64 + size % 64 // 2 :] = -torch.inf
    logits[:, size - size % 64] = 9.0
    token_ids, logprobs = inverse_cdf(logits, torch.full((len(logits),), LAST, dtype=torch.float64))
    assert logprobs.isfinite().all()
    assert logits.gather(-1, token_ids[:, None]).isfinite().all()


_SMALL = st.integers(0, 2**32 - 1)


def _numbers(seed: int, batch: int, sample: int, path: int, count: int) -> list[float]:
    """Philox 4x64 of numpy: the seed and the place of a row are its key, the path of a fork the upper half of its counter."""
    counter = [0, 0, path % 2**64, path // 2**64]
    bits = np.random.Philox(key=np.array([seed, batch * 2**32 + sample], dtype=np.uint64), counter=np.array(counter, dtype=np.uint64))
    return [float(number) for number in np.random.Generator(bits).random(count)]


@given(st.integers(0, 2**64 - 1), _SMALL, _SMALL, st.integers(0, 2**128 - 1), st.integers(0, 13))
def test_a_stream_has_the_numbers_of_its_key_and_path(seed: int, batch: int, sample: int, path: int, drawn: int) -> None:
    wanted = _numbers(seed, batch, sample, path, drawn + 6)
    source = RandomStream(seed, batch, sample, drawn, path).open()
    begun = source
    for number in wanted[drawn:]:
        assert number == source.peek() == source.peek()
        source = source.after()
    assert (drawn + 6, drawn) == (source.close().drawn, begun.close().drawn)
    offsets = [5, 0, 3, 4, 1, 2]  # in any order, and again
    assert [begun.peek(offset) for offset in offsets * 2] == [wanted[drawn + offset] for offset in offsets * 2]
    assert RandomStream(seed, batch, sample, path=path).after(drawn + 6) == source.close()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1), st.integers(0, 10**6), st.integers(0, 99))
def test_the_path_of_a_fork_is_a_digest_of_where_it_left(seed: int, path: int, drawn: int, index: int) -> None:
    place = b"".join(number.to_bytes(16, "little") for number in (path, drawn, index))
    fork = RandomStream(seed, 3, 4, drawn, path).fork(index)
    assert RandomStream(seed, 3, 4, 0, int.from_bytes(hashlib.blake2b(place, digest_size=16).digest(), "little")) == fork
