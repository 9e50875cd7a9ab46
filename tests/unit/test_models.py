"""Models: what is loaded, refused, probed and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from outlines_cont import MissingTokenizer, ModelNotFound, UnsupportedModel, continuous, generate, models, samplers
from outlines_cont.models import HuggingFaceModel
from tests.fakes import BOS, END_OF_TURN, EOS, FAMILIES, VOCAB_SIZE, FakeTokenizer, random_model, random_network
from tests.vocabularies import GPT2_EOS, byte_level_bpe


@pytest.mark.parametrize(
    ("family", "can_skip"), [("llama", True), ("gpt2", True), ("qwen3", True), ("mistral", False), ("gemma3", False)]
)
def test_a_model_with_a_sliding_window_cannot_skip_columns(family: str, can_skip: bool) -> None:
    model = random_model(family)
    assert (True, can_skip) == (model.can_stack, model.can_skip)


def test_the_probe_sees_what_masked_columns_do_to_alibi() -> None:
    config = transformers.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=VOCAB_SIZE, max_seq_len=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.MptForCausalLM(config).double().eval()
    model = models.from_transformers(network, FakeTokenizer())
    assert not model.can_skip


def test_asking_for_the_capability_is_not_metered() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with model.meter() as meter:
        assert model.can_skip
    assert meter.forwards == 0


def _mamba() -> transformers.PreTrainedModel:
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    )


def _encoder_decoder() -> transformers.PreTrainedModel:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


@pytest.mark.parametrize("network", [_mamba, _encoder_decoder])
def test_models_that_cannot_be_run_exactly_are_refused(network: object) -> None:
    with pytest.raises(UnsupportedModel, match="Use a decoder-only model"):
        models.from_transformers(network(), FakeTokenizer())  # type: ignore[operator]


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got str. To load one by its id or path use `models.transformers"):
        models.from_transformers("gpt2", FakeTokenizer())  # type: ignore[arg-type]


def test_every_end_that_the_generation_config_and_the_tokenizer_name_counts() -> None:
    network = random_network("llama")
    network.generation_config.eos_token_id = [EOS, END_OF_TURN]
    assert {EOS, END_OF_TURN} == models.from_transformers(network, FakeTokenizer()).eos_token_ids
    network.generation_config.eos_token_id = None
    assert {EOS} == models.from_transformers(network, FakeTokenizer()).eos_token_ids
    assert set() == models.from_transformers(network, FakeTokenizer(eos=False)).eos_token_ids


def test_a_saved_model_is_loaded_from_its_folder(tmp_path: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token=GPT2_EOS)
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer) + 3, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        )
    )  # fmt: skip
    network.save_pretrained(tmp_path)
    with pytest.raises(MissingTokenizer, match="give them to `models.from_transformers"):
        models.transformers(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = models.transformers(tmp_path, device="cpu", dtype="float64")
    assert (torch.float64, len(tokenizer) + 3, 64) == (model.dtype, model.vocab_size, model.context_length)
    text = generate.text(model)("hello wor", max_tokens=3)
    assert isinstance(text, str)
    assert not model.hugging_face.training


@pytest.mark.parametrize("name", ["nobody/nothing", "nofolder"])
def test_a_name_that_is_neither_folder_nor_id_says_what_was_tried(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        models.transformers(name, local_files_only=True)
    assert caught.value.option == "id_or_path"
    for part in (repr(name), repr(str(tmp_path / name)), "cache of the hub", "transformers says: "):
        assert part in str(caught.value)
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(OSError, match="found in directory") as other:  # a folder without weights is another matter
        models.transformers(name)
    assert not isinstance(other.value, ModelNotFound)


def test_logits_are_at_least_float32() -> None:
    model = models.from_transformers(random_network("llama", dtype=torch.bfloat16), FakeTokenizer())
    state = continuous(generate.text(model))(["the name", "a"], max_tokens=4)
    assert torch.float32 == state.logprobs.dtype
    assert not [row.error for group in state.rows for row in group if row.error]


def test_a_model_without_selected_logits_gives_all_and_the_same_tokens() -> None:
    plain, limited = random_model("llama"), models.from_transformers(random_network("llama"), FakeTokenizer())
    limited._takes -= {"logits_to_keep"}
    prompts = ["the name", "a"]
    assert generate.text(plain)(prompts, max_tokens=6) == generate.text(limited)(prompts, max_tokens=6)


def test_a_model_that_cannot_be_stacked_runs_its_rows_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = generate.text(random_model("llama"), sampler=samplers.multinomial(2))(
        ["the name", "a"], max_tokens=5, rng=3
    )
    monkeypatch.setattr(HuggingFaceModel, "can_stack", False)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with model.meter() as meter:
        assert wanted == generate.text(model, sampler=samplers.multinomial(2))(["the name", "a"], max_tokens=5, rng=3)
    assert meter.forwards == 2 + 4 * 4


def test_meters_nest_and_count_what_was_paid() -> None:
    model = random_model("llama")
    write = continuous(generate.text(model))
    prompt = model.tokenizer.encode("the name", add_special_tokens=True)
    with model.meter() as outer:
        state = write("the name", max_tokens=3)
        with model.meter() as inner:
            write(state + " of", max_tokens=2)
    write(state, max_tokens=1)
    assert (2, 2, len(prompt) + 2) == (inner.forwards, inner.sampled_tokens, inner.reused_tokens)
    # The last token of the first piece, the text, and the first of the two new tokens.
    assert 1 + len(model.tokenizer.encode(" of")) + 1 == inner.fed_tokens
    assert len(prompt) + 2 + inner.fed_tokens == outer.fed_tokens
    assert (outer.forwards, outer.sampled_tokens) == (5, 5)
    assert outer.mask_seconds > inner.mask_seconds > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_network_and_the_tokenizer_stay_as_they_are(family: str) -> None:
    network, tokenizer = random_network(family), FakeTokenizer()
    before = (network.config.to_json_string(), dict(vars(tokenizer)), network.generation_config.to_json_string())
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generate.text(models.from_transformers(network, tokenizer))(["the", "a b"], max_tokens=3)
    assert before == (network.config.to_json_string(), vars(tokenizer), network.generation_config.to_json_string())
    assert all(tensor.equal(weights[name]) for name, tensor in network.state_dict().items())


def test_a_repr_says_what_the_model_is() -> None:
    assert f"<HuggingFaceModel LlamaForCausalLM, {VOCAB_SIZE} tokens, torch.float64, cpu>" == repr(
        random_model("llama")
    )
    assert random_model("llama").tokenizer.encode("", add_special_tokens=True)[0] == BOS


def test_the_device_is_that_of_the_weights_now() -> None:
    network = random_network("llama")
    model = models.from_transformers(network, FakeTokenizer())
    assert model.device.type == "cpu"
    network.load_state_dict({name: weight.to("meta") for name, weight in network.state_dict().items()}, assign=True)
    assert model.device.type == "meta"
