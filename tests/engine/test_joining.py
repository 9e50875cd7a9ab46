"""Rows that begin while others decode: with few tokens to feed they are fed in the same forwards, with many before; texts are the same."""

from __future__ import annotations

from random import Random

import pytest

from outlines_cont import engine_of, generate, samplers
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.models import Meter
from outlines_cont.state.row import StateRow
from tests.fakes import random_model

_LENGTH = 24


@pytest.mark.parametrize(("num_tokens", "is_apart"), [(1, False), (5, False), (8, False), (9, True), (40, True)])
def test_a_row_with_few_tokens_to_feed_is_fed_with_the_rows_that_decode(num_tokens: int, is_apart: bool) -> None:
    model, random = random_model(), Random(num_tokens)
    first = [random.randrange(90) for _ in range(30)]
    later = [random.randrange(90) for _ in range(num_tokens)]
    text = generate.text(model, sampler=samplers.multinomial())

    def row(token_ids: list[int], max_tokens: int) -> tuple[Row, Job]:
        counts, source = Meter(), open_prompt(model, token_ids, 1, 7).rows[0][0]
        begun = Row(source, model, text.piece(Options.of({"max_tokens": max_tokens, "min_tokens": max_tokens})), counts=counts)
        return begun, Job([begun], counts)

    def alone(token_ids: list[int], max_tokens: int) -> StateRow:
        _, job = row(token_ids, max_tokens)
        engine_of(model).run(job)
        return job.done[0]

    expected = alone(first, _LENGTH), alone(later, 6)
    (_, long), (_, short) = row(first, _LENGTH), row(later, 6)
    engine = engine_of(model)
    with model.meter() as meter:
        engine.submit(long)
        for _ in range(4):
            engine.advance(long)
        engine.submit(short)
        engine.run(long)
    assert short.is_over
    assert meter.forwards == _LENGTH + is_apart
    for job, one in zip((long, short), expected, strict=True):
        assert job.done[0].token_ids == one.token_ids
        assert job.done[0].logprobs == pytest.approx(one.logprobs, abs=1e-9, nan_ok=True)
