"""The prefix cache: what is fed, that nothing else changes, and when nothing is reused."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch

from outlines_cont import SequenceState, continuous, engine_of, generate, models, samplers
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row, Want
from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.meter import Meter
from outlines_cont.policies import FreeText
from outlines_cont.random_stream import RandomStream
from outlines_cont.state_row import StateRow
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import assert_close, greedy_ids, next_logits

SYSTEM = "the name of the rose is red and the age of it is 12, in a land of the old, "
PLENTY = 2**24


def opened(family: str = "llama", *, prefix_cache_bytes: int = PLENTY, **options: Any) -> HuggingFaceModel:
    return models.from_transformers(
        random_network(family), FakeTokenizer(), prefix_cache_bytes=prefix_cache_bytes, **options
    )


def num_ids(text: str) -> int:
    return len(FakeTokenizer().encode(text, add_special_tokens=True))


def ids_of(state: SequenceState) -> list[list[int]]:
    return [[*row.token_ids] for group in state.rows for row in group]


def assert_is_fresh(model: HuggingFaceModel, state: SequenceState, max_tokens: int) -> None:
    """Every row is what the plain loop writes, and its keys and values lead to the logits of a fresh run."""
    for group in state.rows:
        for row in group:
            assert row.piece is not None
            start = row.piece.start
            wanted = greedy_ids(model, row.token_ids[:start], max_tokens)
            assert wanted == [*row.token_ids[start:]]
    again = continuous(generate.text(model, sampler=samplers.greedy()))(state, max_tokens=1)
    for group in again.rows:
        for row in group:
            logprobs = next_logits(model, row.token_ids).log_softmax(-1)
            scored = [float(logprobs[i - 1, token_id]) for i, token_id in enumerate(row.token_ids) if i]
            assert row.piece is not None
            written = row.logprobs[row.piece.start :]
            assert_close(torch.tensor(scored[row.piece.start - 1 :]), torch.tensor(written), 1e-9)


# -- what is fed ---------------------------------------------------------------------------------------------------------


def test_equal_prompts_of_one_call_are_fed_once() -> None:
    model = opened()
    with model.meter() as meter:
        state = continuous(generate.text(model))([SYSTEM] * 4, max_tokens=1)
    assert num_ids(SYSTEM) + 3 == meter.fed_tokens
    assert 3 * (num_ids(SYSTEM) - 1) == meter.reused_tokens == model.prefix_cache.reused_tokens
    assert (meter.recomputed_tokens, model.prefix_cache.hits) == (0, 3)
    assert_is_fresh(model, state, 1)
    first, *others = (row.kv for (row,) in state.rows)
    assert first is not None
    assert not any(other is None for other in others)


def test_a_second_call_feeds_the_last_token_of_the_prompt() -> None:
    model = opened()
    generate.text(model)(SYSTEM, max_tokens=3)
    with model.meter() as meter:
        state = continuous(generate.text(model))(SYSTEM, max_tokens=3)
    assert (1 + 2, num_ids(SYSTEM) - 1) == (meter.fed_tokens, meter.reused_tokens)
    assert_is_fresh(model, state, 3)


def test_a_prompt_that_goes_on_with_what_was_written_feeds_what_is_new() -> None:
    model = opened()
    first = continuous(generate.text(model))(SYSTEM, max_tokens=20)
    with model.meter() as meter:
        state = continuous(generate.text(model))(first.detach_cache() + " and more", max_tokens=2)
    total = len(ids_of(first)[0])
    assert total - 1 == meter.reused_tokens, "the last token was never fed"
    assert_is_fresh(model, state, 2)


def job_of(model: HuggingFaceModel, text: str, max_tokens: int = 6) -> Job:
    """One row of free text."""
    counts = Meter()
    source = StateRow.of_prompt(model.tokenizer.encode(text, add_special_tokens=True), RandomStream(3))
    row = Row(source, [FreeText.of_model(model)], model, counts=counts, max_tokens=max_tokens)
    return Job([row], samplers.greedy(), counts)


def submitted(model: HuggingFaceModel, texts: Sequence[str], max_tokens: int = 6) -> list[Job]:
    jobs = [job_of(model, text, max_tokens) for text in texts]
    for job in jobs:
        engine_of(model).submit(job)
    return jobs


def finished(model: HuggingFaceModel, jobs: Sequence[Job]) -> list[list[int]]:
    """What they write, after at most as many steps as a row takes alone and some more."""
    for _ in range(200):
        if all(job.is_over for job in jobs):
            break
        engine_of(model).step()
    assert all(job.is_over for job in jobs)
    for job in jobs:
        assert all(row.error is None for row in job.done.values()), job.done
    return [[*job.done[0].token_ids] for job in jobs]


def wanted(model: HuggingFaceModel, texts: Sequence[str], max_tokens: int = 6) -> list[list[int]]:
    prompts = [model.tokenizer.encode(text, add_special_tokens=True) for text in texts]
    return [ids + greedy_ids(model, ids, max_tokens) for ids in prompts]


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_share_a_prompt_and_come_at_random_feed_it_once(seed: int) -> None:
    numbers = random.Random(seed)
    texts = [SYSTEM + numbers.choice(["", "red is ", "a name: "]) + f"{number:02} " for number in range(12)]
    model = opened()
    jobs: list[Job] = []
    with model.meter() as meter:
        while len(jobs) < len(texts):
            count = numbers.choice([0, 0, 1, 4])
            jobs += submitted(model, texts[len(jobs) :][:count])
            engine_of(model).step()
        written = finished(model, jobs)
    assert wanted(model, texts) == written
    ended = sum(len(ids) - num_ids(text) for ids, text in zip(written, texts, strict=True))
    apart = sum(num_ids(text) - num_ids(SYSTEM) for text in texts)
    # The text behind the last token that is shared may be spelled otherwise.
    assert meter.fed_tokens <= num_ids(SYSTEM) + apart + ended + len(texts)
    assert meter.reused_tokens >= 11 * (num_ids(SYSTEM) - 1)
    assert meter.recomputed_tokens == 0


def test_prompts_that_share_a_beginning_of_their_own_wait_for_each_other_in_turn() -> None:
    """Two kinds of question below one system prompt: each part is fed once."""
    model = opened()
    kinds = ["of the green and the blue: ", "is it in the land of the old? "]
    texts = [SYSTEM + kind + str(number) for number in range(3) for kind in kinds]
    with model.meter() as meter:
        written = finished(model, submitted(model, texts, 1))
    assert wanted(model, texts, 1) == written
    least = num_ids(SYSTEM) + sum(num_ids(kind) for kind in kinds)
    assert least <= meter.fed_tokens <= least + 3 * len(texts)


def test_prompts_that_share_little_do_not_wait() -> None:
    model = opened()
    jobs = submitted(model, ["the name of it", "the name of the", SYSTEM], 2)
    engine_of(model).step()
    assert engine_of(model).num_running == 3
    finished(model, jobs)
    assert (model.prefix_cache.hits, model.prefix_cache.reused_tokens) == (0, 0)


# -- who is waited for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "fails", "raises"])
def test_when_the_row_that_is_waited_for_is_gone_the_others_go_on(how: str) -> None:
    model = opened()
    engine = engine_of(model)
    engine.max_batch_tokens = 20  # it is read in parts
    texts = [SYSTEM + "red", SYSTEM + "blue", SYSTEM + "green"]
    jobs = submitted(model, texts)
    engine.step()
    assert engine.num_running == 1, "the others wait"
    if how == "cancelled":
        engine.cancel(jobs[0])
    elif how == "fails":
        (row,) = jobs[0].rows
        row.fail(ValueError("no"))
    else:
        forward = model.forward

        def failing(*arguments: Any) -> torch.Tensor:
            if any(job_row.want is Want.SAMPLE for job_row in jobs[0].rows):
                raise ValueError("no")
            return forward(*arguments)

        with mock.patch.object(model, "forward", failing):
            engine.step()
    written = finished(model, jobs[1:])
    assert wanted(model, texts[1:]) == written


def test_an_interrupt_while_others_wait_loses_none_of_them() -> None:
    model = opened()
    engine = engine_of(model)
    engine.max_batch_tokens = 20
    texts = [SYSTEM + "red", SYSTEM + "blue", SYSTEM + "green"]
    jobs = submitted(model, texts)
    engine.step()
    with mock.patch.object(model, "forward", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        engine.step()
    assert wanted(model, texts) == finished(model, jobs)


def test_whoever_waits_keeps_its_place_in_the_line() -> None:
    model = opened()
    engine = engine_of(model)
    engine.max_rows, engine.max_batch_tokens = 2, 20
    jobs = submitted(model, [SYSTEM + "red", SYSTEM + "blue", *(f"{i} of the rest" for i in range(6))], 2)
    order = []
    while not all(job.is_over for job in jobs):
        engine.step()
        order += [i for i, job in enumerate(jobs) if job.is_over and i not in order]
    assert order[:2] == [0, 1]


# -- memory ----------------------------------------------------------------------------------------------------------------


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    model = opened(prefix_cache_bytes=3 * 60 * 2 * 2 * 2 * 8 * 8)
    texts = [f"{letter} {SYSTEM}" for letter in "abcdefgh"]
    for text in texts:
        generate.text(model)(text, max_tokens=1)
        assert 0 < model.prefix_cache.nbytes == model.kv_store.nbytes <= model.prefix_cache.max_bytes
    with model.meter() as meter:
        generate.text(model)([texts[-1], texts[0]], max_tokens=1)
    assert num_ids(texts[-1]) - 1 == meter.reused_tokens
    model.prefix_cache.clear()
    gc.collect()
    assert (model.prefix_cache.entries, model.kv_store.nbytes) == (0, 0)


@pytest.mark.parametrize("tokens", [60, 90, 130, 200, 300])
@pytest.mark.parametrize("min_view", [1, 1024])
def test_what_runs_within_a_budget_without_the_cache_runs_with_it(tokens: int, min_view: int) -> None:
    per_token = 2 * 2 * 2 * 8 * 8
    texts = [SYSTEM + "red", SYSTEM + "blue", "in " + SYSTEM, SYSTEM[:40], SYSTEM * 2]
    with mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=min_view, min_view=min_view)):
        results = []
        for size in (0, PLENTY):
            model = opened(prefix_cache_bytes=size, kv_budget_bytes=tokens * per_token)
            kept = continuous(generate.text(model))("the name", max_tokens=2)
            states = [continuous(generate.text(model))(text, max_tokens=3) for text in (*texts, texts[:3], kept)]
            results.append([(state.errors, ids_of(state)) for state in states])
            assert model.kv_store.nbytes <= tokens * per_token
    for (errors, ids), (cached_errors, cached_ids) in zip(*results, strict=True):
        for row, cached_row in zip(errors, cached_errors, strict=True):
            for error, cached_error in zip(row, cached_row, strict=True):
                assert cached_error is None or isinstance(error, KVBudgetError)
        assert any(error for row in errors for error in row) or ids == cached_ids


@pytest.mark.parametrize("min_view", [1, 1024])
def test_a_prefix_that_is_dropped_while_rows_read_it_is_read_to_the_end(min_view: int) -> None:
    model = opened()
    with mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=min_view, min_view=min_view)):
        generate.text(model)(SYSTEM, max_tokens=1)
        jobs = submitted(model, [SYSTEM + "red", SYSTEM + "blue"])
        engine_of(model).step()
        model.prefix_cache.clear()
        gc.collect()
        assert wanted(model, [SYSTEM + "red", SYSTEM + "blue"]) == finished(model, jobs)
