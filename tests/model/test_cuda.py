"""The same tokens on a CUDA device as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_model, random_network

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


def _wide(groups: int, size: int, dtype: torch.dtype) -> Any:
    """A network with heads as real ones have: `groups` query heads for each of two key heads, of `size` values."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=256, intermediate_size=384, num_hidden_layers=3, num_attention_heads=2 * groups,
        num_key_value_heads=2, head_dim=size, max_position_embeddings=4096, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _logits(model: HuggingFaceModel) -> torch.Tensor:
    """Those of rows that are forked, ragged, cut, and fed in chunks and single tokens."""
    ids = torch.randint(3, VOCAB_SIZE, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    batch, found = KVBatch(model, [None], sharing=Sharing(1, 1)), []
    batch.feed([ids[:500]], [[499]])
    batch.feed([ids[500:530]], [[29]])
    batch.keep([0, 0, 0])
    for chunks in ([ids[i : i + 4] for i in range(3)], [ids[:7], ids[:2], ids[:5]], [[9]] * 3, [[8]] * 3):
        found.append(batch.feed(chunks, [[len(chunk) - 1] for chunk in chunks]).logits[:, -1])
    batch.rewind({1: 520, 2: 533})
    found.append(batch.feed_next([7, 6, 5]))
    return torch.stack(found).double().cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("size", [64, 128])
def test_our_own_forward_has_the_logits_of_the_cpu(groups: int, size: int, dtype: torch.dtype) -> None:
    network = _wide(groups, size, dtype)
    wanted = _logits(models.from_transformers(network.double(), FakeTokenizer(), prefix_cache_bytes=0))
    model = models.from_transformers(network.to("cuda", dtype), FakeTokenizer(), prefix_cache_bytes=0)
    assert model.capabilities.fused, model.capabilities.fused
    assert model.can_branch, model.capabilities.branch
    # Units in the last place, as many as rounding adds up to in three layers.
    bound = 40 * torch.finfo(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16).eps
    assert float((_logits(model) - wanted).abs().max()) < bound * float(wanted.std())
