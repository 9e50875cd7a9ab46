"""`read_decoder`: the weights of a decoder of transformers in the order in which a forward uses them (`Decoder`, `DecoderLayer`), for the
families of `FAMILIES`, a table of where they have their modules; biases, norms of heads, scales and kinds of layers are read from these.
It raises `NotFused` with the reason for a network that is not, in every module, one of these as transformers made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from outlines_cont.models.joined import are_adjacent, joined
from outlines_cont.models.product import Product
from outlines_cont.models.text_tower import TextTower


class NotFused(Exception):
    """A network runs by the forward of transformers; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where the networks of a class have their modules.

    Attributes:
        body, embedding, positions, layers, norm: of the network; learned positions, None for others.
        attention, qkv, output: of a layer; one name in `qkv` where the weights are joined already.
        feed_forward, up, down: of a layer; with gates, in `up` the gate comes first.
        norms: before and after the attention, before and after the feed-forward network; None if there is none.
        is_gated: whether the upper half of `up` is multiplied by the activation of the lower one.
        is_centred: whether the weight of a norm is added to 1.
        windows: which layers have a sliding window: "none", "all", or those that the config calls so ("typed").
        position_axes: how many numbers a position has; those of text are equal (three where images are grids).
    """

    body: str = "model"
    embedding: str = "embed_tokens"
    positions: str | None = None
    layers: str = "layers"
    norm: str = "norm"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    feed_forward: str = "mlp"
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    norms: tuple[str | None, ...] = ("input_layernorm", None, "post_attention_layernorm", None)
    is_gated: bool = True
    is_centred: bool = False
    windows: str = "none"
    position_axes: int = 1


_POST_NORMS = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(windows="all"),
    "Qwen2ForCausalLM": Family(windows="typed"),
    "Qwen3ForCausalLM": Family(windows="typed"),
    "GemmaForCausalLM": Family(is_centred=True),
    "Gemma3ForCausalLM": Family(is_centred=True, windows="typed", norms=_FOUR_NORMS),
    "GraniteForCausalLM": Family(),
    "Olmo2ForCausalLM": Family(norms=_POST_NORMS),
    "Olmo3ForCausalLM": Family(norms=_POST_NORMS, windows="typed"),
    "Phi3ForCausalLM": Family(qkv=("qkv_proj",), up=("gate_up_proj",), windows="all"),
    "SmolLM3ForCausalLM": Family(windows="typed"),
    "StableLmForCausalLM": Family(),
    "Starcoder2ForCausalLM": Family(up=("c_fc",), down="c_proj", is_gated=False, windows="all"),
    "GPT2LMHeadModel": Family(
        body="transformer",
        embedding="wte",
        positions="wpe",
        layers="h",
        norm="ln_f",
        attention="attn",
        qkv=("c_attn",),
        output="c_proj",
        up=("c_fc",),
        down="c_proj",
        norms=("ln_1", None, "ln_2", None),
        is_gated=False,
    ),
    "Qwen2VLTextModel": Family(windows="typed", position_axes=3),
    "Qwen2_5_VLTextModel": Family(windows="typed", position_axes=3),
    "Qwen3VLTextModel": Family(position_axes=3),
}
"""By the class of the network, of the text model for a `TextTower`."""

_tanh_gelu = partial(functional.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLU": functional.silu,
    "SiLUActivation": functional.silu,
    "GELUActivation": functional.gelu,
    "GELUTanh": _tanh_gelu,
    "NewGELUActivation": _tanh_gelu,
    "PytorchGELUTanh": _tanh_gelu,
    "ReLU": functional.relu,
}
_FOREIGN_HOMES = ("torch.nn.modules.", "transformers.activations", "transformers.pytorch_utils")
# Rotary embeddings whose angles depend on the position alone.
_ROPES = {"default", "linear", "llama3", "yarn"}
_REFUSED = (
    *("add_cross_attention", "attn_logit_softcapping", "output_attentions", "qk_layernorm", "quantization_config"),
    *("use_bidirectional_attention", "use_parallel_residual"),
)

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """What a forward needs of one layer.

    Attributes:
        attention: the module of transformers, for functions that take one.
        norms: before and after the attention, before and after the feed-forward network; None for none.
        qkv, output, up, down: the products.
        head_norms: of queries and keys; None for none.
        norms_whole: whether these norm the heads of a token together, not one by one.
        activation: of the feed-forward network.
        scale: of the scores.
        window: how many tokens a query sees, itself included; None for all.
        rope: the key of the layer's rotary table; None for none.
    """

    attention: nn.Module
    norms: tuple[Norm | None, ...]
    qkv: Product
    output: Product
    up: Product
    down: Product
    head_norms: tuple[Norm, Norm] | None
    norms_whole: bool
    activation: Callable[[Tensor], Tensor]
    scale: float
    window: int | None
    rope: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """The weights of a decoder, and its constants.

    Attributes:
        embedding, positions, norm, head: before and after the layers; `positions` is None without learned ones.
        layers: in order.
        rotary: the module of transformers that computes the angles; None without.
        heads, key_heads, size: of the attention: H, Hk, D.
        is_gated, position_axes: see `Family`.
        embedding_scale, residual_scale, logits_scale: factors, 1 for most.
        logits_cap: the bound of the logits (by tanh), None for none.
    """

    embedding: Tensor
    positions: Tensor | None
    layers: list[DecoderLayer]
    norm: Norm
    head: Product
    rotary: nn.Module | None
    heads: int
    key_heads: int
    size: int
    is_gated: bool
    position_axes: int
    embedding_scale: float
    residual_scale: float
    logits_scale: float
    logits_cap: float | None


def read_decoder(network: Any) -> Decoder:
    """Return the weights of a network, joined where one product can take the place of several: their storage changes, not their values."""
    named = network.model if isinstance(network, TextTower) else network
    family = FAMILIES.get(type(named).__name__)
    if family is None:
        raise NotFused(f"{type(named).__name__} is not in the table of families")
    _check(network, type(named).__module__)
    config, body = network.config, getattr(network, family.body)
    embedding = getattr(body, family.embedding)
    layers = list(getattr(body, family.layers))[: config.num_hidden_layers]
    first = getattr(layers[0], family.attention)
    size = first.head_dim
    rotary = getattr(body, "rotary_emb", None)
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    read = [_layer(layer, index, family, network, size) for index, layer in enumerate(layers)]
    head = network.get_output_embeddings()
    return Decoder(
        embedding=embedding.weight,
        positions=getattr(body, family.positions).weight if family.positions else None,
        layers=read,
        norm=_norm(getattr(body, family.norm), family.is_centred),
        head=_product([head]),
        rotary=rotary,
        heads=config.num_attention_heads,
        key_heads=key_heads,
        size=size,
        is_gated=family.is_gated,
        position_axes=family.position_axes,
        embedding_scale=_embedding_scale(embedding, config),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logits_scale=1 / getattr(config, "logits_scaling", 1.0),
        logits_cap=getattr(config, "final_logit_softcapping", None),
    )


def _check(network: Any, own: str) -> None:
    """Raise `NotFused` for a network with something that transformers did not make so, or that its family does not do by default.

    Modules of the Python module `own` are the family's.
    """
    config = network.config
    if config._attn_implementation != "sdpa":
        raise NotFused(f"attention {config._attn_implementation!r} was chosen")
    found = [name for name in _REFUSED if getattr(config, name, None)]
    if found:
        raise NotFused(f"the config sets `{found[0]}`")
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = {rope["rope_type"] for rope in (ropes, *ropes.values()) if isinstance(rope, dict) and "rope_type" in rope}
    if not kinds <= _ROPES:
        raise NotFused(f"rotary embedding {min(kinds - _ROPES)!r}")
    for module in network.modules():
        home = type(module).__module__
        if home not in (own, TextTower.__module__) and not home.startswith(_FOREIGN_HOMES):
            raise NotFused(f"a module of type {type(module).__qualname__} of {home}")
    weights = list(network.parameters())
    kinds = {
        (type(weight), type(weight.data), weight.dtype, weight.device, weight.is_inference()) for weight in weights
    }
    if len(kinds) > 1 or {type(weight) for weight in weights} != {nn.Parameter} or type(weights[0].data) is not Tensor:
        raise NotFused("weights of several types or devices")
    # The norms of transformers round float64 to float32, which would be seen.
    is_known = weights[0].dtype in (torch.float32, torch.bfloat16, torch.float16)
    if weights[0].is_inference() or weights[0].device.type not in ("cpu", "cuda") or not is_known:
        raise NotFused(f"weights of {weights[0].dtype} on {weights[0].device}")


def _layer(layer: Any, index: int, family: Family, network: Any, size: int) -> DecoderLayer:
    attention, feed_forward = getattr(layer, family.attention), getattr(layer, family.feed_forward)
    head_norms = None
    if hasattr(attention, "q_norm"):
        head_norms = _norm(attention.q_norm, family.is_centred), _norm(attention.k_norm, family.is_centred)
    names = [type(module).__name__ for module in feed_forward.children()]
    activations = [_ACTIVATIONS[name] for name in names if name in _ACTIVATIONS]
    if len(activations) != 1:
        raise NotFused(f"activations {names}")
    window, rope = _kind(network.config, index, family)
    return DecoderLayer(
        attention=attention,
        norms=tuple(_norm(getattr(layer, name), family.is_centred) if name else None for name in family.norms),
        qkv=_product([getattr(attention, name) for name in family.qkv]),
        output=_product([getattr(attention, family.output)]),
        up=_product([getattr(feed_forward, name) for name in family.up]),
        down=_product([getattr(feed_forward, family.down)]),
        head_norms=head_norms,
        norms_whole=head_norms is not None and attention.q_norm.weight.numel() != size,
        activation=activations[0],
        scale=attention.scaling,
        window=window,
        rope=rope if getattr(attention, "use_rope", True) and not family.positions else None,
    )


def _kind(config: Any, index: int, family: Family) -> tuple[int | None, str]:
    """Return the window of a layer and its type, by which its rotary table is chosen."""
    kind = config.layer_types[index] if family.windows == "typed" else "full_attention"
    if kind not in ("full_attention", "sliding_attention"):
        raise NotFused(f"layers of type {kind!r}")
    is_sliding = family.windows == "all" or kind == "sliding_attention"
    return (config.sliding_window if is_sliding else None), kind


def _product(modules: list[Any]) -> Product:
    """Return the product of one module, or that of several with the same input."""
    weights = [module.weight for module in modules]
    whole = joined(weights)
    if not are_adjacent(whole, weights):
        raise NotFused("modules that share a weight")
    has_bias = [module.bias is not None for module in modules]
    if any(has_bias) != all(has_bias):
        raise NotFused("a bias in some of the modules that are joined")
    bias = joined([module.bias for module in modules]) if all(has_bias) else None
    # The weight of a `Conv1D` is transposed.
    return Product(whole.t() if isinstance(modules[0], nn.Linear) else whole, bias)


def _norm(module: Any, is_centred: bool) -> Norm:
    weight = module.weight
    if isinstance(module, nn.LayerNorm):
        return partial(
            functional.layer_norm, normalized_shape=weight.shape, weight=weight, bias=module.bias, eps=module.eps
        )
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    is_cheap = weight.device.type == "cpu" and weight.dtype == torch.float32
    rms_norm = _few_passes(weight, eps) if is_cheap else partial(torch.rms_norm, normalized_shape=weight.shape, eps=eps)
    if not is_centred:
        return partial(rms_norm, weight=weight)

    def norm(x: Tensor) -> Tensor:
        scaled = rms_norm(x, weight=None)
        return torch.addcmul(scaled, scaled, weight)

    return norm


def _few_passes(weight: Tensor, eps: float) -> Callable[..., Tensor]:
    """Return `torch.rms_norm` in four operators for a CPU, which are a dozen there. Cost: 4 us for a token in place of 7."""
    size = weight.shape[0]
    zero, least, root = weight.new_zeros(()), weight.new_tensor((size * eps) ** 0.5), size**0.5

    def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
        lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(least)
        scaled = torch.mul(x, root) if weight is None else torch.addcmul(zero, x, weight, value=root)
        return scaled.div_(lengths)

    return rms_norm


def _embedding_scale(embedding: Any, config: Any) -> float:
    scale = getattr(embedding, "embed_scale", None)
    if scale is not None:
        return float(scale.to(embedding.weight.dtype))
    return float(getattr(config, "embedding_multiplier", 1.0))
