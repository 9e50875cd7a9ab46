"""Our own forward of decoders: the logits of transformers, few operators, shared memory, and when transformers runs instead."""

from __future__ import annotations

import copy
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.device_proxy import Proxy
from outlines_cont import continuous, generate, models
from outlines_cont.errors import OptionError
from outlines_cont.kv import attention
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.decoder_family import FAMILIES
from outlines_cont.models.fused import fused_decoder
from outlines_cont.models.joined import WeightsWatch, are_adjacent
from tests.examples import examples
from tests.fakes import VOCAB_SIZE, FakeTokenizer

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
_TYPES = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES),
    "llama with biases": lambda: transformers.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES),
    "qwen2 with windows": lambda: transformers.Qwen2Config(**_SIZES, **_TYPES, use_sliding_window=True),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=16),
    "gemma": lambda: transformers.GemmaConfig(**_SIZES, head_dim=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SIZES, **_TYPES, head_dim=16, query_pre_attn_scalar=16, final_logit_softcapping=2.0
    ),
    "granite": lambda: transformers.GraniteConfig(
        **_SIZES, embedding_multiplier=3.0, residual_multiplier=0.3, logits_scaling=2.0, attention_multiplier=0.2
    ),
    "olmo2": lambda: transformers.Olmo2Config(**_SIZES),
    "olmo3": lambda: transformers.Olmo3Config(**_SIZES, **_TYPES),
    "phi3": lambda: transformers.Phi3Config(**_SIZES),
    "phi3 that turns a half": lambda: transformers.Phi3Config(**_SIZES, partial_rotary_factor=0.5),
    "smollm3": lambda: transformers.SmolLM3Config(**_SIZES, no_rope_layers=[1, 0]),
    "stablelm": lambda: transformers.StableLmConfig(**_SIZES),
    "starcoder2": lambda: transformers.Starcoder2Config(**_SIZES, sliding_window=8),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=512, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    ),
}  # fmt: skip


