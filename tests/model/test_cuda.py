"""The same tokens on a CUDA device as on the CPU."""

from __future__ import annotations

import pytest
import torch

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.models import HuggingFaceModel
from tests.fakes import FakeTokenizer, random_model, random_network

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def _texts(model: HuggingFaceModel) -> list[str]:
    draw = samplers.multinomial(2, top_k=40, top_p=0.9, min_p=0.01, temperature=1.5)
    state = continuous(generate.choice(model, ["yes no", "a blue name", "é🙂"], sampler=draw))(["the", "a b c d"], rng=3)
    state = continuous(generate.text(model))(state + " and", max_tokens=6, stop_at="zz")
    state = continuous(generate.regex(model, "[0-9]{3}-[ab]+"))(state + ": ", max_tokens=9)
    assert state.kv_cache is not None
    return list(state)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_a_chain_gives_the_same_texts_on_both_devices(family: str) -> None:
    there = models.from_transformers(random_network(family).to("cuda"), FakeTokenizer())
    assert _texts(random_model(family)) == _texts(there)
