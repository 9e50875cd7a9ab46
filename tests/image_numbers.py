"""The numbers of tiny networks of the image-text types of transformers, by their names in the configs, and the layouts of their pixels."""

from __future__ import annotations

from typing import Any

import torch

from tests.image_models import tokenizer

SIDE, PATCH = 16, 4
COUNTS = (4, 16, 1, 64, 5, 17, 8, 2, 36, 6)  # of the tokens of an image
TOKENS = {
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>", "video_token_id": "<|video_pad|>",
    "image_start_token_id": "<|vision_start|>", "image_end_token_id": "<|vision_end|>", "boi_token_id": "<start_of_image>",
    "eoi_token_id": "<end_of_image>", "video_start_token_id": "[IMG]", "video_end_token_id": "[IMG_END]",
    "image_start_id": "<|vision_start|>", "image_end_id": "<|vision_end|>",
    "image_token_id": "<image>", "image_token_index": "<image>", "video_token_index": "<|video_pad|>",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "word_embed_proj_dim": 32, "ffn_dim": 64, "intermediate_size_mlp": 64, "dense_intermediate_size": 64, "sliding_window": 9,
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "global_head_dim": 8, "unpadded_vocab_size": len(tokenizer()),
    # Experts.
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2,
    # Latent and linear attention.
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_n_heads": 2,
    "index_head_dim": 8, "index_topk": 64, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "embed_dim": 32, "width": 32, "d_model": 32, "intermediate_size": 64, "mlp_dim": 64, "num_hidden_layers": 2,
    "num_layers": 2, "depth": 2, "layers": 2, "encoder_layers": 2, "num_attention_heads": 2, "num_heads": 2, "heads": 2,
    "attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "image_size": SIDE, "patch_size": PATCH,
    "out_hidden_size": 32, "output_channels": 32, "projection_dim": 32, "text_hidden_size": 32, "encoder_hidden_size": 32,
    "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32, "mm_hidden_size": 32, "global_attn_indexes": [1],
    "num_position_embeddings": 16, "deepstack_visual_indexes": [0], "fullatt_block_indexes": [1], "spatial_merge_size": 2,
    "temporal_patch_size": 2, "pixel_shuffle_ratio": 0.5, "window_size": 16, "position_embedding_size": 16,
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "hidden_size": 32, "projection_dim": 32, "projector_hidden_size": 32, "mm_tokens_per_image": 4, "downsample_ratio": 0.5,
    "vision_feature_layer": -1, "bos_token_id": 0,
}  # fmt: skip
_CODES: dict[str, Any] = {
    "num_embeddings": 8, "codebook_size": 8, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1,
    "image_token_embed_dim": 32,
}  # fmt: skip
"""Of pictures as codes: eight of them, and few channels."""
_SAM: dict[str, Any] = {"window_size": 2, "patch_size": 2, "initializer_range": 0.02}
# Of types whose numbers depend on each other: of the whole, of the texts, of the images.
OWN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "aria": ({"projector_patch_to_query_dict": {16: 4}}, {}, {}),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), ({}, {}, _SAM)),
    "gemma4_unified": ({}, {}, {"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 32, "output_proj_dims": 32}),
    "kimi_k25": ({"projection_hidden_size": 32}, {}, {}),
    **dict.fromkeys(("muse_glimmer", "muse_spark"), ({"out_hidden_size": 128}, {}, {})),
    "janus": ({}, {}, _CODES),
    "internvl": ({}, {}, {"image_size": [16, 16], "patch_size": [4, 4]}),
    "qianfan_ocr": ({}, {}, {"image_size": [16, 16], "patch_size": [4, 4]}),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), ({"image_grid_pinpoints": [[16, 16]]}, {}, {})),
    "ernie4_5_vl_moe": ({}, {"moe_intermediate_size": [32, 32]}, {}),
    "chameleon": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32}),
    "apertus1p5": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32}),
    "emu3": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32, "hidden_size": 32, "temporal_downsample_factor": 2}),
    "cohere_compass": (
        {},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}},
        {},
    ),
    "nemotron_h_omni": ({"vision_hidden_size": 32}, {}, {"patch_size": 16}),
    "mistral4": ({"head_dim": 16}, {}, {}),
    "dots3_note": ({}, {"head_dim": 16}, {}),
    "fuyu": ({"patch_size": PATCH, "image_size": SIDE}, {}, {}),
    "granite4_vision": ({"image_grid_pinpoints": [[16, 16]], "projector_dropout": 0.0}, {}, {}),
    "mllama": (
        {},
        {"cross_attention_layers": [1]},
        {"intermediate_layers_indices": [0, 1], "num_global_layers": 1, "vision_output_dim": 96},
    ),
    "minimax_m3_vl": ({"merged_hidden_size": 128}, {}, {"hidden_size": 24}),
    "molmo2": ({}, {}, {"image_size": [SIDE, SIDE], "vision_feature_layer": [1, 0]}),
    **dict.fromkeys(("deepseek_ocr2", "unlimited_ocr"), ({}, {}, {**_SAM, "downsample_channels": [32, 32]})),
    "gemma3n": (
        {"vision_soft_tokens_per_image": 4},
        {"intermediate_size": [64, 64], "activation_sparsity_pattern": [0.0, 0.0]},
        {"hidden_size": 64},
    ),
    "fast_vlm": ({}, {}, {"hidden_size": 64}),
    "llama4": ({}, {}, {"intermediate_size": 128}),
    "git": ({"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}, {}, {}),
}
_ID = tokenizer().convert_tokens_to_ids("<image>")
OF_TEXT = ("text", "llm", "language")
# What configs are made with, as it is None otherwise.
GIVEN: dict[str, dict[str, Any]] = {
    **{kind: {"vision_config": {}} for kind in ("gemma4", "gemma4_unified")},
    "hunyuan_vl": {"text_config": {"head_dim": 8}},
    "chameleon": {"vocabulary_map": {"<image>": _ID, **{f"IMGIMG{'ABCDEFGH'[i]}Z": 300 + i for i in range(8)}}},
    "emu3": {"vocabulary_map": {"<image>": _ID, "<|extra_200|>": 310, **{f"<|visual token {i:06}|>": 300 + i for i in range(8)}}},
    "gemma3n": {
        "text_config": {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "vocab_size_per_layer_input": len(tokenizer()),
        },
        "vision_config": {"architecture": "test_convnext", "hidden_size": 64},
        "audio_config": {
            "hidden_size": 32,
            "conf_num_attention_heads": 2,
            "conf_num_hidden_layers": 1,
            "input_feat_size": 16,
            "sscp_conv_channel_size": [4, 4],
        },
    },
    "fast_vlm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "test_convnext", "hidden_size": 64}},
    "perception_lm": {
        "vision_config": {"model_type": "timm_wrapper", "architecture": "test_vit", "model_args": {"img_size": 32, "embed_dim": 64}}
    },
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1], "downsample_rate": "1/2"},
    "mllama": {
        "text_config": {"num_hidden_layers": 2, "cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0, 1]},
    },
    "qwen4_exp": {
        "text_config": {
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "indexed_attention"],
            "hidden_size": 32,
            "head_dim": 8,
            "hc_lowrank": 4,
            "hc_count": 2,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 64,
            "indexer_compress_ratio": 2,
        }
    },
    "deepseek_ocr2": {
        "text_config": {
            "mlp_layer_types": ["dense", "sparse"],
            "num_hidden_layers": 2,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
        }
    },
    "apertus1p5": {
        "text_config": {"vocab_size": len(tokenizer())},
        "image_token_offset": 300,
        "audio_token_offset": 308,
        "vision_config": {**_CODES, "embed_dim": 32, "latent_channels": 32, "attn_resolutions": []},
        "audio_config": {
            "model_type": "wavtokenizer_encoder",
            "codebook_size": 8,
            "codebook_dim": 8,
            "hidden_size": 8,
            "num_filters": 4,
            "num_lstm_layers": 1,
        },
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
        "vision_config": {"model_type": "gemma4_vision"},
    },
    "evolla": {
        "protein_encoder_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
        "resampler_depth": 1,
        "resampler_dim_head": 8,
        "resampler_heads": 2,
        "resampler_num_latents": 4,
        "aligner_num_add_layers": 1,
    },
    "mistral4": {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "molmo2": {"text_config": {"num_hidden_layers": 2}, "adapter_config": {"vision_feature_layer": [1, 0]}},
    "dots3_note": {
        "text_config": {
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "hidden_size": 32,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_q_lora_rank": 16,
            "swa_kv_lora_rank": 16,
            "swa_head_dim": 16,
            "swa_qk_nope_head_dim": 8,
            "swa_v_head_dim": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "head_dim": 16,
            "index_head_dim": 8,
            "index_n_heads": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "vocab_size": len(tokenizer()),
            "intermediate_size": 64,
            "moe_intermediate_size": 32,
            "shared_experts_intermediate_size": 32,
        },
        "vision_config": {
            "adapter_in_dim": 32,
            "hidden_size": 32,
            "adapter_out_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "moe_intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "router_scaling_factor": 1.0,
            "mlp_layer_types": ["dense", "sparse"],
            "patch_size": 4,
        },
        "audio_config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "adapter_input_size": 32,
            "adapter_out_dim": 32,
            "intermediate_size": 64,
            "downsample_hidden_size": 8,
        },
    },
}