def random_network(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random network with no weight at its default: norms and biases count."""
    config = _CONFIGS[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return network.to(dtype).eval()


def _opened(network: Any, **options: Any) -> HuggingFaceModel:
    return models.from_transformers(network, FakeTokenizer(), prefix_cache_bytes=0, **options)


@cache
def _model(family: str) -> HuggingFaceModel:
    return _opened(random_network(family))


def _plain(network: Any, ids: list[int]) -> torch.Tensor:
    """(T, V) logits of one row by the forward of transformers alone."""
    with torch.inference_mode():
        logits: torch.Tensor = network(input_ids=torch.tensor([ids])).logits[0]
    return logits


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


_IDS = st.lists(st.integers(3, VOCAB_SIZE - 6), max_size=12)
_CHUNKS = st.lists(_IDS, min_size=3, max_size=3).filter(any)


@pytest.mark.parametrize("family", _CONFIGS)
@settings(max_examples=examples(3))
@given(
    st.lists(st.tuples(_CHUNKS, st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=4),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.sampled_from([Sharing(1, 1), None]),
    st.lists(_IDS.filter(bool), min_size=4, max_size=4),
)
def test_rows_fed_cut_and_forked_have_the_logits_of_transformers(
    family: str, rounds: list[tuple[list[list[int]], int, int]], kept: list[int], sharing: Sharing | None, ends: list[list[int]]
) -> None:
    model = _model(family)
    assert model.capabilities.fused, model.capabilities.fused.why
    rows = [[3], [4, 5], [6]]
    batch = KVBatch(model, [None] * 3, sharing=sharing if model.can_branch else None)
    batch.feed(rows, [[0], [], []])
    for chunks, cut, back in rounds:
        stop = max(len(rows[cut]) - back, 1)
        del rows[cut][stop:]
        batch.rewind({cut: stop})
        _feed_and_compare(model, batch, rows, chunks)
    batch.keep(kept)
    rows = [list(rows[row]) for row in kept]
    _feed_and_compare(model, batch, rows, ends[: len(kept)])
    _feed_and_compare(model, batch, rows, [end[:1] for end in ends[: len(kept)]])


def _feed_and_compare(model: HuggingFaceModel, batch: KVBatch, rows: list[list[int]], chunks: list[list[int]]) -> None:
    wanted = [sorted({0, len(chunk) - 1} - {-1}) if chunk else [] for chunk in chunks]
    fed = batch.feed(chunks, wanted)
    for index, (row, chunk) in enumerate(zip(rows, chunks, strict=True)):
        row += chunk
        expected = _plain(model.hugging_face, row)
        for at in wanted[index]:
            found = fed.logits[index, fed.columns[index][at]]
            assert _error(found, expected[len(row) - len(chunk) + at]) < 1e-4


def test_every_family_of_the_table_is_tested() -> None:
    found = {type(_model(family).hugging_face).__name__ for family in _CONFIGS}
    of_images = {"Qwen2VLTextModel", "Qwen2_5_VLTextModel", "Qwen3VLTextModel"}  # in `tests/images/test_families.py`
    assert set(FAMILIES) == found | of_images


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_half_precision_is_within_its_own_rounding(family: str, dtype: torch.dtype) -> None:
    model = _opened(random_network(family, dtype))
    assert model.capabilities.fused, model.capabilities.fused.why
    exact = random_network(family)
    ids = list(range(3, 40))
    found = KVBatch(model, [None]).feed([ids], [list(range(len(ids)))]).logits[0]
    rounding = _error(_plain(model.hugging_face, ids).float(), _plain(exact, ids))
    assert _error(found, _plain(exact, ids)) <= 2 * rounding


class _Operators(TorchDispatchMode):
    """Counts operators that compute or copy: views are free."""

    _VIEWS = ("view", "slice", "transpose", "t", "unsqueeze", "select", "split", "split_with_sizes", "narrow", "unbind", "alias")
    _MORE_VIEWS = ("expand", "detach", "permute")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in self._VIEWS + self._MORE_VIEWS and not name.startswith(("_reshape_alias", "reshape", "chunk", "lift")):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _num_operators(family: str, num_layers: int, width: int, dtype: torch.dtype) -> int:
    kinds = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    config = kinds[family](**{**_SIZES, "num_hidden_layers": num_layers})
    model = _opened(transformers.AutoModelForCausalLM.from_config(config, dtype=dtype))
    assert model.capabilities.fused, model.capabilities.fused.why
    batch = KVBatch(model, [None] * 2)
    batch.feed([[3] * 5] * 2, [[4]] * 2)
    with _Operators() as operators:
        batch.feed([[4] * width] * 2, [[width - 1]] * 2)
    return operators.counts.total()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(("family", "limit", "norms"), [("llama", 13, 2), ("qwen2", 13, 2), ("qwen3", 16, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_takes_few_operators(family: str, limit: int, norms: int, width: int, dtype: torch.dtype) -> None:
    # A norm is one operator; in float32 on a CPU it is four, in place of the dozen that the one consists of there.
    parts = 4 if dtype == torch.float32 else 1
    counts = [_num_operators(family, num_layers, width, dtype) for num_layers in (2, 4)]
    assert counts[1] - counts[0] <= 2 * (limit + (parts - 1) * norms)
    assert counts[0] - 2 * (limit + (parts - 1) * norms) <= 16 + parts - 1


def test_joined_weights_are_those_of_the_model() -> None:
    network = random_network("llama")
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    model = _opened(network)
    attention, feed_forward = network.model.layers[1].self_attn, network.model.layers[1].mlp
    for modules in ([attention.q_proj, attention.k_proj, attention.v_proj], [feed_forward.gate_proj, feed_forward.up_proj]):
        assert are_adjacent(modules[0].weight, [module.weight for module in modules])
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
    ids = list(range(3, 12))
    first = KVBatch(model, [None]).feed([ids], [[8]]).logits
    with torch.no_grad():
        attention.k_proj.weight.mul_(1.5)
        feed_forward.up_proj.weight.data.add_(0.1)
    second = KVBatch(model, [None]).feed([ids], [[8]]).logits
    assert model.capabilities.fused
    assert not torch.allclose(first, second)
    assert _error(second[0, 0], _plain(network, ids)[-1]) < 1e-4


def test_a_joined_model_is_saved_and_loaded(tmp_path: Path) -> None:
    network = random_network("llama", tie_word_embeddings=False)
    copied = copy.deepcopy(network)
    model = _opened(network)
    network.save_pretrained(tmp_path)
    safetensors.torch.save_model(network, str(tmp_path / "whole.safetensors"))
    torch.save(network.state_dict(), tmp_path / "state.pt")
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    found = [
        loaded.state_dict(),
        safetensors.torch.load_file(tmp_path / "whole.safetensors"),
        torch.load(tmp_path / "state.pt", weights_only=True),
        copy.deepcopy(network).state_dict(),
    ]
    for name, weight in copied.state_dict().items():
        assert all(torch.equal(weight, state[name]) for state in found), name
    assert model.capabilities.fused


def test_two_models_of_one_network_share_its_forward() -> None:
    network = random_network("llama")
    first, second = _opened(network), _opened(network)
    assert first.capabilities.fused
    assert second.capabilities.fused


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_forwards_of_two_models_of_one_network_in_threads_are_those_alone(family: str) -> None:
    network = random_network(family)
    batches = [KVBatch(_opened(network), [None] * 2) for _ in range(2)]
    for batch in batches:
        batch.feed([[3, 4], [5, 6]], [[1], [1]])
    starts = [[3, 4], [5, 6]]
    found: list[list[torch.Tensor]] = [[], []]

    def run(index: int) -> None:
        found[index] += [batches[index].feed_next([7 + step, 8 + index]) for step in range(30)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for index, logits in enumerate(found):
        for row, start in enumerate(starts):
            written = [8 + index] * 30 if row else [*range(7, 37)]
            expected = _plain(network, [*start, *written])[-30:]
            assert _error(torch.stack(logits)[:, row], expected) < 1e-4


def _swap_parameter(network: Any) -> None:
    weight = network.model.layers[0].self_attn.k_proj.weight
    network.model.layers[0].self_attn.k_proj.weight = torch.nn.Parameter(weight * 2)


def _swap_module(network: Any) -> None:
    network.model.layers[1].mlp.down_proj = torch.nn.Linear(96, 64, bias=False)


def _swap_data(network: Any) -> None:
    network.model.norm.weight.data = network.model.norm.weight.data * 2


def _patch(network: Any) -> None:
    norm = network.model.layers[0].input_layernorm
    norm.forward = lambda x: x * 0.5


def _give_a_bias(network: Any) -> None:
    product = network.model.layers[0].self_attn.o_proj
    product.bias = torch.nn.Parameter(torch.ones(product.out_features))


def _hook(network: Any) -> None:
    network.model.layers[1].register_forward_hook(lambda _module, _given, out: out * 0.5)


def _early_hook(network: Any) -> None:
    network.model.layers[1].register_forward_pre_hook(lambda _module, given: (given[0] * 0.5, *given[1:]))


def _drop(network: Any) -> None:
    del network.model.layers[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_swap_parameter, "modules or weights were replaced"),
        (_swap_module, "modules or weights were replaced"),
        (_swap_data, "modules or weights were replaced"),
        (_drop, "modules or weights were replaced"),
        (_give_a_bias, "modules or weights were replaced"),
        (_patch, "a method of a module is replaced"),
        (_hook, "hooks are registered"),
        (_early_hook, "hooks are registered"),
    ],
)
def test_what_our_forward_would_not_see_is_run_by_transformers(change: Callable[[Any], None], why: str) -> None:
    network = random_network("llama")
    model = _opened(network)
    ids = list(range(3, 12))
    before = KVBatch(model, [None]).feed([ids], [[8]]).logits
    assert model.capabilities.fused
    change(network)
    assert model.capabilities.fused.why == why
    assert not model.capabilities.fused
    after = KVBatch(model, [None]).feed([ids], [[8]]).logits
    assert not torch.allclose(before, after)
    assert _error(after[0, 0], _plain(network, ids)[-1]) < 1e-4


def test_after_a_hook_is_removed_the_forward_is_ours_again() -> None:
    network = random_network("llama")
    model = _opened(network)
    handle = network.model.norm.register_forward_hook(lambda *_: None)
    assert not model.capabilities.fused
    handle.remove()
    assert model.capabilities.fused


class _OtherLinear(torch.nn.Linear):
    """A module that an adapter or a quantisation puts in the place of another."""


def _adapted() -> Any:
    network = random_network("llama")
    network.model.layers[0].self_attn.q_proj = _OtherLinear(64, 64, bias=False)
    return network


def _mixed() -> Any:
    network = random_network("llama")
    network.model.norm.to(torch.bfloat16)
    return network


def _shared() -> Any:
    network = random_network("llama")
    attention = network.model.layers[0].self_attn
    attention.v_proj.weight = attention.k_proj.weight
    return network


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (_adapted, "a module of type _OtherLinear"),
        (_mixed, "weights of several types"),
        (_shared, "modules that share a weight"),
        (lambda: random_network("llama", torch.float64), "weights of torch.float64"),
        (lambda: random_network("llama", output_attentions=True, _attn_implementation="eager"), "attention 'eager' was chosen"),
        (lambda: random_network("stablelm", use_parallel_residual=True), "the config sets `use_parallel_residual`"),
        (
            lambda: random_network("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rotary embedding 'dynamic'",
        ),
    ],
)
def test_a_network_that_is_not_as_transformers_made_it_is_run_by_transformers(network: Callable[[], Any], why: str) -> None:
    model = _opened(network())
    assert model.capabilities.fused.why.startswith(why)
    assert not model.capabilities.fused


def test_a_forward_that_has_other_logits_is_not_used() -> None:
    model = _opened(random_network("llama"))
    model.hugging_face.model.layers[1].self_attn.scaling *= 1.01  # which was read when the model was opened
    assert not model.capabilities.fused
    assert model.capabilities.fused.why.startswith("measured: error")
    ids = list(range(3, 12))
    logits = KVBatch(model, [None]).feed([ids], [[8]]).logits
    assert _error(logits[0, 0], _plain(model.hugging_face, ids)[-1]) < 1e-4


def test_it_can_be_turned_off() -> None:
    model, plain = models.tiny(), models.tiny(fused=False)
    assert model.capabilities.fused
    assert plain.capabilities.fused.why == "turned off: `fused=False`"
    assert "fused  no" in str(plain.capabilities)
    texts = [continuous(generate.regex(each, "[a-z]{3}-[0-9]+"))("the code: ", max_tokens=12) for each in (model, plain)]
    assert list(texts[0]) == list(texts[1])
    with pytest.raises(OptionError, match="`fused`"):
        models.tiny(fused="no")  # type: ignore[arg-type]


def test_steps_do_not_read_the_config_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _opened(random_network("llama"))
    write = generate.regex(model, "[a-z]{3}")
    write("a", max_tokens=9)

    def refused(config: Any) -> Any:
        raise AssertionError("the config was converted")

    monkeypatch.setattr(type(model.hugging_face.config), "to_dict", refused)
    write(["a", "b"], max_tokens=9)


def test_what_was_probed_belongs_to_the_attention_of_the_network() -> None:
    plain, eager = _opened(random_network("llama")), _opened(random_network("llama", _attn_implementation="eager"))
    assert (bool(plain.capabilities.branch), bool(eager.capabilities.branch)) == (True, False)
    assert (plain.can_branch, eager.can_branch) == (True, False)


def test_networks_that_share_their_layers_both_run_by_our_own_forward() -> None:
    network = random_network("llama")
    small = type(network)(copy.deepcopy(network.config)).eval()
    small.model.embed_tokens, small.model.norm, small.lm_head = network.model.embed_tokens, network.model.norm, network.lm_head
    small.config.num_hidden_layers, small.model.layers = 1, network.model.layers[:1]
    whole, part = _opened(network), _opened(small)
    for model in (whole, part, whole):
        assert model.capabilities.fused, model.capabilities.fused.why
        ids = [5, 6, 7, 8]
        found = KVBatch(model, [None]).feed([ids], [list(range(4))]).logits[0]
        assert _error(found, _plain(model.hugging_face, ids)) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fault", ["noise", "zeros", "a tenth more", "another row"])
def test_a_kernel_that_reads_shared_prefixes_wrongly_is_never_verified(
    fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forwards attend to shared prefixes by it, so that they agree with each other and with nothing else."""
    whole = attention._segment
    change: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "noise": torch.randn_like, "zeros": torch.zeros_like, "a tenth more": lambda x: 1.1 * x + 0.2,
        "another row": lambda x: x.roll(1, 1),
    }  # fmt: skip

    def wrong(*arguments: Any) -> Any:
        out, norm = whole(*arguments)
        return change[fault](out), norm

    monkeypatch.setattr(attention, "_segment", wrong)
    # Another config than that of other tests: what a probe has found is kept by class and config.
    model = _opened(random_network("llama", dtype, rms_norm_eps=1e-4 + 1e-7 * sorted(change).index(fault)))
    assert not model.capabilities.fused
    assert "mean square" in model.capabilities.fused.why
    assert not model.can_branch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_layers", [2, 16])
