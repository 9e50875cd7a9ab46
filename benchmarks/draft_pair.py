"""`DraftPair`: a model of random weights and its first two layers as a smaller one, whose guesses are accepted as often as is asked for."""

from __future__ import annotations

import copy
import math
from typing import Any

from benchmarks.rig import byte_tokenizer

TEMPERATURE = 0.3
"""At which both draw; greedy texts of random weights run in circles."""

_VOCAB_SIZE, _LAYERS, _KEPT = 512, 8, 2
_BISECTIONS = 9
_GUESSED = 4


class DraftPair:
    """The target, of 8 layers of width 512, and a draft that is made of its embedding, its first two layers and its output.

    What the other six layers add to the residual is multiplied by one number, found by bisection so that both draw the same token,
    with the same random number, as often as it takes; with 1 they are what they are. So every forward of both models costs what it
    would cost anyway. The vocabulary has 512 tokens, so that layers and not the output are what a forward costs, as in large models.

    Args:
        accepted: the share of tokens that is accepted of guesses of four tokens, as those behind a wrong one are not; 0 leaves the
            weights alone.

    Attributes:
        target, draft: wrapped.
        share: in which share of the places both draw the same token.
    """

    def __init__(self, accepted: float) -> None:
        from outlines_cont import models

        network = _target()
        small = _first_layers(network)
        self.share = _set_share(network, small, _agreement(accepted)) if accepted else _share(network, small)
        self.target, self.draft = (
            models.from_transformers(each, byte_tokenizer(), prefix_cache_bytes=0) for each in (network, small)
        )


def _target() -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def _first_layers(network: Any) -> Any:
    """Return a model that shares the modules of another, but for the layers behind the first ones."""
    import transformers

    config = copy.deepcopy(network.config)
    config.num_hidden_layers = _KEPT
    small = transformers.LlamaForCausalLM(config).eval()
    small.model.embed_tokens, small.model.norm, small.lm_head = (
        network.model.embed_tokens,
        network.model.norm,
        network.lm_head,
    )
    small.model.layers = network.model.layers[:_KEPT]
    return small


def _agreement(accepted: float) -> float:
    """Return how often single tokens must be right for this share of the tokens of guesses to be accepted."""
    low, high = 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        is_low = sum(share**length for length in range(1, _GUESSED + 1)) / _GUESSED < accepted
        low, high = (share, high) if is_low else (low, share)
    return low


def _set_share(network: Any, small: Any, share: float) -> float:
    """Weaken the later layers until both models agree in about this share; return the share."""
    import torch

    outputs = [
        out.weight for layer in network.model.layers[_KEPT:] for out in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]
    originals = [weight.detach().clone() for weight in outputs]
    low, high, found = math.log(1e-5), 0.0, 0.0
    for _ in range(_BISECTIONS):
        factor = (low + high) / 2
        with torch.no_grad():
            for weight, original in zip(outputs, originals, strict=True):
                weight.copy_(original * math.exp(factor))
        found = _share(network, small)
        low, high = (low, factor) if found < share else (factor, high)
    return found


def _share(network: Any, small: Any) -> float:
    """Return in which share of the places of random texts both models draw the same, over random numbers."""
    import torch

    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 257, (2, 160), generator=generator)
    uniforms = torch.rand((2, 160, 32), generator=generator, dtype=torch.float64)
    with torch.inference_mode():
        drawn = [
            torch.searchsorted((model(ids).logits.double() / TEMPERATURE).softmax(-1).cumsum(-1), uniforms)
            for model in (network, small)
        ]
    return float((drawn[0] == drawn[1]).double().mean())
