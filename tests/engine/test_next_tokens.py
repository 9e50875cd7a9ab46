"""Rows of which each feeds its last token and draws the next are fed and drawn together; what they write is what the plain way writes."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm import FSMError
from outlines_cont import SequenceState, continuous, generate, models
from outlines_cont.engine.drawing.draw_plan import DrawPlan
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.errors import OutlinesContError
from outlines_cont.kv.batch import KVBatch
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.fuzz.chains import Call, Chain

_PROMPTS = ["the name", "a", "red green", "1, 2", "é"]


def _mixture(seed: int) -> list[tuple[Call, list[str], int]]:
    """Some calls with any options, each with its prompts and a seed."""
    chain = Chain(seed)
    calls = [(chain.call(), chain.random.sample(_PROMPTS, chain.random.choice([1, 2])), seed + i) for i in range(4)]
    for call, _, _ in calls:
        if chain.random.random() < 0.25:
            call.options["draft"] = "lookup"
    return calls


async def _written(model: HuggingFaceModel, mixture: list[tuple[Call, list[str], int]]) -> list[SequenceState | str]:
    """Run the calls at once, in one engine; the first as a stream."""

    async def one(at: int, call: Call, prompts: list[str], rng: int) -> SequenceState | str:
        try:
            generator = continuous(call.made(model))
            if at:
                return await generator.acall(prompts, rng=rng, **call.options)
            stream = generator.astream(prompts, rng=rng, **call.options)
            async for _ in stream:
                pass
            return stream.state
        except (FSMError, OutlinesContError) as error:
            return str(error)

    return await asyncio.gather(*(one(at, *given) for at, given in enumerate(mixture)))


def _run(mixture: list[tuple[Call, list[str], int]]) -> list[SequenceState | str]:
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asyncio.run(_written(model, mixture))


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_mixture_of_rows_writes_what_it_writes_row_by_row(seed: int) -> None:
    together = _run(_mixture(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningBatch, "_feed_next", lambda self: None)
        patch.setattr(DrawPlan, "takes_largest", property(lambda self: False, lambda self, value: None), raising=False)
        plain = _run(_mixture(seed))
    for one, other in zip(together, plain, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
            continue
        assert one.finish_reasons == other.finish_reasons
        for row, wanted in zip((row for group in one.rows for row in group), (row for group in other.rows for row in group), strict=True):
            assert (row.token_ids, row.kinds, repr(row.error)) == (wanted.token_ids, wanted.kinds, repr(wanted.error))
            assert row.stream.drawn == wanted.stream.drawn
            assert np.allclose(row.logprobs, wanted.logprobs, atol=1e-9)
            assert np.allclose(row.sampling_logprobs, wanted.sampling_logprobs, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"stop_at": ["qqq"]}], ids=["text", "stop"])
def test_every_next_token_of_rows_of_any_length_is_fed_together(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, fed = random_model(), list[int]()
    plain = KVBatch.feed_next
    monkeypatch.setattr(
        KVBatch, "feed_next", lambda self, token_ids, lengths: fed.append(len(token_ids)) or plain(self, token_ids, lengths)
    )
    with model.meter() as meter:
        state = continuous(generate.text(model))(["a", "the name of", "red"], max_tokens=6, min_tokens=6, **options)
    assert state.shape[:2] == (3, 1)
    assert fed == [3] * 5  # all but the prompts
    assert meter.fed_tokens == sum(len(row.token_ids) - 1 for group in state.rows for row in group)
