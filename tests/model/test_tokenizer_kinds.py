"""Generators over real kinds of tokenizers: the text of a state is the prompt, what was added, and the values, exactly."""

from __future__ import annotations

import pytest
import torch
import transformers

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.models import HuggingFaceModel
from tests.tokenizer_kinds import tokenizer_of

_KINDS = [
    "GPT-2", "Llama 3", "Llama 2", "metaspace first", "Unigram first", "Gemma", "SentencePiece 32k in mistral-common",
]  # fmt: skip


def _model(kind: str) -> HuggingFaceModel:
    tokenizer = tokenizer_of(kind)
    size = len(tokenizer.token_bytes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=1, max_position_embeddings=512,
                eos_token_id=size - 1 if tokenizer.eos_token_id is None else tokenizer.eos_token_id,
            )
        )  # fmt: skip
    return models.from_transformers(network.double(), tokenizer)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_text_of_a_chain_is_the_joined_text_of_its_parts(kind: str) -> None:
    model = _model(kind)
    prompt, added = "The é of  12 日本🙂\n", " and 🙂 then"
    sampler = samplers.multinomial(temperature=2.0)
    with model.meter() as meter:
        options = ["a kind word", "日本🙂 é", " spaces  here "]
        state = continuous(generate.choice(model, options, exact=False, sampler=sampler))(prompt, rng=1)
        first = state.value
        state = continuous(generate.regex(model, r'\{"é": "[a-c🙂]{2,4}"\}', sampler=sampler))(state + added)
    assert prompt + first + added + state.value == str(state)
    assert int(state.cached.sum()) == meter.fed_tokens
    stopped = generate.regex(model, "xx[ab]{3}stop[ab]{3}", sampler=sampler)
    state = continuous(stopped)(prompt, rng=2, stop_at="stop")
    assert str(state)[: len(prompt) + 2] == prompt + "xx"
    assert len(prompt) + 5 == len(str(state))


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_healed_is_spelled_as_it_was(kind: str) -> None:
    model = _model(kind)
    draw = continuous(generate.text(model, sampler=samplers.multinomial(3, temperature=2.0)))
    for prompt in ("see http:", "The quick bro", "a ", "é", '{"nam', "東京都は日", "🙂 👍", "12", "  x  "):
        state = draw(prompt, heal=True, max_tokens=2, rng=1)
        for row, text, value in zip(state.rows[0], state, state.values[0], strict=True):
            assert row.error is None
            assert text.encode()[: len(prompt.encode())] == prompt.encode()
            if "\ufffd" not in text:
                assert prompt + value == text
        forced = continuous(generate.regex(model, "[0-9]{3}|://[a-z]"))(prompt, heal=True)
        assert prompt + forced.value == str(forced)