def test_rounding_alone_never_turns_our_own_forward_off(num_layers: int, dtype: torch.dtype) -> None:
    sizes = {**_SIZES, "num_hidden_layers": num_layers}
    for config in (transformers.LlamaConfig(**sizes), transformers.Phi3Config(**sizes)):
        with torch.random.fork_rng():
            torch.manual_seed(num_layers)
            network = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
        model = _opened(network)
        assert model.capabilities.fused, model.capabilities.fused.why


def _on_a_device(proxy: Proxy, dtype: torch.dtype) -> HuggingFaceModel:
    """A model whose memory is said to be on a CUDA device."""
    network = proxy.place(random_network("llama").to(dtype))
    fused_decoder(network)  # which gives the weights other storages
    return models.from_transformers(proxy.place(network), FakeTokenizer(), prefix_cache_bytes=0)


@torch.inference_mode()
def _steps(model: HuggingFaceModel, change: Callable[[], object] = lambda: None) -> torch.Tensor:
    """The logits of two forked rows that are fed a chunk and single tokens, before and after a change."""
    batch, found = KVBatch(model, [None], sharing=Sharing(1, 1)), []
    batch.feed([[5, 6, 7, 8, 9]], [[4]])
    batch.feed([[10, 11, 12]], [[2]])
    batch.keep([0, 0])
    for index, chunks in enumerate([[[13, 14], [15, 16]], [[17, 18, 19], [20, 21, 22]], [[23], [24]], [[25], [26]]]):
        if index == 2:
            change()
        found.append(batch.feed(chunks, [[0]] * 2).logits[:, 0])
    return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_behind_cached_tokens_have_on_a_device_the_logits_of_the_cpu(dtype: torch.dtype) -> None:
    wanted = _steps(models.from_transformers(random_network("llama").double(), FakeTokenizer(), prefix_cache_bytes=0))
    with Proxy() as proxy:
        model = _on_a_device(proxy, dtype)
        assert (bool(model.capabilities.fused), model.can_branch) == (True, True)
        found = _steps(model).cpu()
    spread = float(wanted.std())
    assert float((found.double() - wanted).abs().max()) < (0.2 if dtype == torch.bfloat16 else 1e-4) * spread


