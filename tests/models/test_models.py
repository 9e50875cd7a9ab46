"""Models: what is loaded, refused, probed and counted; models and tokenizers that do not fit or can do less."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.cli.__main__ import app
from outlines_cont.errors import MissingTokenizer, ModelMismatch, ModelNotFound, OptionError, TokenizerError, UnsupportedModel
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.models import HuggingFaceModel, loading
from outlines_cont.models.capability import is_recurrent
from outlines_cont.models.hugging_face import _vocab_size
from outlines_cont.models.tokenizer.tokenizer import open_backend
from outlines_cont.policies.healing import NO_HEALING
from outlines_cont.state.tokens import checked_given
from tests.fakes import (
    BOS,
    END_OF_TURN,
    EOS,
    FAMILIES,
    VOCAB_SIZE,
    FakeTokenizer,
    ScriptedNetwork,
    random_model,
    random_network,
    recurrent_network,
    scripted_config,
)
from tests.saved_model import save_model
from tests.vocabularies import GPT2_EOS, byte_level_bpe


@pytest.mark.parametrize(("family", "can_skip"), [("llama", True), ("gpt2", True), ("qwen3", True), ("mistral", False), ("gemma3", False)])
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


@pytest.mark.parametrize("is_steady", [True, False])
def test_tokens_that_a_model_excludes_are_no_error_of_the_probe_unless_others_are_excluded_in_a_batch(is_steady: bool) -> None:
    class Excluding(ScriptedNetwork):
        """A class of its own, as what was found is known by class and config."""

    def exclude(network: Any, given: Any, found: Any) -> None:
        found.logits[..., 40 + (0 if is_steady else len(found.logits)) :: 7] = -torch.inf

    network = Excluding(scripted_config())
    network.script = lambda ids: {ids[-1]: 3.0, len(ids): 5.0}
    network.register_forward_hook(exclude)
    model = models.from_transformers(network, FakeTokenizer())
    assert (is_steady, is_steady) == (model.can_stack, model.can_skip)
    if is_steady:
        assert generate.regex(model, "[ab]{2}", sampler=samplers.beam_search(2))(">")


def test_asking_for_the_capability_is_not_metered() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with model.meter() as meter:
        assert model.can_skip
    assert meter.forwards == 0


def _mamba() -> transformers.PreTrainedModel:
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))


def _encoder_decoder() -> transformers.PreTrainedModel:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


def _bert(*, is_decoder: bool = False) -> transformers.PreTrainedModel:
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        is_decoder=is_decoder,
        pad_token_id=0,
        eos_token_id=1,
    )
    return _sharp(transformers.BertLMHeadModel(config))


def _gpt_1() -> transformers.PreTrainedModel:
    return _sharp(transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(vocab_size=VOCAB_SIZE, n_embd=16, n_layer=1, n_head=2)))


def _sharp(network: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A network with larger weights, so that tokens matter to each other."""
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(8.0)
    return network.eval()


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (_mamba, "cannot continue"),
        (_encoder_decoder, "an encoder-decoder"),
        (_bert, "a causal model, .* `is_decoder=True`"),
        (_gpt_1, "cache"),
    ],
)
def test_models_that_cannot_be_run_exactly_are_refused(network: Callable[[], transformers.PreTrainedModel], said: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=f"{said}.*Use a decoder-only model"):
        models.from_transformers(network(), FakeTokenizer())


def test_an_encoder_that_is_made_a_decoder_runs() -> None:
    torch.manual_seed(0)
    model = models.from_transformers(_bert(is_decoder=True), FakeTokenizer())
    state = continuous(generate.text(model))("the name", max_tokens=4)
    longer = continuous(generate.text(model))(state, max_tokens=3)
    whole = model.hugging_face(input_ids=torch.tensor([longer.rows[0][0].token_ids])).logits[0, -1]
    assert torch.allclose(longer.logits[0, 0], whole, atol=1e-4)


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


