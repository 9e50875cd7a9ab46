"""Warpers that look at the row (`DRY`, `Mirostat`), and `XTC`: every token that was drawn anywhere has the probability of the plain law."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import BatchedExecutor, Branch, RowView, SequenceState, TokenSet, TokenStream, continuous, generate
from outlines_cont.errors import StateFileError
from outlines_cont.samplers import DRY, XTC, MinP, Mirostat, Multinomial, Temperature, TopA, TypicalP, best_of, greedy, multinomial
from outlines_cont.sampling import TokenCounts
from outlines_cont.state import text as row_text
from outlines_cont.state.row import WRITTEN, StateRow
from tests.engine.test_engine_loop import Planned, _ids, _write
from tests.fakes import random_model
from tests.oracle import next_logits
from tests.sampling_oracle import plain_law

_ON: dict[int, float] = dict.fromkeys(random_model().eos_token_ids, -100.0)  # so that texts have the length that is asked for
_DRY = DRY(multiplier=3.0, base=1.5, allowed_length=1)
_STEERED = Mirostat(tau=2.0, eta=0.6)
_ALL = multinomial(logit_bias=_ON, dry=_DRY, temperature=1.5, typical_p=0.97, top_a=0.05, mirostat=_STEERED, xtc=XTC(0.06, 0.6))
_IDS = ["mirostat", "dry", "xtc", "all"]
_SAMPLERS = [
    multinomial(logit_bias=_ON, mirostat=_STEERED),
    multinomial(logit_bias=_ON, dry=_DRY, temperature=0.7, top_k=8),
    multinomial(logit_bias=_ON, xtc=XTC(0.05, 0.7), presence_penalty=0.5),
    _ALL,
]


def _allowed(text: str = "") -> list[int]:
    """The ids that free text may have; or those of a regular expression like `[abc]*`, given as its characters."""
    model = random_model()
    chosen = [
        i for i, data in enumerate(model.tokenizer.token_bytes) if data and set(data.decode("latin1")) <= set(text or data.decode("latin1"))
    ]
    return chosen + sorted(model.eos_token_ids)


def _audit(row: StateRow, sampler: Multinomial, surprise_start: int, *, allowed: list[int] | None = None, but: Any = ()) -> int:
    """Compare how each token was drawn since `surprise_start` with the plain law, computed from a whole forward; return their number."""
    ids, kinds = list(row.token_ids), row.kinds
    drawn = [i for i in range(surprise_start, len(ids)) if kinds[i] == b"g"[0]]
    logits = next_logits(random_model(), ids).double()
    mask = torch.full_like(logits, -torch.inf)
    mask[:, allowed if allowed is not None else slice(None)] = 0
    for i in drawn:
        generated = [token_id for token_id, kind in zip(ids[:i], kinds, strict=False) if kind in WRITTEN]
        before = [row.sampling_logprobs[j] for j in drawn if j < i]
        law = plain_law((logits[i - 1] + mask[i - 1]).tolist(), sampler.params, ids[:i], generated, before)
        if i not in but:
            assert math.log(law[ids[i]]) == pytest.approx(row.sampling_logprobs[i], abs=1e-6)
    return len(drawn)


def _rows(state: SequenceState) -> list[StateRow]:
    return [row for group in state.rows for row in group]


@pytest.mark.parametrize("sampler", _SAMPLERS, ids=_IDS)
def test_a_run_in_parts_goes_on_as_the_whole_run_through_files_and_slices(sampler: Multinomial, tmp_path: Path) -> None:
    write, model = continuous(generate.text(random_model(), sampler=sampler)), random_model()
    whole = write("the name", max_tokens=14, rng=4)
    part = write(write("the name", max_tokens=5, rng=4), max_tokens=3)
    part.save(tmp_path / "state")
    part = SequenceState.load(tmp_path / "state", model)
    part = write(part, max_tokens=6)
    assert whole == part
    assert whole.sampling_logprobs.nan_to_num(1.0).equal(part.sampling_logprobs.nan_to_num(1.0))
    start = len(_ids("the name"))
    assert _audit(_rows(whole)[0], sampler, start, allowed=_allowed()) == 14
    # From a slice the numbers go on where the stream stands, and the bound is that of the tokens that are left.
    cut = write(whole.tokens[: start + 6], max_tokens=5)
    assert _audit(_rows(cut)[0], sampler, start, allowed=_allowed()) == 11
    wide = continuous(generate.text(model, sampler=dataclasses.replace(sampler, samples=3)))
    for row in _rows(wide(part.fork(3), max_tokens=4)):
        assert _audit(row, sampler, start, allowed=_allowed()) == 18


def test_mirostat_begins_anew_behind_a_piece_of_another_sampler_and_goes_on_over_forced_text() -> None:
    model = random_model()
    steered, plain = (continuous(generate.text(model, sampler=s)) for s in (multinomial(mirostat=_STEERED), greedy()))
    first = steered("the", max_tokens=5, rng=1)
    begun = _rows(first)[0].surprise_start
    assert begun == len(_ids("the"))
    forced = continuous(generate.choice(model, ["yes"]))(first)
    longer = steered(forced + " or ", max_tokens=4)
    assert [begun] * 2 == [_rows(state)[0].surprise_start for state in (forced, longer)]
    assert _audit(_rows(longer)[0], multinomial(mirostat=_STEERED), begun, allowed=_allowed()) == 9
    between = plain(first, max_tokens=3)
    assert _rows(between)[0].surprise_start is None
    anew = steered(between, max_tokens=4)
    assert _rows(anew)[0].surprise_start == begun + 8
    assert _audit(_rows(anew)[0], multinomial(mirostat=_STEERED), begun + 8, allowed=_allowed()) == 4
    # Joined rows: what stands behind decides, and text that is encoded anew has no surprise.
    joined = forced + anew.tokens[:]
    assert _rows(joined)[0].surprise_start is not None
    assert _rows(first.tokens[3:])[0].surprise_start is None


@pytest.mark.parametrize("sampler", _SAMPLERS, ids=_IDS)
def test_a_row_that_goes_back_is_drawn_by_what_it_holds(sampler: Multinomial) -> None:
    retried: list[int] = []

    def plan(state: int, row: RowView) -> list[Branch]:
        if state == 6 and not retried:
            retried.append(row.token_ids[-4])
            return [Branch(backtrack=4, sample_mask=~TokenSet.of(retried))]
        return [Branch(sample_mask=TokenSet.all)]

    row, other = _write(
        random_model(),
        [_ids("the name the"), _ids("a")],
        [[Planned(plan)], [Planned(lambda s, r: [Branch(sample_mask=TokenSet.all)])]],
        sampler=sampler,
    )
    start = len(_ids("the name the"))
    assert retried
    assert row.token_ids[start + 2] != retried[0]
    assert _audit(row, sampler, start, but=[start + 2]) == _audit(other, sampler, len(_ids("a"))) == 8


@pytest.mark.parametrize("sampler", _SAMPLERS, ids=_IDS)
def test_under_a_constraint_and_beside_other_rows_it_is_the_law_of_what_is_allowed(sampler: Multinomial) -> None:
    model = random_model()
    calls: list[tuple[Any, str, int]] = [
        (generate.regex(model, "[a-d]{90,}", sampler=sampler), "the name", 1),
        (generate.text(model, sampler=multinomial(mirostat=Mirostat(1.0, 1.0), top_p=0.9)), "a", 2),
        (generate.text(model, sampler=multinomial(2, dry=DRY(1.0, 1.0, 1), xtc=XTC(0.02, 1.0))), "is", 3),
        (generate.text(model, sampler=greedy(frequency_penalty=1.0)), "of", 4),
        (generate.text(model, sampler=best_of(2, mirostat=_STEERED, typical_p=0.5)), "of", 5),
    ]

    async def together() -> list[SequenceState]:
        return await asyncio.gather(*(continuous(w).acall(p, rng=seed, max_tokens=10) for w, p, seed in calls))

    alone = [continuous(write)(prompt, rng=seed, max_tokens=10) for write, prompt, seed in calls]
    for one, beside in zip(alone, asyncio.run(together()), strict=True):
        assert one == beside
        assert one.sampling_logprobs.nan_to_num(1.0).numpy() == pytest.approx(beside.sampling_logprobs.nan_to_num(1.0).numpy(), abs=1e-6)
    (row,) = _rows(alone[0])
    allowed = [i for i in _allowed("abcd") if i not in model.eos_token_ids]
    assert _audit(row, sampler, len(_ids("the name")), allowed=allowed) >= 5


def test_a_token_stream_draws_what_the_generator_draws() -> None:
    model = random_model()
    wanted = continuous(generate.text(model, sampler=_ALL))("the name", max_tokens=9, rng=8)
    mask, ids = TokenSet.of(_allowed()), _ids("the name")
    stream = TokenStream(model.tokenizer, prompt=ids)
    for at in range(9):
        logits = next_logits(model, [*ids, *stream.token_ids])[-1]
        if at == 5:  # what was given back is forgotten
            stream = stream.push_logits(logits, _ALL, mask, rng=8).push(_ids("a")[-1]).rewind(2)
        stream = stream.push_logits(logits, _ALL, mask, rng=8)
    assert wanted.token_ids[0, 0].tolist() == [*ids, *stream.token_ids]
    # Tokens that are pushed between two draws count in their order.
    sampler, even = multinomial(dry=DRY(50.0, allowed_length=2)), torch.zeros(model.vocab_size)
    stream = TokenStream(model.tokenizer, prompt=[90, 91, 5, 91, 90, 6, 7]).push_logits(even, sampler, uniform=0.4)
    stream = stream.push(90).push(91).push_logits(even, sampler, TokenSet.of([5, 6]), uniform=0.001)
    assert stream.token_ids[-1] == 6


def test_conversations_draw_by_what_they_hold_after_forks_and_rewinds(tmp_path: Path) -> None:
    executor = BatchedExecutor(random_model(), seed=3)
    conversation = executor.create("the name")

    def step(times: int) -> None:
        for _ in range(times):
            executor.infer()
            executor.step(sampler=_ALL)

    step(6)
    conversation.rewind(2)
    fork = conversation.fork()
    step(5)
    conversation.save(tmp_path / "conversation")
    loaded = executor.load(tmp_path / "conversation")
    step(2)
    for one in (conversation, fork, loaded):
        (row,) = _rows(one.state)
        assert row.surprise_start == len(_ids("the name"))
        assert _audit(row, _ALL, row.surprise_start) == 11
    executor.infer()
    conversation.step(multinomial())
    assert _rows(conversation.state)[0].surprise_start is None


def test_the_law_of_a_coin_is_that_of_many_draws_with_a_coin() -> None:
    """XTC as its author describes it: a coin for each token, and then a draw from what is left."""
    logits = torch.tensor([[2.0, 1.6, 1.2, 0.1, -1.0]], dtype=torch.float64)
    generator, counts = np.random.default_rng(3), np.zeros(5)
    probs = logits[0].softmax(-1).numpy()
    for _ in range(20_000):
        left = np.where([0, 0, 1, 1, 1], probs, 0) if generator.random() < 0.3 else probs
        counts[generator.choice(5, p=left / left.sum())] += 1
    sampler = multinomial(xtc=XTC(threshold=0.15, probability=0.3))
    law = sampler.filtered(logits).softmax(-1)[0].numpy()
    assert np.abs(law - counts / 20_000).max() < 0.015
    uniforms = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    token_ids, logprobs = sampler.sample(logits.expand(2000, -1), uniforms)
    assert np.abs(np.bincount(token_ids, minlength=5) - 2000 * law).max() <= 1
    assert logprobs.numpy() == pytest.approx(np.log(law[token_ids.numpy()]))


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.builds(
        DRY,
        multiplier=st.sampled_from([0.8, 2.0]),
        base=st.sampled_from([1.0, 1.02, 1.75, 40.0]),
        allowed_length=st.integers(1, 4),
        range=st.none() | st.integers(1, 12),
        breakers=st.sampled_from([(), (3,), (0, 2)]),
    ),
)
def test_repetitions_cost_what_comparing_every_stretch_says(ids: list[int], dry: DRY) -> None:
    sampler = multinomial(dry=dry)
    logits = torch.zeros(1, 6, dtype=torch.float64)
    kept = sampler.filtered(logits, [TokenCounts(ids, [False] * len(ids))]).softmax(-1)[0]
    assert plain_law([0.0] * 6, sampler.params, ids) == pytest.approx(kept.numpy(), abs=1e-12)


def test_dry_takes_tokens_with_a_text_in_them_as_breakers() -> None:
    tokenizer = random_model().tokenizer
    dry = DRY(allowed_length=3).breaking_at(tokenizer, ["a", "\n"])
    wanted = [i for i, data in enumerate(tokenizer.token_bytes) if data and (b"a" in data or b"\n" in data)]
    assert DRY(allowed_length=3, breakers=tuple(wanted)) == dry


def test_a_long_repetition_costs_no_more_than_the_most_and_no_overflow() -> None:
    counts = [TokenCounts([7] * 5000, [True] * 5000)]
    for dry, cost in [(DRY(), 10_000.0), (DRY(base=1.0), 0.8), (DRY(multiplier=1000, base=100.0), 10_000.0)]:
        row = multinomial(dry=dry).filtered(torch.zeros(1, 9, dtype=torch.float64), counts)[0]
        assert float(row[0] - row[7]) == pytest.approx(cost)


def test_samplers_show_the_new_steps_and_can_be_pasted_back() -> None:
    steps = "dry 3.0 1.5 1 > temperature 1.5 > typical_p 0.97 > top_a 0.05 > mirostat 2.0 0.6 > xtc 0.06 0.6"
    assert f"mask > logit_bias of {len(_ON)} > {steps} > draw" == str(_ALL)
    assert str(DRY(range=9, breakers=(1, 2))) == "dry 0.8 1.75 2 within 9"
    names = {"multinomial": multinomial, "DRY": DRY, "XTC": XTC, "Mirostat": Mirostat}
    assert eval(repr(_ALL), names) == _ALL  # noqa: S307 (what the test is about)
    assert multinomial(dry=_DRY).with_temperature(2.0).warpers == (_DRY, Temperature(2.0))
    assert multinomial(typical_p=0.5, top_a=0.1).warpers == (TypicalP(0.5), TopA(0.1))


def test_what_changes_nothing_is_left_out_of_the_draw() -> None:
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(1))
    sampler = multinomial(dry=DRY(multiplier=0), top_a=0, typical_p=1.0, xtc=XTC(probability=0))
    uniforms = torch.tensor([0.4], dtype=torch.float64)
    wanted, got = (multinomial().sample(logits, uniforms), sampler.sample(logits, uniforms, [TokenCounts([1, 1], [True] * 2)]))
    assert [x.tolist() for x in wanted] == [x.tolist() for x in got]


def test_counts_that_are_missing_are_named() -> None:
    with pytest.raises(TypeError, match=r"token counts of row 0 as `counts`, which Mirostat\(.* needs, got None"):
        multinomial(mirostat=Mirostat()).sample(torch.zeros(1, 4), torch.tensor([0.5], dtype=torch.float64))


def test_a_row_that_goes_back_before_the_first_draw_counts_from_there() -> None:
    def plan(state: int, row: RowView) -> list[Branch]:
        if state == 0 and not retried:
            return [Branch(ff_tokens=[_ids("abc")[1:]])]
        if state == 5 and not retried:
            retried.append(state)
            return [Branch(backtrack=5, sample_mask=TokenSet.all)]
        return [Branch(sample_mask=TokenSet.all)]

    retried: list[int] = []
    sampler, prompt = _SAMPLERS[0], _ids("the")
    (row,) = _write(random_model(), [prompt], [[Planned(plan)]], sampler=sampler)
    assert retried
    assert len(prompt) == row.surprise_start
    assert _audit(row, sampler, len(prompt)) == 8


def test_rows_that_are_cut_joined_or_spelled_anew_know_where_mirostat_began(tmp_path: Path) -> None:
    model = random_model()
    steered, plain = (continuous(generate.text(model, sampler=s)) for s in (multinomial(mirostat=_STEERED), greedy()))
    prompt = len(_ids("the name"))
    right, other = steered("the name", max_tokens=4, rng=1), plain("the name", max_tokens=4)
    left = steered("a", max_tokens=3, rng=2)
    (before,), (row,) = _rows(left), _rows(right)
    assert [prompt, len(_ids("a"))] == [row.surprise_start, before.surprise_start]
    both = _rows(left + right)[0]
    assert both.surprise_start is not None
    assert row.token_ids[prompt:] == both.token_ids[both.surprise_start :]
    assert _rows(left + other)[0].surprise_start is None
    assert before.surprise_start == _rows(left + " and")[0].surprise_start
    for first, last, start in [(0, 1, prompt + 1), (prompt + 1, prompt + 2, prompt), (1, prompt + 2, prompt + 1)]:
        longer = row_text._replaced(row, first, last, [70] * (1 if first else 2))
        assert (start if first != 1 else 2) == longer.surprise_start
    broken = SequenceState(model, ((dataclasses.replace(row, surprise_start=99),),), right.seed)
    broken.save(tmp_path / "broken")
    with pytest.raises(StateFileError, match="what is counted begins beyond its row"):
        SequenceState.load(tmp_path / "broken", model)


@pytest.mark.parametrize("warper", [TopA(0.01), Mirostat(tau=3.75)])
def test_what_lies_outside_of_the_blocks_that_are_looked_at_has_a_share(warper: Any) -> None:
    # One token has two thirds of the probability and 9,000 have the rest, half of which is not looked at: without that, its share would
    # be 0.81. The border lies on one side of the tokens at -4.9 with it, on the other without.
    logits = torch.full((1, 9001), -9.8, dtype=torch.float64)
    logits[0, :4] = torch.tensor([0.0, -4.9, -4.9, -4.9])
    sampler = multinomial(warpers=(MinP(1e-6), warper))
    uniforms = torch.tensor([0.999], dtype=torch.float64)
    token_ids, logprobs = sampler.sample(logits, uniforms, [TokenCounts([], [])])
    law = plain_law(logits[0].tolist(), sampler.params)
    assert int(np.searchsorted(law.cumsum(), 0.999)) == int(token_ids[0])
    assert math.log(law[int(token_ids[0])]) == pytest.approx(float(logprobs[0]))
