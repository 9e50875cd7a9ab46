"""Random chains of operations on tiny random models of many families, against a fresh run on the same ids, in float32."""

from __future__ import annotations

import io
import random
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from outlines_cont import SequenceState, continuous, generate, models
from outlines_cont.errors import UnsupportedModel
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.fakes import VOCAB_SIZE, FakeTokenizer
from tests.model import tiny

_LLAMA = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
_EXPERTS = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 64,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
_CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**_LLAMA),
    "qwen3": lambda: transformers.Qwen3Config(**_LLAMA, head_dim=16),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=512, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**{k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_LLAMA, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": lambda: transformers.Phi3Config(**_LLAMA),
    "olmo2": lambda: transformers.Olmo2Config(**_LLAMA),
    "falcon": lambda: transformers.FalconConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, bos_token_id=0, eos_token_id=1
    ),
    "mpt": lambda: transformers.MptConfig(
        vocab_size=VOCAB_SIZE, d_model=64, n_layers=2, n_heads=4, max_seq_len=512, bos_token_id=0, eos_token_id=1
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**{**_LLAMA, **_EXPERTS}),
    "mamba2": lambda: transformers.Mamba2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=16,
        n_groups=1,
        bos_token_id=0,
        eos_token_id=1,
    ),
    "falcon_h1": lambda: transformers.FalconH1Config(**_LLAMA, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8),
    "lfm2": lambda: transformers.Lfm2Config(**_LLAMA, layer_types=["conv", "full_attention"]),
}
_RECURRENT = {"mamba2", "falcon_h1", "lfm2"}
_BRANCHING = {"llama", "qwen3", "gpt2", "gpt_neox", "phi3", "olmo2"}


@cache
def _model(family: str, dtype: torch.dtype = torch.float32) -> HuggingFaceModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.AutoModelForCausalLM.from_config(_CONFIGS[family]())
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(4.0)
    model = models.from_transformers(network.to(dtype).eval(), FakeTokenizer())
    model.prefix_cache.min_tokens = 4  # what the texts share is short
    return model