def test_on_a_device_the_network_is_looked_at_after_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy() as proxy:
        model = _on_a_device(proxy, torch.float32)
        batch = KVBatch(model, [None])
        with torch.inference_mode():
            batch.feed([[5, 6, 7]], [[2]])
        launched: list[bool] = []
        look = WeightsWatch.change

        def looking(watch: WeightsWatch) -> str | None:
            launched.append(proxy.steps[-1].outside > 0)
            return look(watch)

        monkeypatch.setattr(WeightsWatch, "change", looking)
        for _ in range(2):
            proxy.restart()
            with torch.inference_mode():
                batch.feed_next([8])
    assert launched == [True, True]


def test_a_network_that_changes_between_steps_on_a_device_is_run_by_transformers_from_that_step_on() -> None:
    with Proxy() as proxy:
        model = _on_a_device(proxy, torch.float32)
        unchanged = _steps(model).cpu()
        layer = model.hugging_face.model.layers[1].mlp

        def double(module: Any, given: Any, found: torch.Tensor) -> torch.Tensor:
            return found * 2

        hooks: list[Any] = []
        found = _steps(model, lambda: hooks.append(layer.register_forward_hook(double))).cpu()
        wanted = _plain_steps(model)
        hooks[0].remove()
    assert torch.equal(found[:2], unchanged[:2])
    assert float((found[2:] - unchanged[2:]).abs().max()) > 0.1
    torch.testing.assert_close(found[2], wanted, rtol=0, atol=1e-4)


@torch.inference_mode()
def _plain_steps(model: HuggingFaceModel) -> torch.Tensor:
    """The logits of the first step after the change of `_steps`, where the network is changed already, of whole rows without a cache.

    The hook changes what the last layer adds, so keys and values are those of the unchanged network.
    """
    rows = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17, 18, 19, 23], [5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 20, 21, 22, 24]]
    batch = KVBatch(model, [None] * 2)
    return batch.feed(rows, [[13]] * 2).logits[:, 0].cpu()