@pytest.mark.parametrize("sets", [(), ("avx512_bf16",), ("amx_tile",)])
def test_auto_is_half_precision_where_the_processor_has_instructions_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...]
) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in sets)
    save_model(tmp_path)
    model = models.transformers(tmp_path, dtype="auto")
    assert model.dtype == (torch.bfloat16 if sets else torch.float32)
    assert bool(model.capabilities.half) == bool(sets)
    assert "dtype='auto'" in next(line for line in str(model.capabilities).splitlines() if line.startswith("half"))


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
def test_a_name_that_is_neither_folder_nor_id_says_what_was_tried(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        models.transformers(name, local_files_only=True)
    assert caught.value.option == "id_or_path"
    for part in (repr(name), repr(str(tmp_path / name)), "only the cache of the hub was searched", "transformers says: "):
        assert part in str(caught.value)
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(OSError, match="found in directory") as other:  # a folder without weights is another matter
        models.transformers(name)
    assert not isinstance(other.value, ModelNotFound)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dtype": "float8"}, "'float64', such a type of torch or 'auto' as `dtype`, got 'float8'"),
        ({"dtype": "nn"}, "as `dtype`, got 'nn'"),
        ({"dtype": "int8"}, "as `dtype`, got 'int8'"),
        ({"dtype": torch.float8_e4m3fn}, "as `dtype`, got torch.float8_e4m3fn"),
        ({"dtype": 16}, "as `dtype`, got 16"),
        ({"id_or_path": "empty"}, "but 'empty' has no config.json"),
        ({"id_or_path": "file"}, "but 'file' is a file"),
        ({"id_or_path": "./tinny"}, "but './tinny' does not exist. Did you mean 'tiny'?"),
        ({"id_or_path": 3}, "got int. "),
        ({"id_or_path": None}, "got NoneType. "),
        ({"trust_remote_code": None}, "expected True or False as `trust_remote_code`, got None"),
        ({"trust_remote_code": "no"}, "expected True or False as `trust_remote_code`, got 'no'"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_once(
    given: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "tiny")
    Path("empty").mkdir()
    Path("file").touch()
    with pytest.raises(OptionError) as caught:
        models.transformers(**({"id_or_path": "tiny"} | given))
    assert said in str(caught.value)
    assert caught.value.option == next(iter(given))


def test_a_network_in_place_of_a_name_is_named_by_its_class() -> None:
    with pytest.raises(OptionError, match=r"got LlamaForCausalLM\. .* `models.from_transformers\(model, tokenizer\)`"):
        models.transformers(random_network("llama"))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float8", torch.int8, None, 3])
def test_the_bundled_model_has_a_float_type(dtype: Any) -> None:
    with pytest.raises(OptionError, match="as `dtype`, got "):
        models.tiny(dtype=dtype)
    assert models.tiny(dtype="float64").dtype == torch.float64


def test_a_wrong_name_is_asked_for_once_and_a_near_folder_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection transformers asks for each file six times in 23 seconds, also for those that a cached model lacks."""
    save_model(tmp_path / "models" / "lamps-small")
    asked: list[str] = []

    def unreachable(url: str, *_: object) -> None:
        asked.append(url)
        raise ConnectionError("Name or service not known")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "is_offline_mode", lambda: False)
    monkeypatch.setattr(loading, "get_hf_file_metadata", unreachable)
    with pytest.raises(ModelNotFound) as caught:
        models.transformers("models/lamp-small", revision="v1")
    assert asked == ["https://huggingface.co/models/lamp-small/resolve/v1/config.json"]
    assert "got 'models/lamp-small'. Did you mean 'models/lamps-small'? Tried: the folder " in str(caught.value)
    assert "the hub cannot be reached (Name or service not known), so only the cache of the hub was searched" in str(caught.value)

    cached = tmp_path / "cache" / "models--own--lamps"
    save_model(cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    assert models.transformers("own/lamps", cache_dir=tmp_path / "cache").vocab_size == 300
    assert len(asked) == 2


_EVIL = """
from pathlib import Path
Path("ran").touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class EvilConfig(LlamaConfig): model_type = "evil"
class EvilModel(LlamaForCausalLM): config_class = EvilConfig
class EvilTokenizer(PreTrainedTokenizerFast): pass
"""
_EVIL_PARTS = {
    "config": ("config.json", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}),
    "model": ("config.json", {"model_type": "bert-generation", "auto_map": {"AutoModelForCausalLM": "evil.EvilModel"}}),
    "known": ("config.json", {"auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}}),
    "tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": [None, "evil.EvilTokenizer"]}},
    ),
}


def evil_model(folder: Path, part: str) -> Path:
    """Write a model of which a part has code of its own, which leaves a file `ran` in the working directory."""
    save_model(folder)
    (folder / "evil.py").write_text(_EVIL)
    name, changes = _EVIL_PARTS[part]
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("part", _EVIL_PARTS)
def test_no_code_of_a_model_runs_and_nobody_is_asked(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked at the standard input"))
    evil_model(tmp_path / "evil", part)
    for options in ({}, {"attn_implementation": "eager", "vocab_sizes": 3}):  # the second looks at the config first
        with suppress(ValueError, TypeError):  # what is left may be a model that transformers knows
            models.transformers("evil", **options)
    assert not Path("ran").exists()


def test_code_of_a_model_runs_where_the_caller_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", sys.path.copy())  # transformers adds the folder to it
    evil_model(tmp_path / "evil", "tokenizer")
    models.transformers("evil", trust_remote_code=True)
    assert Path("ran").exists()


def test_a_command_takes_no_answer_from_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil_model(tmp_path / "evil", "config")
    (tmp_path / "s.json").write_text('{"type": "boolean"}')
    done = CliRunner().invoke(app, ["extract", "-", "--schema", "s.json", "--model", "./evil"], input="y\ny\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "code of its own, which a command never runs" in done.stderr
    assert "`trust_remote_code`, set to true" in done.stderr
    assert "[y/N]" not in done.output
    assert not (tmp_path / "ran").exists()


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
    wanted = generate.text(random_model("llama"), sampler=samplers.multinomial(2))(["the name", "a"], max_tokens=5, rng=3)
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
    network = random_network("llama")
    first, second = (models.from_transformers(network, FakeTokenizer()) for _ in range(2))
    shown = rf"<HuggingFaceModel LlamaForCausalLM, {VOCAB_SIZE} tokens, torch.float64, cpu, #\d+>"
    assert re.fullmatch(shown, repr(second))
    with pytest.raises(ModelMismatch) as caught:
        generate.text(second)(continuous(generate.text(first))("the", max_tokens=1))
    assert repr(first) != repr(second)
    assert repr(first) in str(caught.value)
    assert repr(second) in str(caught.value)
    assert random_model("llama").tokenizer.encode("", add_special_tokens=True)[0] == BOS


def test_the_device_is_that_of_the_weights_now() -> None:
    network = random_network("llama")
    model = models.from_transformers(network, FakeTokenizer())
    assert model.device.type == "cpu"
    network.load_state_dict({name: weight.to("meta") for name, weight in network.state_dict().items()}, assign=True)
    assert model.device.type == "meta"


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
    assert (bool(chunked.crop), bool(chunked.stack), bool(chunked.skip), bool(chunked.branch)) == (True, False, False, False)
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


@pytest.mark.parametrize(("head", "expected"), [(SimpleNamespace(weight=torch.zeros(40, 8)), 40), (SimpleNamespace(), 32), (None, 32)])
def test_the_width_is_that_of_the_output_layer_where_there_is_one(head: Any, expected: int) -> None:
    config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(vocab_size=32))
    model: Any = SimpleNamespace(get_output_embeddings=lambda: head, config=config)
    assert expected == _vocab_size(model)
