"""Requests that share beginnings, come and go at random, are cancelled, interrupted and short of room: each writes what it writes alone."""

from __future__ import annotations

import gc
from contextlib import suppress
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import engine_of, models
from outlines_cont.engine.job import Job
from outlines_cont.kv.share import Sharing
from outlines_cont.meter import Meter
from outlines_cont.policies import FreeText
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import greedy_ids
from tests.rows import row_of

PER_TOKEN = 2 * 2 * 2 * 8 * 8
_NETWORK = random_network("llama")
_ALONE: dict[tuple[int, ...], list[int]] = {}
# Sequences that share beginnings of all lengths.
_PROMPTS = st.lists(
    st.sampled_from([(70, 71, 72, 73), (70, 71, 74), (75,), (76, 77, 78, 79, 80, 81)]), min_size=1, max_size=6
).map(lambda parts: [0, *(token_id for part in parts for token_id in part)])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), _PROMPTS),
        st.tuples(st.sampled_from(["step", "cancel", "interrupt", "clear"]), st.integers(0, 7)),
    ),
    min_size=6,
    max_size=30,
)


def job_of(model: models.HuggingFaceModel, token_ids: list[int]) -> Job:
    counts = Meter()
    source = StateRow.of_prompt(token_ids, RandomStream(3))
    return Job([row_of(source, [FreeText.of_model(model)], model, counts=counts, max_tokens=3)], counts)


@settings(max_examples=15, deadline=None)
@given(
    _STEPS,
    st.sampled_from([0, 25, 400]),
    st.sampled_from([None, 110, 220]),
    st.sampled_from([1, 1024]),
    st.sampled_from([3, 64]),
    st.booleans(),
)
def test_requests_write_what_they_write_alone(
    steps: list[tuple[str, int | list[int]]], held: int, room: int | None, least: int, limit: int, stacks: bool
) -> None:
    budget = None if room is None else room * PER_TOKEN
    model = models.from_transformers(
        _NETWORK, FakeTokenizer(), prefix_cache_bytes=held * PER_TOKEN, kv_budget_bytes=budget
    )
    model.prefix_cache.min_tokens = 3
    engine = engine_of(model)
    engine.max_batch_tokens = limit
    jobs: list[tuple[Job, tuple[int, ...]]] = []
    can_stack = mock.PropertyMock(return_value=stacks)
    with (
        mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=least, min_view=least)),
        mock.patch.object(models.HuggingFaceModel, "can_stack", can_stack),
    ):
        for name, value in steps:
            if isinstance(value, list):
                jobs.append((job_of(model, value), tuple(value)))
                engine.submit(jobs[-1][0])
            elif name == "step":
                engine.step()
            elif name == "cancel" and jobs:
                engine.cancel(jobs.pop(value % len(jobs))[0])
            elif name == "clear":
                model.prefix_cache.clear()
            elif name == "interrupt":
                with mock.patch.object(model, "forward", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
                    engine.step()
            assert model.prefix_cache.nbytes <= model.prefix_cache.max_bytes
            assert budget is None or model.kv_store.nbytes <= budget
        # Nobody waits for ever: alone each takes its prompt and three tokens, and one of them at least goes on at every step.
        for _ in range(sum(len(ids) + 8 for _, ids in jobs) + 8):
            if all(job.is_over for job, _ in jobs):
                break
            engine.step()
        for job, token_ids in jobs:
            assert job.is_over
            if token_ids not in _ALONE:
                _ALONE[token_ids] = greedy_ids(model, token_ids, 3)
            row = job.done[0]
            assert row.error is None, row.error
            assert [*token_ids, *_ALONE[token_ids]] == [*row.token_ids]
    del jobs[:]
    job = row = None
    engine.step()
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes
    model.prefix_cache.clear()
    assert model.kv_store.nbytes == 0