_ONE = {"image_grid_thw": torch.tensor([[1, 4, 4]])}
_LARGE = (1, 3, 64, 64)
_GRID = torch.tensor([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]])
# Of types whose tensors are of no other layout: how many tokens an image has, the shape of its pixels, and what is beside them.
LAYOUTS: dict[str, tuple[int, tuple[int, ...], dict[str, torch.Tensor]]] = {
    "gemma3n": (4, _LARGE, {}),
    "fast_vlm": (4, _LARGE, {}),
    "perception_lm": (4, (1, 1, 3, 32, 32), {}),
    "fuyu": (16, (1, 16, 3 * PATCH**2), {}),
    "molmo2": (4, (1, 16, 3 * PATCH**2), {"image_token_pooling": _GRID, "image_grids": torch.tensor([[2, 2, 0, 0]])}),
    "granite_docling": (1, (1, 1, 3, SIDE, SIDE), {"pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool)}),
    "apertus1p5": (64, (1, 3, SIDE, SIDE), {"image_sizes": torch.tensor([[SIDE, SIDE]])}),
    "emu3": (72, (1, 3, SIDE, SIDE), {"image_sizes": torch.tensor([[SIDE, SIDE]])}),
    "mllama": (1, (1, 1, 4, 3, SIDE, SIDE), {"aspect_ratio_ids": torch.tensor([[1]]), "aspect_ratio_mask": torch.tensor([[[1, 0, 0, 0]]])}),
    **dict.fromkeys(("inkling2", "inkling2_loop"), (4, (4, 8, 8, 3), {"image_grid_thw": torch.tensor([[1, 2, 2]])})),
    "granite4_vision": (10, (1, 2, 3, SIDE, SIDE), {"image_sizes": torch.tensor([[SIDE, SIDE]])}),
    "deepseek_ocr2": (145, (1, 3, SIDE, SIDE), {}),
    "unlimited_ocr": (7, (1, 3, SIDE, SIDE), {}),
    "dots3_note": (4, (16, 3 * PATCH**2), _ONE),
    **dict.fromkeys(("qwen4_exp", "minimax_m3_vl"), (4, (16, 6 * PATCH**2), _ONE)),
    "minicpmv4_7": (1, (1, 3, PATCH, 16 * PATCH), {"target_sizes": torch.tensor([[4, 4]])}),
    "inkling_mm_model": (4, (4, 2, PATCH, PATCH, 3), {}),
    "nemotron_h_omni": (4, (16, 768), {"image_grid_hw": torch.tensor([[4, 4]])}),
}


AROUND = ("minicpmv4_7", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
"""Types whose positions are those of an image between two tokens."""
