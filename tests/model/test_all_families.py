"""Every causal family of transformers that a tiny config can be made for: chains of operations are exact, or the model is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest

from outlines_cont import models
from outlines_cont.errors import UnsupportedModel
from outlines_cont.kv.share import Sharing
from tests.fakes import FakeTokenizer
from tests.model.test_families import chain, worst_error
from tests.model.tiny import FAMILIES, network

# Encoders, models without a cache, and caches that are not exact in this version of transformers.
REFUSED = {
    "bert", "bert-generation", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie", "falcon_mamba", "jamba", "mamba",
    "megatron-bert", "minimax", "openai-gpt", "recurrent_gemma", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
    "rwkv", "xlm", "xlm-roberta", "xlm-roberta-xl",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chain_has_the_logits_of_a_fresh_run_or_the_model_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.kv.batch.SHARING", Sharing(min_copies=4, min_view=4))  # the texts are short
    try:
        made = network(family)
    except ValueError as error:
        pytest.skip(f"no tiny network: {error}")
    if family in REFUSED:
        with pytest.raises(UnsupportedModel):
            models.from_transformers(made, FakeTokenizer())
        return
    model = models.from_transformers(made, FakeTokenizer())
    model.prefix_cache.min_tokens = 4
    for seed in range(3):
        states = chain(model, seed, 8)
        # Most are off by less than 1e-5, in float32.
        assert worst_error(model, states) <= 3e-4 * max(1.0, float(states[0].logits.std()))


@pytest.mark.slow
def test_most_families_are_tried() -> None:
    tried = set()
    for family in FAMILIES:
        with suppress(ValueError):
            network(family)
            tried.add(family)
    assert len(tried) >= 140
    assert tried >= REFUSED
