"""A model that is a function writes what the model of transformers writes whose logits the function computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fsm
from outlines_cont import SequenceState, continuous, generate, models, policies, samplers
from outlines_cont.models import CallableModel
from tests.fakes import EOS, FakeTokenizer, random_model
from tests.oracle import assert_close, next_logits

_FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_PROMPTS = st.lists(st.text("abc the name yes,é🙂\n", min_size=1, max_size=10), min_size=1, max_size=3)
_UNIQUE = fsm.json_schema({"type": "array", "items": {"enum": ["a", "b", "yes"]}, "uniqueItems": True, "minItems": 2})


@cache
def _as_function(shape: str) -> CallableModel:
    """The random Llama as a function that returns the logits of all positions, or of the last."""

    def logits(token_ids: NDArray[np.int64]) -> Any:
        lines = next_logits(random_model(), token_ids.tolist()).cpu()
        return lines.numpy() if shape == "all" else lines[-1]

    return models.from_callable(logits, FakeTokenizer(), eos_token_ids=EOS, context_length=256, name="llama")


def _make(kind: int) -> Callable[[Any, Any], Any]:
    return [
        lambda model, sampler: generate.text(model, sampler=sampler),
        lambda model, sampler: generate.regex(model, "[a-c]{2,6}( the)?", sampler=sampler),
        lambda model, sampler: generate.choice(model, ["yes sir", "yes", "no"], sampler=sampler),
        lambda model, sampler: generate.fsm(model, _UNIQUE, sampler=sampler),
        lambda model, sampler: generate.text(model, sampler=sampler, policies=[policies.ban(["a", "é"])]),
        lambda model, sampler: generate.text(model, sampler=sampler, draft="lookup"),
    ][kind]


@settings(parent=_FEW, max_examples=6)
@given(st.sampled_from(["all", "last"]), _PROMPTS, st.integers(0, 5), st.integers(0, 3), st.data())
def test_a_chain_on_a_function_is_that_on_the_model(
    shape: str, prompts: list[str], kind: int, how: int, data: st.DataObject
) -> None:
    sampler = [samplers.greedy(), samplers.multinomial(2), samplers.beam_search(2), samplers.best_of(2)][how]
    steps = data.draw(st.integers(1, 8))
    cut = data.draw(st.integers(0, 9))

    def chain(model: Any) -> list[SequenceState]:
        written = continuous(_make(kind)(model, sampler))(prompts, max_tokens=steps, rng=3)
        forked = written.best(1).fork(2)
        more = continuous(generate.regex(model, "(, |x)[a-z]{1,3}"))(forked + "; ", max_tokens=5)
        short = written[..., :cut]
        return [written, more, short, continuous(generate.text(model))(short.best(1) + "a", max_tokens=3), written]

    for expected, received in zip(chain(random_model()), chain(_as_function(shape)), strict=True):
        assert [[row.token_ids for row in group] for group in expected.rows] == [
            [row.token_ids for row in group] for group in received.rows
        ]
        assert expected.values == received.values
        assert [list(map(type, group)) for group in expected.errors] == [
            list(map(type, group)) for group in received.errors
        ]
        assert_close(expected.logprobs, received.logprobs, 1e-4)
        assert_close(expected.weights, received.weights, 1e-4)


@_FEW
@given(_PROMPTS)
def test_a_function_is_given_whole_sequences_of_ids_and_each_once(prompts: list[str]) -> None:
    seen: list[tuple[int, ...]] = []

    def logits(token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        assert token_ids.dtype == np.int64
        seen.append(tuple(token_ids.tolist()))
        return np.sin(np.arange(351) * (1.0 + token_ids.sum() % 7)).astype(np.float32)

    model = models.from_callable(logits, FakeTokenizer())
    assert torch.float32 == model.dtype
    seen.clear()
    state = continuous(generate.text(model))(prompts, max_tokens=4)
    rows = [row.token_ids for group in state.rows for row in group]
    for prompt, row in zip(prompts, rows, strict=True):
        length = len(model.tokenizer.encode(prompt, add_special_tokens=True))
        assert {row[:n] for n in range(length, len(row))} <= set(seen)
    assert all(any(row[: len(ids)] == ids for row in rows) for ids in seen)
    assert len(seen) <= sum(len(row) for row in rows)
