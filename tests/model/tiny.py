"""Tiny random networks of every causal family that transformers has: a config with small numbers, by the names that families give them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.fakes import VOCAB_SIZE

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
_MAX_PARAMETERS = 20_000_000
_BASE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
_FOUR = {**_BASE, "num_hidden_layers": 4}
_SMALL: dict[str, Any] = {
    **_BASE, "head_dim": 16,
    # Other names of the same numbers.
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96, "d_model": 64, "n_layers": 2, "n_heads": 4,
    "max_seq_len": 512, "ffn_dim": 96, "num_layers": 2, "num_heads": 4, "dim": 64, "n_kv_heads": 2, "hidden_dim": 96, "d_kv": 16,
    "d_ff": 96, "ffn_hidden_size": 96, "embedding_size": 64, "word_embed_proj_dim": 64, "attention_hidden_size": 64, "rotary_dim": 8,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96,
    "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "query_pre_attn_scalar": 16, "sliding_window": 8,
    # Experts.
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1, "moe_num_experts": 4, "moe_k": 2,
    "moe_num_shared_experts": 1, "expert_ffn_hidden_size": 32,
    # Latent and indexed attention.
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64,
    # Recurrent layers.
    "state_size": 8, "mamba_d_state": 8, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
_MAMBA_LAYERS = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 1}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8, "head_dim": 16, "num_kv_shared_layers": 2}
_PER_LAYER = {"vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 8}
# Families whose numbers depend on each other.
_OWN: dict[str, dict[str, Any]] = {
    "bamba": {**_FOUR, **_MAMBA_LAYERS, "attn_layer_indices": [1, 3]},
    "dbrx": {
        "vocab_size": VOCAB_SIZE, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1, "hidden_size": 64},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
    },
    "dots1": {**_FOUR, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
              "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gemma3n_text": {**_FOUR, **_SLIDING, **_PER_LAYER, "laurel_rank": 8, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {**_FOUR, **_SLIDING, **_PER_LAYER, "global_head_dim": 16},
    "gpt_neo": {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8,
                "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1},
    "granitemoehybrid": {**_FOUR, **_MAMBA_LAYERS, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 2,
                         "num_experts_per_tok": 1, "shared_intermediate_size": 32},
    "jamba": {**_FOUR, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 8, "mamba_dt_rank": 8},
    "lfm2_moe": {**_FOUR, "layer_types": ["conv", "full_attention"] * 2, "num_experts": 2, "num_experts_per_tok": 1,
                 "moe_intermediate_size": 32, "num_dense_layers": 1},
    "mamba2": {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 16,
               "n_groups": 1, "bos_token_id": 0, "eos_token_id": 1},
    "recurrent_gemma": {**_FOUR, "lru_width": 64, "attention_window_size": 8, "block_types": ["recurrent", "recurrent", "attention"]},
    "zamba2": {**_FOUR, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 32,
               "mamba_ngroups": 1, "attention_head_dim": 32, "num_mem_blocks": 1, "adapter_rank": 8},
}  # fmt: skip


def network(family: str) -> transformers.PreTrainedModel:
    """Return a random network of a family, the same each time.

    Raises:
        ValueError: no config with these numbers makes one that is small and runs.
    """
    failures = []
    try:
        guesses = [_OWN[family]] if family in _OWN else _guesses(family)
    except Exception as error:  # a family whose default config is none
        raise ValueError(f"no default config: {str(error)[:120]}") from error
    for options in guesses:
        try:
            config = transformers.CONFIG_MAPPING[family](**options)
            with torch.device("meta"):
                size = sum(map(torch.numel, transformers.AutoModelForCausalLM.from_config(config).parameters()))
            if size > _MAX_PARAMETERS:
                raise ValueError(f"{size:,} parameters")
            return _made(config)
        except Exception as error:  # whatever the config or the network of a family says of numbers that do not fit it
            failures.append(f"{type(error).__name__}: {str(error)[:120]}")
    raise ValueError(failures[0])


def _made(config: Any) -> transformers.PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(4.0)  # so that logits are not flat
    with torch.inference_mode():
        made(input_ids=torch.tensor([[5, 6, 7]]))
    return made


def _guesses(family: str) -> list[dict[str, Any]]:
    """Return the options of a config to try in turn."""
    default = transformers.CONFIG_MAPPING[family]()

    def has(name: str) -> bool:
        try:
            return hasattr(default, name)
        except Exception:  # some configs refuse to be read for all layers at once
            return False

    small = {name: value for name, value in _SMALL.items() if has(name)}
    if has("kv_lora_rank"):
        small["num_key_value_heads"] = small.get("num_attention_heads", 4)
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ())) if has("layer_types") else []
    mixed = {**small, "num_hidden_layers": 4, "layer_types": (kinds * 4)[:4]}
    return [*([mixed] if kinds else []), {**small, "num_hidden_layers": 4}, small, {n: v for n, v in small.items() if n in _BASE}]