@pytest.fixture(autouse=True)
def _share_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share whatever can be shared: these texts are short."""
    monkeypatch.setattr("outlines_cont.kv.batch.SHARING", Sharing(min_copies=4, min_view=4))


@cache
def _fresh(model: HuggingFaceModel, token_ids: tuple[int, ...]) -> torch.Tensor:
    """(V,) logits after `token_ids`, from one plain forward."""
    with torch.inference_mode():
        logits: torch.Tensor = model.hugging_face(input_ids=torch.tensor([token_ids])).logits[0, -1]
    return logits.float()


def chain(model: HuggingFaceModel, seed: int, steps: int) -> list[SequenceState]:
    """Return the states of a random chain of all operations."""
    rng = random.Random(seed)
    write = continuous(generate.text(model))
    states = [write(["the name of the rose", "a"], max_tokens=3)]
    for _ in range(steps):
        state = rng.choice(states[-2:])
        operation = rng.randrange(7)
        if operation == 0:
            state = state[..., : rng.randint(3, 24)]
        elif operation == 1:
            state = state + rng.choice(["yes no", " is ", "x", "the blue age of it, or green"])
        elif operation == 2:
            state = state.fork(2) if len(state) < 3 else state.take([(0, 0), (0, 0)])
        elif operation == 3:
            state = SequenceState.stack([state[0, :, :], state[0, :, 1:9]]) if len(state) < 5 else state[:1, :, :]
        elif operation == 4:
            state = state + state[..., :5]
        else:
            state = write(state, max_tokens=rng.randint(1, 12))
        states.append(state)
    return states


def worst_error(model: HuggingFaceModel, states: list[SequenceState]) -> float:
    errors = []
    for state in states:
        for row, logits in zip(state._flat, state.logits.flatten(0, 1), strict=True):
            if row.token_ids and row.error is None:
                errors.append(float((logits - _fresh(model, row.token_ids)).abs().max()))
    return max(errors)


@pytest.mark.parametrize("family", sorted(_CONFIGS))
@pytest.mark.parametrize("seed", [0, 1])
def test_any_chain_has_the_logits_of_a_fresh_run(family: str, seed: int) -> None:
    model = _model(family)
    assert worst_error(model, chain(model, seed, 8)) <= 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3", "mamba2"])
def test_half_precision_is_within_its_own_rounding(family: str) -> None:
    model = _model(family, torch.bfloat16)
    states = chain(model, 0, 6)
    exact = _model(family)
    rounding = max(
        float((_fresh(model, row.token_ids) - _fresh(exact, row.token_ids)).abs().max())
        for state in states
        for row in state._flat
        if row.token_ids
    )
    assert worst_error(model, states) <= 2 * rounding


@pytest.mark.parametrize("family", sorted(_CONFIGS))
def test_what_a_model_can_do_is_found_out(family: str) -> None:
    model = _model(family)
    assert model.is_recurrent == (family in _RECURRENT)
    assert model.can_branch == (family in _BRANCHING)
    assert model.can_stack == (family not in _RECURRENT)
    assert not (model.can_skip and family in {"mistral", "gemma3", "mpt", *_RECURRENT})
    assert family not in str(model.capabilities)
    assert ("recurrent" in str(model.capabilities)) == (family in _RECURRENT)


@pytest.mark.parametrize("family", ["mistral", "gemma3", "phi3"])
def test_a_window_that_is_longer_than_the_probe_rules_out_holes_and_branches(family: str) -> None:
    config = _CONFIGS[family]()
    config.sliding_window = 64
    model = models.from_transformers(transformers.AutoModelForCausalLM.from_config(config).eval(), FakeTokenizer())
    assert not model.can_skip
    assert not model.can_branch
    assert model.can_stack
    write = continuous(generate.text(model))
    state = write(["the name of the rose " * 7, "a"], max_tokens=70)
    assert worst_error(model, [state, state[..., :90].fork(2), write(state[..., :100].fork(2), max_tokens=5)]) <= 1e-4


@pytest.mark.parametrize("family", sorted(_RECURRENT))
def test_a_recurrent_model_feeds_again_only_what_it_must_and_says_so(family: str) -> None:
    model = _model(family)
    write = continuous(generate.text(model))
    state = write("the name of the rose", max_tokens=4)
    first = state.cached.item()
    with model.meter() as meter:
        longer = write(state, max_tokens=3)
    assert meter.recomputed_tokens == 0
    assert meter.fed_tokens == longer.cached.item() - first
    cut = longer.tokens[:-2]
    assert cut.cached.item() == first
    with model.meter() as meter:
        write(cut, max_tokens=1)
    assert meter.fed_tokens == len(cut.rows[0][0].token_ids) - first
    assert state.nbytes > 0
    assert state.kv_cache is None


def test_a_model_whose_cache_is_not_exact_is_refused() -> None:
    config = transformers.MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=64, num_hidden_layers=2, state_size=8, eos_token_id=1)
    with pytest.raises(UnsupportedModel, match="Use a decoder-only model"):
        models.from_transformers(transformers.MambaForCausalLM(config), FakeTokenizer())
    t5 = transformers.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModel, match="an encoder-decoder"):
        models.from_transformers(transformers.T5ForConditionalGeneration(t5), FakeTokenizer())


def test_a_model_that_loses_something_with_each_single_token_is_refused() -> None:
    network = tiny.network("nemotron_h")
    assert models.from_transformers(network, FakeTokenizer()).is_recurrent
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    # The first step is off by a tenth of the bound.
    with pytest.raises(UnsupportedModel, match="in chunks and by single tokens as in one forward, got an error of"):
        models.from_transformers(network, FakeTokenizer())


@pytest.mark.parametrize("family", ["llama", "mistral", *sorted(_RECURRENT)])
def test_slices_sums_files_and_empty_axes_of_every_kind_of_cache(family: str) -> None:
    model = _model(family)
    write = continuous(generate.text(model))
    state = write(["the name é🙂", "a"], max_tokens=5)
    row = state.rows[0][0]
    for at in range(len(row.token_ids) + 1):
        both = state[0, ...].tokens[:at] + state[0, ...].tokens[at:]
        assert both == state[0, ...]
    parts = [state[..., 3:], state.tokens[..., 1:], state.tokens[..., :-2] + state.tokens[..., -2:], state[..., :4] + state]
    for part in parts:
        assert worst_error(model, [part]) <= 1e-4
    assert parts[0].logprobs.isnan().all()
    assert not parts[1].weights.any()
    file = io.BytesIO()
    state.save(file)
    file.seek(0)
    loaded = SequenceState.load(file, model)
    assert (loaded, hash(loaded)) == (state, hash(state))
    assert write.resume(loaded, max_tokens=3) == write.resume(state, max_tokens=3)
    for empty in (state[0:0, ...], state[:, 0:0, :]):
        assert write(empty, max_tokens=2) == empty
    assert write([state, "of"], max_tokens=2) == SequenceState.stack([write(state, max_tokens=2), write("of", max_tokens=2)])
