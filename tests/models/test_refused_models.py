"""Models and tokenizers that do not fit, and rows of models that can do less: refused with a reason, or run to the same text."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outlines_cont import continuous, generate, models, policies
from outlines_cont.engine.drafting.costs import ForwardCosts
from outlines_cont.errors import TokenizerError, UnsupportedModel
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.capability import is_recurrent
from outlines_cont.models.tokenizer.tokenizer import open_backend
from outlines_cont.policies.healing import NO_HEALING
from outlines_cont.state.tokens import checked_given
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_model, random_network, recurrent_network


@pytest.mark.parametrize("error", [KeyError, AttributeError, TypeError, ValueError])
def test_a_cache_that_is_unknown_is_refused(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fails(**_: object) -> None:
        raise error("layers")

    monkeypatch.setattr("outlines_cont.models.capability.DynamicCache", fails)
    with pytest.raises(UnsupportedModel, match=r"the cache of LlamaForCausalLM is unknown \(.*layers.*\)"):
        is_recurrent(random_network("llama"))


def test_what_a_model_cannot_do_is_said_with_the_reason() -> None:
    network = copy.deepcopy(random_network("llama"))
    network.config.attention_chunk_size = 8
    chunked = models.from_transformers(network, FakeTokenizer()).capabilities
    assert (
        bool(chunked.crop),
        bool(chunked.stack),
        bool(chunked.skip),
        bool(chunked.branch),
    ) == (True, False, False, False)
    assert chunked.stack.why == "attention in chunks of columns"


def test_a_tokenizer_that_is_none_is_refused() -> None:
    with pytest.raises(TokenizerError, match="expected a Hugging Face tokenizer .* received SimpleNamespace"):
        open_backend(SimpleNamespace())
    strange = SimpleNamespace(tokenizer=SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=5)))
    with pytest.raises(TokenizerError, match="tokenizer of mistral-common, received int"):
        open_backend(strange)


def test_ids_are_those_of_the_model() -> None:
    model = random_model()
    assert (0, model.vocab_size - 1) == checked_given((0, model.vocab_size - 1), model)
    for odd in (-1, model.vocab_size):
        with pytest.raises(TokenizerError, match=f"from 0 to {VOCAB_SIZE - 1}, those of the model, got {odd}"):
            checked_given((0, odd), model)


def test_a_row_that_failed_is_not_healed() -> None:
    model = random_model()
    state = continuous(generate.text(model))(["the na", "x" * 3000], max_tokens=1)
    assert state.rows[1][0].error is not None
    assert open_prompt(model, state, None, None, heal=True).healing[1][0] is NO_HEALING


def test_bytes_of_snapshots_are_those_of_their_tensors() -> None:
    model = models.from_transformers(recurrent_network(), FakeTokenizer())
    state = continuous(generate.text(model))("the name", max_tokens=2)
    kv = state.rows[0][0].kv
    assert kv is not None
    (snapshot,) = kv.snapshots[-1:]  # type: ignore[attr-defined]
    tensors: list[torch.Tensor] = []
    todo: list[Any] = [vars(layer) for layer in snapshot.cache.layers]
    for value in todo:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, dict | list | tuple):
            todo += value.values() if isinstance(value, dict) else value
    assert tensors
    assert snapshot.nbytes == sum(tensor.nbytes for tensor in tensors)
    assert state.nbytes >= sum(kv.storage.values()) >= snapshot.nbytes
    assert kv.to(torch.device("cpu"), None) is kv  # type: ignore[arg-type]
    assert state == state.to("cpu")


def test_rows_one_by_one_go_back_as_rows_together_do(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = continuous(generate.text(random_model()))
    prompts = ["the name", "a", "of"]
    free = list(plain(prompts, max_tokens=8))
    banned = [policies.ban([free[0][len(prompts[0]) + 2 :][:2]])]
    together = plain(prompts, max_tokens=8, policies=banned)
    assert free[0] != next(iter(together))
    monkeypatch.setattr(HuggingFaceModel, "can_stack", False)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    alone = continuous(generate.text(model))(prompts, max_tokens=8, policies=banned)
    assert list(together) == list(alone)
    assert together.cached.tolist() == alone.cached.tolist()


def test_before_anything_was_measured_a_forward_takes_longer_the_more_it_feeds() -> None:
    costs = ForwardCosts("cpu")
    assert 0 < costs.seconds(1) < costs.seconds(8) < costs.seconds(64)
