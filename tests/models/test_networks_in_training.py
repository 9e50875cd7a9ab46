"""Networks that a program trains while it generates: forwards are in evaluation mode, and see the weights of now."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForCausalLM,
)

from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import UnsupportedModel
from tests.fakes import tiny

PROMPT = "The name of the river is"


def network(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":  # drops a tenth
        return GPT2LMHeadModel(GPT2Config(vocab_size=1283, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=1283, attention_dropout=0.5, **sizes))


@torch.no_grad()
def worst_error(made: Any, state: SequenceState) -> float:
    """The largest difference to the log-probabilities of one forward of each row by transformers, in evaluation mode."""
    made.eval()
    worst = 0.0
    for row, logprobs in zip(state.rows[0], state.logprobs[0], strict=True):
        ids = torch.tensor([row.token_ids])
        wanted = made(ids).logits[0].log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
        found = logprobs[1 : len(row.token_ids)]  # of a prompt they are not numbers
        assert found.isfinite().any()
        worst = max(worst, (found - wanted)[found.isfinite()].abs().max().item())
    return worst


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("fused", [True, False])
def test_texts_of_a_network_in_training_mode_are_those_of_evaluation_mode(kind: str, fused: bool) -> None:
    made = network(kind)
    model = models.from_transformers(made, tiny().tokenizer.hugging_face, fused=fused)
    write = continuous(generate.text(model, sampler=samplers.multinomial(2)))
    expected = write(PROMPT, max_tokens=6, rng=1)
    made.train()
    frozen = next(module for module in made.modules() if isinstance(module, torch.nn.Dropout | torch.nn.Linear))
    frozen.eval()
    modes = [module.training for module in made.modules()]
    model.prefix_cache.clear()
    assert write(PROMPT, max_tokens=6, rng=1) == expected
    assert write(PROMPT, max_tokens=6, rng=1).logprobs.allclose(expected.logprobs, atol=1e-6, equal_nan=True)
    assert [module.training for module in made.modules()] == modes
    made.gradient_checkpointing_enable()
    longer = write(expected, max_tokens=3)
    assert worst_error(made, longer) < 1e-5


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_each_step_of_an_optimizer_is_seen_by_the_next_call(kind: str) -> None:
    made = network(kind)
    model = models.from_transformers(made, tiny().tokenizer.hugging_face)
    write = continuous(generate.text(model, sampler=samplers.multinomial()))
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    made.train()
    for step in range(3):
        state = write(PROMPT * 8, max_tokens=4, rng=step)  # long enough to be found in the prefix cache
        assert worst_error(made, state) < 1e-5
        made.train()
        ids = torch.tensor([state.rows[0][0].token_ids])
        optimizer.zero_grad()
        made(ids, labels=ids).loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda: network("llama").model,
        lambda: LlamaForSequenceClassification(network("llama").config),
        lambda: BertModel(BertConfig(vocab_size=1283, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)),
    ],
)
def test_a_network_without_a_head_is_refused_by_name(make: Any) -> None:
    made = make()
    with pytest.raises(UnsupportedModel, match=f"{type(made).__name__}, which has no layer that scores"):
        models.from_transformers(made, tiny().tokenizer.hugging_face)


@pytest.mark.parametrize("kind", [BertLMHeadModel, BertForMaskedLM, RobertaForCausalLM])
@pytest.mark.parametrize("seed", range(3))
def test_an_encoder_with_a_head_is_refused_however_little_its_tokens_see_of_each_other(kind: Any, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    config = (RobertaConfig if kind is RobertaForCausalLM else BertConfig)(vocab_size=1283, **sizes)
    with pytest.raises(UnsupportedModel, match="`is_decoder=True`"):
        models.from_transformers(kind(config), tiny().tokenizer.hugging_face)
